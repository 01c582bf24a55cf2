//! Relevance that learns: the gradients of query head and balancer against the differences of an
//! f64 program, written from `docs/training.md`; a task that only they can learn; and models with a
//! gate in all that trains models. `golden` has the files of a model that answers.

use std::collections::BTreeMap;

use thalweg::simt::bf16;
use thalweg::{AnyStream, Device, LiveBrand, Size, Stream, Timeline, stream_tags};
use thalweg_collective::{BucketSizes, WorldOptions, ranks};
use thalweg_train::overlap::{DataParallel, micro_batches};
use thalweg_train::{
    AdamW, DeviceBatch, DevicePatches, DeviceTextBatch, Error, GateConfig, Gated, Half, Patches, Precision, Result,
    TextBatch, TokenBatch, TokenTransformer, TokenTransformerConfig,
};
use thalweg_vision::{Head, Image, PLANES, Pipeline, Query, TokenParams};

use crate::answers::{Sample as Texts, config as answering};
use crate::support::{Random, Sample, base_config, bits, devices, distance, numbers, on_each_device};

stream_tags!(Compute, Reduce);

const DIM: usize = 6;

/// The patches of a batch: some have no token.
struct Owned {
    features: Vec<f32>,
    entropy: Vec<f32>,
    salience: Vec<f32>,
    cu_patches: Vec<i32>,
    patch: Vec<i32>,
    query: Vec<f32>,
}

impl Owned {
    fn new(cu_seqlens: &[i32], seed: u64) -> Self {
        let random = &mut Random(seed);
        let (mut cu_patches, mut patch) = (vec![0], Vec::new());
        for rows in cu_seqlens.windows(2) {
            let (start, n) = (cu_patches[cu_patches.len() - 1], 1 + random.below(5));
            let mut own: Vec<_> = (rows[0]..rows[1]).map(|_| start + random.below(n) as i32).collect();
            own.sort_unstable();
            patch.extend(own);
            cu_patches.push(start + n as i32);
        }
        let (images, n) = (cu_seqlens.len() - 1, cu_patches[cu_patches.len() - 1] as usize);
        let mut unit = |len: usize| random.numbers(len).iter().map(|v| 0.5 + 0.5 * v).collect::<Vec<_>>();
        let (features, entropy, salience) = (unit(13 * n), unit(n), unit(n));
        Self { features, entropy, salience, cu_patches, patch, query: random.numbers(DIM * images) }
    }

    fn patches(&self) -> Patches<'_> {
        let Self { features, entropy, salience, cu_patches, patch, query } = self;
        Patches { features, entropy, salience, cu_patches, patch, query }
    }
}

fn gate(tensions: bool) -> Option<GateConfig> {
    Some(GateConfig::default().with_query_dim(DIM).with_tensions(tensions))
}

/// A classifier in f64: gate, embedding, norm, mean and head. Its weights have the names of files.
struct Plain {
    weights: BTreeMap<String, Vec<f64>>,
    tensions: bool,
}

impl Plain {
    fn linear(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let [weight, bias] = ["weight", "bias"].map(|part| &self.weights[&format!("{name}.{part}")]);
        let dot = |row: &[f64]| row.iter().zip(x).map(|(w, x)| w * x).sum::<f64>();
        weight.chunks(x.len()).zip(bias).map(|(row, b)| dot(row) + b).collect()
    }

