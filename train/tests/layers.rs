//! Models that are composed of public layers, as a user's: their losses and the gradients of all
//! weights against a plain f64 program, written from `docs/training.md`, and its differences.

use testkit::oracle::gelu;
use thalweg::simt::bf16;
use thalweg::{DeviceBuffer, LiveBrand, On, Stream};
use thalweg_train::layers::{
    AttentionBuffers, AttentionScratch, BackwardPass, BackwardScratchOn, CrossEntropy, ForwardPass, LayerNorm, Linear,
    Mlp, MlpBuffers, PatchActivationsOn, PatchEmbedding, Pooling, SelfAttention, Sequences, TokenEmbedding, WeightsOn,
};
use thalweg_train::{AdamW, AdamWStateOn, Gelu, MatmulBackend, MatmulOn, ParameterLayout, Precision};

use crate::support::{Random, Sample, distance, on_each_device};

const INPUTS: usize = 5;
const WIDTH: usize = 6;
const HEADS: usize = 3;
const HIDDEN: usize = 10;
const CLASSES: usize = 4;
const EPS: f32 = 1e-3;

/// A model as none of the crate: one block of attention, an MLP of another width without a
/// residual, a norm behind it, and the first row of a sequence.
struct Own {
    layout: ParameterLayout,
    embedding: TokenEmbedding,
    norm1: LayerNorm,
    attention: SelfAttention,
    mlp: Mlp,
    norm2: LayerNorm,
    head: Linear,
}

impl Own {
    fn new() -> Self {
        let mut layout = ParameterLayout::default();
        Self {
            embedding: TokenEmbedding::new(&mut layout, "in.", INPUTS, WIDTH).unwrap(),
            norm1: LayerNorm::new(&mut layout, "norm1", WIDTH, EPS).unwrap(),
            attention: SelfAttention::new(&mut layout, "attn", WIDTH, HEADS).unwrap(),
            mlp: Mlp::new(&mut layout, "mlp", WIDTH, HIDDEN, Gelu::Erf).unwrap(),
            norm2: LayerNorm::new(&mut layout, "norm2", WIDTH, EPS).unwrap(),
            head: Linear::new(&mut layout, "head", WIDTH, CLASSES).unwrap(),
            layout,
        }
    }

    /// Returns weights without the symmetries of [`ParameterLayout::init`]: biases are not zero,
    /// and weights of norms are not one.
    fn weights(&self, seed: u64) -> Vec<f32> {
        let mut random = Random(seed);
        let mut flat = vec![0.0; self.layout.len()];
        for slot in self.layout.slots() {
            flat[slot.range.clone()].fill_with(|| 0.7 * random.number());
        }
        flat
    }

