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

/// Adds what `of` makes of each number to the sum of its column.
fn add<const N: usize>(sums: &mut [f64; N], rows: &[f32], of: impl Fn(usize, f64) -> f64) {
    for row in rows.as_chunks::<N>().0 {
        for (c, (sum, v)) in sums.iter_mut().zip(row).enumerate() {
            *sum += of(c, f64::from(*v));
        }
    }
}

/// Returns the mean of each column, and 1 / standard deviation. A column that hardly changes is not
/// enlarged.
fn columns<const N: usize>(means: [f64; N], squares: [f64; N], count: f64) -> [[f64; 2]; N] {
    std::array::from_fn(|c| {
        let deviation = (squares[c] / count).sqrt();
        [means[c], if deviation > 1e-3 { 1.0 / deviation } else { 1.0 }]
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
    pub(super) fn of(images: &Tokens) -> Result<Self, String> {
        let count = images.rows().max(1) as f64;
        let sums = |of: &dyn Fn(usize, f64) -> f64, of_position: &dyn Fn(usize, f64) -> f64| {
            let mut sums = ([0.0; INPUTS], [0.0; 2]);
            images.each(|tokens, position| {
                add(&mut sums.0, tokens, of);
                add(&mut sums.1, position, of_position);
                false
            })?;
            Ok::<_, String>(sums)
        };
        let (tokens, position) = sums(&|_, v| v, &|_, v| v)?;
        let (tokens, position) = (tokens.map(|sum| sum / count), position.map(|sum| sum / count));
        let squares = sums(&|c, v| (v - tokens[c]).powi(2), &|c, v| (v - position[c]).powi(2))?;
        Ok(Self { tokens: columns(tokens, squares.0, count), position: columns(position, squares.1, count) })
    }

    pub(super) fn apply(&self, images: &Tokens) -> Result<(), String> {
        images.each(|tokens, position| {
            apply(&self.tokens, tokens);
            apply(&self.position, position);
            true
        })
    }

    /// Changes a model of scaled tokens into one of tokens as they are. `prefix` stands before the
    /// names of its first layer.
    pub(super) fn fold(&self, model: &mut Tensors, prefix: &str) {
        let name = |name: &str| format!("{prefix}{name}");
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
        scale(&name("embed.weight"), &self.tokens);
        scale(&name("position.weight"), &self.position);
        if let Some(Data::F32(bias)) = model.tensors.get_mut(&name("embed.bias")).map(|tensor| &mut tensor.data) {
            for (b, shift) in bias.iter_mut().zip(shift) {
                *b = (f64::from(*b) - shift) as f32;
            }
        }
    }
}