    /// The gates of the patches of an image.
    fn gates(&self, owned: &Owned, image: usize) -> Vec<f64> {
        let relu = |v: Vec<f64>| v.into_iter().map(|v| v.max(0.0)).collect::<Vec<_>>();
        let wide = |v: &[f32]| v.iter().map(|&v| f64::from(v)).collect::<Vec<_>>();
        let patches = owned.cu_patches[image] as usize..owned.cu_patches[image + 1] as usize;
        let query = wide(&owned.query[DIM * image..DIM * (image + 1)]);
        let coupled = |i: usize| {
            let hidden =
                self.linear("participatory_scorer.texture_proj.0", &wide(&owned.features[13 * i..13 * i + 13]));
            let z = self.linear("participatory_scorer.texture_proj.2", &relu(hidden));
            let norm = |v: &[f64]| v.iter().map(|v| v * v).sum::<f64>().sqrt();
            let along: f64 = z.iter().zip(&query).map(|(z, q)| z * q).sum();
            (1.0 + along / (norm(&z) * norm(&query))) / 2.0
        };
        let coupled: Vec<_> = patches.clone().map(coupled).collect();
        let maps = [wide(&owned.entropy[patches.clone()]), wide(&owned.salience[patches]), coupled];
        let mut seen = Vec::new();
        for map in &maps {
            let (n, mean) = (map.len() as f64, map.iter().sum::<f64>() / map.len() as f64);
            let squares: f64 = map.iter().map(|v| (v - mean).powi(2)).sum();
            let deviation = if n > 1.0 { (squares / (n - 1.0)).sqrt() } else { 0.0 };
            seen.extend([mean, map.iter().copied().fold(f64::MIN, f64::max), deviation]);
        }
        seen.extend(query);
        let first = relu(self.linear("balancer.weight_predictor.0", &seen));
        let second = relu(self.linear("balancer.weight_predictor.2", &first));
        let said = self.linear("balancer.weight_predictor.4", &second);
        let mix = if self.tensions {
            let [scope, tempering, priority] = [0, 1, 2].map(|k| 1.0 / (1.0 + (-said[k]).exp()));
            // Information and salience; coupling and information; salience and coupling.
            [scope + (1.0 - tempering), (1.0 - scope) + priority, tempering + (1.0 - priority)].map(|v| v / 3.0)
        } else {
            let sum: f64 = said.iter().map(|v| v.exp()).sum();
            [0, 1, 2].map(|k| said[k].exp() / sum)
        };
        (0..maps[0].len()).map(|i| (0..3).map(|k| mix[k] * maps[k][i]).sum()).collect()
    }

    fn loss(&self, sample: &Sample, owned: &Owned) -> f64 {
        let inputs = sample.tokens.len() / (sample.position.len() / 2);
        let images = sample.labels.len();
        let loss = |b: usize| {
            let gates = self.gates(owned, b);
            let rows = sample.cu_seqlens[b] as usize..sample.cu_seqlens[b + 1] as usize;
            let count = rows.len() as f64;
            let mut pool = vec![0.0; self.weights["norm.weight"].len()];
            for row in rows {
                let gate = gates[(owned.patch[row] - owned.cu_patches[b]) as usize];
                let token: Vec<_> =
                    sample.tokens[inputs * row..inputs * (row + 1)].iter().map(|&v| gate * f64::from(v)).collect();
                let mut x = self.linear("embed", &token);
                for (x, w) in x.iter_mut().zip(self.weights["position.weight"].chunks(2)) {
                    *x += w[0] * f64::from(sample.position[2 * row]) + w[1] * f64::from(sample.position[2 * row + 1]);
                }
                let mean = x.iter().sum::<f64>() / x.len() as f64;
                let root = (x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / x.len() as f64 + 1e-5).sqrt();
                for (k, x) in x.iter().enumerate() {
                    pool[k] +=
                        ((x - mean) / root * self.weights["norm.weight"][k] + self.weights["norm.bias"][k]) / count;
                }
            }
            let logits = self.linear("head", &pool);
            let sum: f64 = logits.iter().map(|v| v.exp()).sum();
            sum.ln() - logits[sample.labels[b] as usize]
        };
        (0..images).map(loss).sum::<f64>() / images as f64
    }

    /// The gradients of some elements of a tensor, by differences to both sides.
    fn gradient(&mut self, name: &str, places: &[usize], sample: &Sample, owned: &Owned) -> Vec<f32> {
        let step = 1e-5;
        let mut found = Vec::new();
        for &k in places {
            let mut side = |by: f64| {
                self.weights.get_mut(name).unwrap()[k] += by;
                let loss = self.loss(sample, owned);
                self.weights.get_mut(name).unwrap()[k] -= by;
                loss
            };
            found.push(((side(step) - side(-step)) / (2.0 * step)) as f32);
        }
        found
    }
}

