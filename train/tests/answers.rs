//! A vision-language model that learns to answer, with each kind of encoder. Its numbers are
//! compared with those of f64 in `golden`.

use std::collections::BTreeMap;
use std::ops::Range;

use thalweg::simt::bf16;
use thalweg::{AnyStream, Device, LiveBrand, Stream, Timeline, stream_tags};
use thalweg_collective::{BucketSizes, WorldOptions, ranks};
use thalweg_train::overlap::{DataParallel, micro_batches};
use thalweg_train::{
    AdamW, DeviceBatch, DeviceTextBatch, EncoderConfig, Error, GateConfig, Half, ImageEncoder, Precision, Result,
    Schedule, Tensors, TextBatch, TokenBatch, TokenTransformer, TokenTransformerConfig, VisionEncoder, VisionLanguage,
    VisionLanguageConfig,
};

use crate::support::{Random, bits, devices, distance, golden, numbers};

stream_tags!(Compute, Reduce);

pub(crate) fn config() -> VisionLanguageConfig {
    VisionLanguageConfig::default()
        .with_input_dim(5)
        .with_embed_dim(16)
        .with_num_heads(2)
        .with_depth(1)
        .with_text_embed_dim(24)
        .with_text_num_heads(3)
        .with_text_depth(2)
        .with_vocab_size(17)
        .with_max_tokens(12)
}

/// The same with timm's vision transformer as the encoder, which has 9 patches of 2 x 2 pixels.
fn timm(class_token: bool) -> VisionLanguageConfig {
    let encoder = EncoderConfig::default()
        .with_image_size(6)
        .with_patch_size(2)
        .with_class_token(class_token)
        .with_embed_dim(16)
        .with_num_heads(2)
        .with_depth(1);
    config().with_image_encoder(Some(encoder))
}

/// A model with each kind of encoder.
fn kinds() -> [VisionLanguageConfig; 3] {
    [config(), timm(true), timm(false)]
}

/// Images with questions and answers. The lengths of all differ, except those of pixels.
pub(crate) struct Sample {
    pub(crate) tokens: Vec<f32>,
    pub(crate) position: Vec<f32>,
    pub(crate) cu_seqlens: Vec<i32>,
    pub(crate) ids: Vec<i32>,
    pub(crate) text_cu_seqlens: Vec<i32>,
    pub(crate) question: Vec<i32>,
}

impl Sample {
    pub(crate) fn new(images: usize, seed: u64) -> Self {
        let random = &mut Random(seed);
        let (mut cu_seqlens, mut ends, mut ids, mut question) = (vec![0], vec![0], Vec::new(), Vec::new());
        for n in 0..images {
            cu_seqlens.push(cu_seqlens[n] + 1 + random.below(7) as i32);
            let (asked, said) = (1 + random.below(5), 1 + random.below(6));
            ids.extend((1..asked + said).map(|_| 1 + random.below(16) as i32));
            ids.push(0);
            ends.push(ids.len() as i32);
            question.push(asked as i32);
        }
        let rows = cu_seqlens[images] as usize;
        let (tokens, position) = (random.numbers(5 * rows), random.numbers(2 * rows));
        Self { tokens, position, cu_seqlens, ids, text_cu_seqlens: ends, question }
    }

    /// Returns images and texts for a model.
    fn of(config: VisionLanguageConfig, images: usize, seed: u64) -> Self {
        let sample = Self::new(images, seed);
        if config.image_encoder.is_none() {
            return sample;
        }
        let pixels = Random(seed + 1000).numbers(images * PIXELS);
        Self { tokens: pixels, position: Vec::new(), cu_seqlens: Vec::new(), ..sample }
    }

    /// Returns the tokens of some images, and their positions.
    fn images(&self, which: Range<usize>) -> [Range<usize>; 2] {
        if self.cu_seqlens.is_empty() {
            return [PIXELS * which.start..PIXELS * which.end, 0..0];
        }
        let [start, end] = [which.start, which.end].map(|image| self.cu_seqlens[image] as usize);
        [5 * start..5 * end, 2 * start..2 * end]
    }

