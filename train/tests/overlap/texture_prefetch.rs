//! Uploads, textures and training. The test of the steady state takes augmentation along.

use testkit::devices::alone;
use testkit::gate::{Gate, guarded};
use thalweg::{Device, DeviceKind, DeviceSlice, LiveBrand, Ring, Size, Stream, Timeline};
use thalweg_train::overlap::{Photographs, PhotographsOn, augment_train, texture_prefetch};
use thalweg_train::{Error, Loss, Result, TokenBatch};
use thalweg_vision::{
    DeviceTokenValues, Head, Layer, PLANES, Pipeline, PipelineOptions, Query, TokenParams, TokenPrecision,
};

use crate::augment_train::{OnPatches, augmented_slots, prepare};
use crate::common::{
    Bits, done, everywhere_and_seeded, lanes, model, own_devices, results, stalls, stock, synchronize,
};
use crate::support::{Random, base_config, devices};

const PHOTOGRAPHS: [Size; 2] = [Size::new(40, 56), Size::new(32, 24)];
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
    let params = TokenParams::default().with_patch(8).with_budget(96).with_sides(2..=4);
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
    Ok(batch.workspace.set_query(s, &head(), &query(item as u64 % 3))?)
}

fn photograph_slots<S: LiveBrand>(s: &Stream<S>, count: usize) -> Ring<Photographs> {
    let pipeline = texture_pipeline(s.device(), &query(0));
    (0..count).map(|_| Photographs::new(s, &pipeline, &PHOTOGRAPHS).unwrap()).collect()
}

fn textures<U: LiveBrand, A: LiveBrand, B: LiveBrand>(
    (upload, textures, train): (&Stream<U>, &Stream<A>, &Stream<B>),
    count: usize,
    graphs: bool,
) -> Bits {
    let mut model = model::<_, f32>(train, base_config().with_input_dim(PLANES));
    model.set_graphs(graphs);
    let (mut slots, mut losses) = (photograph_slots(upload, count), Vec::new());
    let seen = |_, loss| {
        losses.push(loss);
        Ok(())
    };
    texture_prefetch((upload, textures), &mut model, &mut slots, 0..5, photographs, seen, &Timeline::disabled())
        .unwrap();
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
            let mut model = model::<_, f32>(s, base_config().with_input_dim(PLANES));
            for (n, loss) in losses.into_iter().enumerate() {
                // A pipeline of the item's own query, instead of one that was asked another query.
                let pipeline = texture_pipeline(device, &query(n as u64 % 3));
                let slot = Photographs::new(s, &pipeline, &PHOTOGRAPHS).unwrap();
                let mut slot = s.wait(slot).unwrap();
                photographs(s, n, &mut slot).unwrap();
                let mut fresh = pipeline.workspace(s, &PHOTOGRAPHS).unwrap();
                fresh.enqueue(s, &slot.rgb).unwrap();
                let count = s.read_blocking(fresh.counts()).unwrap()[0] as usize;
                let DeviceTokenValues::F32(tokens) = fresh.tokens() else { panic!("{:?}", fresh.tokens()) };
                let tokens = s.read_blocking(tokens.slice(..PLANES * count).unwrap()).unwrap();
                let position = s.read_blocking(fresh.position().slice(..2 * count).unwrap()).unwrap();
                let cu_seqlens = s.read_blocking(fresh.image_cu_seqlens()).unwrap();
                let labels = s.read_blocking(&slot.labels).unwrap();
                let batch =
                    TokenBatch { tokens: &tokens, position: &position, cu_seqlens: &cu_seqlens, labels: &labels };
                let want = model.step(&batch).unwrap().item().unwrap();
                let got = f32::from_bits(loss);
                assert!((got - want).abs() < 1e-4 * want, "{device}: item {n}: {got}, and {want}");
            }
        });
    }
}

/// A model takes no bits of halves for numbers.
#[test]
fn tokens_of_sixteen_bits_are_refused() {
    let _alone = alone();
    for &device in devices() {
        let [lane] = lanes(device);
        lane.enter(|s| {
            let options = PipelineOptions::default().with_precision(TokenPrecision::F16);
            let params = TokenParams::default().with_patch(8).with_budget(96).with_sides(2..=4);
            let pipeline = Pipeline::with_options(device, params, options).unwrap();
            let mut slots = Ring::from_iter([Photographs::new(s, &pipeline, &PHOTOGRAPHS).unwrap()]);
            let mut model = model::<_, f32>(s, base_config().with_input_dim(PLANES));
            let input = |_: &Stream<_>, _, _: &mut PhotographsOn<_>| Ok(());
            let off = Timeline::disabled();
            let run = texture_prefetch((s, s), &mut model, &mut slots, 0..1, input, |_, _| Ok(()), &off);
            assert!(matches!(&run, Err(Error::Batch(what)) if what.contains("16 bits")), "{run:?}");
            assert_eq!(model.steps(), 0);
        });
    }
}

/// While training stands at a gate, textures are ahead by the slots, and the upload too; while
/// textures stand, uploads and training go on.
#[test]
fn uploads_textures_and_training_go_on_without_one_another() {
    let _alone = alone();
    for &device in devices() {
        let lanes: [_; 3] = lanes(device);
        for held in 0..3 {
            lanes[0].enter(|upload| {
                lanes[1].enter(|make| {
                    lanes[2].enter(|train| {
                        let mut model = model::<_, f32>(train, base_config().with_input_dim(PLANES));
                        let (mut slots, off) = (photograph_slots(upload, 4), Timeline::disabled());
                        let none = |_, loss: Loss| loss.item().map(drop);
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

#[test]
fn augmentation_and_textures_wait_for_nothing_and_allocate_nothing_after_the_first_batches() {
    let _alone = alone();
    for device in own_devices() {
        let [a, b, c] = lanes(device);
        a.enter(|upload| {
            b.enter(|middle| {
                c.enter(|train| {
                    let off = Timeline::disabled();
                    let mut model = model::<_, f32>(train, base_config().with_input_dim(PLANES));
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
                    run(0..6).into_iter().for_each(|loss| assert!(loss.item().unwrap().is_finite()));
                    stock(train);
                    let mut later = Vec::new();
                    assert_eq!(stalls(device, || later = run(6..12)), [], "{device}");
                    later.into_iter().for_each(|loss| assert!(loss.item().unwrap().is_finite()));
                });
            });
        });
    }
}
