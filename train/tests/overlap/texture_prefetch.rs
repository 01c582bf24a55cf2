//! Uploads, textures and training. The test of the steady state takes augmentation along.

use testkit::devices::alone;
use testkit::gate::{Gate, guarded};
use thalweg::stream_tags;
use thalweg::{Device, DeviceKind, DeviceSlice, LiveBrand, Ring, Size, Stream, Timeline};
use thalweg_collective::{BucketSizes, WorldOptions, ranks};
use thalweg_train::overlap::{
    AskedPhotographs, AskedPhotographsOn, DataParallel, Photographs, PhotographsOn, augment_train, texture_prefetch,
    texture_prefetch_texts,
};
use thalweg_train::{
    Error, GateConfig, Gated, Loss, Patches, Precision, Result, TextBatch, TokenBatch, TokenTransformer,
    VisionLanguageConfig,
};
use thalweg_vision::{
    DeviceTokenValues, Head, Image, Layer, PLANES, Pipeline, PipelineOptions, Query, TokenParams, TokenPrecision,
    layout,
};

use crate::augment_train::{OnPatches, augmented_slots, prepare};
use crate::common::{
    Bits, done, everywhere_and_seeded, lanes, model, optimizer, own_devices, results, stalls, stock, synchronize,
};
use crate::support::{Random, base_config, devices};

stream_tags!(Reduce, Train);

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