    /// Computes the losses of a batch and the gradients of all weights on a stream.
    #[expect(clippy::type_complexity, reason = "losses on the host and gradients on the device, once")]
    fn gradients<S: LiveBrand, E: Precision>(
        &self,
        s: &Stream<S>,
        parameters: &WeightsOn<S, E>,
        sample: &Sample,
    ) -> thalweg::Result<(Vec<f32>, On<S, DeviceBuffer<f32>>)> {
        let (rows, sequences) = (sample.batch().rows(), sample.batch().sequences());
        let n = rows * WIDTH;
        let of_f32 = |len: usize| s.alloc::<f32>(len);
        let of_e = |len: usize| s.alloc::<E>(len);
        let mut matmul = MatmulOn::new(s, MatmulBackend::default())?;
        let mut scratch = BackwardScratchOn::new(s, MatmulBackend::default(), &self.layout)?;
        let mut gradient = s.upload_blocking(&vec![0.0; self.layout.len()])?;
        let (tokens, position) = (s.upload_blocking(&sample.tokens)?, s.upload_blocking(&sample.position)?);
        let (ends, labels) = (s.upload_blocking(&sample.cu_seqlens)?, s.upload_blocking(&sample.labels)?);
        let batch = Sequences::new(rows, &ends);

        let mut f = ForwardPass::new(s, parameters.view(), &mut matmul);
        let (mut tokens_room, mut mid_room, mut pooled_room) =
            (of_e(tokens.len())?, of_e(n)?, of_e(sequences * WIDTH)?);
        let tokens = E::rounded(s, &tokens, &mut tokens_room)?;
        let (mut x, mut mid, mut y, mut z) = (of_f32(n)?, of_f32(n)?, of_f32(n)?, of_f32(n)?);
        self.embedding.forward(&mut f, rows, tokens, &position, &mut x)?;
        let (mut stats1, mut normed) = (of_f32(2 * rows)?, of_e(n)?);
        self.norm1.forward(&mut f, rows, &x, &mut stats1, &mut normed)?;
        let (mut qkv, mut out, mut logs) = (of_e(3 * n)?, of_e(n)?, of_f32(rows * HEADS)?);
        let mut attended = AttentionBuffers { qkv: &mut qkv, out: &mut out, logs: &mut logs };
        self.attention.forward(&mut f, &batch, &normed, &mut attended, Some(&x), &mut mid)?;
        let mid_operand = E::rounded(s, &mid, &mut mid_room)?;
        let (mut hidden, mut activated) = (of_e(rows * HIDDEN)?, of_e(rows * HIDDEN)?);
        let mut between = MlpBuffers { hidden: &mut hidden, activated: &mut activated };
        self.mlp.forward(&mut f, rows, mid_operand, &mut between, None, &mut y)?;
        let mut stats2 = of_f32(2 * rows)?;
        self.norm2.forward(&mut f, rows, &y, &mut stats2, &mut z)?;
        let mut pooled = of_f32(sequences * WIDTH)?;
        Pooling::Class.forward(s, &batch, WIDTH, &z, &mut pooled)?;
        let pooled = E::rounded(s, &pooled, &mut pooled_room)?;
        let (mut logits, mut losses) = (of_f32(sequences * CLASSES)?, of_f32(sequences)?);
        self.head.forward_f32(&mut f, sequences, pooled, None, &mut logits)?;
        let mut dlogits = of_f32(sequences * CLASSES)?;
        CrossEntropy::new(CLASSES).forward(s, sequences, &logits, &labels, &mut losses, &mut dlogits)?;

        let mut b = BackwardPass::new(s, parameters.view(), &mut gradient, &mut scratch);
        let (mut dlogits_room, mut d_room) = (of_e(sequences * CLASSES)?, of_e(n)?);
        let (mut dpooled, mut dz, mut dx, mut dn) = (of_f32(sequences * WIDTH)?, of_f32(n)?, of_f32(n)?, of_f32(n)?);
        let dlogits = E::rounded(s, &dlogits, &mut dlogits_room)?;
        self.head.backward_weight(&mut b, sequences, pooled, dlogits)?;
        self.head.backward_input_f32(&mut b, sequences, dlogits, &mut dpooled)?;
        Pooling::Class.backward(s, &batch, WIDTH, &dpooled, &mut dz)?;
        self.norm2.backward_weight(&mut b, rows, &y, &stats2, &dz)?;
        self.norm2.backward_input(&b, rows, &y, &stats2, &dz, &mut dn)?;
        let d = E::rounded(s, &dn, &mut d_room)?;
        self.mlp.backward(&mut b, rows, mid_operand, &between, d, &mut of_e(rows * HIDDEN)?, &mut dx)?;
        let d = E::rounded(s, &dx, &mut d_room)?;
        let (mut dout, mut dqkv, mut deltas) = (of_e(n)?, of_e(3 * n)?, of_f32(rows * HEADS)?);
        let mut room = AttentionScratch { dout: &mut dout, dqkv: &mut dqkv, deltas: &mut deltas };
        self.attention.backward(&mut b, &batch, &normed, &attended, d, &mut room, &mut dn)?;
        self.norm1.backward_weight(&mut b, rows, &x, &stats1, &dn)?;
        self.norm1.add_backward_input(&b, rows, &x, &stats1, &dn, &mut dx)?; // beside the residual
        let d = E::rounded(s, &dx, &mut d_room)?;
        self.embedding.backward(&mut b, rows, tokens, &position, &dx, d)?;
        Ok((s.read_blocking(&losses)?, gradient))
    }
}

/// The same model in f64. Rows are vectors.
struct Plain<'a> {
    layout: &'a ParameterLayout,
    weights: Vec<f64>,
}

type Rows = Vec<Vec<f64>>;