    /// Returns some of the images.
    fn part(&self, which: Range<usize>) -> Self {
        let of = |ends: &[i32]| {
            let (ends, first) = (&ends[which.start..=which.end], ends[which.start]);
            (first as usize..ends[which.len()] as usize, ends.iter().map(|end| end - first).collect::<Vec<_>>())
        };
        let (texts, text_cu_seqlens) = of(&self.text_cu_seqlens);
        let [tokens, position] = self.images(which.clone());
        Self {
            tokens: self.tokens[tokens].to_vec(),
            position: self.position[position].to_vec(),
            cu_seqlens: if self.cu_seqlens.is_empty() { Vec::new() } else { of(&self.cu_seqlens).1 },
            ids: self.ids[texts].to_vec(),
            text_cu_seqlens,
            question: self.question[which].to_vec(),
        }
    }

    pub(crate) fn batch(&self) -> TextBatch<'_> {
        let Self { tokens, position, cu_seqlens, ids, text_cu_seqlens, question } = self;
        TextBatch { tokens, position, cu_seqlens, ids, text_cu_seqlens, question }
    }

    /// Returns the tokens and the positions of an image, its question and its answer.
    fn item(&self, n: usize) -> (&[f32], &[f32], &[i32], &[i32]) {
        let texts = self.text_cu_seqlens[n] as usize..self.text_cu_seqlens[n + 1] as usize;
        let (question, answer) = self.ids[texts].split_at(self.question[n] as usize);
        let [tokens, position] = self.images(n..n + 1);
        (&self.tokens[tokens], &self.position[position], question, answer)
    }
}

/// The pixels of an image of [`timm`].
const PIXELS: usize = 3 * 6 * 6;

fn model<S: LiveBrand, E: Precision>(
    s: &Stream<S>,
    config: VisionLanguageConfig,
    clip: Option<f64>,
) -> TokenTransformer<S, E> {
    let mut model = TokenTransformer::answering(s, config, 3).unwrap();
    let schedule = Schedule::Cosine { warmup_steps: 2, steps: 100, end: 0.1 };
    *model.optimizer_mut() = AdamW::default().with_lr(3e-3).with_schedule(schedule).with_max_grad_norm(clip);
    model
}

/// The logits of a batch of unlike lengths are those of each text alone, which the decoder writes
/// with its cache, and a model that has learned answers writes them.
#[test]
fn a_model_writes_the_answers_that_it_learned() {
    for (&device, config) in devices().iter().flat_map(|device| kinds().map(|config| (device, config))) {
        AnyStream::new(device).unwrap().enter(|train| {
            let sample = Sample::of(config, 6, 1);
            let mut learns = model::<_, f32>(train, config, None);
            let found = learns.evaluate(&sample.batch()).unwrap();
            let mut reads = VisionLanguage::<_, f32>::from_tensors(train, &learns.tensors().unwrap()).unwrap();
            let mut rows = found.logits.chunks(17);
            for n in 0..6 {
                let (tokens, position, question, answer) = sample.item(n);
                let prompt = [question, &answer[..answer.len() - 1]].concat();
                let logits = reads.logits(tokens, position, &prompt).unwrap();
                for logits in logits.chunks(17).skip(question.len() - 1) {
                    let off = distance(rows.next().unwrap(), logits);
                    assert!(off < 1e-5, "{device}: text {n} is off by {off:e}");
                }
            }
            assert_eq!((rows.next(), found.predictions.len()), (None, sample.batch().answers()));

            for _ in 0..80 {
                learns.step(&sample.batch()).unwrap();
            }
            let loss = learns.evaluate(&sample.batch()).unwrap().loss.unwrap();
            assert!(loss < 0.1 && found.loss.unwrap() > 2.0, "{device}: {:?}, then {loss}", found.loss);
            let mut writes = VisionLanguage::<_, f32>::from_tensors(train, &learns.tensors().unwrap()).unwrap();
            for n in 0..6 {
                let (tokens, position, question, answer) = sample.item(n);
                assert_eq!(writes.generate(tokens, position, question, 6).unwrap(), answer, "{device}: text {n}");
            }
        });
    }
}