/// Checks that while training stands at a gate, textures are ahead by the slots, and the upload
/// too; while textures stand, uploads and training go on.
macro_rules! go_on_without_one_another {
    ($prefetch:ident, $slots:expr, $model:expr, $fill:ident) => {
        let _alone = alone();
        for &device in devices() {
            let lanes: [_; 3] = lanes(device);
            for held in 0..3 {
                lanes[0].enter(|upload| {
                    lanes[1].enter(|make| {
                        lanes[2].enter(|train| {
                            let (mut model, mut slots, off) = ($model(train), $slots(upload), Timeline::disabled());
                            let none = |_, loss: Loss| loss.item().map(drop);
                            $prefetch((upload, make), &mut model, &mut slots, 0..4, $fill, none, &off).unwrap();
                            let gate = Gate::closed(device);
                            guarded(&[&gate], || {
                                let others_are_done = || {
                                    (0..3).filter(|&k| k != held).for_each(|k| synchronize(&lanes[k]));
                                    let want: Vec<_> = (0..3).map(|k| k != held).collect();
                                    assert_eq!(done(&lanes), want, "{device}: {held} is held");
                                    gate.open();
                                };
                                let input = |s: &Stream<_>, n: usize, batch: &mut _| {
                                    match (n, held) {
                                        (2, 0) => gate.hold(s),
                                        (2, 1) => gate.hold(make),
                                        _ => {}
                                    }
                                    $fill(s, n, batch)?;
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
                                $prefetch((upload, make), &mut model, &mut slots, 0..4, input, seen, &off).unwrap();
                            });
                            train.synchronize().unwrap();
                        });
                    });
                });
            }
        }
    };
}

#[test]
fn uploads_textures_and_training_go_on_without_one_another() {
    fn learner<S: LiveBrand>(s: &Stream<S>) -> TokenTransformer<S, f32> {
        model(s, base_config().with_input_dim(PLANES))
    }
    go_on_without_one_another!(texture_prefetch, |s| photograph_slots(s, 4), learner, photographs);
}

#[test]
fn uploads_textures_and_answers_go_on_without_one_another() {
    fn learner<S: LiveBrand>(s: &Stream<S>) -> TokenTransformer<S, f32> {
        answering(s, gate())
    }
    go_on_without_one_another!(texture_prefetch_texts, |s| asked_slots(s, 4, gate()), learner, asked);
}

/// A gate whose balancer weighs as that of [`head`].
fn gate() -> Option<GateConfig> {
    Some(GateConfig::default().with_query_dim(DIMENSION))
}

/// A model that answers.
fn answering<S: LiveBrand, E: Precision>(s: &Stream<S>, gate: Option<GateConfig>) -> TokenTransformer<S, E> {
    let config = VisionLanguageConfig::default()
        .with_input_dim(PLANES)
        .with_embed_dim(16)
        .with_num_heads(2)
        .with_depth(1)
        .with_text_embed_dim(16)
        .with_text_num_heads(2)
        .with_text_depth(1)
        .with_vocab_size(9)
        .with_max_tokens(8)
        .with_gate(gate);
    let mut model = TokenTransformer::answering(s, config, 3).unwrap();
    *model.optimizer_mut() = optimizer();
    model
}

/// The queries of an item, one for each photograph, and its texts of unlike lengths.
fn questions(item: usize) -> (Vec<Query>, [Vec<i32>; 3]) {
    let random = &mut Random(item as u64 + 50);
    let queries = PHOTOGRAPHS.iter().enumerate().map(|(b, _)| query(10 * item as u64 % 3 + b as u64)).collect();
    let [mut ids, mut ends, mut asked] = [vec![], vec![0], vec![]];
    for _ in PHOTOGRAPHS {
        let (question, answer) = (1 + random.below(4), 1 + random.below(4));
        ids.extend((1..question + answer).map(|_| 1 + random.below(8) as i32));
        ids.push(0);
        ends.push(ids.len() as i32);
        asked.push(question as i32);
    }
    (queries, [ids, ends, asked])
}

/// Uploads the photographs of an item, its queries and its texts.
fn asked<S: LiveBrand>(s: &Stream<S>, item: usize, batch: &mut AskedPhotographsOn<S>) -> Result<()> {
    let mut random = Random(item as u64);
    let pixels: Vec<u8> = (0..batch.rgb.len()).map(|_| random.word() as u8).collect();
    let host = s.bind(s.device().pinned_from(&pixels)?)?;
    s.copy_to_device(&host, &mut batch.rgb)?;
    let (queries, texts) = questions(item);
    batch.set_queries(s, &head(), &queries)?;
    batch.ask(s, texts.each_ref().map(Vec::as_slice), None)
}

fn asked_slots<S: LiveBrand>(s: &Stream<S>, count: usize, gate: Option<GateConfig>) -> Ring<AskedPhotographs> {
    let pipeline = texture_pipeline(s.device(), &query(0));
    (0..count).map(|_| AskedPhotographs::new(s, &pipeline, &PHOTOGRAPHS, 16, gate).unwrap()).collect()
}

fn answers<U: LiveBrand, A: LiveBrand, B: LiveBrand>(
    (upload, textures, train): (&Stream<U>, &Stream<A>, &Stream<B>),
    count: usize,
    gate: Option<GateConfig>,
) -> Bits {
    let mut model = answering::<_, f32>(train, gate);
    let (mut slots, mut losses) = (asked_slots(upload, count, gate), Vec::new());
    let seen = |_, loss| {
        losses.push(loss);
        Ok(())
    };
    texture_prefetch_texts((upload, textures), &mut model, &mut slots, 0..4, asked, seen, &Timeline::disabled())
        .unwrap();
    results(losses, &model)
}

#[test]
fn answers_beside_textures_have_the_bits_of_one_after_the_other() {
    let _alone = alone();
    let on_one = |device, gate| {
        let [lane] = lanes(device);
        lane.enter(|s| answers((s, s, s), 1, gate))
    };
    let on_three = |device, gate| {
        let [a, b, c] = lanes(device);
        a.enter(|a| b.enter(|b| c.enter(|c| answers((a, b, c), 3, gate))))
    };
    let of_cpu = on_one(Device::cpu().unwrap(), gate());
    everywhere_and_seeded(|device| {
        let serial = if device.kind() == DeviceKind::Cpu { of_cpu.clone() } else { on_one(device, gate()) };
        assert!(on_three(device, gate()) == serial, "{device}: with a gate");
    });
    for &device in devices() {
        assert!(on_three(device, None) == on_one(device, None), "{device}: without a gate");
    }
}

/// The losses are those of steps on the tokens that a pipeline makes of each photograph for its own
/// query, and of their patches.
#[test]
fn prefetched_answers_are_about_the_tokens_of_each_query() {
    let _alone = alone();
    for &device in devices() {
        for gate in [None, gate()] {
            let [lane] = lanes(device);
            lane.enter(|s| {
                let (losses, _) = answers((s, s, s), 2, gate);
                let mut model = answering::<_, f32>(s, gate);
                for (n, loss) in losses.into_iter().enumerate() {
                    let (queries, [ids, ends, question]) = questions(n);
                    let mut random = Random(n as u64);
                    let bytes = layout(&PHOTOGRAPHS, 8).unwrap();
                    let pixels: Vec<u8> = (0..bytes.bytes()).map(|_| random.word() as u8).collect();
                    let (mut tokens, mut position, mut cu_seqlens) = (vec![], vec![], vec![0]);
                    let (mut features, mut entropy, mut salience) = (vec![], vec![], vec![]);
                    let (mut cu_patches, mut patch, mut asked) = (vec![0], vec![], vec![]);
                    for (b, query) in queries.iter().enumerate() {
                        let Size { height, width } = PHOTOGRAPHS[b];
                        let image = Image::new(height, width, pixels[bytes.byte_range(b)].to_vec()).unwrap();
                        let set = texture_pipeline(device, query).run(&[image]).remove(0).unwrap();
                        let before = entropy.len() as i32;
                        for (w, id) in set.cu_seqlens.windows(2).zip(&set.patch_id) {
                            patch.extend((w[0]..w[1]).map(|_| before + id));
                        }
                        tokens.extend(&set.tokens);
                        position.extend(&set.position);
                        cu_seqlens.push(cu_seqlens[b] + set.len() as i32);
                        features.extend(&set.features);
                        entropy.extend(&set.entropy);
                        salience.extend(&set.salience);
                        cu_patches.push(entropy.len() as i32);
                        asked.extend(query.numbers());
                    }
                    let batch = TextBatch {
                        tokens: &tokens,
                        position: &position,
                        cu_seqlens: &cu_seqlens,
                        ids: &ids,
                        text_cu_seqlens: &ends,
                        question: &question,
                    };
                    let patches = Patches {
                        features: &features,
                        entropy: &entropy,
                        salience: &salience,
                        cu_patches: &cu_patches,
                        patch: &patch,
                        query: &asked,
                    };
                    let want = match gate {
                        Some(_) => model.step(&Gated { batch, patches }),
                        None => model.step(&batch),
                    };
                    let (got, want) = (f32::from_bits(loss), want.unwrap().item().unwrap());
                    assert!((got - want).abs() < 1e-4 * want, "{device}: item {n}: {got}, and {want}");
                }
            });
        }
    }
}

/// Two ranks learn from their own photographs and texts of unlike lengths, with the bits of the
/// same on one stream of each.
#[test]
fn ranks_learn_answers_beside_textures() {
    let _alone = alone();
    let learned = |overlapped: bool| {
        let devices = [(); 2].map(|()| Device::new_cpu().unwrap());
        let ended = ranks(&devices, WorldOptions::default(), |rank, world| -> Result<_> {
            let [a, b] = lanes(rank.device());
            let train = rank.stream::<Train>()?;
            let mut parallel = DataParallel::new(
                world.comm(rank.stream::<Reduce>()?)?,
                answering::<_, f32>(&train, gate()),
                BucketSizes::default(),
            )?;
            let own = |n: usize, rank: usize| {
                let (_, [ids, _, asked]) = questions(2 * n + rank);
                ids.len() - asked.iter().sum::<i32>() as usize
            };
            let mut losses = Vec::new();
            let seen = |_, loss| {
                losses.push(loss);
                Ok(())
            };
            let off = Timeline::disabled();
            macro_rules! run {
                ($upload:expr, $make:expr) => {{
                    let fill = |s: &Stream<_>, n: usize, batch: &mut AskedPhotographsOn<_>| {
                        asked(s, 2 * n + rank.index(), batch)?;
                        let (_, texts) = questions(2 * n + rank.index());
                        batch.ask(s, texts.each_ref().map(Vec::as_slice), Some(own(n, 0) + own(n, 1)))
                    };
                    let mut slots = asked_slots($upload, if overlapped { 3 } else { 1 }, gate());
                    texture_prefetch_texts(($upload, $make), &mut parallel, &mut slots, 0..3, fill, seen, &off)
                }};
            }
            if overlapped {
                a.enter(|a| b.enter(|b| run!(a, b)))?;
            } else {
                run!(&train, &train)?;
            }
            parallel.verify()?;
            Ok(results(losses, parallel.model()))
        });
        ended.into_iter().map(|ended| ended.unwrap()).collect::<Vec<_>>()
    };
    let (serial, overlapped) = (learned(false), learned(true));
    assert!(serial == overlapped && serial[0] == serial[1]);
}

#[test]
fn texts_that_do_not_fit_are_refused() {
    let _alone = alone();
    for &device in devices() {
        let [lane] = lanes(device);
        lane.enter(|s| {
            let pipeline = texture_pipeline(device, &query(0));
            let mut slot = s.wait(AskedPhotographs::new(s, &pipeline, &PHOTOGRAPHS, 6, gate()).unwrap()).unwrap();
            for (texts, name) in [
                ([&[1, 0, 1][..], &[0, 2, 3], &[1, 1]], "a text without an answer"),
                ([&[1, 0], &[0, 2], &[1]], "a text less"),
                ([&[1; 7], &[0, 3, 7], &[1, 1]], "more ids than there is room for"),
            ] {
                assert!(matches!(slot.ask(s, texts, None), Err(Error::Batch(_))), "{device}: {name}");
            }
            let queries = [query(1), query(2), query(3)];
            assert!(slot.set_queries(s, &head(), &queries).is_err(), "{device}: a query more");
            assert!(slot.set_queries(s, &head(), &queries[..1]).is_err(), "{device}: a query less");
            let mut plain = s.wait(AskedPhotographs::new(s, &pipeline, &PHOTOGRAPHS, 6, None).unwrap()).unwrap();
            for queries in [&queries[..], &queries[..1], &[]] {
                let error = plain.set_queries(s, &head(), queries).unwrap_err().to_string();
                assert!(error.contains(&format!("queries is {} of ", queries.len())), "{device}: {error}");
            }
            plain.set_queries(s, &head(), &queries[1..]).unwrap();
            let huge = Some(GateConfig::default().with_query_dim(usize::MAX));
            assert!(AskedPhotographs::new(s, &pipeline, &PHOTOGRAPHS, 6, huge).is_err(), "{device}: long queries");
            let bare = Pipeline::new(device, TokenParams::default()).unwrap();
            assert!(AskedPhotographs::new(s, &bare, &PHOTOGRAPHS, 6, None).is_err(), "{device}: no query");

            let (mut model, mut slots) = (answering::<_, f32>(s, gate()), asked_slots(s, 1, gate()));
            let ask = |s: &Stream<_>, _, slot: &mut AskedPhotographsOn<_>| {
                slot.ask(s, [&[1, 2, 0, 1, 2, 0], &[0, 3, 6], &[1, 1]], None)
            };
            let off = Timeline::disabled();
            let found = texture_prefetch_texts((s, s), &mut model, &mut slots, 0..1, ask, |_, _| Ok(()), &off);
            assert!(matches!(&found, Err(Error::Batch(why)) if why.contains("no queries")), "{device}: {found:?}");
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
                    let off = Timeline::disabled();
                    let mut model = model::<_, f32>(train, base_config().with_input_dim(PLANES));
                    let (mut slots, mut others) = (photograph_slots(upload, 3), augmented_slots(upload, 3));
                    let (mut answers, mut texts) = (answering::<_, f32>(train, gate()), asked_slots(upload, 3, gate()));
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
                        // Items with the same texts, of which the first has the most ids.
                        let fill = |s: &Stream<_>, n: usize, batch: &mut _| asked(s, n % 2, batch);
                        texture_prefetch_texts(streams, &mut answers, &mut texts, items.clone(), fill, seen, &off)
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