/// Checks the gradient of each tensor of a classifier with a gate.
fn agrees<E: Precision>(tensions: bool, bound: f64) {
    let config = base_config().with_depth(0).with_gate(gate(tensions));
    let sample = Sample::new(5, 4, 3, 3);
    let owned = Owned::new(&sample.cu_seqlens, 7);
    on_each_device(|s| {
        let mut model = TokenTransformer::<_, E>::new(s, config, 1).unwrap();
        // Biases that are not zero, so that no gradient is missed where they are.
        let mut file = model.tensors().unwrap();
        let (names, random): (Vec<_>, _) = (file.tensors.keys().cloned().collect(), &mut Random(5));
        for name in &names {
            let drawn: Vec<_> = numbers(&file, name).iter().map(|v| v + 0.1 * random.number()).collect();
            let shape = file.tensors[name].shape.clone();
            file.insert(name.clone(), &shape, drawn);
        }
        model = TokenTransformer::from_tensors(s, &file).unwrap();
        let found = model.gradients(&Gated { batch: sample.batch(), patches: owned.patches() }).unwrap();
        let wide = |name: &String| numbers(&file, name).iter().map(|&v| f64::from(v)).collect();
        let weights = names.iter().map(|name| (name.clone(), wide(name))).collect();
        let mut plain = Plain { weights, tensions };
        for name in &names {
            let got = numbers(&found, name);
            let places: Vec<_> = (0..got.len()).step_by(1 + got.len() / 11).collect();
            let wanted = plain.gradient(name, &places, &sample, &owned);
            let got: Vec<_> = places.iter().map(|&k| got[k]).collect();
            let off = distance(&got, &wanted);
            assert!(off <= bound, "tensions {tensions}: the gradient of {name} is off by {off:.1e}");
        }
    });
}

#[test]
fn gradients_through_the_gate_are_those_of_differences() {
    agrees::<f32>(false, 2e-4);
    agrees::<f32>(true, 2e-4);
    agrees::<bf16>(true, 5e-2);
}

/// Images of two patches with a token each, of the class +1 or -1. The query says which of the two
/// is meant, by its feature, and nothing else does: the model sees tokens only.
fn asked(images: usize, seed: u64) -> (Sample, Owned) {
    let random = &mut Random(seed);
    let mut sample = Sample::new(1, 2, images, seed);
    let mut owned = Owned::new(&vec![0; images + 1], seed);
    let (patches, ends) = (0..2 * images as i32, (0..=images as i32).map(|b| 2 * b));
    (sample.position, sample.cu_seqlens) = (vec![0.5; 4 * images], ends.clone().collect());
    (owned.cu_patches, owned.patch) = (ends.collect(), patches.collect());
    (owned.entropy, owned.salience) = (vec![0.5; 2 * images], vec![0.5; 2 * images]);
    (owned.features, owned.query) = (vec![0.0; 26 * images], vec![0.0; DIM * images]);
    sample.tokens.clear();
    for b in 0..images {
        let (meant, first) = (random.below(2), random.below(2));
        for k in 0..2 {
            owned.features[13 * (2 * b + k) + (first + k) % 2] = 1.0;
            let class = random.below(2) as f32;
            sample.tokens.push(2.0 * class - 1.0);
            if (first + k) % 2 == meant {
                sample.labels[b] = class as i32;
            }
        }
        owned.query[DIM * b + meant] = 1.0;
    }
    (sample, owned)
}

