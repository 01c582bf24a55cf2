//! The overlap patterns: bits of the serial form whatever the schedule, what overlaps, and no waits and
//! no memory in the steady state.

mod support;

use std::collections::VecDeque;

#[allow(unreachable_pub)] // it is public to other tests
#[path = "../../tests/support/gate.rs"]
mod gate;

use gate::{Gate, guarded};
use support::all_devices::alone;
use support::{CONFIG, Random, Sample, bits, devices, golden};
use thalweg::overlap::stages;
use thalweg::simt::bf16;
use thalweg::{
    Activity, AnyStream, Device, DeviceBuffer, DeviceKind, DeviceSlice, Error, Event, LiveBrand, Stall, Stream,
    Timeline,
};
use thalweg_kernels::train::patches;
use thalweg_train::overlap::micro_batches::watched;
use thalweg_train::overlap::{
    Augmented, AugmentedOn, Encoded, EncodedOn, Photographs, PhotographsOn, Request, RequestOn, Text, augment_train,
    encoder_decoder, micro_batches, texture_prefetch, vlm_pipeline,
};
use thalweg_train::{
    AdamW, Batch, Config, DeviceBatch, ImageEncoder, Loss, Precision, Result, Schedule, TextDecoder, TokenTransformer,
    VisionEncoder, VisionLanguage, VisionLanguageConfig,
};
use thalweg_vision::augment::{Augmentation, Sample as Augmenting};
use thalweg_vision::{Head, Layer, PLANES, Params, Pipeline, Query};

fn optimiser() -> AdamW {
    AdamW { schedule: Schedule::Cosine { warm_up: 2, steps: 8, end: 0.1 }, clip: Some(0.5), ..AdamW::default() }
}

fn lanes<const N: usize>(device: Device) -> [AnyStream; N] {
    [(); N].map(|()| AnyStream::new(device).unwrap())
}

fn synchronize(lane: &AnyStream) {
    lane.enter(|s| s.synchronize()).unwrap();
}

fn done(lanes: &[AnyStream]) -> Vec<bool> {
    lanes.iter().map(|lane| lane.enter(|s| s.is_done()).unwrap()).collect()
}

/// Runs a check on every device, and on ten schedules of a seeded one, which runs work late and out of
/// order wherever no event forbids it.
fn everywhere_and_seeded(mut check: impl FnMut(Device)) {
    devices().iter().for_each(|&device| check(device));
    let device = Device::seeded_cpu(0).unwrap();
    for seed in 0..10 {
        device.reseed(seed);
        check(device);
    }
}

/// The losses and the weights of a run, as bits.
type Bits = (Vec<u32>, Vec<(String, Vec<u32>)>);

fn model<S: LiveBrand, E: Precision>(s: &Stream<S>, config: Config) -> TokenTransformer<S, E> {
    let mut model = TokenTransformer::new(s, config, 3).unwrap();
    *model.optimiser_mut() = optimiser();
    model
}

fn results<S: LiveBrand, E: Precision>(losses: Vec<Loss>, model: &TokenTransformer<S, E>) -> Bits {
    let losses = losses.into_iter().map(|loss| loss.get().unwrap().to_bits()).collect();
    (losses, bits(&model.tensors().unwrap()))
}

// --- micro-batches -------------------------------------------------------------------------------

/// Steps of the optimiser, each on some micro-batches of different sizes.
fn micro_samples() -> Vec<Vec<Sample>> {
    let step = |n: u64| (0..5).map(|k| Sample::new(5, 4, 2 + (k as usize + n as usize) % 3, 10 * n + k)).collect();
    (0..4).map(step).collect()
}

fn micro<F: LiveBrand, S: LiveBrand, E: Precision>(forward: &Stream<F>, train: &Stream<S>, slots: usize) -> Bits {
    let mut model = model::<_, E>(train, CONFIG);
    let mut losses = Vec::new();
    for step in &micro_samples() {
        let batches: Vec<_> = step.iter().map(Sample::batch).collect();
        losses.push(micro_batches(forward, &mut model, slots, &batches, &Timeline::off()).unwrap());
    }
    assert_eq!(model.steps(), 4);
    results(losses, &model)
}

fn micro_is_serial<E: Precision>() {
    let cpu = Device::cpu().unwrap();
    everywhere_and_seeded(|device| {
        let [a, b] = lanes(if device.kind() == DeviceKind::Cpu { cpu } else { device });
        let serial = b.enter(|train| micro::<_, _, E>(train, train, 1));
        drop(a);
        let [a, b] = lanes(device);
        for slots in 1..4 {
            let overlapped = a.enter(|forward| b.enter(|train| micro::<_, _, E>(forward, train, slots)));
            assert!(overlapped == serial, "{device}: {slots} slots");
        }
    });
}

#[test]
fn micro_batches_on_two_streams_have_the_bits_of_one() {
    let _alone = alone();
    micro_is_serial::<f32>();
    micro_is_serial::<bf16>();
}

/// The gradients are those of one batch with all sequences, up to rounding.
#[test]
fn micro_batches_take_the_step_of_one_large_batch() {
    let _alone = alone();
    for &device in devices() {
        let [a, b] = lanes(device);
        b.enter(|train| {
            let samples: Vec<_> = (0..3).map(|n| Sample::new(5, 4, 4, n)).collect();
            let mut whole = Sample { tokens: vec![], position: vec![], cu_seqlens: vec![0], labels: vec![] };
            for sample in &samples {
                let start = whole.cu_seqlens[whole.labels.len()];
                whole.tokens.extend(&sample.tokens);
                whole.position.extend(&sample.position);
                whole.cu_seqlens.extend(sample.cu_seqlens[1..].iter().map(|end| start + end));
                whole.labels.extend(&sample.labels);
            }
            let mut models = [(); 2].map(|()| model::<_, f32>(train, CONFIG));
            let batches: Vec<_> = samples.iter().map(Sample::batch).collect();
            // In the second step, the gradients of the first one are still in the memory.
            for _ in 0..2 {
                let off = Timeline::off();
                let losses = [
                    a.enter(|forward| micro_batches(forward, &mut models[0], 2, &batches, &off).unwrap().get()),
                    models[1].step(&whole.batch()).unwrap().get(),
                ];
                let [parts, all] = losses.map(|loss| loss.unwrap());
                assert!((parts - all).abs() < 1e-5 * all, "{device}: {parts} and {all}");
            }
            let first = model::<_, f32>(train, CONFIG).tensors().unwrap();
            let [parts, all] = models.map(|model| model.tensors().unwrap());
            for name in first.tensors.keys().filter(|name| !name.ends_with("qkv.bias")) {
                let of = |file: &thalweg_train::Tensors| support::numbers(file, name);
                let update = |file| of(file).iter().zip(of(&first)).map(|(v, w)| v - w).collect::<Vec<_>>();
                let error = support::distance(&update(&parts), &update(&all));
                assert!(error < 1e-3, "{device}: the update of {name} is off by {error:.2e}");
            }
        });
    }
}

