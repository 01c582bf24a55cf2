//! Batches of requests for text about images, on four streams.

use std::cell::Cell;
use std::thread;
use std::time::Duration;

use testkit::devices::alone;
use testkit::gate::{Gate, guarded};
use thalweg::overlap::stages;
use thalweg::simt::bf16;
use thalweg::{Activity, AnyStream, Device, DeviceKind, HostWait, LiveBrand, Ring, Stream, Timeline};
use thalweg_train::overlap::{Requests, RequestsOn, vlm_pipeline};
use thalweg_train::{
    EncoderConfig, Error, Precision, Result, TextRequest, TextServer, TextServerOptions, VisionEncoder, VisionLanguage,
    VisionLanguageConfig,
};

use crate::common::{done, everywhere_and_seeded, lanes, own_devices, stalls, stock, synchronize};
use crate::support::{Random, devices};

fn base_model() -> VisionLanguageConfig {
    VisionLanguageConfig::default()
        .with_input_dim(3)
        .with_embed_dim(16)
        .with_num_heads(2)
        .with_depth(1)
        .with_text_embed_dim(24)
        .with_text_num_heads(3)
        .with_text_depth(2)
        .with_vocab_size(30)
        .with_max_tokens(10)
}

/// The most requests of a batch, and the most rows of an image.
const MOST: [usize; 2] = [3, 7];
const BATCHES: usize = 6;

/// Returns the requests of a batch. Images, prompts and texts have different lengths, and one batch
/// has no request.
fn batch(item: usize) -> Vec<TextRequest> {
    let mut random = Random(item as u64);
    let request = |_| {
        TextRequest::default()
            .with_rows(1 + random.below(MOST[1]))
            .with_count(1 + random.below(6))
            .with_prompt((0..1 + random.below(4)).map(|_| random.below(30) as i32).collect())
            .with_temperature([0.0, 0.8][random.below(2)])
            .with_seed(random.word())
            .with_stop(vec![random.below(30) as i32])
    };
    (0..if item == 2 { 0 } else { 1 + item % MOST[0] }).map(request).collect()
}

/// Returns tokens and positions of the images of a batch.
fn numbers(item: usize) -> (Vec<f32>, Vec<f32>) {
    let rows: usize = batch(item).iter().map(|request| request.rows).sum();
    let mut random = Random(100 + item as u64);
    (random.numbers(3 * rows), random.numbers(2 * rows))
}

/// Fills a slot. The tokens are uploaded as pixels.
fn ask<S: LiveBrand>(s: &Stream<S>, item: usize, slot: &mut RequestsOn<S>) -> Result<()> {
    let (pixels, position) = numbers(item);
    slot.requests.clear();
    slot.requests.extend(batch(item));
    for (numbers, to) in [(&pixels, &mut slot.pixels), (&position, &mut slot.position)] {
        let host = s.bind(s.device().pinned_from(numbers)?)?;
        s.copy_to_device(&host, to.slice_mut(..numbers.len())?)?;
    }
    Ok(())
}

/// The second stage: the pixels become tokens.
fn cut<S: LiveBrand>(s: &Stream<S>, slot: &mut RequestsOn<S>) -> Result<()> {
    Ok(s.copy(&slot.pixels, &mut slot.tokens)?)
}

fn slots<S: LiveBrand, E: Precision>(encoder: &VisionEncoder<S, E>, count: usize) -> Ring<Requests> {
    let rows = MOST[0] * MOST[1];
    (0..count).map(|_| Requests::new(encoder, 0, 3 * rows, rows).unwrap()).collect()
}

fn encoder<S: LiveBrand, E: Precision>(s: &Stream<S>) -> VisionEncoder<S, E> {
    VisionEncoder::from_tensors(s, &base_model().init(11).unwrap()).unwrap()
}

fn server<S: LiveBrand, E: Precision>(s: &Stream<S>, texts: usize) -> TextServer<S, E> {
    let options = TextServerOptions::default().with_texts(texts).with_pages(2 * texts).with_image_rows(MOST[1]);
    TextServer::from_tensors(s, &base_model().init(11).unwrap(), options).unwrap()
}

