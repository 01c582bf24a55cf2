//! Sections 3.2, 3.3 and the balance: the scores of patches, and their relevance.

use super::PLANES;

/// The salience score `[N]`, from the features.
pub fn salience(features: &[f64], foveal_bias: f64) -> Vec<f64> {
    let strongest = features.chunks(PLANES).map(|f| f[8]).fold(0.0, f64::max);
    let mut all = Vec::new();
    for f in features.chunks(PLANES) {
        let edge = if strongest == 0.0 { 0.0 } else { f[8] / strongest };
        all.push(edge * (1.0 - foveal_bias * f[11]));
    }
    all
}

/// The relevance `[N]` of score maps under a mix, and the spread (max - min) of their weighted sum.
pub fn relevance(maps: &[&[f64]], mix: &[f64]) -> (Vec<f64>, f64) {
    assert_eq!(maps.len(), mix.len());
    let mut raw = vec![0.0; maps[0].len()];
    for (map, weight) in maps.iter().zip(mix) {
        for (sum, score) in raw.iter_mut().zip(*map) {
            *sum += weight * score;
        }
    }
    let min = raw.iter().copied().fold(f64::INFINITY, f64::min);
    let max = raw.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let spread = max - min;
    for value in &mut raw {
        *value = if spread < 1e-6 { 1.0 } else { (*value - min) / (spread + 1e-8) };
    }
    (raw, spread)
}

/// A layer `y = W x + b`; `weight` is `[outputs, inputs]`.
#[derive(Clone, Debug)]
pub struct Layer {
    pub weight: Vec<f64>,
    pub bias: Vec<f64>,
}

impl Layer {
    fn apply(&self, x: &[f64]) -> Vec<f64> {
        assert_eq!(self.weight.len(), self.bias.len() * x.len(), "a layer's weights and its input");
        let rows = self.weight.chunks(x.len()).zip(&self.bias);
        rows.map(|(row, bias)| row.iter().zip(x).map(|(w, x)| w * x).sum::<f64>() + bias).collect()
    }
}

fn relu(mut x: Vec<f64>) -> Vec<f64> {
    x.iter_mut().for_each(|v| *v = v.max(0.0));
    x
}

fn norm(x: &[f64]) -> f64 {
    x.iter().map(|v| v * v).sum::<f64>().sqrt()
}

/// The participatory score `[N]`: how well the query and the projection of each patch's features
/// point the same way.
///
/// `head` are the layers 13 to 64 and 64 to D.
pub fn participatory(head: &[Layer; 2], query: &[f64], features: &[f64]) -> Vec<f64> {
    let mut all = Vec::new();
    for f in features.chunks(PLANES) {
        let z = head[1].apply(&relu(head[0].apply(f)));
        let dot: f64 = z.iter().zip(query).map(|(z, q)| z * q).sum();
        let cos = dot / (norm(&z).max(1e-12) * norm(query).max(1e-12));
        all.push((1.0 + cos.clamp(-1.0, 1.0)) / 2.0);
    }
    all
}

/// How much relative errors of `h` and of the weights grow in a patch's cosine `[N]`: the length of
/// `z` if nothing canceled, over its length.
pub fn participatory_condition(head: &[Layer; 2], features: &[f64]) -> Vec<f64> {
    let mut all = Vec::new();
    for f in features.chunks(PLANES) {
        let magnitude = |layer: &Layer| Layer {
            weight: layer.weight.iter().map(|v| v.abs()).collect(),
            bias: layer.bias.iter().map(|v| v.abs()).collect(),
        };
        let f_abs: Vec<f64> = f.iter().map(|v| v.abs()).collect();
        let whole = magnitude(&head[1]).apply(&magnitude(&head[0]).apply(&f_abs));
        let z = head[1].apply(&relu(head[0].apply(f)));
        all.push(norm(&whole) / norm(&z).max(1e-12));
    }
    all
}

/// What a balancer says of the score maps and the query; `balancer` are its three layers.
fn balancer_logits(balancer: &[Layer; 3], maps: [&[f64]; 3], query: &[f64]) -> Vec<f64> {
    let mut input = Vec::new();
    for map in maps {
        let n = map.len() as f64;
        let mean = map.iter().sum::<f64>() / n;
        let squares = map.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>();
        input.push(mean);
        input.push(map.iter().copied().fold(f64::NEG_INFINITY, f64::max));
        input.push(if map.len() == 1 { 0.0 } else { (squares / (n - 1.0)).sqrt() });
    }
    input.extend(query);
    let hidden = relu(balancer[1].apply(&relu(balancer[0].apply(&input))));
    balancer[2].apply(&hidden)
}

/// The weights of the scores, from the score maps and the query: the softmax.
pub fn balance(balancer: &[Layer; 3], maps: [&[f64]; 3], query: &[f64]) -> [f64; 3] {
    let logits = balancer_logits(balancer, maps, query);
    let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let powers: Vec<f64> = logits.iter().map(|v| (v - most).exp()).collect();
    let sum: f64 = powers.iter().sum();
    [powers[0] / sum, powers[1] / sum, powers[2] / sum]
}

/// The same by tensions: pair by pair, each pole gets its share of a third.
pub fn balance_by_tensions(balancer: &[Layer; 3], maps: [&[f64]; 3], query: &[f64]) -> [f64; 3] {
    let (entropy, salience, participatory) = (0, 1, 2);
    let poles = [(entropy, salience), (participatory, entropy), (salience, participatory)];
    let mut mix = [0.0; 3];
    for ((first, second), logit) in poles.into_iter().zip(balancer_logits(balancer, maps, query)) {
        let share = (1.0 + (logit / 2.0).tanh()) / 2.0; // the logistic function
        mix[first] += share / 3.0;
        mix[second] += (1.0 - share) / 3.0;
    }
    mix
}