impl Plain<'_> {
    fn tensor(&self, name: &str) -> &[f64] {
        let slot = self.layout.slots().iter().find(|slot| slot.name == name).unwrap_or_else(|| panic!("no {name}"));
        &self.weights[slot.range.clone()]
    }

    fn linear(&self, name: &str, x: &Rows) -> Rows {
        let (weight, bias) = (self.tensor(&format!("{name}.weight")), self.tensor(&format!("{name}.bias")));
        let row = |x: &Vec<f64>| weight.chunks(x.len()).zip(bias).map(|(w, b)| dot(w, x) + b).collect();
        x.iter().map(row).collect()
    }

    fn norm(&self, name: &str, x: &Rows) -> Rows {
        let (weight, bias) = (self.tensor(&format!("{name}.weight")), self.tensor(&format!("{name}.bias")));
        let row = |x: &Vec<f64>| {
            let mean = x.iter().sum::<f64>() / x.len() as f64;
            let variance = x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / x.len() as f64;
            let root = (variance + f64::from(EPS)).sqrt();
            x.iter().zip(weight).zip(bias).map(|((v, w), b)| (v - mean) / root * w + b).collect()
        };
        x.iter().map(row).collect()
    }

    fn attention(&self, x: &Rows) -> Rows {
        let (size, qkv) = (WIDTH / HEADS, self.linear("attn.qkv", x));
        let part = |row: &Vec<f64>, third: usize, head: usize| row[third * WIDTH + head * size..][..size].to_vec();
        let of_head = |row: &Vec<f64>, head: usize| {
            let score = |key: &Vec<f64>| (dot(&part(row, 0, head), &part(key, 1, head)) / (size as f64).sqrt()).exp();
            let scores: Vec<f64> = qkv.iter().map(score).collect();
            let sum: f64 = scores.iter().sum();
            let mean = |c: usize| qkv.iter().zip(&scores).map(|(v, w)| part(v, 2, head)[c] * w / sum).sum::<f64>();
            (0..size).map(mean).collect::<Vec<_>>()
        };
        let out = qkv.iter().map(|row| (0..HEADS).flat_map(|head| of_head(row, head)).collect()).collect();
        self.linear("attn.proj", &out)
    }

    /// The losses of a batch, each divided by the number of sequences.
    fn losses(&self, sample: &Sample) -> Vec<f64> {
        let rows = |v: &[f32], columns: usize| -> Rows {
            v.chunks(columns).map(|row| row.iter().map(|&v| f64::from(v)).collect()).collect()
        };
        let (tokens, position) = (rows(&sample.tokens, INPUTS), rows(&sample.position, 2));
        let sequences = sample.labels.len();
        let loss = |b: usize| {
            let (from, to) = (sample.cu_seqlens[b] as usize, sample.cu_seqlens[b + 1] as usize);
            let placed = self.tensor("in.position.weight");
            let x = add(
                self.linear("in.embed", &tokens[from..to].to_vec()),
                &position[from..to].iter().map(|p| placed.chunks(2).map(|w| dot(w, p)).collect()).collect(),
            );
            let x = add(self.attention(&self.norm("norm1", &x)), &x);
            let mut hidden = self.linear("mlp.fc1", &x);
            hidden.iter_mut().flatten().for_each(|v| *v = gelu(*v, true));
            let z = self.norm("norm2", &self.linear("mlp.fc2", &hidden));
            let logits = &self.linear("head", &z[..1].to_vec())[0];
            let sum: f64 = logits.iter().map(|v| v.exp()).sum();
            (sum.ln() - logits[sample.labels[b] as usize]) / sequences as f64
        };
        (0..sequences).map(loss).collect()
    }

    fn loss(&self, sample: &Sample) -> f64 {
        self.losses(sample).iter().sum()
    }

    /// The gradient of the loss, by differences of it to both sides.
    fn gradients(&mut self, sample: &Sample) -> Vec<f64> {
        let step = 1e-5;
        let mut gradient = vec![0.0; self.weights.len()];
        for k in self.layout.slots().iter().flat_map(|slot| slot.range.clone()) {
            let weight = self.weights[k];
            self.weights[k] = weight + step;
            let above = self.loss(sample);
            self.weights[k] = weight - step;
            gradient[k] = (above - self.loss(sample)) / (2.0 * step);
            self.weights[k] = weight;
        }
        gradient
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(mut a: Rows, b: &Rows) -> Rows {
    a.iter_mut().flatten().zip(b.iter().flatten()).for_each(|(a, b)| *a += b);
    a
}

fn narrow(v: &[f64]) -> Vec<f32> {
    v.iter().map(|&v| v as f32).collect()
}

/// Checks the losses and each gradient of the model. `bounds` are those of `docs/training.md`.
fn agrees<E: Precision>(bounds: [f64; 2]) {
    let (own, sample) = (Own::new(), Sample::new(INPUTS, CLASSES, 5, 3));
    let weights = own.weights(11);
    let mut plain = Plain { layout: &own.layout, weights: weights.iter().map(|&w| f64::from(w)).collect() };
    let (wanted_losses, wanted) = (narrow(&plain.losses(&sample)), narrow(&plain.gradients(&sample)));
    on_each_device(|s| {
        let parameters = WeightsOn::<_, E>::new(s, &weights).unwrap();
        let (losses, gradient) = own.gradients(s, &parameters, &sample).unwrap();
        let gradient = s.read_blocking(&gradient).unwrap();
        let off = distance(&losses, &wanted_losses);
        assert!(off <= bounds[0], "the losses are off by {off:.1e}");
        for slot in own.layout.slots() {
            // The gradient of the bias of keys is zero: see docs/training.md.
            let places: Vec<usize> = match &*slot.name {
                "attn.qkv.bias" => slot.range.clone().take(WIDTH).chain(slot.range.clone().skip(2 * WIDTH)).collect(),
                _ => slot.range.clone().collect(),
            };
            let at = |v: &[f32]| places.iter().map(|&k| v[k]).collect::<Vec<_>>();
            let off = distance(&at(&gradient), &at(&wanted));
            assert!(off <= bounds[1], "the gradient of {} is off by {off:.1e}", slot.name);
        }
    });
}

#[test]
fn a_model_of_layers_in_f32_has_the_gradients_of_differences() {
    agrees::<f32>([1e-5, 2e-4]);
}

#[test]
fn a_model_of_layers_in_bf16_has_the_gradients_of_differences() {
    agrees::<bf16>([2e-2, 5e-2]);
}

/// Takes steps of the model of layers, and checks that it has learned its batch.
fn learns<E: Precision>() {
    let (own, sample) = (Own::new(), Sample::new(INPUTS, CLASSES, 5, 3));
    on_each_device(|s| {
        let mut parameters = WeightsOn::<_, E>::new(s, &own.layout.init(5).unwrap()).unwrap();
        let mut state = AdamWStateOn::new(s, own.layout.len()).unwrap();
        let options = AdamW::default().with_lr(0.02).with_max_grad_norm(Some(1.0));
        let mut losses = Vec::new();
        for step in 0..60 {
            let (loss, gradient) = own.gradients(s, &parameters, &sample).unwrap();
            options.step(s, step, &gradient, &mut parameters, &mut state).unwrap();
            losses.push(loss.iter().sum::<f32>());
        }
        assert!(losses[59] < 0.1 * losses[0], "{losses:?}");
        // The operands are those of the weights, also after the last step.
        let values = s.read_blocking(parameters.values()).unwrap().to_vec();
        let fresh = WeightsOn::<_, E>::new(s, &values).unwrap();
        let [stepped, made] = [&parameters, &fresh].map(|weights| own.gradients(s, weights, &sample).unwrap().0);
        assert_eq!(stepped[..], made[..]);
    });
}

#[test]
fn a_model_of_layers_learns() {
    learns::<f32>();
    learns::<bf16>();
}

/// Images of 6 x 6 pixels in patches of 2 x 2, and more images than one launch sums.
const SIZE: usize = 6;
const SIDE: usize = 2;
const IMAGES: usize = 40;

/// Computes the rows of images, in f64, as timm's vision transformer has them.
fn rows_of_images(layout: &ParameterLayout, weights: &[f64], pixels: &[f32]) -> Vec<f64> {
    let tensor =
        |name: &str| layout.slots().iter().find(|slot| slot.name == name).map(|slot| &weights[slot.range.clone()]);
    let [w, b, position] =
        ["in.patch_embed.proj.weight", "in.patch_embed.proj.bias", "in.pos_embed"].map(|name| tensor(name).unwrap());
    let across = SIZE / SIDE;
    let mut x = Vec::new();
    for image in pixels.chunks(3 * SIZE * SIZE) {
        let mut rows = tensor("in.cls_token").unwrap_or_default().to_vec();
        for (patch, c) in (0..across * across).flat_map(|patch| (0..WIDTH).map(move |c| (patch, c))) {
            let (top, left) = (patch / across * SIDE, patch % across * SIDE);
            let products = (0..3 * SIDE * SIDE).map(|k| {
                let (channel, y, x) = (k / (SIDE * SIDE), k / SIDE % SIDE, k % SIDE);
                w[c * 3 * SIDE * SIDE + k] * f64::from(image[(channel * SIZE + top + y) * SIZE + left + x])
            });
            rows.push(products.sum::<f64>() + b[c]);
        }
        x.extend(rows.iter().zip(position).map(|(row, place)| row + place));
    }
    x
}

/// Checks the rows of a patch embedding, and the gradients of all its weights, stored and then
/// added.
fn patches_agree<E: Precision>(class_token: bool, [of_rows, of_gradients]: [f64; 2]) {
    let mut layout = ParameterLayout::default();
    let embedding = PatchEmbedding::new(&mut layout, "in.", SIZE, SIDE, class_token, WIDTH).unwrap();
    let mut random = Random(17);
    let weights = random.numbers(layout.len());
    let pixels = random.numbers(IMAGES * 3 * SIZE * SIZE);
    let wide: Vec<_> = weights.iter().map(|&w| f64::from(w)).collect();
    let wanted_rows = rows_of_images(&layout, &wide, &pixels);
    let dx = random.numbers(wanted_rows.len());
    let along = |weights: &[f64]| -> f64 {
        rows_of_images(&layout, weights, &pixels).iter().zip(&dx).map(|(x, d)| x * f64::from(*d)).sum()
    };
    let difference = |k: usize| {
        let [mut more, mut less] = [wide.clone(), wide.clone()];
        // The rows are linear in each weight.
        more[k] += 0.5;
        less[k] -= 0.5;
        (along(&more) - along(&less)) as f32
    };
    let wanted: Vec<_> =
        layout.slots().iter().map(|slot| slot.range.clone().map(difference).collect::<Vec<_>>()).collect();
    on_each_device(|s| {
        let parameters = WeightsOn::<_, E>::new(s, &weights).unwrap();
        let mut matmul = MatmulOn::new(s, MatmulBackend::default()).unwrap();
        let mut scratch = BackwardScratchOn::new(s, MatmulBackend::default(), &layout).unwrap();
        let mut room = PatchActivationsOn::new(s, &embedding, IMAGES + 1, true).unwrap();
        let (mut x, mut gradient) = (s.alloc(dx.len()).unwrap(), s.alloc_zeroed(layout.len()).unwrap());
        embedding.cut(s, IMAGES, &s.upload_blocking(&pixels).unwrap(), &mut room).unwrap();
        embedding.forward(&mut ForwardPass::new(s, parameters.view(), &mut matmul), IMAGES, &mut room, &mut x).unwrap();
        let off = distance(&s.read_blocking(&x).unwrap(), &narrow(&wanted_rows));
        assert!(off <= of_rows, "the rows are off by {off:.1e}");
        let dx = s.upload_blocking(&dx).unwrap();
        for times in [1.0, 2.0] {
            let mut b = BackwardPass::new(s, parameters.view(), &mut gradient, &mut scratch).adding(times > 1.0);
            embedding.backward(&mut b, IMAGES, &dx, &mut room).unwrap();
            let found = s.read_blocking(&gradient).unwrap();
            for (slot, wanted) in layout.slots().iter().zip(&wanted) {
                let off = distance(&found[slot.range.clone()], &wanted.iter().map(|d| d * times).collect::<Vec<_>>());
                assert!(off <= of_gradients, "{times} times the gradient of {} is off by {off:.1e}", slot.name);
            }
        }
    });
}

#[test]
fn a_patch_embedding_has_the_gradients_of_differences() {
    for class_token in [true, false] {
        patches_agree::<f32>(class_token, [1e-5, 2e-4]);
        patches_agree::<bf16>(class_token, [2e-2, 5e-2]);
    }
}
