//! A frozen encoder beside the model that learns from it.

use testkit::devices::alone;
use testkit::gate::{Gate, guarded};
use thalweg::simt::bf16;
use thalweg::{Device, DeviceKind, LiveBrand, Ring, Stream, Timeline};
use thalweg_train::overlap::{Encoded, EncodedOn, encoder_decoder};
use thalweg_train::{ImageEncoder, Loss, Precision, Result};

use crate::common::{
    Bits, done, everywhere_and_seeded, lanes, model, own_devices, results, stalls, stock, synchronize,
};
use crate::support::{Random, base_config, bits, devices, golden};

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

fn slots<S: LiveBrand, E: Precision>(encoder: &ImageEncoder<S, E>, count: usize) -> Ring<Encoded> {
    (0..count).map(|_| Encoded::new(encoder, IMAGES).unwrap()).collect()
}

fn encode_and_train<A: LiveBrand, B: LiveBrand, E: Precision>(
    encode: &Stream<A>,
    train: &Stream<B>,
    count: usize,
    graphs: bool,
) -> Bits {
    let mut encoder = encoder::<_, E>(encode);
    let mut model = model::<_, E>(train, base_config().with_input_dim(encoder.config().embed_dim));
    encoder.set_graphs(graphs);
    model.set_graphs(graphs);
    let (mut slots, mut losses) = (slots(&encoder, count), Vec::new());
    let seen = |_, loss| {
        losses.push(loss);
        Ok(())
    };
    encoder_decoder(&mut encoder, &mut model, &mut slots, 0..6, fill, seen, &Timeline::disabled()).unwrap();
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

/// While training stands at a gate, the encoder is ahead by the slots; while the encoder stands at
/// one, training goes on.
#[test]
fn the_encoder_runs_ahead_and_training_goes_on_without_it() {
    let _alone = alone();
    for &device in devices() {
        let lanes: [_; 2] = lanes(device);
        for held in 0..2 {
            lanes[0].enter(|encode| {
                lanes[1].enter(|train| {
                    let mut encoder = encoder::<_, f32>(encode);
                    let mut model = model::<_, f32>(train, base_config().with_input_dim(encoder.config().embed_dim));
                    let (mut slots, off) = (slots(&encoder, 3), Timeline::disabled());
                    let none = |_, loss: Loss| loss.item().map(drop);
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
                                // What follows training on batch 0 is held, and three batches are
                                // encoded.
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

#[test]
fn encoding_and_training_wait_for_nothing_and_allocate_nothing_after_the_first_batches() {
    let _alone = alone();
    for device in own_devices() {
        let [a, b] = lanes(device);
        a.enter(|encode| {
            b.enter(|train| {
                let mut encoder = encoder::<_, bf16>(encode);
                let mut model = model::<_, bf16>(train, base_config().with_input_dim(encoder.config().embed_dim));
                let mut slots = slots(&encoder, 2);
                let mut run = |items| {
                    let mut losses = Vec::new();
                    let seen = |_, loss| {
                        losses.push(loss);
                        Ok(())
                    };
                    encoder_decoder(&mut encoder, &mut model, &mut slots, items, fill, seen, &Timeline::disabled())
                        .unwrap();
                    losses
                };
                run(0..6).into_iter().for_each(|loss| assert!(loss.item().unwrap().is_finite()));
                stock(train);
                let mut later = Vec::new();
                assert_eq!(stalls(device, || later = run(6..12)), [], "{device}");
                later.into_iter().for_each(|loss| assert!(loss.item().unwrap().is_finite()));
            });
        });
    }
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
                    let mut model = model::<_, f32>(train, base_config().with_input_dim(encoder.config().embed_dim));
                    let (mut slots, off) = (slots(&encoder, 2), Timeline::disabled());
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
