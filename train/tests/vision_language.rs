//! The vision-language model: against the results of an independent program in f64, and against a
//! plain reference in f64 over random shapes.

use proptest::prelude::*;
use proptest::sample::select;
use testkit::oracle::gelu;
use thalweg::simt::bf16;
use thalweg::{AnyStream, Device, stream_tags};
use thalweg_train::{
    Data, Error, Gelu, Precision, Tensors, TextDecoder, VisionEncoder, VisionLanguage, VisionLanguageConfig,
};

use crate::support::{Random, devices, distance, golden};

stream_tags!(Work);

fn numbers(tensors: &Tensors, name: &str) -> Vec<f32> {
    match &tensors.tensors[name].data {
        Data::F32(data) => data.clone(),
        other => panic!("{name} is {other:?}"),
    }
}

/// Checks logits, and the text if the precision is that of the file.
fn agrees<E: Precision>(device: Device, bound: f64, writes: bool) {
    let (weights, expected) = (golden("vlm/weights"), golden("vlm/expected"));
    let stream = AnyStream::new(device).unwrap();
    stream.enter(|work| {
        let mut model = VisionLanguage::<_, E>::from_tensors(work, &weights).unwrap();
        let (tokens, position) = (numbers(&expected, "tokens"), numbers(&expected, "position"));
        let (prompt, ids) = (expected.i32("prompt").unwrap(), expected.i32("ids").unwrap());
        let logits = model.logits(&tokens, &position, prompt).unwrap();
        let error = distance(&logits, &numbers(&expected, "logits"));
        assert!(error <= bound, "{device}: the logits are off by {error:.2e}, and {bound:.0e} is allowed");
        if writes {
            let text = model.generate(&tokens, &position, prompt, ids.len() - prompt.len()).unwrap();
            assert_eq!([prompt, &text].concat(), ids, "{device}");
        }
    });
}

#[test]
fn logits_and_text_agree_with_f64() {
    for &device in devices() {
        agrees::<f32>(device, 1e-5, true);
        agrees::<bf16>(device, 2e-2, false);
    }
}

/// The model in f64: each row of image and text anew for each token, without a cache.
struct Reference<'a> {
    file: &'a Tensors,
    config: VisionLanguageConfig,
}

type Rows = Vec<Vec<f64>>;