/// Without the gate, a model cannot know which of two patches is meant, and half of the images have
/// patches of two classes. With it, the head learns what the query means.
#[test]
fn a_head_learns_what_a_query_means() {
    for tensions in [false, true] {
        let config = TokenTransformerConfig::default().with_input_dim(1).with_embed_dim(16).with_num_heads(2);
        let config = config.with_depth(0).with_num_classes(2).with_gate(gate(tensions));
        let (sample, owned) = asked(20, 3);
        let batch = Gated { batch: sample.batch(), patches: owned.patches() };
        let (other, others) = asked(20, 4);
        let fresh = Gated { batch: other.batch(), patches: others.patches() };
        for &device in devices() {
            AnyStream::new(device).unwrap().enter(|s| {
                let mut model = TokenTransformer::<_, f32>::new(s, config, 2).unwrap();
                *model.optimizer_mut() = AdamW::default().with_lr(3e-2).with_weight_decay(0.0);
                for _ in 0..40 {
                    model.step(&batch).unwrap();
                }
                let found = model.evaluate(&fresh).unwrap();
                let right = found.predictions.iter().zip(&other.labels).filter(|(a, b)| a == b).count();
                assert!(right >= 19, "{device}, tensions {tensions}: {right} of 20, loss {:?}", found.loss);
            });
        }
    }
}

/// Answers to questions about images, with their patches.
fn texts(images: usize, seed: u64) -> (Texts, Owned) {
    let texts = Texts::new(images, seed);
    let owned = Owned::new(&texts.cu_seqlens, seed + 100);
    (texts, owned)
}

fn learner<S: LiveBrand, E: Precision>(s: &Stream<S>, clip: Option<f64>) -> TokenTransformer<S, E> {
    let mut model = TokenTransformer::answering(s, answering().with_gate(gate(true)), 3).unwrap();
    *model.optimizer_mut() = AdamW::default().with_lr(3e-3).with_max_grad_norm(clip);
    model
}

/// The tokens of an image are seen as multiplied: a model without a gate finds the same in them.
#[test]
fn gated_tokens_are_what_the_model_sees() {
    on_each_device(|s| {
        let (texts, owned) = texts(4, 1);
        let batch = Gated { batch: texts.batch(), patches: owned.patches() };
        let mut model = learner::<_, f32>(s, None);
        let file = model.tensors().unwrap();
        let weights = file.tensors.keys().map(|name| (name.clone(), numbers(&file, name)));
        let weights = weights.map(|(name, v)| (name, v.iter().map(|&v| f64::from(v)).collect())).collect();
        let plain = Plain { weights, tensions: true };
        let seen = model.gated(&batch).unwrap();
        let gates: Vec<_> = (0..4).flat_map(|b| plain.gates(&owned, b)).collect();
        let token = |(k, v): (usize, &f32)| (f64::from(*v) * gates[owned.patch[k / 5] as usize]) as f32;
        let wanted: Vec<_> = texts.tokens.iter().enumerate().map(token).collect();
        assert!(distance(&seen, &wanted) < 1e-6);

        let mut bare = file.clone();
        bare.tensors.retain(|name, _| !name.starts_with("participatory") && !name.starts_with("balancer"));
        let mut bare = TokenTransformer::<_, f32>::from_tensors(s, &bare).unwrap();
        let plain = TextBatch { tokens: &seen, ..texts.batch() };
        let [a, b] = [model.evaluate(&batch).unwrap(), bare.evaluate(&plain).unwrap()];
        assert_eq!(a, b);
    });
}

