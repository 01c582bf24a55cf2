//! Requests for text about images, on four streams.

use testkit::devices::alone;
use testkit::gate::{Gate, guarded};
use thalweg::overlap::stages;
use thalweg::simt::bf16;
use thalweg::{Activity, AnyStream, Device, DeviceKind, LiveBrand, Ring, Stream, Timeline};
use thalweg_train::overlap::{Request, RequestOn, Text, vlm_pipeline};
use thalweg_train::{
    EncoderConfig, Precision, Result, TextDecoder, VisionEncoder, VisionLanguage, VisionLanguageConfig,
};

use crate::common::{done, everywhere_and_seeded, lanes, own_devices, stalls, synchronize};
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
        .with_norm_eps(1e-5)
        .with_gelu(thalweg_train::Gelu::Tanh)
}
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

fn requests<S: LiveBrand, E: Precision>(encoder: &VisionEncoder<S, E>, count: usize) -> Ring<Request> {
    (0..count).map(|_| Request::new(encoder, 3 * MOST[0], MOST[0], MOST[1]).unwrap()).collect()
}

/// Answers requests on four streams: upload, preparation, encoder and decoder.
fn answer<E: Precision>([up, cuts, encode, decode]: [&AnyStream; 4], count: usize) -> Vec<Vec<i32>> {
    let file = base_model().init(11).unwrap();
    encode.enter(|encode| {
        decode.enter(|decode| {
            let mut encoder = VisionEncoder::<_, E>::from_tensors(encode, &file).unwrap();
            let mut decoder = TextDecoder::<_, E>::from_tensors(decode, &file).unwrap();
            let (mut slots, mut texts) = (requests(&encoder, count), Vec::new());
            let before = stages::<_, thalweg_train::Error>(&mut slots)
                .step_on_any(up, Activity::Upload, |s, n, request| {
                    ask(s, n, request)?;
                    Ok(())
                })
                .step_on_any(cuts, Activity::Compute, |s, _, request| cut(s, request));
            let seen = |n, text| {
                texts.push((n, text));
                Ok(())
            };
            vlm_pipeline(before, &mut encoder, &mut decoder, 0..9, seen, &Timeline::disabled()).unwrap();
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
            let mut model = VisionLanguage::<_, E>::from_tensors(s, &base_model().init(11).unwrap()).unwrap();
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

/// An image encoder has the pixels as they are.
#[test]
fn requests_with_pixels_get_the_texts_of_one_after_another() {
    let _alone = alone();
    let shape = EncoderConfig::default().with_image_size(4).with_patch_size(2).with_embed_dim(16).with_num_heads(2);
    let file = base_model().with_image_encoder(Some(shape.with_depth(1))).init(11).unwrap();
    let pixels: Vec<_> = (0..4).map(|n| Random(n).numbers(3 * 4 * 4)).collect();
    for &device in devices() {
        let lanes: [_; 3] = lanes(device);
        let [prepare, encode, decode] = &lanes;
        encode.enter(|encode| {
            decode.enter(|decode| {
                let mut encoder = VisionEncoder::<_, f32>::from_tensors(encode, &file).unwrap();
                let mut decoder = TextDecoder::<_, f32>::from_tensors(decode, &file).unwrap();
                let new = |_| Request::new(&encoder, 0, shape.rows(), 5).unwrap();
                let (mut slots, mut texts) = ((0..2).map(new).collect::<Ring<_>>(), Vec::new());
                let before = stages::<_, thalweg_train::Error>(&mut slots).step_on_any(
                    prepare,
                    Activity::Upload,
                    |s, n, request| {
                        request.prompt.splice(.., [3, n as i32]);
                        let host = s.bind(s.device().pinned_from(&pixels[n])?)?;
                        Ok(s.copy_to_device(&host, &mut request.tokens)?)
                    },
                );
                let seen = |_, text| {
                    texts.push(text);
                    Ok(())
                };
                vlm_pipeline(before, &mut encoder, &mut decoder, 0..4, seen, &Timeline::disabled()).unwrap();
                let mut model = VisionLanguage::<_, f32>::from_tensors(encode, &file).unwrap();
                for (n, text) in texts.into_iter().enumerate() {
                    let wanted = model.generate(&pixels[n], &[], &[3, n as i32], 5).unwrap();
                    assert_eq!(text.get().unwrap(), wanted, "{device}: text {n}");
                }
            });
        });
    }
}

/// While one stream stands at a gate, those before it go on as far as the slots reach, and those
/// behind it complete what they have.
#[test]
fn preparing_encoding_and_writing_overlap() {
    let _alone = alone();
    for &device in devices() {
        let lanes: [_; 3] = lanes(device);
        let [prepare, encode, decode] = &lanes;
        encode.enter(|encode| {
            decode.enter(|decode| {
                let file = base_model().init(11).unwrap();
                let mut encoder = VisionEncoder::<_, f32>::from_tensors(encode, &file).unwrap();
                let mut decoder = TextDecoder::<_, f32>::from_tensors(decode, &file).unwrap();
                let (mut slots, off) = (requests(&encoder, 4), Timeline::disabled());
                for held in [None, Some(0), Some(1), Some(2)] {
                    let gate = Gate::closed(device);
                    let mut go = || {
                        let before = stages::<_, thalweg_train::Error>(&mut slots).step_on_any(
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
                                // The streams before the held one have done four requests, those
                                // behind it two.
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

#[test]
fn requests_wait_for_nothing_and_allocate_nothing_after_the_first_ones() {
    let _alone = alone();
    for device in own_devices() {
        let lanes: [_; 3] = lanes(device);
        let [prepare, encode, decode] = &lanes;
        encode.enter(|encode| {
            decode.enter(|decode| {
                let file = base_model().init(11).unwrap();
                let mut encoder = VisionEncoder::<_, bf16>::from_tensors(encode, &file).unwrap();
                let mut decoder = TextDecoder::<_, bf16>::from_tensors(decode, &file).unwrap();
                let mut slots = requests(&encoder, 3);
                let mut run = |items: std::ops::Range<usize>, gate: Option<&Gate>| {
                    let mut texts = Vec::with_capacity(8);
                    let first = items.start;
                    let before = stages::<_, thalweg_train::Error>(&mut slots).step_on_any(
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
                    vlm_pipeline(before, &mut encoder, &mut decoder, items, seen, &Timeline::disabled()).unwrap();
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

/// A request that does not fit ends the run; those before it have their texts, and the pipeline can
/// go on.
#[test]
fn a_request_that_does_not_fit_leaves_those_before() {
    let _alone = alone();
    for &device in devices() {
        let [a, b] = lanes(device);
        a.enter(|encode| {
            b.enter(|decode| {
                let file = base_model().init(11).unwrap();
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
                    let ended = vlm_pipeline(before, &mut encoder, &mut decoder, items, seen, &Timeline::disabled());
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