/// While one stream stands at a gate, the other one completes what it is given.
#[test]
fn forward_passes_go_on_beside_a_backward_pass_and_the_other_way_round() {
    let _alone = alone();
    for &device in devices() {
        let lanes: [_; 2] = lanes(device);
        let samples: Vec<_> = (0..6).map(|n| Sample::new(5, 4, 4, n)).collect();
        let batches: Vec<_> = samples.iter().map(Sample::batch).collect();
        for held in 0..2 {
            lanes[0].enter(|forward| {
                lanes[1].enter(|train| {
                    let (mut model, off) = (model::<_, f32>(train, CONFIG), Timeline::off());
                    micro_batches(forward, &mut model, 3, &batches, &off).unwrap().get().unwrap();
                    let gate = Gate::closed(device);
                    guarded(&[&gate], || {
                        let before = |backward, k| match (held, backward, k) {
                            // Forward pass 2 is held, and the backward passes before it are done.
                            (0, false, 2) => {
                                gate.hold(forward);
                                synchronize(&lanes[1]);
                                assert_eq!(done(&lanes), [false, true], "{device}");
                                gate.open();
                            }
                            (1, true, 1) => gate.hold(train),
                            // Backward passes from 1 on are held, and forward passes up to 3 are done.
                            (1, true, 3) => {
                                synchronize(&lanes[0]);
                                assert_eq!(done(&lanes), [true, false], "{device}");
                                gate.open();
                            }
                            _ => {}
                        };
                        watched(forward, &mut model, 3, &batches, &off, before).unwrap().get().unwrap();
                    });
                });
            });
        }
    }
}

/// A stream of another device is refused before anything is enqueued, and the slots stay usable.
#[test]
fn micro_batches_refuse_a_stream_of_another_device() {
    let _alone = alone();
    let other = Device::new_cpu().unwrap();
    for &device in devices() {
        let [a, b] = lanes(device);
        let [elsewhere] = lanes(other);
        let steps = micro_samples();
        let run = |refused: bool| {
            a.enter(|forward| {
                b.enter(|train| {
                    let (mut model, off) = (model::<_, f32>(train, CONFIG), Timeline::off());
                    let mut losses = Vec::new();
                    for step in &steps {
                        let batches: Vec<_> = step.iter().map(Sample::batch).collect();
                        if refused {
                            let error =
                                elsewhere.enter(|s| micro_batches(s, &mut model, 2, &batches, &off)).unwrap_err();
                            let mismatch = matches!(error, thalweg_train::Error::Device(Error::DeviceMismatch { .. }));
                            assert!(mismatch, "{device}: {error}");
                        }
                        losses.push(micro_batches(forward, &mut model, 2, &batches, &off).unwrap());
                    }
                    results(losses, &model)
                })
            })
        };
        assert!(run(true) == run(false), "{device}");
    }
}

// --- encoder and decoder -------------------------------------------------------------------------

const IMAGES: usize = 2;

fn encoder<S: LiveBrand, E: Precision>(s: &Stream<S>) -> ImageEncoder<S, E> {
    ImageEncoder::from_tensors(s, &golden("vit-timm/weights")).unwrap()
}

/// Images and labels of one item.
fn images(pixels: usize, item: usize) -> (Vec<f32>, Vec<i32>) {
    let mut random = Random(item as u64);
    (random.numbers(pixels), (0..IMAGES).map(|_| random.below(4) as i32).collect())
}

fn fill<S: LiveBrand>(s: &Stream<S>, item: usize, batch: &mut EncodedOn<S>) -> Result<()> {
    let (pixels, labels) = images(batch.pixels.len(), item);
    let host = s.bind((s.device().pinned_from(&pixels)?, s.device().pinned_from(&labels)?))?;
    s.copy_to_device(&host.0, &mut batch.pixels)?;
    Ok(s.copy_to_device(&host.1, &mut batch.labels)?)
}

fn slots<S: LiveBrand, E: Precision>(encoder: &ImageEncoder<S, E>, count: usize) -> VecDeque<Event<Encoded>> {
    (0..count).map(|_| Encoded::new(encoder, IMAGES).unwrap()).collect()
}

fn encode_and_train<A: LiveBrand, B: LiveBrand, E: Precision>(
    encode: &Stream<A>,
    train: &Stream<B>,
    count: usize,
    graphs: bool,
) -> Bits {
    let mut encoder = encoder::<_, E>(encode);
    let mut model = model::<_, E>(train, Config { inputs: encoder.config().width, ..CONFIG });
    encoder.enable_graphs(graphs);
    model.enable_graphs(graphs);
    let (mut slots, mut losses) = (slots(&encoder, count), Vec::new());
    let seen = |_, loss| {
        losses.push(loss);
        Ok(())
    };
    encoder_decoder(&mut encoder, &mut model, &mut slots, 0..6, fill, seen, &Timeline::off()).unwrap();
    assert_eq!((slots.len(), model.graphs()), (count, usize::from(graphs)));
    results(losses, &model)
}