/// Graphs, micro-batches and checkpoints change no bit of head and balancer, and a frozen encoder
/// keeps both.
#[test]
fn a_gate_learns_wherever_a_model_does() {
    for &device in devices() {
        AnyStream::new(device).unwrap().enter(|s| {
            let steps: Vec<_> = [4, 4, 4, 3, 4].into_iter().zip(5..).map(|(n, seed)| texts(n, seed)).collect();
            let batches: Vec<_> =
                steps.iter().map(|(texts, owned)| Gated { batch: texts.batch(), patches: owned.patches() }).collect();
            let mut straight = learner::<_, bf16>(s, Some(0.5));
            straight.set_graphs(false);
            let mut before = learner::<_, bf16>(s, Some(0.5));
            for batch in &batches {
                straight.step(batch).unwrap();
                straight.step(batch).unwrap();
            }
            let file = std::env::temp_dir().join(format!("thalweg-gate-{}-{device}.safetensors", std::process::id()));
            for batch in &batches[..2] {
                before.step(batch).unwrap();
                before.step(batch).unwrap();
            }
            assert!(before.graphs() > 0, "{device}");
            before.checkpoint(&file, &BTreeMap::new()).unwrap();
            let (mut restored, _) = TokenTransformer::<_, bf16>::restore(s, &file).unwrap();
            std::fs::remove_file(&file).unwrap();
            *restored.optimizer_mut() = *before.optimizer();
            for batch in &batches[2..] {
                restored.step(batch).unwrap();
                restored.step(batch).unwrap();
            }
            let [a, b] = [&straight, &restored].map(|model| bits(&model.tensors().unwrap()));
            assert!(a == b, "{device}: a checkpoint or a graph changes bits");

            let mut seen = Vec::new();
            for slots in 1..3 {
                let mut model = learner::<_, f32>(s, Some(0.5));
                micro_batches(s, &mut model, slots, &batches, &Timeline::disabled()).unwrap();
                seen.push(bits(&model.tensors().unwrap()));
            }
            assert!(seen[0] == seen[1], "{device}: slots change bits");

            let mut frozen = learner::<_, f32>(s, None);
            frozen.freeze(Some(Half::Encoder)).unwrap();
            let first = frozen.tensors().unwrap();
            frozen.step(&batches[0]).unwrap();
            let later = frozen.tensors().unwrap();
            for name in first.tensors.keys() {
                let learns = name.starts_with("projector") || name.starts_with("decoder");
                assert_eq!(first.tensors[name] != later.tensors[name], learns, "{device}: {name}");
            }
        });
    }
}

#[test]
fn two_ranks_learn_the_gate_that_one_learns() {
    let learned = |size: usize| {
        let devices: Vec<_> = (0..size).map(|_| Device::new_cpu().unwrap()).collect();
        let ended = ranks(&devices, WorldOptions::default(), |rank, world| -> Result<_> {
            let comm = world.comm(rank.stream::<Reduce>()?)?;
            let model = learner::<_, f32>(&rank.stream::<Compute>()?, Some(0.5));
            let mut parallel = DataParallel::new(comm, model, BucketSizes::default().with_first(2000))?;
            let parts = [texts(2, 20), texts(3, 21)];
            let batches: Vec<_> =
                parts.iter().map(|(texts, owned)| Gated { batch: texts.batch(), patches: owned.patches() }).collect();
            let all = parts.iter().map(|(texts, _)| texts.batch().answers()).sum();
            let own = if size == 1 { &batches[..] } else { &batches[rank.index()..=rank.index()] };
            for _ in 0..2 {
                parallel.step(own, all)?;
            }
            parallel.verify()?;
            parallel.model().tensors()
        });
        ended.into_iter().map(std::result::Result::unwrap).next().unwrap()
    };
    let (alone, together) = (learned(1), learned(2));
    let first = answering().with_gate(gate(true)).init(3).unwrap();
    // The bias of keys has no gradient, and AdamW takes the sign of what rounding leaves of it.
    for name in alone.tensors.keys().filter(|name| !name.ends_with("qkv.bias")) {
        let [a, b, first] = [&alone, &together, &first].map(|file| numbers(file, name));
        let off = distance(&b, &a);
        assert!(off < 1e-4, "{name} is off by {off:.1e}");
        assert!(a != first, "{name} has learned nothing");
    }
}

