//! A vision-language model that learns to answer. Its numbers are compared with those of f64 in
//! `golden`.

use std::collections::BTreeMap;
use std::ops::Range;

use thalweg::simt::bf16;
use thalweg::{AnyStream, Device, LiveBrand, Stream, Timeline, stream_tags};
use thalweg_collective::{BucketSizes, WorldOptions, ranks};
use thalweg_train::overlap::{DataParallel, micro_batches};
use thalweg_train::{
    AdamW, DeviceBatch, Error, Half, Precision, Result, Schedule, Tensors, TextBatch, TokenBatch, TokenTransformer,
    TokenTransformerConfig, VisionLanguage, VisionLanguageConfig,
};

use crate::support::{Random, bits, devices, distance, numbers};

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

/// Images with questions and answers. The lengths of all differ.
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

    /// Returns some of the images.
    fn part(&self, which: Range<usize>) -> Self {
        let of = |ends: &[i32]| {
            let (ends, first) = (&ends[which.start..=which.end], ends[which.start]);
            (first as usize..ends[which.len()] as usize, ends.iter().map(|end| end - first).collect::<Vec<_>>())
        };
        let ((rows, cu_seqlens), (texts, text_cu_seqlens)) = (of(&self.cu_seqlens), of(&self.text_cu_seqlens));
        Self {
            tokens: self.tokens[5 * rows.start..5 * rows.end].to_vec(),
            position: self.position[2 * rows.start..2 * rows.end].to_vec(),
            cu_seqlens,
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
        let range = |ends: &[i32]| ends[n] as usize..ends[n + 1] as usize;
        let (rows, texts) = (range(&self.cu_seqlens), range(&self.text_cu_seqlens));
        let (question, answer) = self.ids[texts].split_at(self.question[n] as usize);
        let (tokens, position) = (5 * rows.start..5 * rows.end, 2 * rows.start..2 * rows.end);
        (&self.tokens[tokens], &self.position[position], question, answer)
    }
}

fn model<S: LiveBrand, E: Precision>(s: &Stream<S>, clip: Option<f64>) -> TokenTransformer<S, E> {
    let mut model = TokenTransformer::answering(s, config(), 3).unwrap();
    let schedule = Schedule::Cosine { warmup_steps: 2, steps: 100, end: 0.1 };
    *model.optimizer_mut() = AdamW::default().with_lr(3e-3).with_schedule(schedule).with_max_grad_norm(clip);
    model
}

/// The logits of a batch of unlike lengths are those of each text alone, which the decoder writes
/// with its cache, and a model that has learned answers writes them.
#[test]
fn a_model_writes_the_answers_that_it_learned() {
    for &device in devices() {
        AnyStream::new(device).unwrap().enter(|train| {
            let sample = Sample::new(6, 1);
            let mut learns = model::<_, f32>(train, None);
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

fn restored_is_continued<E: Precision>(device: Device) {
    AnyStream::new(device).unwrap().enter(|train| {
        let mut straight = model::<_, E>(train, Some(0.5));
        straight.set_graphs(false);
        let samples: Vec<_> = [5, 5, 3, 5, 5, 6].into_iter().zip(7..).map(|(n, seed)| Sample::new(n, seed)).collect();
        // A batch of each shape comes again, so the second model has graphs of some steps.
        for sample in &samples {
            straight.step(&sample.batch()).unwrap();
            straight.step(&sample.batch()).unwrap();
        }
        let folder = tempfile(device, E::ROOM);
        let progress = BTreeMap::from([("epoch".to_owned(), "2".to_owned())]);
        let mut before = model::<_, E>(train, Some(0.5));
        for sample in &samples[..3] {
            before.step(&sample.batch()).unwrap();
            before.step(&sample.batch()).unwrap();
        }
        assert!(before.graphs() > 0, "{device}");
        before.checkpoint(&folder, &progress).unwrap();
        let (mut restored, found) = TokenTransformer::<_, E>::restore(train, &folder).unwrap();
        std::fs::remove_file(&folder).unwrap();
        assert_eq!((found, restored.steps(), restored.vision_language()), (progress, 6, Some(&config())));
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
    for &device in devices() {
        restored_is_continued::<f32>(device);
        restored_is_continued::<bf16>(device);
    }
}

/// Gradients of parts are added, on one stream or two, and the step is that of all images at once.
#[test]
fn micro_batches_are_one_batch() {
    for &device in devices() {
        let [a, b] = [(); 2].map(|()| AnyStream::new(device).unwrap());
        a.enter(|forward| {
            b.enter(|train| {
                let sample = Sample::new(8, 5);
                let parts = [0..3, 3..4, 4..8].map(|part| sample.part(part));
                let mut whole = model::<_, f32>(train, Some(0.5));
                let wanted: Vec<_> = (0..3).map(|_| whole.step(&sample.batch()).unwrap().item().unwrap()).collect();
                let mut seen = Vec::new();
                for slots in 1..3 {
                    let mut model = model::<_, f32>(train, Some(0.5));
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
fn learned(size: usize, clip: Option<f64>, half: Option<Half>) -> (Vec<f32>, Tensors) {
    let devices: Vec<_> = (0..size).map(|_| Device::new_cpu().unwrap()).collect();
    let ended = ranks(&devices, WorldOptions::default(), |rank, world| -> Result<_> {
        let comm = world.comm(rank.stream::<Reduce>()?)?;
        let model = model::<_, f32>(&rank.stream::<Compute>()?, clip);
        let mut parallel = DataParallel::new(comm, model, BucketSizes::default().with_first(2000).with_others(4000))?;
        parallel.model_mut().freeze(half)?;
        let mut losses = Vec::new();
        for step in 0..4 {
            let all = Sample::new(6, 20 + step);
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
    for (clip, half) in [(None, None), (Some(0.5), None), (None, Some(Half::Encoder)), (Some(0.5), Some(Half::Decoder))]
    {
        let (alone, together) = (learned(1, clip, half), learned(2, clip, half));
        assert!(distance(&together.0, &alone.0) < 1e-5, "{clip:?}, {half:?}: {:?}, and not {:?}", together.0, alone.0);
        for (name, tensor) in config().init(3).unwrap().tensors {
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
    for &device in devices() {
        AnyStream::new(device).unwrap().enter(|train| {
            let sample = Sample::new(5, 9);
            let mut free = model::<_, f32>(train, None);
            let before = free.tensors().unwrap();
            free.step(&sample.batch()).unwrap();
            let after = free.tensors().unwrap();
            for half in [Half::Encoder, Half::Decoder] {
                let mut model = model::<_, f32>(train, None);
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
            let mut model = model::<_, f32>(train, None);
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