fn encoder_decoder_is_serial<E: Precision>() {
    let cpu = Device::cpu().unwrap();
    everywhere_and_seeded(|device| {
        let [lane] = lanes(if device.kind() == DeviceKind::Cpu { cpu } else { device });
        let serial = lane.enter(|s| encode_and_train::<_, _, E>(s, s, 1, false));
        let [a, b] = lanes(device);
        for count in 1..4 {
            let graphs = count > 1;
            let overlapped = a.enter(|s| b.enter(|t| encode_and_train::<_, _, E>(s, t, count, graphs)));
            assert!(overlapped == serial, "{device}: {count} slots");
        }
    });
}

#[test]
fn encoding_beside_training_has_the_bits_of_one_after_the_other() {
    let _alone = alone();
    encoder_decoder_is_serial::<f32>();
    encoder_decoder_is_serial::<bf16>();
}

/// While training stands at a gate, the encoder is ahead by the slots; while the encoder stands at one,
/// training goes on.
#[test]
fn the_encoder_runs_ahead_and_training_goes_on_without_it() {
    let _alone = alone();
    for &device in devices() {
        let lanes: [_; 2] = lanes(device);
        for held in 0..2 {
            lanes[0].enter(|encode| {
                lanes[1].enter(|train| {
                    let mut encoder = encoder::<_, f32>(encode);
                    let mut model = model::<_, f32>(train, Config { inputs: encoder.config().width, ..CONFIG });
                    let (mut slots, off) = (slots(&encoder, 3), Timeline::off());
                    let none = |_, loss: Loss| loss.get().map(drop);
                    encoder_decoder(&mut encoder, &mut model, &mut slots, 0..3, fill, none, &off).unwrap();
                    let gate = Gate::closed(device);
                    guarded(&[&gate], || {
                        let input = |s: &Stream<_>, n: usize, batch: &mut EncodedOn<_>| {
                            if (n, held) == (2, 0) {
                                // Batch 2 is held, and training on the batches before it is done.
                                gate.hold(s);
                                synchronize(&lanes[1]);
                                assert_eq!(done(&lanes), [false, true], "{device}");
                                gate.open();
                            }
                            fill(s, n, batch)
                        };
                        let seen = |n, _| {
                            match (n, held) {
                                (0, 1) => gate.hold(train),
                                // What follows training on batch 0 is held, and three batches are encoded.
                                (2, 1) => {
                                    synchronize(&lanes[0]);
                                    assert_eq!(done(&lanes), [true, false], "{device}");
                                    gate.open();
                                }
                                _ => {}
                            }
                            Ok(())
                        };
                        encoder_decoder(&mut encoder, &mut model, &mut slots, 0..6, input, seen, &off).unwrap();
                    });
                    train.synchronize().unwrap();
                });
            });
        }
    }
}

// --- augmentation --------------------------------------------------------------------------------

/// The images of a batch, their size, and that of augmented ones, in patches of 4 x 4 pixels.
const AUGMENTED: (usize, [u32; 2], usize) = (3, [20, 28], 16);

/// Uploads the images and labels of an item, and says what happens to the images.
fn prepare<S: LiveBrand>(s: &Stream<S>, item: usize, batch: &mut AugmentedOn<S, f32>) -> Result<()> {
    let (images, [height, width], _) = AUGMENTED;
    let mut random = Random(item as u64);
    let pixels: Vec<u8> = (0..batch.rgb.len()).map(|_| random.word() as u8).collect();
    let labels: Vec<i32> = (0..images).map(|_| random.below(4) as i32).collect();
    let host = s.bind((s.device().pinned_from(&pixels)?, s.device().pinned_from(&labels)?))?;
    s.copy_to_device(&host.0, &mut batch.rgb)?;
    s.copy_to_device(&host.1, &mut batch.labels)?;
    let sample = |i: usize| {
        let parameters = Augmentation::default().parameters(5, 1, (3 * item + i) as u64, width, height)?;
        Ok(Augmenting { start: i * 3 * (height * width) as usize, height, width, parameters })
    };
    let samples = (0..images).map(sample).collect::<thalweg::Result<Vec<_>>>()?;
    Ok(batch.augmenter.prepare(s, &samples)?)
}

fn augmented_slots<S: LiveBrand>(s: &Stream<S>, count: usize) -> VecDeque<Event<Augmented<f32>>> {
    let (images, [height, width], size) = AUGMENTED;
    let bytes = images * 3 * (height * width) as usize;
    (0..count).map(|_| Augmented::new(s, &Augmentation::default(), bytes, size as u32, images).unwrap()).collect()
}

/// A model that takes the patches of images as tokens, and the memory for them.
struct OnPatches<S: LiveBrand> {
    model: TokenTransformer<S, f32>,
    tokens: thalweg::On<S, DeviceBuffer<f32>>,
    position: thalweg::On<S, DeviceBuffer<f32>>,
    cu_seqlens: thalweg::On<S, DeviceBuffer<i32>>,
}

impl<S: LiveBrand> OnPatches<S> {
    fn new(s: &Stream<S>) -> Self {
        let (images, _, size) = AUGMENTED;
        let patches = (size / 4).pow(2);
        let ends: Vec<i32> = (0..=images).map(|i| (i * patches) as i32).collect();
        Self {
            model: model(s, Config { inputs: 48, ..CONFIG }),
            tokens: s.alloc(images * patches * 48).unwrap(),
            position: s.upload_blocking(&Random(1).numbers(2 * images * patches)).unwrap(),
            cu_seqlens: s.upload_blocking(&ends).unwrap(),
        }
    }

    fn learn(&mut self, s: &Stream<S>, images: &DeviceSlice<S, f32>, labels: &DeviceSlice<S, i32>) -> Result<Loss> {
        let (count, _, size) = AUGMENTED;
        patches(s, [count as u32, 3, size as u32, 4], images, &mut self.tokens)?;
        let Self { model, tokens, position, cu_seqlens } = self;
        model.step_on(&DeviceBatch { tokens, position, cu_seqlens, labels, padded: false })
    }
}