/// The head of the file of a model makes the scores and weights in `thalweg-vision` of which the
/// model makes its gates.
#[test]
fn the_pipeline_scores_as_the_gate_does() {
    for &device in devices() {
        AnyStream::new(device).unwrap().enter(|s| {
            for tensions in [false, true] {
                let config = base_config().with_input_dim(PLANES).with_gate(gate(tensions));
                let mut model = TokenTransformer::<_, f32>::new(s, config, 9).unwrap();
                let path =
                    std::env::temp_dir().join(format!("thalweg-head-{}-{device}.safetensors", std::process::id()));
                model.save(&path).unwrap();
                let head = Head::from_safetensors(&std::fs::read(&path).unwrap()).unwrap();
                std::fs::remove_file(&path).unwrap();
                assert_eq!(head.has_tensions(), tensions);
                let mut random = Random(4);
                let query = random.numbers(DIM);
                let params = TokenParams::default().with_patch(8).with_budget(96).with_sides(2..=4);
                let pipeline =
                    Pipeline::new(device, params).unwrap().with_query(&head, &Query::new(&query).unwrap()).unwrap();
                let Size { height, width } = Size::new(40, 56);
                let pixels = (0..3 * height * width).map(|_| random.word() as u8).collect();
                let image = Image::new(height, width, pixels).unwrap();
                let set = pipeline.run(&[image]).remove(0).unwrap();
                let owner = set.cu_seqlens.windows(2).zip(&set.patch_id);
                let patch: Vec<_> =
                    owner.flat_map(|(w, &id)| std::iter::repeat_n(id, (w[1] - w[0]) as usize)).collect();
                let patches = Patches {
                    features: &set.features,
                    entropy: &set.entropy,
                    salience: &set.salience,
                    cu_patches: &[0, set.entropy.len() as i32],
                    patch: &patch,
                    query: &query,
                };
                let cu_seqlens = [0, set.len() as i32];
                let (tokens, position) = (&set.tokens[..], &set.position[..]);
                let batch = TokenBatch { tokens, position, cu_seqlens: &cu_seqlens, labels: &[0] };
                let seen = model.gated(&Gated { batch, patches }).unwrap();
                let (mix, coupled) = (set.mix.unwrap(), set.participatory.unwrap());
                let gate = |i: usize| mix[0] * set.entropy[i] + mix[1] * set.salience[i] + mix[2] * coupled[i];
                let wanted: Vec<_> =
                    set.tokens.iter().enumerate().map(|(k, v)| v * gate(patch[k / PLANES] as usize)).collect();
                let off = distance(&seen, &wanted);
                assert!(off < 1e-5, "{device}, tensions {tensions}: off by {off:.1e}");
            }
        });
    }
}

#[test]
fn patches_that_do_not_fit_are_refused() {
    on_each_device(|s| {
        let (texts, owned) = texts(3, 2);
        let (good, mut model) = (owned.patches(), learner::<_, f32>(s, None));
        let before = bits(&model.tensors().unwrap());
        let (rows, n) = (owned.patch.len(), owned.entropy.len() as i32);
        let mut falls = owned.patch.clone();
        falls[rows - 1] = 0;
        let mut others = owned.patch.clone();
        others[texts.cu_seqlens[1] as usize - 1] = owned.cu_patches[1];
        let empty = [0, owned.cu_patches[1], owned.cu_patches[1], n];
        for (wrong, name) in [
            (Patches { features: &good.features[1..], ..good }, "features"),
            (Patches { salience: &good.salience[1..], ..good }, "salience"),
            (Patches { query: &good.query[1..], ..good }, "query"),
            (Patches { patch: &good.patch[1..], ..good }, "a token less"),
            (Patches { cu_patches: &good.cu_patches[..3], ..good }, "an image less"),
            (Patches { cu_patches: &empty, ..good }, "an image without patches"),
            (Patches { patch: &falls, ..good }, "patches that fall"),
            (Patches { patch: &others, ..good }, "a token of another image's patch"),
        ] {
            let found = model.step(&Gated { batch: texts.batch(), patches: wrong });
            assert!(matches!(found, Err(Error::Batch(_))), "{name}: {found:?}");
        }
        let bare = model.step(&texts.batch());
        assert!(matches!(bare, Err(Error::Batch(_))), "no patches: {bare:?}");
        assert_eq!(bits(&model.tensors().unwrap()), before);
        let mut plain = TokenTransformer::<_, f32>::answering(s, answering(), 1).unwrap();
        let found = plain.step(&Gated { batch: texts.batch(), patches: good });
        assert!(matches!(found, Err(Error::Batch(_))), "no gate: {found:?}");
        let config = base_config().with_gate(Some(GateConfig::default().with_query_dim(0)));
        assert!(matches!(TokenTransformer::<_, f32>::new(s, config, 1), Err(Error::Config(_))));
    });
}