type Texts = Vec<Vec<Vec<i32>>>;

/// Returns a place for each text.
fn places() -> Texts {
    (0..BATCHES).map(|item| vec![vec![]; batch(item).len()]).collect()
}

/// Answers all batches on four streams: upload, preparation, encoder and server.
fn answer<E: Precision>([up, cuts, encode, write]: [&AnyStream; 4], count: usize, at_once: usize) -> Texts {
    encode.enter(|encode| {
        write.enter(|write| {
            let (mut encoder, mut server) = (encoder::<_, E>(encode), server::<_, E>(write, at_once));
            let (mut slots, mut texts) = (slots(&encoder, count), places());
            let before = stages::<_, Error>(&mut slots)
                .step_on_any(up, Activity::Upload, |s, n, slot| {
                    ask(s, n, slot)?;
                    Ok(())
                })
                .step_on_any(cuts, Activity::Compute, |s, _, slot| cut(s, slot));
            let seen = |n: usize, place: usize, text: Result<Vec<i32>>| {
                assert!(texts[n][place].is_empty(), "each text ends once");
                texts[n][place] = text?;
                Ok(())
            };
            vlm_pipeline(before, &mut encoder, &mut server, 0..BATCHES, seen, &Timeline::disabled()).unwrap();
            assert!(server.is_idle() && slots.len() == count, "the slots are back");
            texts
        })
    })
}

/// Writes each text by itself.
fn alone_each<E: Precision>(lane: &AnyStream) -> Texts {
    lane.enter(|s| {
        let (mut encoder, mut server) = (encoder::<_, E>(s), server::<_, E>(s, 1));
        let mut texts = places();
        for (item, texts) in texts.iter_mut().enumerate() {
            let ((tokens, position), mut start) = (numbers(item), 0);
            for (request, text) in batch(item).into_iter().zip(texts) {
                let end = start + request.rows;
                let tokens = s.upload_blocking(&tokens[3 * start..3 * end]).unwrap();
                let position = s.upload_blocking(&position[2 * start..2 * end]).unwrap();
                start = end;
                server.submit(request).unwrap();
                while !server.is_idle() {
                    server.step(|_, image| encoder.encode(&tokens, &position, image)).unwrap();
                }
                *text = server.finished().unwrap().1.unwrap();
            }
        }
        texts
    })
}

fn answers_are_those_alone<E: Precision>() {
    let cpu = Device::cpu().unwrap();
    everywhere_and_seeded(|device| {
        let [lane] = lanes(if device.kind() == DeviceKind::Cpu { cpu } else { device });
        let wanted = alone_each::<E>(&lane);
        assert!(wanted.iter().flatten().all(|text| !text.is_empty()) && wanted[1][0] != wanted[1][1], "{wanted:?}");
        assert!(answer::<E>([&lane; 4], 1, 1) == wanted, "{device}: one stream");
        let [a, b, c, d] = lanes(device);
        for (count, at_once) in [(1, 4), (2, 2), (5, 16)] {
            assert!(answer::<E>([&a, &b, &c, &d], count, at_once) == wanted, "{device}: {count} slots");
        }
    });
}

#[test]
fn batches_on_four_streams_get_the_texts_that_each_request_gets_alone() {
    let _alone = alone();
    answers_are_those_alone::<f32>();
    answers_are_those_alone::<bf16>();
}