fn augment<U: LiveBrand, A: LiveBrand, B: LiveBrand>(
    streams: (&Stream<U>, &Stream<A>, &Stream<B>),
    count: usize,
) -> Bits {
    let (mut slots, mut learner, mut losses) =
        (augmented_slots(streams.0, count), OnPatches::new(streams.2), Vec::new());
    let learn = |s: &Stream<B>, _, images: &DeviceSlice<B, f32>, labels: &DeviceSlice<B, i32>| {
        losses.push(learner.learn(s, images, labels)?);
        Ok(())
    };
    augment_train(streams, &mut slots, 0..5, prepare, learn, &Timeline::off()).unwrap();
    assert_eq!(slots.len(), count);
    results(losses, &learner.model)
}

#[test]
fn augmentation_beside_training_has_the_bits_of_one_after_the_other() {
    let _alone = alone();
    let cpu = Device::cpu().unwrap();
    everywhere_and_seeded(|device| {
        let [lane] = lanes(if device.kind() == DeviceKind::Cpu { cpu } else { device });
        let serial = lane.enter(|s| augment((s, s, s), 1));
        let [a, b, c] = lanes(device);
        for count in 1..4 {
            let overlapped = a.enter(|a| b.enter(|b| c.enter(|c| augment((a, b, c), count))));
            assert!(overlapped == serial, "{device}: {count} slots");
        }
    });
}

/// While one stream stands at a gate, the two others complete what they are given: the upload of an item beside
/// augmentation and training of those before, augmentation of the next items beside training.
#[test]
fn uploads_augmentation_and_training_go_on_without_one_another() {
    let _alone = alone();
    for &device in devices() {
        let lanes: [_; 3] = lanes(device);
        for held in 0..3 {
            lanes[0].enter(|upload| {
                lanes[1].enter(|change| {
                    lanes[2].enter(|train| {
                        let (mut slots, mut learner) = (augmented_slots(upload, 4), OnPatches::new(train));
                        let (streams, off) = ((upload, change, train), Timeline::off());
                        let mut first =
                            |s: &Stream<_>, _, images: &DeviceSlice<_, f32>, labels: &DeviceSlice<_, i32>| {
                                learner.learn(s, images, labels)?.get().map(drop)
                            };
                        augment_train(streams, &mut slots, 0..4, prepare, &mut first, &off).unwrap();
                        let gate = Gate::closed(device);
                        guarded(&[&gate], || {
                            let others_are_done = || {
                                (0..3).filter(|&k| k != held).for_each(|k| synchronize(&lanes[k]));
                                let want: Vec<_> = (0..3).map(|k| k != held).collect();
                                assert_eq!(done(&lanes), want, "{device}: {held} is held");
                                gate.open();
                            };
                            let input = |s: &Stream<_>, n: usize, batch: &mut AugmentedOn<_, f32>| {
                                match (n, held) {
                                    (2, 0) => gate.hold(s),
                                    (2, 1) => gate.hold(change),
                                    _ => {}
                                }
                                prepare(s, n, batch)?;
                                if n == 2 && held < 2 {
                                    others_are_done(); // items 0 and 1, and for augmentation the upload of item 2
                                }
                                Ok(())
                            };
                            let learn =
                                |s: &Stream<_>, n, images: &DeviceSlice<_, f32>, labels: &DeviceSlice<_, i32>| {
                                    if (n, held) == (0, 2) {
                                        gate.hold(s);
                                    }
                                    learner.learn(s, images, labels)?;
                                    if (n, held) == (2, 2) {
                                        others_are_done(); // items 0 to 2 are augmented, and training on item 0 is held
                                    }
                                    Ok(())
                                };
                            augment_train(streams, &mut slots, 0..4, input, learn, &off).unwrap();
                        });
                        train.synchronize().unwrap();
                    });
                });
            });
        }
    }
}

// --- textures ------------------------------------------------------------------------------------

const PHOTOGRAPHS: [[u32; 2]; 2] = [[40, 56], [32, 24]];
const DIMENSION: usize = 6;

/// A head with a balancer, with random weights.
fn head() -> Head {
    let mut random = Random(11);
    let mut layer = |outputs: usize, inputs: usize| (random.numbers(outputs * inputs), random.numbers(outputs));
    let layers = [layer(64, PLANES), layer(DIMENSION, 64), layer(128, 9 + DIMENSION), layer(128, 128), layer(3, 128)];
    let [hidden, projection, first, second, third] = layers.each_ref().map(|(weight, bias)| Layer { weight, bias });
    Head::new(hidden, projection).unwrap().with_balancer([first, second, third]).unwrap()
}

fn query(n: u64) -> Query {
    Query::new(&Random(n).numbers(DIMENSION)).unwrap()
}

fn texture_pipeline(device: Device, query: &Query) -> Pipeline {
    let params = Params { patch: 8, budget: 96, sides: 2..=4, ..Params::default() };
    Pipeline::new(device, params).unwrap().with_query(&head(), query).unwrap()
}

/// Uploads the photographs and labels of an item, and its query.
fn photographs<S: LiveBrand>(s: &Stream<S>, item: usize, batch: &mut PhotographsOn<S>) -> Result<()> {
    let mut random = Random(item as u64);
    let pixels: Vec<u8> = (0..batch.rgb.len()).map(|_| random.word() as u8).collect();
    let labels: Vec<i32> = PHOTOGRAPHS.iter().map(|_| random.below(4) as i32).collect();
    let host = s.bind((s.device().pinned_from(&pixels)?, s.device().pinned_from(&labels)?))?;
    s.copy_to_device(&host.0, &mut batch.rgb)?;
    s.copy_to_device(&host.1, &mut batch.labels)?;
    Ok(batch.workspace.ask(s, &head(), &query(item as u64 % 3))?)
}

fn photograph_slots<S: LiveBrand>(s: &Stream<S>, count: usize) -> VecDeque<Event<Photographs>> {
    let pipeline = texture_pipeline(s.device(), &query(0));
    (0..count).map(|_| Photographs::new(s, &pipeline, &PHOTOGRAPHS).unwrap()).collect()
}