impl Reference<'_> {
    fn weight(&self, name: &str) -> Vec<f64> {
        numbers(self.file, name).into_iter().map(f64::from).collect()
    }

    fn linear(&self, x: &Rows, name: &str) -> Rows {
        let (w, b) = (self.weight(&format!("{name}.weight")), self.weight(&format!("{name}.bias")));
        let of = |row: &Vec<f64>| b.iter().enumerate().map(|(o, b)| b + dot(row, &w[o * row.len()..])).collect();
        x.iter().map(of).collect()
    }

    fn norm(&self, x: &Rows, name: &str) -> Rows {
        let (w, b) = (self.weight(&format!("{name}.weight")), self.weight(&format!("{name}.bias")));
        let of = |row: &Vec<f64>| {
            let n = row.len() as f64;
            let mean = row.iter().sum::<f64>() / n;
            let variance = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n;
            let root = (variance + f64::from(self.config.norm_eps)).sqrt();
            row.iter().zip(w.iter().zip(&b)).map(|(v, (w, b))| (v - mean) / root * w + b).collect()
        };
        x.iter().map(of).collect()
    }

    /// `sees` says whether a row attends to another.
    fn blocks(
        &self,
        mut x: Rows,
        prefix: &str,
        (heads, depth): (usize, usize),
        sees: impl Fn(usize, usize) -> bool,
    ) -> Rows {
        let erf = self.config.gelu == Gelu::Erf;
        for k in 0..depth {
            let name = |part: &str| format!("{prefix}blocks.{k}.{part}");
            let qkv = self.linear(&self.norm(&x, &name("norm1")), &name("attn.qkv"));
            let width = x[0].len();
            let size = width / heads;
            let mut attended = vec![vec![0.0; width]; x.len()];
            for (i, out) in attended.iter_mut().enumerate() {
                for head in 0..heads {
                    let at = |part: usize| part * width + head * size..part * width + (head + 1) * size;
                    let seen: Vec<usize> = (0..x.len()).filter(|&j| sees(i, j)).collect();
                    let score = |j: usize| dot(&qkv[i][at(0)], &qkv[j][at(1)]) / (size as f64).sqrt();
                    let powers: Vec<f64> = seen.iter().map(|&j| score(j).exp()).collect();
                    let sum: f64 = powers.iter().sum();
                    for (&j, p) in seen.iter().zip(&powers) {
                        for c in 0..size {
                            out[head * size + c] += p / sum * qkv[j][2 * width + head * size + c];
                        }
                    }
                }
            }
            add(&mut x, &self.linear(&attended, &name("attn.proj")));
            let mut hidden = self.linear(&self.norm(&x, &name("norm2")), &name("mlp.fc1"));
            hidden.iter_mut().flatten().for_each(|v| *v = gelu(*v, erf));
            add(&mut x, &self.linear(&hidden, &name("mlp.fc2")));
        }
        self.norm(&x, &format!("{prefix}norm"))
    }

    /// Returns the logits of each text token, and the norm of the terms of each logit: errors of
    /// the terms add up to about as much, also where the terms cancel.
    fn logits(&self, tokens: &[f32], position: &[f32], text: &[i32]) -> [Rows; 2] {
        let wide = |v: &[f32]| -> Vec<f64> { v.iter().map(|&v| f64::from(v)).collect() };
        let c = self.config;
        let tokens: Rows = tokens.chunks(c.input_dim).map(wide).collect();
        let mut x = self.linear(&tokens, "encoder.embed");
        let places = self.weight("encoder.position.weight");
        for (row, place) in x.iter_mut().zip(position.chunks(2)) {
            for (o, v) in row.iter_mut().enumerate() {
                *v += dot(&wide(place), &places[2 * o..]);
            }
        }
        let x = self.blocks(x, "encoder.", (c.num_heads, c.depth), |_, _| true);
        let mut x = self.linear(&x, "projector");
        let image = x.len();
        let (table, places) = (self.weight("decoder.tok.weight"), self.weight("decoder.pos.weight"));
        for (place, &id) in text.iter().enumerate() {
            let row = |table: &[f64], k: usize| table[k * c.text_embed_dim..][..c.text_embed_dim].to_vec();
            x.push(row(&table, id as usize).iter().zip(row(&places, place)).map(|(a, b)| a + b).collect());
        }
        let sees = |i: usize, j: usize| j < image || i >= image && j <= i;
        let x = self.blocks(x, "decoder.", (c.text_num_heads, c.text_depth), sees);
        let products = |f: fn(&[f64], &[f64]) -> f64| {
            x[image..].iter().map(|row| table.chunks(c.text_embed_dim).map(|id| f(row, id)).collect()).collect()
        };
        [products(dot), products(norm_of_terms)]
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn norm_of_terms(a: &[f64], b: &[f64]) -> f64 {
    norm(a.iter().zip(b).map(|(a, b)| a * b))
}

fn norm(v: impl IntoIterator<Item = f64>) -> f64 {
    v.into_iter().map(|v| v * v).sum::<f64>().sqrt()
}

fn add(x: &mut Rows, y: &Rows) {
    x.iter_mut().flatten().zip(y.iter().flatten()).for_each(|(x, y)| *x += y);
}

#[derive(Clone, Debug)]
struct Case {
    config: VisionLanguageConfig,
    rows: usize,
    prompt: usize,
    count: usize,
    seed: u64,
}

fn any_case() -> impl Strategy<Value = Case> {
    let encoder = (1usize..5, select(vec![5usize, 8, 16]), 1usize..4, 0usize..3);
    let decoder = (select(vec![7usize, 8, 24]), 1usize..4, 0usize..4, 1usize..40);
    let sizes = (1usize..20, 1usize..5, 1usize..12, any::<bool>(), any::<u64>());
    (encoder, decoder, sizes).prop_map(
        |((inputs, size, heads, depth), (text_size, text_heads, text_depth, vocabulary), sizes)| {
            let (rows, prompt, count, erf, seed) = sizes;
            let config = VisionLanguageConfig::default()
                .with_input_dim(inputs)
                .with_embed_dim(size * heads)
                .with_num_heads(heads)
                .with_depth(depth)
                .with_text_embed_dim(text_size * text_heads)
                .with_text_num_heads(text_heads)
                .with_text_depth(text_depth)
                .with_vocab_size(vocabulary)
                .with_max_tokens(prompt + count - 1)
                .with_norm_eps(1e-5)
                .with_gelu(if erf { Gelu::Erf } else { Gelu::Tanh });
            Case { config, rows, prompt, count, seed }
        },
    )
}

/// Checks all tokens of a text at once: each is one of the largest logits of the reference, which
/// computes every row for every token.
fn writes<E: Precision>(case: &Case, bound: f64) {
    let &Case { config, rows, prompt, count, seed } = case;
    let file = config.init(seed).unwrap();
    let mut random = Random(seed);
    let prompt: Vec<i32> = (0..prompt).map(|_| random.below(config.vocab_size) as i32).collect();
    let images = [rows, 1, rows + 3].map(|rows| (random.numbers(rows * config.input_dim), random.numbers(2 * rows)));
    for &device in devices() {
        AnyStream::new(device).unwrap().enter(|work| {
            let mut model = VisionLanguage::<_, E>::from_tensors(work, &file).unwrap();
            // The later images find what the earlier ones have left in the cache.
            for (tokens, position) in &images {
                let text = model.generate(tokens, position, &prompt, count).unwrap();
                assert!(text.len() == count || text.ends_with(&[0]), "{text:?}");
                let all = [&prompt, &text[..text.len() - 1]].concat();
                let [wanted, terms] = Reference { file: &file, config }.logits(tokens, position, &all);
                let written = wanted.iter().zip(&terms).skip(prompt.len() - 1);
                for (&id, (logits, terms)) in text.iter().zip(written) {
                    let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    let size = norm(terms.iter().copied());
                    assert!(most - logits[id as usize] <= bound * size, "{device}: {id} of {logits:?} in {text:?}");
                }
                let got: Vec<f32> = model.logits(tokens, position, &all).unwrap();
                let error = norm(got.iter().zip(wanted.iter().flatten()).map(|(got, wanted)| f64::from(*got) - wanted));
                let size = norm(terms.into_iter().flatten());
                assert_eq!(got.len(), wanted.len() * config.vocab_size);
                assert!(
                    error <= bound * size,
                    "{device}: the logits are off by {error:.2e} of {size:.2e}; got {got:?}, wanted {wanted:?}"
                );
            }
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_text_with_a_cache_is_that_of_the_whole_sequence(case in any_case()) {
        writes::<f32>(&case, 1e-4);
        // The norm of a few numbers may be a small difference of them, which rounded operands
        // change much.
        if case.config.embed_dim.min(case.config.text_embed_dim) >= 16 {
            writes::<bf16>(&case, 1e-1);
        }
    }
}

fn small() -> VisionLanguageConfig {
    VisionLanguageConfig::default()
        .with_input_dim(2)
        .with_embed_dim(8)
        .with_num_heads(2)
        .with_depth(1)
        .with_text_embed_dim(8)
        .with_text_num_heads(2)
        .with_text_depth(1)
        .with_vocab_size(9)
        .with_max_tokens(6)
        .with_norm_eps(1e-5)
        .with_gelu(Gelu::Tanh)
}

/// The largest logit belongs to several ids if rows of the table are equal: the lowest id is
/// written, and a text ends at id 0.
#[test]
fn the_lowest_id_among_equals_is_written_and_0_ends_a_text() {
    let mut file = small().init(3).unwrap();
    let Data::F32(table) = &mut file.tensors.get_mut("decoder.tok.weight").unwrap().data else { panic!("numbers") };
    let row = table[8..16].to_vec();
    for id in 0..9 {
        table[8 * id..8 * (id + 1)].copy_from_slice(&row);
    }
    for &device in devices() {
        AnyStream::new(device).unwrap().enter(|work| {
            let mut model = VisionLanguage::<_, f32>::from_tensors(work, &file).unwrap();
            assert_eq!(model.generate(&[0.5; 4], &[0.5; 4], &[4, 2], 5).unwrap(), [0], "{device}");
            // The stream writes on behind the end.
            let mut ids = work.upload_blocking(&[-1; 3]).unwrap();
            let image = work.upload_blocking(&[0.5; 16]).unwrap();
            let mut decoder = TextDecoder::<_, f32>::from_tensors(work, &file).unwrap();
            decoder.generate(&image, &[4, 2], &mut ids).unwrap();
            assert_eq!(work.read_blocking(&ids).unwrap(), [0; 3], "{device}");
        });
    }
}

/// Images of more than 128 rows that are encoded together have the bits of each alone where no sum
/// is long.
#[test]
fn images_encoded_together_are_those_of_each_alone() {
    fn check<E: Precision>(device: Device) {
        device
            .per_thread(|s| {
                let config = small().with_image_encoder(None);
                let (inputs, width) = (config.input_dim, config.text_embed_dim);
                let mut encoder = VisionEncoder::<_, E>::from_tensors(s, &config.init(5).unwrap()).unwrap();
                let (rows, mut random) = ([131, 200, 129], Random(3));
                let images: Vec<_> = rows.map(|rows| (random.numbers(rows * inputs), random.numbers(rows * 2))).into();
                let mut encode = |images: &[(Vec<f32>, Vec<f32>)]| {
                    let of: Vec<_> = images.iter().map(|(_, position)| position.len() / 2).collect();
                    let [tokens, position] = [0, 1].map(|part| {
                        let parts = images.iter().flat_map(|(tokens, at)| if part == 0 { tokens } else { at });
                        s.upload_blocking(&parts.copied().collect::<Vec<_>>()).unwrap()
                    });
                    let mut image = s.alloc(of.iter().sum::<usize>() * width).unwrap();
                    encoder.encode_batch(&of, &tokens, &position, &mut image).unwrap();
                    s.read_blocking(&image).unwrap()
                };
                let together = encode(&images);
                let alone: Vec<_> = images.chunks(1).flat_map(&mut encode).collect();
                assert!(together == alone && together.iter().any(|&v| v != together[0]), "{device}");
                let x = s.alloc(6 * inputs.max(width)).unwrap();
                let mut image = s.alloc(2 * width).unwrap();
                let (tokens, position) = (x.slice(..2 * inputs).unwrap(), x.slice(..4).unwrap());
                for (wrong, why) in [
                    (&[0, 2][..], "images of [0, 2] rows"),
                    (&[0], "images of [0] rows"),
                    (&[], "images of [] rows"),
                    (&[usize::MAX, 3], "images of [18446744073709551615, 3] rows"),
                    (&[1], "`position` has 4 numbers, and not 2"),
                    (&[1, 2], "`position` has 4 numbers, and not 6"),
                ] {
                    let error = encoder.encode_batch(wrong, tokens, position, &mut image).unwrap_err();
                    assert!(error.to_string().contains(why), "{error}");
                }
                encoder.encode_batch(&[1, 1], tokens, position, &mut image).unwrap();
            })
            .unwrap();
    }
    for &device in devices() {
        check::<f32>(device);
        check::<bf16>(device);
    }
}

#[test]
fn halves_on_two_streams_write_what_the_whole_writes() {
    let file = small().init(5).unwrap();
    for &device in devices() {
        let streams = [AnyStream::new(device).unwrap(), AnyStream::new(device).unwrap()];
        streams[0].enter(|work| {
            streams[1].enter(|other| {
                let mut model = VisionLanguage::<_, f32>::from_tensors(work, &file).unwrap();
                let mut encoder = VisionEncoder::<_, f32>::from_tensors(work, &file).unwrap();
                let mut decoder = TextDecoder::<_, f32>::from_tensors(other, &file).unwrap();
                let mut random = Random(1);
                for rows in [3, 1, 4] {
                    let (tokens, position) = (random.numbers(2 * rows), random.numbers(2 * rows));
                    let wanted = model.generate(&tokens, &position, &[1, 7], 5).unwrap();
                    let (tokens, position) =
                        (work.upload_blocking(&tokens).unwrap(), work.upload_blocking(&position).unwrap());
                    let mut image = work.alloc(8 * rows).unwrap();
                    encoder.encode(&tokens, &position, &mut image).unwrap();
                    let image = work.hand_off(image, other).unwrap();
                    let mut ids = other.alloc(5).unwrap();
                    decoder.generate(&image, &[1, 7], &mut ids).unwrap();
                    assert_eq!(other.read_blocking(&ids).unwrap()[..wanted.len()], wanted, "{device}");
                }
            })
        });
    }
}

/// A text as a graph is the same as call by call, while images, prompts and shapes change. More
/// rows than before make new memory, which the old graphs do not know.
#[test]
fn texts_as_graphs_are_the_same() {
    fn run<E: Precision>(device: Device, graphs: bool) -> Vec<Vec<i32>> {
        let file = small().init(8).unwrap();
        AnyStream::new(device).unwrap().enter(|s| {
            let mut decoder = TextDecoder::<_, E>::from_tensors(s, &file).unwrap();
            decoder.set_graphs(graphs);
            let mut random = Random(4);
            let mut texts = Vec::new();
            for (turn, rows) in [2, 3, 2, 3, 2, 3, 5, 2, 5, 2, 5].into_iter().enumerate() {
                let prompt = [1 + (turn % 7) as i32, 2];
                let prompt = &prompt[..1 + turn % 2];
                let image = s.upload_blocking(&random.numbers(8 * rows)).unwrap();
                let mut ids = s.alloc(4).unwrap();
                decoder.generate(&image, prompt, &mut ids).unwrap();
                texts.push(s.read_blocking(&ids).unwrap());
            }
            // Those with 5 rows and with 2, since the memory for 5.
            assert_eq!(decoder.graphs(), if graphs { 2 } else { 0 });
            texts
        })
    }
    for &device in devices() {
        assert_eq!(run::<f32>(device, true), run::<f32>(device, false), "{device}");
        assert_eq!(run::<bf16>(device, true), run::<bf16>(device, false), "{device}");
    }
}

#[test]
fn what_makes_no_sense_is_an_error() {
    let work = Device::cpu().unwrap().stream::<Work>().unwrap();
    let file = small().init(1).unwrap();
    let mut model = VisionLanguage::<_, f32>::from_tensors(&work, &file).unwrap();
    let mut fails = |tokens: usize, position: usize, prompt: &[i32], count: usize, why: &str| {
        let error = model.generate(&vec![0.0; tokens], &vec![0.0; position], prompt, count).unwrap_err();
        assert!(matches!(error, Error::Batch(_)) && error.to_string().contains(why), "{error}");
    };
    fails(0, 0, &[1], 1, "images of [0] rows");
    fails(4, 3, &[1], 1, "`position` has 3 numbers");
    fails(3, 4, &[1], 1, "`tokens` has 3 numbers, and not 4 for 2 rows");
    fails(4, 4, &[], 1, "a token at least");
    fails(4, 4, &[9], 1, "the id 9, and there are 9");
    fails(4, 4, &[1], usize::MAX, "need over 6 places");
    fails(4, 4, &[-1], 1, "the id -1");
    fails(4, 4, &[1, 2], 6, "over 6 places");
    assert!(model.generate(&[0.0; 4], &[0.0; 4], &[1, 2], 5).is_ok());
    assert!(model.generate(&[0.0; 4], &[0.0; 4], &[1, 2], 0).unwrap().is_empty());
    assert!(small().with_vocab_size(0).init(1).is_err());
    assert!(small().with_text_num_heads(3).init(1).is_err());
    let mut broken = file.clone();
    broken.metadata.remove("decoder_heads");
    assert!(VisionLanguageConfig::from_tensors(&broken).unwrap_err().to_string().contains("decoder_heads"));
}