/// A classifier with a gate learns from a batch on the device what it learns from one of the host.
/// What does not fit is refused, and changes nothing.
#[test]
fn patches_on_the_device_are_those_of_the_host_or_refused() {
    on_each_device(|s| {
        let (sample, owned) = asked(3, 2);
        let config = TokenTransformerConfig::default().with_input_dim(1).with_embed_dim(16).with_num_heads(2);
        let config = config.with_depth(0).with_num_classes(2).with_gate(gate(true));
        let model = || TokenTransformer::<_, f32>::new(s, config, 2).unwrap();
        let (mut by_host, mut by_device) = (model(), model());
        let floats = |values: &[f32]| s.upload_blocking(values).unwrap();
        let words = |values: &[i32]| s.upload_blocking(values).unwrap();
        let (tokens, position) = (&floats(&sample.tokens), &floats(&sample.position));
        let (ends, labels) = (&words(&sample.cu_seqlens), &words(&sample.labels));
        // Each of the six patches is selected, and has one token.
        let (starts, ids) = (&words(&[0, 1, 2, 3, 4, 5, 6]), &words(&owned.patch));
        let (features, query, cu_patches) =
            (&floats(&owned.features), &floats(&owned.query), &words(&owned.cu_patches));
        let (entropy, salience) = (&floats(&owned.entropy), &floats(&owned.salience));
        let batch = || DeviceBatch { tokens, position, cu_seqlens: ends, labels, padded: false };
        let patches =
            || DevicePatches { features, entropy, salience, cu_patches, cu_seqlens: starts, patch_id: ids, query };
        for _ in 0..3 {
            by_host.step(&Gated { batch: sample.batch(), patches: owned.patches() }).unwrap();
            by_device.step_on(&Gated { batch: batch(), patches: patches() }).unwrap();
        }
        let learned = bits(&by_device.tensors().unwrap());
        assert_eq!(learned, bits(&by_host.tensors().unwrap()));

        let (few, none) = (floats(&[0.5; 2]), words(&[]));
        for (wrong, name) in [
            (DevicePatches { features: query, ..patches() }, "features"),
            (DevicePatches { salience: &few, ..patches() }, "salience"),
            (DevicePatches { entropy: &few, ..patches() }, "entropy"),
            (DevicePatches { cu_patches: starts, ..patches() }, "an image more"),
            (DevicePatches { cu_seqlens: ids, ..patches() }, "a selected patch less"),
            (DevicePatches { query: features, ..patches() }, "query"),
            (DevicePatches { cu_seqlens: &words(&[0]), patch_id: &none, ..patches() }, "no patch selected"),
        ] {
            let found = by_device.step_on(&Gated { batch: batch(), patches: wrong });
            assert!(matches!(found, Err(Error::Batch(_))), "{name}: {found:?}");
        }
        let bare = by_device.step_on(&batch());
        assert!(matches!(bare, Err(Error::Batch(_))), "no patches: {bare:?}");
        assert_eq!(bits(&by_device.tensors().unwrap()), learned);

        let mut answers = TokenTransformer::<_, f32>::answering(s, answering(), 1).unwrap();
        let texts = Texts::new(2, 5);
        let (tokens, position, cu_seqlens) =
            (&floats(&texts.tokens), &floats(&texts.position), &words(&texts.cu_seqlens));
        let (ids, text_cu_seqlens) = (&words(&texts.ids), &words(&texts.text_cu_seqlens));
        let question = &words(&texts.question);
        let count = texts.batch().answers();
        let batch = |answers| {
            let (padded, text_cu_seqlens) = (false, text_cu_seqlens);
            DeviceTextBatch { tokens, position, cu_seqlens, ids, text_cu_seqlens, question, answers, padded }
        };
        answers.step_on(&batch(count)).unwrap();
        for (wrong, name) in [
            (batch(1), "fewer answers than images"),
            (batch(texts.ids.len()), "no ids of questions"),
            (DeviceTextBatch { question: text_cu_seqlens, ..batch(count) }, "a question more"),
            (DeviceTextBatch { text_cu_seqlens: question, ..batch(count) }, "a text less"),
        ] {
            let found = answers.step_on(&wrong);
            assert!(matches!(found, Err(Error::Batch(_))), "{name}: {found:?}");
        }
    });
}