fn textures<U: LiveBrand, A: LiveBrand, B: LiveBrand>(
    (upload, textures, train): (&Stream<U>, &Stream<A>, &Stream<B>),
    count: usize,
    graphs: bool,
) -> Bits {
    let mut model = model::<_, f32>(train, Config { inputs: PLANES, ..CONFIG });
    model.enable_graphs(graphs);
    let (mut slots, mut losses) = (photograph_slots(upload, count), Vec::new());
    let seen = |_, loss| {
        losses.push(loss);
        Ok(())
    };
    texture_prefetch((upload, textures), &mut model, &mut slots, 0..5, photographs, seen, &Timeline::off()).unwrap();
    assert_eq!((slots.len(), model.graphs()), (count, usize::from(graphs)));
    results(losses, &model)
}

#[test]
fn textures_beside_training_have_the_bits_of_one_after_the_other() {
    let _alone = alone();
    let cpu = Device::cpu().unwrap();
    everywhere_and_seeded(|device| {
        let [lane] = lanes(if device.kind() == DeviceKind::Cpu { cpu } else { device });
        let serial = lane.enter(|s| textures((s, s, s), 1, false));
        let [a, b, c] = lanes(device);
        for count in 1..4 {
            let overlapped = a.enter(|a| b.enter(|b| c.enter(|c| textures((a, b, c), count, count > 1))));
            assert!(overlapped == serial, "{device}: {count} slots");
        }
    });
}

/// The losses are those of steps on the tokens alone, which the host has read and packed.
#[test]
fn prefetched_textures_are_the_tokens_of_the_pipeline_for_the_query() {
    let _alone = alone();
    for &device in devices() {
        let [lane] = lanes(device);
        lane.enter(|s| {
            let (losses, _) = textures((s, s, s), 2, true);
            let mut model = model::<_, f32>(s, Config { inputs: PLANES, ..CONFIG });
            for (n, loss) in losses.into_iter().enumerate() {
                // A pipeline of the item's own query, instead of one that was asked another query.
                let pipeline = texture_pipeline(device, &query(n as u64 % 3));
                let slot = Photographs::new(s, &pipeline, &PHOTOGRAPHS).unwrap();
                let mut slot = s.wait(slot).unwrap();
                photographs(s, n, &mut slot).unwrap();
                let mut fresh = pipeline.workspace(s, &PHOTOGRAPHS).unwrap();
                fresh.enqueue(s, &slot.rgb).unwrap();
                let count = s.read_blocking(fresh.counts()).unwrap()[0] as usize;
                let tokens = s.read_blocking(fresh.tokens().slice(..PLANES * count).unwrap()).unwrap();
                let position = s.read_blocking(fresh.position().slice(..2 * count).unwrap()).unwrap();
                let cu_seqlens = s.read_blocking(fresh.image_cu_seqlens()).unwrap();
                let labels = s.read_blocking(&slot.labels).unwrap();
                let batch = Batch { tokens: &tokens, position: &position, cu_seqlens: &cu_seqlens, labels: &labels };
                let want = model.step(&batch).unwrap().get().unwrap();
                let got = f32::from_bits(loss);
                assert!((got - want).abs() < 1e-4 * want, "{device}: item {n}: {got}, and {want}");
            }
        });
    }
}

/// While training stands at a gate, textures are ahead by the slots, and the upload too; while textures
/// stand, uploads and training go on.
#[test]
fn uploads_textures_and_training_go_on_without_one_another() {
    let _alone = alone();
    for &device in devices() {
        let lanes: [_; 3] = lanes(device);
        for held in 0..3 {
            lanes[0].enter(|upload| {
                lanes[1].enter(|make| {
                    lanes[2].enter(|train| {
                        let mut model = model::<_, f32>(train, Config { inputs: PLANES, ..CONFIG });
                        let (mut slots, off) = (photograph_slots(upload, 4), Timeline::off());
                        let none = |_, loss: Loss| loss.get().map(drop);
                        texture_prefetch((upload, make), &mut model, &mut slots, 0..4, photographs, none, &off)
                            .unwrap();
                        let gate = Gate::closed(device);
                        guarded(&[&gate], || {
                            let others_are_done = || {
                                (0..3).filter(|&k| k != held).for_each(|k| synchronize(&lanes[k]));
                                let want: Vec<_> = (0..3).map(|k| k != held).collect();
                                assert_eq!(done(&lanes), want, "{device}: {held} is held");
                                gate.open();
                            };
                            let input = |s: &Stream<_>, n: usize, batch: &mut PhotographsOn<_>| {
                                match (n, held) {
                                    (2, 0) => gate.hold(s),
                                    (2, 1) => gate.hold(make),
                                    _ => {}
                                }
                                photographs(s, n, batch)?;
                                if n == 2 && held < 2 {
                                    others_are_done(); // items 0 and 1, and for textures the upload of item 2
                                }
                                Ok(())
                            };
                            let seen = |n, _| {
                                match (n, held) {
                                    (0, 2) => gate.hold(train),
                                    (2, 2) => others_are_done(), // the textures of items 1 and 2
                                    _ => {}
                                }
                                Ok(())
                            };
                            texture_prefetch((upload, make), &mut model, &mut slots, 0..4, input, seen, &off).unwrap();
                        });
                        train.synchronize().unwrap();
                    });
                });
            });
        }
    }
}

// --- vision and language -------------------------------------------------------------------------

const MODEL: VisionLanguageConfig = VisionLanguageConfig {
    inputs: 3,
    width: 16,
    heads: 2,
    depth: 1,
    text_width: 24,
    text_heads: 3,
    text_depth: 2,
    vocabulary: 30,
    places: 10,
    eps: 1e-5,
    gelu: thalweg_train::Gelu::Tanh,
};
/// The most tokens of an image, and of a text.
const MOST: [usize; 2] = [7, 6];