fn restored_is_continued<E: Precision>(device: Device, config: VisionLanguageConfig) {
    AnyStream::new(device).unwrap().enter(|train| {
        let mut straight = model::<_, E>(train, config, Some(0.5));
        straight.set_graphs(false);
        let sizes = [5, 5, 3, 5, 5, 6].into_iter().zip(7..);
        let samples: Vec<_> = sizes.map(|(n, seed)| Sample::of(config, n, seed)).collect();
        // A batch of each shape comes again, so the second model has graphs of some steps.
        for sample in &samples {
            straight.step(&sample.batch()).unwrap();
            straight.step(&sample.batch()).unwrap();
        }
        let folder = tempfile(device, E::ROOM);
        let progress = BTreeMap::from([("epoch".to_owned(), "2".to_owned())]);
        let mut before = model::<_, E>(train, config, Some(0.5));
        for sample in &samples[..3] {
            before.step(&sample.batch()).unwrap();
            before.step(&sample.batch()).unwrap();
        }
        assert!(before.graphs() > 0, "{device}");
        before.checkpoint(&folder, &progress).unwrap();
        let (mut restored, found) = TokenTransformer::<_, E>::restore(train, &folder).unwrap();
        std::fs::remove_file(&folder).unwrap();
        assert_eq!((found, restored.steps()), (progress, 6));
        assert_eq!(restored.vision_language(), before.vision_language());
        *restored.optimizer_mut() = *before.optimizer();
        for sample in &samples[3..] {
            restored.step(&sample.batch()).unwrap();
            restored.step(&sample.batch()).unwrap();
        }
        assert_eq!(bits(&straight.tensors().unwrap()), bits(&restored.tensors().unwrap()), "{device}");
    });
}

fn tempfile(device: Device, room: usize) -> std::path::PathBuf {
    std::env::temp_dir().join(format!("thalweg-answers-{}-{device}-{room}.safetensors", std::process::id()))
}

#[test]
fn a_restored_run_with_graphs_has_the_bits_of_one_without() {
    for (&device, config) in devices().iter().flat_map(|device| kinds().map(|config| (device, config))) {
        restored_is_continued::<f32>(device, config);
        restored_is_continued::<bf16>(device, config);
    }
}

/// Gradients of parts are added, on one stream or two, and the step is that of all images at once.
#[test]
fn micro_batches_are_one_batch() {
    for (&device, config) in devices().iter().flat_map(|device| kinds().map(|config| (device, config))) {
        let [a, b] = [(); 2].map(|()| AnyStream::new(device).unwrap());
        a.enter(|forward| {
            b.enter(|train| {
                // One launch sums the rows of up to 32 images.
                let sample = Sample::of(config, 40, 5);
                let parts = [0..3, 3..4, 4..40].map(|part| sample.part(part));
                let mut whole = model::<_, f32>(train, config, Some(0.5));
                let wanted: Vec<_> = (0..3).map(|_| whole.step(&sample.batch()).unwrap().item().unwrap()).collect();
                let mut seen = Vec::new();
                for slots in 1..3 {
                    let mut model = model::<_, f32>(train, config, Some(0.5));
                    let batches = parts.each_ref().map(Sample::batch);
                    let losses: Vec<_> = (0..3)
                        .map(|_| micro_batches(forward, &mut model, slots, &batches, &Timeline::disabled()))
                        .map(|loss| loss.unwrap().item().unwrap())
                        .collect();
                    assert!(distance(&losses, &wanted) < 1e-5, "{device}: {losses:?}, and not {wanted:?}");
                    seen.push(bits(&model.tensors().unwrap()));
                }
                assert!(seen[0] == seen[1], "{device}: slots change bits");
            });
        });
    }
}

/// Learns from `images` images a step, of which each rank has its share. Returns losses and
/// weights.
fn learned(size: usize, config: VisionLanguageConfig, clip: Option<f64>, half: Option<Half>) -> (Vec<f32>, Tensors) {
    let devices: Vec<_> = (0..size).map(|_| Device::new_cpu().unwrap()).collect();
    let ended = ranks(&devices, WorldOptions::default(), |rank, world| -> Result<_> {
        let comm = world.comm(rank.stream::<Reduce>()?)?;
        let model = model::<_, f32>(&rank.stream::<Compute>()?, config, clip);
        let mut parallel = DataParallel::new(comm, model, BucketSizes::default().with_first(2000).with_others(4000))?;
        parallel.model_mut().freeze(half)?;
        let mut losses = Vec::new();
        for step in 0..4 {
            let all = Sample::of(config, 6, 20 + step);
            let own = 6 / size;
            let share = all.part(rank.index() * own..(rank.index() + 1) * own);
            losses.push(parallel.step(&[share.batch()], all.batch().answers())?.item()?);
        }
        parallel.verify()?;
        Ok((losses, parallel.model().tensors()?))
    });
    ended.into_iter().map(Result::unwrap).next().unwrap()
}