/// An image encoder has the pixels as they are.
#[test]
fn requests_with_pixels_get_the_texts_of_each_alone() {
    let _alone = alone();
    let shape = EncoderConfig::default().with_image_size(4).with_patch_size(2).with_embed_dim(16).with_num_heads(2);
    let file = base_model().with_image_encoder(Some(shape.with_depth(1))).init(11).unwrap();
    let pixels: Vec<_> = (0..4).map(|n| Random(n).numbers(2 * 3 * 4 * 4)).collect();
    let prompt = |n: usize, place: usize| vec![3, (2 * n + place) as i32];
    for &device in devices() {
        let lanes: [_; 3] = lanes(device);
        let [prepare, encode, write] = &lanes;
        encode.enter(|encode| {
            write.enter(|write| {
                let mut encoder = VisionEncoder::<_, f32>::from_tensors(encode, &file).unwrap();
                let options = TextServerOptions::default().with_texts(4).with_pages(8).with_image_rows(shape.rows());
                let mut server = TextServer::<_, f32>::from_tensors(write, &file, options).unwrap();
                let new = |_| Requests::new(&encoder, 0, 0, 2 * shape.rows()).unwrap();
                let (mut slots, mut texts) = ((0..2).map(new).collect::<Ring<_>>(), vec![vec![vec![]; 2]; 4]);
                let before = stages::<_, Error>(&mut slots).step_on_any(prepare, Activity::Upload, |s, n, slot| {
                    let request = TextRequest::default().with_rows(shape.rows()).with_count(5);
                    slot.requests = (0..2).map(|place| request.clone().with_prompt(prompt(n, place))).collect();
                    let host = s.bind(s.device().pinned_from(&pixels[n])?)?;
                    Ok(s.copy_to_device(&host, &mut slot.tokens)?)
                });
                let seen = |n: usize, place: usize, text: Result<Vec<i32>>| {
                    texts[n][place] = text?;
                    Ok(())
                };
                vlm_pipeline(before, &mut encoder, &mut server, 0..4, seen, &Timeline::disabled()).unwrap();
                let mut model = VisionLanguage::<_, f32>::from_tensors(encode, &file).unwrap();
                for (n, texts) in texts.into_iter().enumerate() {
                    for (place, text) in texts.into_iter().enumerate() {
                        let image = &pixels[n][place * 3 * 4 * 4..][..3 * 4 * 4];
                        let wanted = model.generate(image, &[], &prompt(n, place), 5).unwrap();
                        assert_eq!(text, wanted, "{device}: text {place} of batch {n}");
                    }
                }
            });
        });
    }
}