/// Fills a request: images, prompts and texts have different lengths.
fn ask<S: LiveBrand>(s: &Stream<S>, item: usize, request: &mut RequestOn<S>) -> Result<()> {
    let mut random = Random(item as u64);
    request.rows = 1 + random.below(MOST[0]);
    request.count = 1 + random.below(MOST[1]);
    request.prompt.clear();
    request.prompt.extend((0..1 + random.below(4)).map(|_| random.below(30) as i32));
    let (tokens, position) = (3 * request.rows, 2 * request.rows);
    let host = s.bind(s.device().pinned_from(&random.numbers(tokens + position))?)?;
    s.copy_to_device(host.slice(..tokens)?, request.pixels.slice_mut(..tokens)?)?;
    Ok(s.copy_to_device(host.slice(tokens..)?, request.position.slice_mut(..position)?)?)
}

/// The second stage: the pixels become tokens.
fn cut<S: LiveBrand>(s: &Stream<S>, request: &mut RequestOn<S>) -> Result<()> {
    Ok(s.copy(&request.pixels, &mut request.tokens)?)
}

fn requests<S: LiveBrand, E: Precision>(encoder: &VisionEncoder<S, E>, count: usize) -> VecDeque<Event<Request>> {
    (0..count).map(|_| Request::new(encoder, 3 * MOST[0], MOST[0], MOST[1]).unwrap()).collect()
}

/// Answers requests on four streams: upload, preparation, encoder and decoder.
fn answer<E: Precision>([up, cuts, encode, decode]: [&AnyStream; 4], count: usize) -> Vec<Vec<i32>> {
    let file = MODEL.draw(11).unwrap();
    encode.enter(|encode| {
        decode.enter(|decode| {
            let mut encoder = VisionEncoder::<_, E>::from_tensors(encode, &file).unwrap();
            let mut decoder = TextDecoder::<_, E>::from_tensors(decode, &file).unwrap();
            let (mut slots, mut texts) = (requests(&encoder, count), Vec::new());
            let before = stages::<_, thalweg_train::Error>(&mut slots)
                .any(up, Activity::Upload, |s, n, request| {
                    ask(s, n, request)?;
                    Ok(())
                })
                .any(cuts, Activity::Compute, |s, _, request| cut(s, request));
            let seen = |n, text| {
                texts.push((n, text));
                Ok(())
            };
            vlm_pipeline(before, &mut encoder, &mut decoder, 0..9, seen, &Timeline::off()).unwrap();
            assert!(texts.iter().map(|(n, _)| *n).eq(0..9));
            texts.into_iter().map(|(_, text)| text.get().unwrap()).collect()
        })
    })
}

fn answers_are_serial<E: Precision>() {
    let cpu = Device::cpu().unwrap();
    everywhere_and_seeded(|device| {
        let [lane] = lanes(if device.kind() == DeviceKind::Cpu { cpu } else { device });
        let serial = answer::<E>([&lane; 4], 1);
        // What the model writes by itself, one request after another.
        let whole: Vec<_> = lane.enter(|s| {
            let mut model = VisionLanguage::<_, E>::from_tensors(s, &MODEL.draw(11).unwrap()).unwrap();
            let one = |n: usize| {
                let mut random = Random(n as u64);
                let (rows, count) = (1 + random.below(MOST[0]), 1 + random.below(MOST[1]));
                let prompt: Vec<_> = (0..1 + random.below(4)).map(|_| random.below(30) as i32).collect();
                let data = random.numbers(5 * rows);
                model.generate(&data[..3 * rows], &data[3 * rows..], &prompt, count).unwrap()
            };
            (0..9).map(one).collect()
        });
        assert!(serial == whole && serial.iter().any(|text| *text != serial[0]), "{device}: {serial:?} and {whole:?}");
        let [a, b, c, d] = lanes(device);
        for count in [1, 2, 5] {
            assert!(answer::<E>([&a, &b, &c, &d], count) == serial, "{device}: {count} slots");
        }
    });
}

#[test]
fn requests_on_four_streams_get_the_texts_of_one_after_another() {
    let _alone = alone();
    answers_are_serial::<f32>();
    answers_are_serial::<bf16>();
}

/// While one stream stands at a gate, those before it go on as far as the slots reach, and those behind it
/// complete what they have.
#[test]
fn preparing_encoding_and_writing_overlap() {
    let _alone = alone();
    for &device in devices() {
        let lanes: [_; 3] = lanes(device);
        let [prepare, encode, decode] = &lanes;
        encode.enter(|encode| {
            decode.enter(|decode| {
                let file = MODEL.draw(11).unwrap();
                let mut encoder = VisionEncoder::<_, f32>::from_tensors(encode, &file).unwrap();
                let mut decoder = TextDecoder::<_, f32>::from_tensors(decode, &file).unwrap();
                let (mut slots, off) = (requests(&encoder, 4), Timeline::off());
                for held in [None, Some(0), Some(1), Some(2)] {
                    let gate = Gate::closed(device);
                    let mut go = || {
                        let before = stages::<_, thalweg_train::Error>(&mut slots).any(
                            prepare,
                            Activity::Upload,
                            |s, n, request| {
                                if n == 2 {
                                    match held {
                                        Some(0) => gate.hold(s),
                                        Some(1) => gate.hold(encode),
                                        Some(2) => gate.hold(decode),
                                        _ => {}
                                    }
                                }
                                ask(s, n, request)?;
                                cut(s, request)
                            },
                        );
                        let mut texts = Vec::new();
                        let seen = |n, text: Text| {
                            texts.push(text);
                            if let (3, Some(before)) = (n, held) {
                                // The streams before the held one have done four requests, those behind it two.
                                lanes.iter().take(before).for_each(synchronize);
                                let done = done(&lanes);
                                assert!((0..3).all(|k| done[k] == (Some(k) < held)), "{device}: {done:?}, {held:?}");
                                for text in texts.drain(..2) {
                                    text.get()?; // the first two do not wait for the gate
                                }
                                gate.open();
                            }
                            Ok(())
                        };
                        vlm_pipeline(before, &mut encoder, &mut decoder, 0..6, seen, &off).unwrap();
                        texts.into_iter().for_each(|text| drop(text.get().unwrap()));
                    };
                    match held {
                        None => go(), // makes the memory
                        Some(_) => guarded(&[&gate], go),
                    }
                }
            });
        });
    }
}

// --- the steady state ----------------------------------------------------------------------------

