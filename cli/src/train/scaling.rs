//! Tokens with mean 0 and variance 1 in each number, so that training starts well.
//!
//! The model of a file takes tokens as they are: [`Scaling::fold`] moves the scaling into the first
//! layer.

use thalweg_train::{Data, Tensors};

use super::data::{INPUTS, Tokens};

/// The mean of each number of a token and of each coordinate, and what their difference is
/// multiplied by.
#[derive(Clone, Debug)]
pub(super) struct Scaling {
    tokens: [[f64; 2]; INPUTS],
    position: [[f64; 2]; 2],
}

/// Returns the mean of each column, and 1 / standard deviation. A column that hardly changes is not
/// enlarged.
fn columns<const N: usize>(rows: &[f32]) -> [[f64; 2]; N] {
    let count = (rows.len() / N).max(1) as f64;
    std::array::from_fn(|c| {
        let column = || rows.iter().skip(c).step_by(N).map(|&v| f64::from(v));
        let mean = column().sum::<f64>() / count;
        let deviation = (column().map(|v| (v - mean).powi(2)).sum::<f64>() / count).sqrt();
        [mean, if deviation > 1e-3 { 1.0 / deviation } else { 1.0 }]
    })
}

fn apply<const N: usize>(by: &[[f64; 2]; N], rows: &mut [f32]) {
    for row in rows.chunks_exact_mut(N) {
        for (v, [mean, scale]) in row.iter_mut().zip(by) {
            *v = ((f64::from(*v) - mean) * scale) as f32;
        }
    }
}

impl Scaling {
    pub(super) fn of(tokens: &Tokens) -> Self {
        Self { tokens: columns(&tokens.tokens), position: columns(&tokens.position) }
    }

    pub(super) fn apply(&self, tokens: &mut Tokens) {
        apply(&self.tokens, &mut tokens.tokens);
        apply(&self.position, &mut tokens.position);
    }

    /// Changes a model of scaled tokens into one of tokens as they are.
    pub(super) fn fold(&self, model: &mut Tensors) {
        let mut shift = Vec::new();
        let mut scale = |name: &str, by: &[[f64; 2]]| {
            let Some(Data::F32(weight)) = model.tensors.get_mut(name).map(|tensor| &mut tensor.data) else { return };
            shift.resize(weight.len() / by.len(), 0.0);
            for (row, shift) in weight.chunks_exact_mut(by.len()).zip(&mut shift) {
                for (w, [mean, scale]) in row.iter_mut().zip(by) {
                    let folded = f64::from(*w) * scale;
                    *shift += folded * mean;
                    *w = folded as f32;
                }
            }
        };
        scale("embed.weight", &self.tokens);
        scale("position.weight", &self.position);
        if let Some(Data::F32(bias)) = model.tensors.get_mut("embed.bias").map(|tensor| &mut tensor.data) {
            for (b, shift) in bias.iter_mut().zip(shift) {
                *b = (f64::from(*b) - shift) as f32;
            }
        }
    }
}