#[test]
fn two_ranks_learn_what_one_learns() {
    let cases = [(None, None), (Some(0.5), None), (None, Some(Half::Encoder)), (Some(0.5), Some(Half::Decoder))];
    for (config, (clip, half)) in [config(), timm(true)].into_iter().flat_map(|config| cases.map(|case| (config, case)))
    {
        let (alone, together) = (learned(1, config, clip, half), learned(2, config, clip, half));
        assert!(distance(&together.0, &alone.0) < 1e-5, "{clip:?}, {half:?}: {:?}, and not {:?}", together.0, alone.0);
        for (name, tensor) in config.init(3).unwrap().tensors {
            let frozen = half.is_some_and(|half| stays(half, &name));
            let [a, b] = [&alone.1, &together.1].map(|file| file.tensors[&name] == tensor);
            assert_eq!([a, b], [frozen; 2], "{clip:?}, {half:?}: {name}");
        }
    }
}

fn stays(half: Half, name: &str) -> bool {
    name.starts_with(if half == Half::Encoder { "encoder." } else { "decoder." })
}

/// A frozen half has the weights that it had, also after a checkpoint, and the other one learns as
/// if nothing were frozen.
#[test]
fn a_frozen_half_stays() {
    for (&device, config) in devices().iter().flat_map(|device| kinds().map(|config| (device, config))) {
        AnyStream::new(device).unwrap().enter(|train| {
            let sample = Sample::of(config, 5, 9);
            let mut free = model::<_, f32>(train, config, None);
            let before = free.tensors().unwrap();
            free.step(&sample.batch()).unwrap();
            let after = free.tensors().unwrap();
            for half in [Half::Encoder, Half::Decoder] {
                let mut model = model::<_, f32>(train, config, None);
                model.freeze(Some(half)).unwrap();
                model.step(&sample.batch()).unwrap();
                let found = model.tensors().unwrap();
                for name in found.tensors.keys() {
                    let wanted = if stays(half, name) { &before } else { &after };
                    assert!(numbers(&found, name) == numbers(wanted, name), "{device}: {half:?} frozen, {name}");
                }
                let file = tempfile(device, 100 + half as usize);
                model.checkpoint(&file, &BTreeMap::new()).unwrap();
                let (mut restored, _) = TokenTransformer::<_, f32>::restore(train, &file).unwrap();
                std::fs::remove_file(&file).unwrap();
                *restored.optimizer_mut() = *model.optimizer();
                for model in [&mut model, &mut restored] {
                    model.step(&sample.batch()).unwrap();
                }
                let [kept, again] = [&model, &restored].map(|model| bits(&model.tensors().unwrap()));
                assert_eq!(kept, again, "{device}: a checkpoint keeps that {half:?} is frozen");
                model.freeze(None).unwrap();
                model.step(&sample.batch()).unwrap();
                let later = model.tensors().unwrap();
                let stayed = later.tensors.iter().filter(|(name, tensor)| found.tensors[*name] == **tensor);
                assert_eq!(stayed.map(|(name, _)| name).collect::<Vec<_>>(), [] as [&String; 0], "{device}: {half:?}");
            }
            let classes = TokenTransformerConfig::default();
            let mut other = TokenTransformer::<_, f32>::new(train, classes, 1).unwrap();
            assert!(matches!(other.freeze(Some(Half::Encoder)), Err(Error::Config(_))));
        });
    }
}