/// Returns the calls that made the host wait or made memory, while `work` ran.
fn stalls(device: Device, work: impl FnOnce()) -> Vec<(Stall, u64)> {
    device.tally().enable();
    if device.kind() == DeviceKind::Cpu {
        device.limit_memory(Some(1)); // nothing more can be allocated
    }
    work();
    device.limit_memory(None);
    device.tally().disable();
    device.tally().report().stalls().iter().map(|stalls| (stalls.kind, stalls.count)).collect()
}

/// Fills the pools of page-locked memory and of events with more than a test has under way, so that the
/// steady state does not depend on how far the host was ahead before. Blocks of these sizes serve
/// requests of any size up to the largest.
fn stock<S: LiveBrand>(s: &Stream<S>) {
    let device = s.device();
    let memory: Vec<_> = (0..18).flat_map(|n| [1usize << n; 60]).map(|len| device.pinned::<u8>(len).unwrap()).collect();
    let events: Vec<_> = (0..500).map(|_| s.record(s.alloc::<u8>(0).unwrap()).unwrap()).collect();
    s.synchronize().unwrap();
    drop((memory, events));
}

/// The devices of the steady state: GPUs, and a CPU device that no other test uses.
fn own_devices() -> Vec<Device> {
    let gpus = devices().iter().copied().filter(|d| d.kind() == DeviceKind::Cuda);
    gpus.chain([Device::new_cpu().unwrap()]).collect()
}

#[test]
fn micro_batches_wait_for_nothing_and_allocate_nothing_after_the_first_steps() {
    let _alone = alone();
    for device in own_devices() {
        let [a, b] = lanes(device);
        a.enter(|forward| {
            b.enter(|train| {
                let (mut model, off) = (model::<_, bf16>(train, CONFIG), Timeline::off());
                let samples: Vec<_> = (0..4).map(|n| Sample::new(5, 4, 4, n)).collect();
                let batches: Vec<_> = samples.iter().map(Sample::batch).collect();
                let mut step = |times| {
                    let step = |_| micro_batches(forward, &mut model, 2, &batches, &off).unwrap();
                    (0..times).map(step).collect::<Vec<_>>()
                };
                let first: Vec<_> = step(5).into_iter().map(|loss| loss.get().unwrap()).collect();
                stock(train);
                let mut later = Vec::new();
                let waited = stalls(device, || later = step(5));
                assert_eq!(waited, [], "{device}");
                assert!(later.pop().unwrap().get().unwrap() < first[0]);
            });
        });
    }
}

#[test]
fn encoding_and_training_wait_for_nothing_and_allocate_nothing_after_the_first_batches() {
    let _alone = alone();
    for device in own_devices() {
        let [a, b] = lanes(device);
        a.enter(|encode| {
            b.enter(|train| {
                let mut encoder = encoder::<_, bf16>(encode);
                let mut model = model::<_, bf16>(train, Config { inputs: encoder.config().width, ..CONFIG });
                let mut slots = slots(&encoder, 2);
                let mut run = |items| {
                    let mut losses = Vec::new();
                    let seen = |_, loss| {
                        losses.push(loss);
                        Ok(())
                    };
                    encoder_decoder(&mut encoder, &mut model, &mut slots, items, fill, seen, &Timeline::off()).unwrap();
                    losses
                };
                run(0..6).into_iter().for_each(|loss| assert!(loss.get().unwrap().is_finite()));
                stock(train);
                let mut later = Vec::new();
                assert_eq!(stalls(device, || later = run(6..12)), [], "{device}");
                later.into_iter().for_each(|loss| assert!(loss.get().unwrap().is_finite()));
            });
        });
    }
}

#[test]
fn augmentation_and_textures_wait_for_nothing_and_allocate_nothing_after_the_first_batches() {
    let _alone = alone();
    for device in own_devices() {
        let [a, b, c] = lanes(device);
        a.enter(|upload| {
            b.enter(|middle| {
                c.enter(|train| {
                    let off = Timeline::off();
                    let mut model = model::<_, f32>(train, Config { inputs: PLANES, ..CONFIG });
                    let (mut slots, mut others) = (photograph_slots(upload, 3), augmented_slots(upload, 3));
                    let mut learner = OnPatches::new(train);
                    let mut run = |items: std::ops::Range<usize>| {
                        let losses = std::cell::RefCell::new(Vec::new());
                        let keep = |loss| {
                            losses.borrow_mut().push(loss);
                            Ok(())
                        };
                        let seen = |_, loss| keep(loss);
                        let streams = (upload, middle);
                        texture_prefetch(streams, &mut model, &mut slots, items.clone(), photographs, seen, &off)
                            .unwrap();
                        let learn = |s: &Stream<_>, _, images: &DeviceSlice<_, f32>, labels: &DeviceSlice<_, i32>| {
                            keep(learner.learn(s, images, labels)?)
                        };
                        augment_train((upload, middle, train), &mut others, items, prepare, learn, &off).unwrap();
                        losses.into_inner()
                    };
                    run(0..6).into_iter().for_each(|loss| assert!(loss.get().unwrap().is_finite()));
                    stock(train);
                    let mut later = Vec::new();
                    assert_eq!(stalls(device, || later = run(6..12)), [], "{device}");
                    later.into_iter().for_each(|loss| assert!(loss.get().unwrap().is_finite()));
                });
            });
        });
    }
}

