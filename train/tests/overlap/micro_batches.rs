//! Forward of a micro-batch beside backward of the one before.

use testkit::devices::alone;
use testkit::gate::{Gate, guarded};
use thalweg::simt::bf16;
use thalweg::{Device, DeviceKind, Error, LiveBrand, Stream, Timeline};
use thalweg_train::overlap::micro_batches::watched;
use thalweg_train::overlap::{MicroBatch, micro_batches, micro_batches_from};
use thalweg_train::{Precision, TokenBatch};

use crate::common::{
    Bits, done, everywhere_and_seeded, lanes, model, own_devices, results, stalls, stock, synchronize,
};
use crate::support::{Sample, base_config, bits, devices, distance, numbers};

/// Steps of the optimizer, each on some micro-batches of different sizes.
fn micro_samples() -> Vec<Vec<Sample>> {
    let step = |n: u64| (0..5).map(|k| Sample::new(5, 4, 2 + (k as usize + n as usize) % 3, 10 * n + k)).collect();
    (0..4).map(step).collect()
}

fn micro<F: LiveBrand, S: LiveBrand, E: Precision>(forward: &Stream<F>, train: &Stream<S>, slots: usize) -> Bits {
    let mut model = model::<_, E>(train, base_config());
    let mut losses = Vec::new();
    for step in &micro_samples() {
        let batches: Vec<_> = step.iter().map(Sample::batch).collect();
        losses.push(micro_batches(forward, &mut model, slots, &batches, &Timeline::disabled()).unwrap());
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

/// Micro-batches that a stage before makes on the device give the same bits, and the stage goes on
/// while the forward passes stand at a gate.
#[test]
fn a_stage_before_makes_the_micro_batches() {
    let _alone = alone();
    everywhere_and_seeded(|device| {
        let [a, b, c] = lanes(device);
        let want = b.enter(|train| micro::<_, _, f32>(train, train, 1));
        let got = a.enter(|prepare| b.enter(|train| c.enter(|forward| from(prepare, forward, train, None))));
        assert!(got == want, "{device}");
    });
    for &device in devices() {
        let [a, b, c] = lanes(device);
        a.enter(|prepare| {
            b.enter(|train| {
                c.enter(|forward| {
                    let want = from(prepare, forward, train, None);
                    let gate = Gate::closed(device);
                    let got = guarded(&[&gate], || from(prepare, forward, train, Some(&gate)));
                    assert!(got == want, "{device}");
                });
            });
        });
    }
}

/// Takes the steps of [`micro`] on micro-batches that `prepare` fills. With a gate, the forward
/// passes of the last step are held until the stage before has filled three slots.
fn from<P: LiveBrand, F: LiveBrand, S: LiveBrand>(
    prepare: &Stream<P>,
    forward: &Stream<F>,
    train: &Stream<S>,
    gate: Option<&Gate>,
) -> Bits {
    let mut model = model::<_, f32>(train, base_config());
    let (mut losses, samples) = (Vec::new(), micro_samples());
    for (n, step) in samples.iter().enumerate() {
        let batches: Vec<_> = step.iter().map(Sample::batch).collect();
        let held = gate.filter(|_| n + 1 == samples.len());
        let input = |s: &Stream<P>, k: usize, to: MicroBatch<'_, P>| {
            match (held, k) {
                (Some(gate), 0) => {
                    // What the steps before have left is done, so only this step is held.
                    train.synchronize()?;
                    gate.hold(forward);
                }
                (Some(gate), 2) => {
                    s.synchronize()?;
                    assert!(!forward.is_complete()?, "the forward passes are held");
                    gate.open();
                }
                _ => {}
            }
            let TokenBatch { tokens, position, cu_seqlens, labels } = batches[k];
            s.copy_to_device(&s.bind(s.device().pinned_from(tokens)?)?, to.tokens)?;
            s.copy_to_device(&s.bind(s.device().pinned_from(position)?)?, to.position)?;
            s.copy_to_device(&s.bind(s.device().pinned_from(cu_seqlens)?)?, to.cu_seqlens)?;
            Ok(s.copy_to_device(&s.bind(s.device().pinned_from(labels)?)?, to.labels)?)
        };
        let shapes: Vec<_> = batches.iter().map(|batch| [batch.rows(), batch.sequences()]).collect();
        let off = Timeline::disabled();
        losses.push(micro_batches_from((prepare, forward), &mut model, 3, &shapes, input, &off).unwrap());
    }
    results(losses, &model)
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
            let mut models = [(); 2].map(|()| model::<_, f32>(train, base_config()));
            let batches: Vec<_> = samples.iter().map(Sample::batch).collect();
            // In the second step, the gradients of the first one are still in the memory.
            for _ in 0..2 {
                let off = Timeline::disabled();
                let losses = [
                    a.enter(|forward| micro_batches(forward, &mut models[0], 2, &batches, &off).unwrap().item()),
                    models[1].step(&whole.batch()).unwrap().item(),
                ];
                let [parts, all] = losses.map(|loss| loss.unwrap());
                assert!((parts - all).abs() < 1e-5 * all, "{device}: {parts} and {all}");
            }
            let first = model::<_, f32>(train, base_config()).tensors().unwrap();
            let [parts, all] = models.map(|model| model.tensors().unwrap());
            for name in first.tensors.keys().filter(|name| !name.ends_with("qkv.bias")) {
                let of = |file: &thalweg_train::Tensors| numbers(file, name);
                let update = |file| of(file).iter().zip(of(&first)).map(|(v, w)| v - w).collect::<Vec<_>>();
                let error = distance(&update(&parts), &update(&all));
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
                    let (mut model, off) = (model::<_, f32>(train, base_config()), Timeline::disabled());
                    micro_batches(forward, &mut model, 3, &batches, &off).unwrap().item().unwrap();
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
                            // Backward passes from 1 on are held, and forward passes up to 3 are
                            // done.
                            (1, true, 3) => {
                                synchronize(&lanes[0]);
                                assert_eq!(done(&lanes), [true, false], "{device}");
                                gate.open();
                            }
                            _ => {}
                        };
                        watched(forward, &mut model, 3, &batches, &off, before).unwrap().item().unwrap();
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
                    let (mut model, off) = (model::<_, f32>(train, base_config()), Timeline::disabled());
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

/// An error of the stage before the forward passes is that of the step, and the next step is taken.
#[test]
fn an_error_leaves_the_model_as_it_was() {
    let _alone = alone();
    for &device in devices() {
        let [a, b] = lanes(device);
        a.enter(|forward| {
            b.enter(|train| {
                let (samples, off) = (micro_samples().remove(0), Timeline::disabled());
                let batches: Vec<_> = samples.iter().map(Sample::batch).collect();
                let shapes: Vec<_> = batches.iter().map(|batch| [batch.rows(), batch.sequences()]).collect();
                let mut models = [(); 2].map(|()| model::<_, f32>(train, base_config()));
                let none = || thalweg_train::Error::Batch("none".into());
                let (on, model) = ((forward, forward), &mut models[0]);
                let failed = micro_batches_from(on, model, 2, &shapes, |_, _, _| Err(none()), &off);
                assert!(matches!(failed, Err(thalweg_train::Error::Batch(_))), "{device}");
                let losses = models.each_mut().map(|model| {
                    let loss = micro_batches(forward, model, 2, &batches, &off).unwrap();
                    loss.item().unwrap()
                });
                assert_eq!(losses[0], losses[1], "{device}");
                assert_eq!(models.map(|model| model.steps()), [1, 1]);
            });
        });
    }
}

#[test]
fn micro_batches_wait_for_nothing_and_allocate_nothing_after_the_first_steps() {
    let _alone = alone();
    for device in own_devices() {
        let [a, b] = lanes(device);
        a.enter(|forward| {
            b.enter(|train| {
                let (mut model, off) = (model::<_, bf16>(train, base_config()), Timeline::disabled());
                let samples: Vec<_> = (0..4).map(|n| Sample::new(5, 4, 4, n)).collect();
                let batches: Vec<_> = samples.iter().map(Sample::batch).collect();
                let mut step = |times| {
                    let step = |_| micro_batches(forward, &mut model, 2, &batches, &off).unwrap();
                    (0..times).map(step).collect::<Vec<_>>()
                };
                let first: Vec<_> = step(5).into_iter().map(|loss| loss.item().unwrap()).collect();
                stock(train);
                let mut later = Vec::new();
                let waited = stalls(device, || later = step(5));
                assert_eq!(waited, [], "{device}");
                assert!(later.pop().unwrap().item().unwrap() < first[0]);
            });
        });
    }
}

/// A failure of the device that loses the memory of a model is said to be that, and not a lost
/// reading.
#[test]
fn a_lost_model_is_reported_as_one() {
    let _alone = alone();
    let device = Device::new_cpu().unwrap();
    let [a, b] = lanes(device);
    a.enter(|forward| {
        b.enter(|train| {
            let (mut model, off) = (model::<_, f32>(train, base_config()), Timeline::disabled());
            let sample = Sample::new(5, 4, 3, 1);
            let fail = |_, _| device.poison("on purpose");
            watched(forward, &mut model, 1, &[sample.batch()], &off, fail).unwrap_err();
            let error = model.tensors().unwrap_err();
            assert!(matches!(error, thalweg_train::Error::Lost), "{error:?}");
            assert!(error.to_string().contains("make the model again"), "{error}");
        });
    });
}

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
            let small: Vec<TokenBatch<'_>> = small.iter().map(Sample::batch).collect();
            let off = Timeline::disabled();
            let mut models = [(); 2].map(|()| model::<_, f32>(train, base_config()));
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