#[test]
fn a_refused_batch_changes_nothing() {
    for &device in devices() {
        AnyStream::new(device).unwrap().enter(|train| {
            let mut model = model::<_, f32>(train, config(), None);
            let sample = Sample::new(3, 2);
            model.step(&sample.batch()).unwrap();
            let before = bits(&model.tensors().unwrap());
            let good = sample.batch();
            let [rows, texts] = [sample.cu_seqlens[3], sample.text_cu_seqlens[3]];
            let mut wrong_ids = sample.ids.clone();
            wrong_ids[1] = 17;
            let long = vec![1; 13];
            for (wrong, name) in [
                (TextBatch { tokens: &good.tokens[1..], ..good }, "tokens"),
                (TextBatch { cu_seqlens: &[0, 2, rows], ..good }, "an image less"),
                (TextBatch { question: &good.question[1..], ..good }, "a question less"),
                (TextBatch { question: &[0, 1, 1], ..good }, "a question without ids"),
                (TextBatch { question: &[texts, 1, 1], ..good }, "no answer"),
                (TextBatch { text_cu_seqlens: &[0, 4, 3, texts], ..good }, "texts that fall"),
                (TextBatch { text_cu_seqlens: &[0, 3, 6, texts + 1], ..good }, "an end behind the ids"),
                (TextBatch { ids: &wrong_ids, ..good }, "an id that is none"),
                (
                    TextBatch {
                        tokens: &good.tokens[..5],
                        position: &good.position[..2],
                        cu_seqlens: &[0, 1],
                        ids: &long,
                        text_cu_seqlens: &[0, 13],
                        question: &[2],
                    },
                    "a text that is too long",
                ),
            ] {
                assert!(matches!(model.step(&wrong), Err(Error::Batch(_))), "{device}: {name}");
            }
            let classes = TokenBatch {
                tokens: good.tokens,
                position: good.position,
                cu_seqlens: good.cu_seqlens,
                labels: &[1, 2, 3],
            };
            assert!(matches!(model.step(&classes), Err(Error::Batch(_))), "{device}: classes");
            let (x, ends) = (train.alloc_zeroed(10).unwrap(), train.alloc_zeroed(3).unwrap());
            let (position, labels) = (train.alloc_zeroed(4).unwrap(), train.alloc_zeroed(2).unwrap());
            let on_device =
                DeviceBatch { tokens: &x, position: &position, cu_seqlens: &ends, labels: &labels, padded: false };
            assert!(matches!(model.step_on(&on_device), Err(Error::Batch(_))), "{device}: classes on the device");
            let mut other =
                TokenTransformer::<_, f32>::new(train, TokenTransformerConfig::default().with_input_dim(5), 1).unwrap();
            assert!(matches!(other.step(&good), Err(Error::Batch(_))), "{device}: texts for a classifier");
            assert_eq!(bits(&model.tensors().unwrap()), before, "{device}");
        });
    }
}

/// The file of a model has timm's names under `encoder.`, and the encoder of a state dict computes
/// in it what it computes alone: all its rows are those of the image.
#[test]
fn weights_of_timm_are_read_and_written() {
    let (state, expected) = (golden("vit-timm/weights"), golden("vit-timm/expected"));
    let encoder = EncoderConfig::from_tensors(&state).unwrap();
    let config = config().with_image_encoder(Some(encoder));
    let mut file = config.init(3).unwrap();
    for (name, tensor) in &state.tensors {
        file.tensors.insert(format!("encoder.{name}"), tensor.clone());
    }
    let (rows, width) = (encoder.rows(), encoder.embed_dim);
    for &device in devices() {
        AnyStream::new(device).unwrap().enter(|train| {
            let mut learns = TokenTransformer::<_, f32>::from_tensors(train, &file).unwrap();
            let before = learns.tensors().unwrap();
            let (weight, bias) = (numbers(&before, "projector.weight"), numbers(&before, "projector.bias"));
            let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
            let projected = |row: &[f32]| {
                let of = |(w, b): (&[f32], &f32)| (dot(row, w) + f64::from(*b)) as f32;
                weight.chunks(width).zip(&bias).map(of).collect::<Vec<_>>()
            };
            let (pixels, features) = (numbers(&expected, "images"), numbers(&expected, "features"));
            let mut encodes = VisionEncoder::<_, f32>::from_tensors(train, &before).unwrap();
            let (none, mut image) = (train.alloc(0).unwrap(), train.alloc(rows * 24).unwrap());
            for (pixels, features) in pixels.chunks(pixels.len() / 3).zip(features.chunks(rows * width)) {
                let wanted: Vec<_> = features.chunks(width).flat_map(projected).collect();
                encodes.encode(&train.upload_blocking(pixels).unwrap(), &none, &mut image).unwrap();
                let off = distance(&train.read_blocking(&image).unwrap(), &wanted);
                assert!(off < 1e-5, "{device}: the rows of an image are off by {off:e}");
            }

            let (ids, text_cu_seqlens) = (&[3, 5, 0, 4, 0, 1, 2, 6, 0], &[0, 3, 5, 9]);
            let texts = TextBatch {
                tokens: &pixels,
                position: &[],
                cu_seqlens: &[],
                ids,
                text_cu_seqlens,
                question: &[1, 1, 2],
            };
            learns.step(&texts).unwrap();
            let mut after = learns.tensors().unwrap();
            assert_eq!(VisionLanguageConfig::from_tensors(&after).unwrap(), *learns.vision_language().unwrap());
            after.tensors = after
                .tensors
                .into_iter()
                .filter_map(|(name, tensor)| Some((name.strip_prefix("encoder.")?.to_owned(), tensor)))
                .collect();
            let without_head = state.tensors.iter().filter(|(name, _)| !name.starts_with("head."));
            for (name, tensor) in without_head.clone() {
                assert_eq!(after.tensors[name].shape, tensor.shape, "{device}: {name}");
                assert_ne!(after.tensors[name].data, tensor.data, "{device}: {name} has learned");
            }
            assert_eq!(after.tensors.len(), without_head.count(), "{device}");
            let found = ImageEncoder::<_, f32>::from_tensors(train, &after).unwrap().encode(&pixels).unwrap();
            let moved = distance(&found.features, &features);
            assert!(moved > 1e-3 && moved < 1.0 && found.logits.is_none(), "{device}: the features moved by {moved:e}");
        });
    }
}