#[test]
fn requests_wait_for_nothing_and_allocate_nothing_after_the_first_ones() {
    let _alone = alone();
    for device in own_devices() {
        let lanes: [_; 3] = lanes(device);
        let [prepare, encode, decode] = &lanes;
        encode.enter(|encode| {
            decode.enter(|decode| {
                let file = MODEL.draw(11).unwrap();
                let mut encoder = VisionEncoder::<_, bf16>::from_tensors(encode, &file).unwrap();
                let mut decoder = TextDecoder::<_, bf16>::from_tensors(decode, &file).unwrap();
                let mut slots = requests(&encoder, 3);
                let mut run = |items: std::ops::Range<usize>, gate: Option<&Gate>| {
                    let mut texts = Vec::with_capacity(8);
                    let first = items.start;
                    let before = stages::<_, thalweg_train::Error>(&mut slots).any(
                        prepare,
                        Activity::Upload,
                        |s, n, request| {
                            if let Some(gate) = gate.filter(|_| n == first) {
                                gate.hold(s);
                            }
                            ask(s, n % 8, request)?; // the same sizes again
                            cut(s, request)
                        },
                    );
                    let seen = |_, text| {
                        texts.push(text);
                        Ok(())
                    };
                    vlm_pipeline(before, &mut encoder, &mut decoder, items, seen, &Timeline::off()).unwrap();
                    gate.inspect(|gate| gate.open());
                    texts
                };
                let read = |texts: Vec<Text>| texts.into_iter().map(|text| text.get().unwrap()).collect::<Vec<_>>();
                read(run(0..8, None));
                let gate = Gate::closed(device);
                let first = guarded(&[&gate], || read(run(0..8, Some(&gate))));
                let mut later = Vec::new();
                assert_eq!(stalls(device, || later = run(8..16, None)), [], "{device}");
                assert_eq!(read(later), first);
            });
        });
    }
}

// --- failures ------------------------------------------------------------------------------------

/// A step that finds no memory leaves the state of the step before, and the run goes on from there.
#[test]
fn out_of_memory_in_a_step_leaves_the_step_before() {
    let _alone = alone();
    let device = Device::new_cpu().unwrap();
    let [a, b] = lanes(device);
    a.enter(|forward| {
        b.enter(|train| {
            let small: Vec<_> = (0..3).map(|n| Sample::new(5, 4, 3, n)).collect();
            let large = Sample::new(5, 4, 60, 9);
            let small: Vec<Batch<'_>> = small.iter().map(Sample::batch).collect();
            let off = Timeline::off();
            let mut models = [(); 2].map(|()| model::<_, f32>(train, CONFIG));
            for model in &mut models {
                model.step(&small[0]).unwrap();
                micro_batches(forward, model, 2, &small, &off).unwrap();
            }
            let [model, undisturbed] = &mut models;
            let before = bits(&model.tensors().unwrap());
            device.limit_memory(Some(1));
            let more = [small[0], small[1], large.batch()];
            let failed = [model.step(&large.batch()), micro_batches(forward, model, 2, &more, &off)];
            device.limit_memory(None);
            for failed in failed {
                let out = matches!(&failed, Err(thalweg_train::Error::Device(Error::OutOfMemory { .. })));
                assert!(out, "{failed:?}");
            }
            assert_eq!((bits(&model.tensors().unwrap()), model.steps()), (before, 2));
            for model in [model, undisturbed] {
                model.step(&large.batch()).unwrap();
                micro_batches(forward, model, 2, &more, &off).unwrap();
            }
            let [one, other] = models.map(|model| bits(&model.tensors().unwrap()));
            assert!(one == other);
        });
    });
}

/// An error of a closure ends the run. The model is as after the last whole step, and can go on.
#[test]
fn a_failed_item_leaves_the_model_of_the_items_before() {
    let _alone = alone();
    for &device in devices() {
        let [a, b] = lanes(device);
        a.enter(|encode| {
            b.enter(|train| {
                let run = |fails: bool| {
                    let mut encoder = encoder::<_, f32>(encode);
                    let mut model = model::<_, f32>(train, Config { inputs: encoder.config().width, ..CONFIG });
                    let (mut slots, off) = (slots(&encoder, 2), Timeline::off());
                    let input = |s: &Stream<_>, n: usize, batch: &mut EncodedOn<_>| match fails && n == 3 {
                        true => Err(thalweg_train::Error::Batch("broken".into())),
                        false => fill(s, n, batch),
                    };
                    let seen = |_, _| Ok(());
                    let ended = encoder_decoder(
                        &mut encoder,
                        &mut model,
                        &mut slots,
                        0..3 + usize::from(fails),
                        input,
                        seen,
                        &off,
                    );
                    assert_eq!(ended.is_err(), fails);
                    assert_eq!((model.steps(), slots.len()), (3, 2 - usize::from(fails)));
                    bits(&model.tensors().unwrap())
                };
                assert!(run(true) == run(false), "{device}");
            });
        });
    }
}

/// A request that does not fit ends the run; those before it have their texts, and the pipeline can go on.
#[test]
fn a_request_that_does_not_fit_leaves_those_before() {
    let _alone = alone();
    for &device in devices() {
        let [a, b] = lanes(device);
        a.enter(|encode| {
            b.enter(|decode| {
                let file = MODEL.draw(11).unwrap();
                let mut encoder = VisionEncoder::<_, f32>::from_tensors(encode, &file).unwrap();
                let mut decoder = TextDecoder::<_, f32>::from_tensors(decode, &file).unwrap();
                let mut slots = requests(&encoder, 3);
                let mut run = |items: std::ops::Range<usize>, broken: usize| {
                    let mut texts = Vec::new();
                    let before = stages::<_, thalweg_train::Error>(&mut slots).step(
                        encode,
                        Activity::Upload,
                        |s, n, request| {
                            ask(s, n, request)?;
                            cut(s, request)?;
                            if n == broken {
                                request.prompt.push(30); // there are 30 ids, from 0 on
                            }
                            Ok(())
                        },
                    );
                    let seen = |_, text| {
                        texts.push(text);
                        Ok(())
                    };
                    let ended = vlm_pipeline(before, &mut encoder, &mut decoder, items, seen, &Timeline::off());
                    (ended, texts.into_iter().map(|text: Text| text.get().unwrap()).collect::<Vec<_>>())
                };
                let (ended, mut texts) = run(0..9, 4);
                let error = ended.unwrap_err();
                assert!(matches!(&error, thalweg_train::Error::Batch(what) if what.contains("id 30")), "{error}");
                assert_eq!(texts.len(), 4);
                texts.extend(run(4..9, 99).1);
                let [lane] = lanes(device);
                assert_eq!(texts, answer::<f32>([&lane; 4], 1), "{device}");
            });
        });
    }
}