/// While a stream in front stands at a gate with a later batch, the server writes all texts of the
/// batches before to their ends.
#[test]
fn texts_are_written_beside_the_next_batches() {
    let _alone = alone();
    for &device in devices() {
        let all: [_; 3] = lanes(device);
        let [prepare, encode, write] = &all;
        encode.enter(|on_encode| {
            write.enter(|on_write| {
                let (mut encoder, mut server) = (encoder::<_, f32>(on_encode), server::<_, f32>(on_write, 6));
                let mut slots = slots(&encoder, 3);
                for held in [None, Some(prepare), Some(encode)] {
                    let gate = Gate::closed(device);
                    let mut go = || {
                        let left = Cell::new((0..3).map(|n| batch(n).len()).sum::<usize>());
                        let all_of_them = left.get();
                        let before =
                            stages::<_, Error>(&mut slots).step_on_any(prepare, Activity::Upload, |s, n, slot| {
                                if n == 3 {
                                    // A slot is free when its requests have joined.
                                    assert_eq!(left.get(), all_of_them, "{device}: a text has ended");
                                    held.inspect(|lane| lane.enter(|s| gate.hold(s)));
                                }
                                ask(s, n, slot)?;
                                // No text ends before batch 3 could join.
                                slot.requests.iter_mut().for_each(|request| {
                                    (request.count, request.stop) = (6, vec![]);
                                });
                                cut(s, slot)
                            });
                        let seen = |n: usize, _, text: Result<Vec<i32>>| {
                            text?;
                            if n < 3 {
                                left.set(left.get() - 1);
                            } else if held.is_some() {
                                assert_eq!(left.get(), 0, "{device}: batch {n} is behind the gate");
                            }
                            if left.get() == 0 {
                                gate.open();
                            }
                            Ok(())
                        };
                        vlm_pipeline(before, &mut encoder, &mut server, 0..BATCHES, seen, &Timeline::disabled())
                            .unwrap();
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

/// While the server's stream stands at a gate, the streams in front make the next batch.
#[test]
fn the_next_batches_are_made_beside_texts() {
    let _alone = alone();
    for &device in devices() {
        let all: [_; 3] = lanes(device);
        let [prepare, encode, write] = &all;
        encode.enter(|on_encode| {
            write.enter(|on_write| {
                let (mut encoder, mut server) = (encoder::<_, f32>(on_encode), server::<_, f32>(on_write, 6));
                let mut slots = slots(&encoder, 2);
                for held in [false, true] {
                    let gate = Gate::closed(device);
                    let mut go = || {
                        thread::scope(|threads| {
                            let before =
                                stages::<_, Error>(&mut slots).step_on_any(prepare, Activity::Upload, |s, n, slot| {
                                    if n == 3 && held {
                                        // Batch 1 or a later one is being written. The host waits
                                        // for its tokens, so another thread looks.
                                        gate.hold(on_write);
                                        threads.spawn(|| {
                                            thread::sleep(Duration::from_millis(20));
                                            [prepare, encode].into_iter().for_each(synchronize);
                                            assert_eq!(done(&all), [true, true, false], "{device}");
                                            gate.open();
                                        });
                                    }
                                    ask(s, n, slot)?;
                                    cut(s, slot)
                                });
                            let seen = |_, _, text: Result<Vec<i32>>| text.map(drop);
                            vlm_pipeline(before, &mut encoder, &mut server, 0..4, seen, &Timeline::disabled()).unwrap();
                        });
                    };
                    if held { guarded(&[&gate], go) } else { go() }
                }
            });
        });
    }
}

/// The host waits for tokens only, and nothing is allocated after the first batches.
#[test]
fn batches_allocate_nothing_after_the_first_ones() {
    let _alone = alone();
    for device in own_devices() {
        let [prepare, encode, write] = lanes(device);
        encode.enter(|encode| {
            write.enter(|write| {
                let (mut encoder, mut server) = (encoder::<_, bf16>(encode), server::<_, bf16>(write, 6));
                let mut slots = slots(&encoder, 2);
                stock(write);
                let mut run = || {
                    let mut texts = places();
                    let before =
                        stages::<_, Error>(&mut slots).step_on_any(&prepare, Activity::Upload, |s, n, slot| {
                            ask(s, n, slot)?;
                            cut(s, slot)
                        });
                    let seen = |n: usize, place: usize, text: Result<Vec<i32>>| {
                        texts[n][place] = text?;
                        Ok(())
                    };
                    vlm_pipeline(before, &mut encoder, &mut server, 0..BATCHES, seen, &Timeline::disabled()).unwrap();
                    texts
                };
                run();
                let (first, mut later) = (run(), places());
                let waits = stalls(device, || later = run());
                assert_eq!(later, first);
                assert!(waits.iter().all(|(kind, _)| *kind == HostWait::Synchronize), "{device}: {waits:?}");
            });
        });
    }
}

/// A request that the server refuses costs nobody else's text. A stage that fails ends the run
/// behind the texts of the batches before, and an error of `seen` ends it at once. Each leaves an
/// idle server and the slots, with which the pipeline goes on.
#[test]
fn what_fails_leaves_the_rest() {
    let _alone = alone();
    for &device in devices() {
        let [a, b, lane] = lanes(device);
        let wanted = alone_each::<f32>(&lane);
        a.enter(|encode| {
            b.enter(|write| {
                let (mut encoder, mut server) = (encoder::<_, f32>(encode), server::<_, f32>(write, 4));
                let mut slots = slots(&encoder, 2);
                assert!(Requests::new(&encoder, 0, 0, usize::MAX).is_err());
                let rows_of_broken = Cell::new(22);
                let mut run = |refused: usize, broken: usize, stop: usize| {
                    // A stage that fails has lost its slot.
                    slots.extend((slots.len()..2).map(|_| Requests::new(&encoder, 0, 63, 21).unwrap()));
                    let (mut texts, mut errors) = (places(), Vec::new());
                    let before = stages::<_, Error>(&mut slots).step(encode, Activity::Upload, |s, n, slot| {
                        ask(s, n, slot)?;
                        cut(s, slot)?;
                        if n == refused {
                            slot.requests[0].prompt = vec![30]; // there are 30 ids, from 0 on
                        }
                        if n == stop {
                            // Both end at once: `seen` gets the first one only.
                            slot.requests.iter_mut().for_each(|r| (r.count, r.stop) = (5, vec![]));
                        }
                        if n == broken {
                            slot.requests[0].rows = rows_of_broken.get();
                        }
                        Ok(())
                    });
                    let seen = |n: usize, place: usize, text: Result<Vec<i32>>| {
                        if n == stop {
                            return Err(Error::Batch("stop".into()));
                        }
                        match text {
                            Ok(text) => texts[n][place] = text,
                            Err(error) => errors.push((n, place, error.to_string())),
                        }
                        Ok(())
                    };
                    let ended =
                        vlm_pipeline(before, &mut encoder, &mut server, 0..BATCHES, seen, &Timeline::disabled());
                    assert!(server.is_idle() && server.finished().is_none(), "{device}");
                    assert_eq!(slots.len(), if broken < BATCHES { 1 } else { 2 }, "{device}");
                    (ended.map_err(|error| error.to_string()), texts, errors)
                };
                let (ended, ..) = run(4, 99, 4);
                assert!(ended.unwrap_err().contains("stop"), "{device}: what `seen` says of a refused request");
                let (ended, texts, errors) = run(4, 99, 99);
                assert!(ended.is_ok() && texts[4][0].is_empty() && texts[4][1] == wanted[4][1], "{device}: {ended:?}");
                assert!(matches!(&errors[..], [(4, 0, what)] if what.contains("id 30")), "{device}: {errors:?}");
                assert!([0, 1, 3, 5].iter().all(|&n| texts[n] == wanted[n]), "{device}");

                for rows in [22, usize::MAX] {
                    rows_of_broken.set(rows);
                    let (ended, texts, errors) = run(99, 4, 99);
                    let why = ended.unwrap_err();
                    assert!(
                        why.contains("its slot has room for 21") && errors.is_empty(),
                        "{device}: {why}, {errors:?}"
                    );
                    assert!(texts[..4] == wanted[..4] && texts[4].iter().all(Vec::is_empty), "{device}");
                }

                // With batch 4, requests of batch 5 still wait to join.
                for stop in [1, 4] {
                    let (ended, ..) = run(99, 99, stop);
                    assert!(ended.clone().is_err_and(|what| what.contains("stop")), "{device}: {ended:?}");
                }
                let (ended, texts, _) = run(99, 99, 99);
                assert!(ended.is_ok() && texts == wanted, "{device}: {ended:?}");
            });
        });
    }
}

/// A server with texts of others is refused, and so is a ring without slots.
#[test]
fn a_busy_server_is_refused() {
    let s = Device::cpu().unwrap();
    let [lane] = lanes(s);
    lane.enter(|s| {
        let (mut encoder, mut server) = (encoder::<_, f32>(s), server::<_, f32>(s, 1));
        let mut run = |server: &mut TextServer<_, f32>, mut slots: Ring<Requests>| {
            let before = stages::<_, Error>(&mut slots).step(s, Activity::Upload, ask);
            let ended = vlm_pipeline(before, &mut encoder, server, 0..1, |_, _, _| Ok(()), &Timeline::disabled());
            ended.unwrap_err().to_string()
        };
        assert!(run(&mut server, Ring::default()).contains("slots"));
        server.submit(batch(0).remove(0)).unwrap();
        assert!(run(&mut server, Ring::default()).contains("other texts"));
        while !server.is_idle() {
            server.step(|_, image| Ok(s.fill(image, 0.5)?)).unwrap();
        }
        assert!(run(&mut server, Ring::default()).contains("or to give back"));
        assert!(server.finished().is_some(), "the result is still there");
        let wide = base_model().with_text_embed_dim(48).init(11).unwrap();
        let mut server = TextServer::from_tensors(s, &wide, TextServerOptions::default().with_texts(1)).unwrap();
        assert!(run(&mut server, Ring::default()).contains("rows of 24, and the server reads rows of 48"));
    });
}