/// Pixels on the device give the bits of pixels from the host, and what does not fit is refused.
#[test]
fn pixels_are_checked_on_the_host_and_on_the_device() {
    for &device in devices() {
        AnyStream::new(device).unwrap().enter(|train| {
            let config = timm(true);
            let sample = Sample::of(config, 3, 2);
            let [mut model, mut other] = [(); 2].map(|()| model::<_, f32>(train, config, None));
            let good = sample.batch();
            for (wrong, name) in [
                (TextBatch { tokens: &good.tokens[1..], ..good }, "a pixel less"),
                (TextBatch { tokens: &good.tokens[..2 * PIXELS], ..good }, "an image less"),
                (TextBatch { tokens: &[], ..good }, "no image"),
                (TextBatch { position: &[0.5; 2], ..good }, "positions"),
                (TextBatch { cu_seqlens: &[0, 9, 18, 27], ..good }, "ends"),
                (TextBatch { question: &good.question[1..], ..good }, "a question less"),
                (Sample::new(3, 2).batch(), "tokens"),
            ] {
                assert!(matches!(model.step(&wrong), Err(Error::Batch(_))), "{device}: {name}");
            }
            let words = |data: &[i32]| train.upload_blocking(data).unwrap();
            let (pixels, none, no_ends) =
                (train.upload_blocking(good.tokens).unwrap(), train.alloc(0).unwrap(), words(&[]));
            let (ids, text_ends, question) = (words(good.ids), words(good.text_cu_seqlens), words(good.question));
            let batch = || DeviceTextBatch {
                tokens: &pixels,
                position: &none,
                cu_seqlens: &no_ends,
                ids: &ids,
                text_cu_seqlens: &text_ends,
                question: &question,
                answers: good.answers(),
                padded: false,
            };
            for (wrong, name) in [
                (DeviceTextBatch { padded: true, ..batch() }, "padding"),
                (DeviceTextBatch { tokens: pixels.slice(1..).unwrap(), ..batch() }, "a pixel less"),
                (DeviceTextBatch { tokens: pixels.slice(PIXELS..).unwrap(), ..batch() }, "an image less"),
                (DeviceTextBatch { position: &pixels, ..batch() }, "positions"),
                (DeviceTextBatch { cu_seqlens: &text_ends, ..batch() }, "ends"),
                (DeviceTextBatch { answers: usize::MAX, ..batch() }, "more answers than ids"),
            ] {
                assert!(matches!(model.step_on(&wrong), Err(Error::Batch(_))), "{device}: {name} on the device");
            }
            // The memory has more room than the batch needs.
            for model in [&mut model, &mut other] {
                model.step(&Sample::of(config, 5, 3).batch()).unwrap();
            }
            for _ in 0..3 {
                model.step(&good).unwrap();
                other.step_on(&batch()).unwrap();
            }
            assert_eq!(bits(&model.tensors().unwrap()), bits(&other.tensors().unwrap()), "{device}");

            let gate = config.with_gate(Some(GateConfig::default()));
            let refused = TokenTransformer::<_, f32>::answering(train, gate, 1);
            assert!(matches!(refused, Err(Error::Config(_))), "{device}: a gate");
        });
    }
}
