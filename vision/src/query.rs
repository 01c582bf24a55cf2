//! The weights of a head, and a query. The participatory score and the learned balance need both.

use thalweg::__counted as counted;

use crate::error::{Error, Result};
use crate::{PLANES, kernels};

/// Hidden units of a head.
const HIDDEN: usize = 64;
/// Hidden units of a balancer.
const BALANCER: usize = 128;
/// Statistics of the three score maps. A balancer takes them, followed by the query.
const STATISTICS: usize = 9;

const HEAD: [[&str; 2]; 2] = [
    ["participatory_scorer.texture_proj.0.weight", "participatory_scorer.texture_proj.0.bias"],
    ["participatory_scorer.texture_proj.2.weight", "participatory_scorer.texture_proj.2.bias"],
];
const PREDICTOR: [[&str; 2]; 3] = [
    ["balancer.weight_predictor.0.weight", "balancer.weight_predictor.0.bias"],
    ["balancer.weight_predictor.2.weight", "balancer.weight_predictor.2.bias"],
    ["balancer.weight_predictor.4.weight", "balancer.weight_predictor.4.bias"],
];
const QUERY: &str = "query";

/// A linear layer `y = W x + b`, as plain numbers.
#[derive(Clone, Copy, Debug)]
pub struct Layer<'a> {
    /// `[outputs, inputs]`, row-major.
    pub weight: &'a [f32],
    /// `[outputs]`
    pub bias: &'a [f32],
}

impl Layer<'_> {
    /// Checks the lengths of a layer, and that all its numbers are finite. `names` are the names of
    /// its weight and its bias.
    fn check(self, names: [&'static str; 2], outputs: usize, inputs: usize) -> Result<()> {
        let shapes = [vec![outputs, inputs], vec![outputs]];
        for ((values, name), shape) in [self.weight, self.bias].into_iter().zip(names).zip(shapes) {
            if values.len() != shape.iter().product::<usize>() {
                return refuse(name, counted(values.len(), "number"), format!("{shape:?}"));
            }
            finite(name, values)?;
        }
        Ok(())
    }
}

/// A layer that owns its numbers.
#[derive(Clone, Debug)]
struct Owned {
    weight: Vec<f32>,
    bias: Vec<f32>,
}

impl From<Layer<'_>> for Owned {
    fn from(layer: Layer<'_>) -> Self {
        Self { weight: layer.weight.to_vec(), bias: layer.bias.to_vec() }
    }
}

impl Owned {
    fn layer(&self) -> Layer<'_> {
        Layer { weight: &self.weight, bias: &self.bias }
    }
}

/// The weights that project the features of a patch to the space of a query, and the weights of the
/// balancer if there is one.
///
/// Building a head computes a triangular form, once, which stands for all D outputs of the
/// projection.
///
/// ```
/// use thalweg_vision::{Head, Image, Layer, TokenParams, Pipeline, Query};
/// use thalweg::Device;
///
/// // 13 features to 64 hidden units, those to D = 3: any numbers will do here.
/// let noise = |n: usize| (0..n).map(|i| (i * 37 % 101) as f32 / 101.0 - 0.5).collect::<Vec<_>>();
/// let (w1, b1, w2, b2) = (noise(64 * 13), noise(64), noise(3 * 64), noise(3));
/// let head = Head::new(Layer { weight: &w1, bias: &b1 }, Layer { weight: &w2, bias: &b2 })?;
/// let query = Query::new(&[0.3, -1.0, 0.2])?;
///
/// let pipeline = Pipeline::new(Device::best()?, TokenParams::default())?.with_query(&head, &query)?;
/// let image = Image::new(50, 70, (0..50 * 70 * 3).map(|i| (i * 31 % 251) as u8).collect())?;
/// let tokens = pipeline.run(&[image]).remove(0)?;
/// assert_eq!(tokens.mix, Some([1.0 / 3.0; 3])); // no balancer: all three scores weigh the same
/// assert!(tokens.participatory.unwrap().iter().all(|score| (0.0..=1.0).contains(score)));
/// # Ok::<(), thalweg_vision::Error>(())
/// ```
#[derive(Clone)]
pub struct Head {
    hidden: Owned,
    projection: Owned,
    /// The triangular factor R [65, 65] of [W2 b2].
    triangle: Vec<f64>,
    balancer: Option<[Owned; 3]>,
    tensions: bool,
}

impl Head {
    /// A head of two layers: from 13 features to 64 hidden units, and from these to D outputs.
    ///
    /// # Errors
    /// [`Error::Tensor`] if a layer has another shape, or a number that is not finite.
    pub fn new(hidden: Layer<'_>, projection: Layer<'_>) -> Result<Self> {
        let [first, second] = HEAD;
        hidden.check(first, HIDDEN, PLANES)?;
        if projection.bias.is_empty() {
            return refuse(second[1], "empty", "[D] with D at least 1");
        }
        projection.check(second, projection.bias.len(), HIDDEN)?;
        let triangle = triangle(projection);
        Ok(Self { hidden: hidden.into(), projection: projection.into(), triangle, balancer: None, tensions: false })
    }

    /// Adds a balancer: three layers, from 9 + D to 128 to 128 to 3, which weigh the scores by
    /// their statistics and the query.
    ///
    /// # Errors
    /// [`Error::Tensor`] if a layer has another shape, or a number that is not finite.
    pub fn with_balancer(mut self, layers: [Layer<'_>; 3]) -> Result<Self> {
        let shapes = [(BALANCER, STATISTICS + self.dimension()), (BALANCER, BALANCER), (3, BALANCER)];
        for ((layer, names), (outputs, inputs)) in layers.iter().zip(PREDICTOR).zip(shapes) {
            layer.check(names, outputs, inputs)?;
        }
        self.balancer = Some(layers.map(Owned::from));
        Ok(self)
    }

    /// Makes the balancer weigh the scores by three tensions, each between two of them, and not by
    /// a softmax: information and salience (compress and particularize), participatory score and
    /// information (exploit and explore), salience and participatory score (focus and diversify).
    /// `docs/spec.md`, section 3, has the formula and its source.
    #[must_use]
    pub fn with_tensions(self, tensions: bool) -> Self {
        Self { tensions, ..self }
    }

    /// Whether the balancer weighs the scores by tensions.
    pub fn has_tensions(&self) -> bool {
        self.tensions
    }

    /// D, the dimension of the queries that fit this head.
    pub fn dimension(&self) -> usize {
        self.projection.bias.len()
    }

    /// Whether the head has a balancer.
    pub fn has_balancer(&self) -> bool {
        self.balancer.is_some()
    }

    /// The weights that [`kernels::participatory`] takes for this head and a query.
    ///
    /// # Errors
    /// [`Error::Tensor`] if the query has another dimension.
    pub fn projection(&self, query: &Query) -> Result<Vec<f32>> {
        self.check(query)?;
        // Divided by the length of the query, so that the kernel needs to divide only by the length
        // of the projection.
        let length = query.0.iter().map(|&q| f64::from(q) * f64::from(q)).sum::<f64>().sqrt().max(1e-12);
        let mut coupled = vec![0.0; HIDDEN + 1];
        let rows = self.projection.weight.chunks(HIDDEN).zip(&self.projection.bias);
        for ((row, bias), &q) in rows.zip(&query.0) {
            let q = f64::from(q) / length;
            for (sum, &w) in coupled.iter_mut().zip(row.iter().chain([bias])) {
                *sum += f64::from(w) * q;
            }
        }
        Ok(kernels::projection(&self.hidden.weight, &self.hidden.bias, &self.triangle, &coupled))
    }

    /// The weights that [`kernels::balance`] takes for this head and a query. `None` without a
    /// balancer.
    ///
    /// # Errors
    /// [`Error::Tensor`] if the query has another dimension.
    pub fn balancer_weights(&self, query: &Query) -> Result<Option<Vec<f32>>> {
        self.check(query)?;
        Ok(self.balancer.as_ref().map(|layers| {
            let layers = layers.each_ref().map(Owned::layer);
            kernels::balancer_weights(layers.map(|l| l.weight), layers.map(|l| l.bias), &query.0)
        }))
    }

    fn check(&self, query: &Query) -> Result<()> {
        if query.0.len() != self.dimension() {
            let expected = format!("[{}], the dimension of the head", self.dimension());
            return refuse(QUERY, format!("[{}]", query.0.len()), expected);
        }
        Ok(())
    }
}

impl std::fmt::Debug for Head {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let balancer = if self.has_balancer() { ", with a balancer" } else { "" };
        write!(f, "Head(D = {}{balancer})", self.dimension())
    }
}

/// A query embedding `[D]`.
#[derive(Clone, PartialEq)]
pub struct Query(Vec<f32>);

impl Query {
    /// A query of these numbers.
    ///
    /// # Errors
    /// [`Error::Tensor`] if there are no numbers, or one is not finite.
    pub fn new(embedding: &[f32]) -> Result<Self> {
        if embedding.is_empty() {
            return refuse(QUERY, "empty", "[D] with D at least 1");
        }
        finite(QUERY, embedding)?;
        Ok(Self(embedding.to_vec()))
    }

    /// D, the number of elements.
    pub fn dimension(&self) -> usize {
        self.0.len()
    }

    /// The numbers.
    pub fn numbers(&self) -> &[f32] {
        &self.0
    }
}

impl std::fmt::Debug for Query {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Query(D = {})", self.dimension())
    }
}

fn refuse<T>(name: &'static str, given: impl Into<String>, expected: impl Into<String>) -> Result<T> {
    Err(Error::Tensor { name, given: given.into(), expected: expected.into() })
}

fn finite(name: &'static str, values: &[f32]) -> Result<()> {
    match values.iter().position(|v| !v.is_finite()) {
        Some(i) => refuse(name, format!("{} at element {i}", values[i]), "finite numbers"),
        None => Ok(()),
    }
}

/// Computes the triangular factor R [65, 65] of [W2 b2] = Q R, by Householder reflections. Rows
/// past D are zero.
///
/// |W2 h + b2| = |R (h, 1)|, because the columns of Q are orthonormal.
fn triangle(projection: Layer<'_>) -> Vec<f64> {
    let (size, rows) = (HIDDEN + 1, projection.bias.len());
    let column = |k: usize| -> Vec<f64> {
        let at = |row: usize| if k < HIDDEN { projection.weight[row * HIDDEN + k] } else { projection.bias[row] };
        (0..rows).map(|row| f64::from(at(row))).collect()
    };
    let mut columns: Vec<Vec<f64>> = (0..size).map(column).collect();
    let mut triangle = vec![0.0; size * size];
    for k in 0..size {
        let (done, rest) = columns.split_at_mut(k + 1);
        let pivot = &mut done[k];
        if k < rows {
            let length = pivot[k..].iter().map(|v| v * v).sum::<f64>().sqrt();
            // With this sign, the subtraction below adds magnitudes, so that no digits cancel.
            let diagonal = -length.copysign(pivot[k]);
            pivot[k] -= diagonal;
            let mirror = &pivot[k..];
            let squares: f64 = mirror.iter().map(|v| v * v).sum();
            if squares > 0.0 {
                for column in rest {
                    let along: f64 = mirror.iter().zip(&column[k..]).map(|(a, b)| a * b).sum();
                    for (v, m) in column[k..].iter_mut().zip(mirror) {
                        *v -= 2.0 * along / squares * m;
                    }
                }
            }
            pivot[k] = diagonal;
        }
        for row in 0..rows.min(k + 1) {
            triangle[row * size + k] = pivot[row];
        }
    }
    triangle
}

#[cfg(feature = "safetensors")]
mod file {
    use safetensors::{Dtype, SafeTensors};
    use thalweg::simt::{bf16, f16};

    use super::{BALANCER, HEAD, HIDDEN, Head, Layer, PREDICTOR, QUERY, Query, STATISTICS, refuse};
    use crate::PLANES;
    use crate::error::Result;

    impl Head {
        /// Reads a head from the bytes of a safetensors file. The tensors have the names of a
        /// PyTorch state dict: `participatory_scorer.texture_proj.{0,2}` and, for a head with a
        /// balancer, `balancer.weight_predictor.{0,2,4}`, each with `.weight` and `.bias`. If one
        /// tensor of the balancer is there, all must be. Other tensors are ignored. If the metadata
        /// has `tensions` = `true`, the balancer weighs by [tensions](Head::with_tensions), as the
        /// file of a model of `thalweg-train` says that learned so.
        ///
        /// The types F32, F16 and BF16 are accepted. Weights are `[outputs, inputs]`, or
        /// `[outputs, inputs, 1, 1]` as in 1x1 convolutions.
        ///
        /// # Errors
        /// [`Error::Tensor`](crate::Error::Tensor) if a tensor is missing, has another shape or
        /// type, or a number that is not finite, or if `tensions` is another word.
        /// [`thalweg::Error::Parameter`] if this is not a safetensors file.
        pub fn from_safetensors(bytes: &[u8]) -> Result<Self> {
            let file = open("weights", bytes)?;
            let hidden = layer(&file, HEAD[0], HIDDEN, PLANES)?;
            let bias = vector(&file, HEAD[1][1])?;
            let projection = layer(&file, HEAD[1], bias.len(), HIDDEN)?;
            let head = Self::new(borrow(&hidden), borrow(&projection))?.with_tensions(tensions(bytes)?);
            let names = file.names();
            if !PREDICTOR.as_flattened().iter().any(|name| names.contains(name)) {
                return Ok(head);
            }
            let layers = [
                layer(&file, PREDICTOR[0], BALANCER, STATISTICS + bias.len())?,
                layer(&file, PREDICTOR[1], BALANCER, BALANCER)?,
                layer(&file, PREDICTOR[2], 3, BALANCER)?,
            ];
            head.with_balancer(layers.each_ref().map(borrow))
        }
    }

    impl Query {
        /// Reads the tensor `query` `[D]` from the bytes of a safetensors file. Its type is F32,
        /// F16 or BF16.
        ///
        /// # Errors
        /// The errors of [`Head::from_safetensors`].
        pub fn from_safetensors(bytes: &[u8]) -> Result<Self> {
            Self::new(&vector(&open("query", bytes)?, QUERY)?)
        }
    }

    fn open<'a>(name: &'static str, bytes: &'a [u8]) -> Result<SafeTensors<'a>> {
        let file = SafeTensors::deserialize(bytes).map_err(|error| thalweg::Error::Parameter {
            name,
            given: format!("unreadable ({error})"),
            expected: "a safetensors file".into(),
        })?;
        Ok(file)
    }

    /// Returns whether the metadata says that the balancer weighs by tensions.
    fn tensions(bytes: &[u8]) -> Result<bool> {
        let header = SafeTensors::read_metadata(bytes).ok();
        let value = header.and_then(|(_, header)| header.metadata().as_ref()?.get("tensions").cloned());
        match value.as_deref() {
            Some("true") => Ok(true),
            None | Some("false") => Ok(false),
            Some(other) => refuse("tensions", other.to_owned(), "true or false"),
        }
    }

    fn borrow([weight, bias]: &[Vec<f32>; 2]) -> Layer<'_> {
        Layer { weight, bias }
    }

    /// Reads the weight and the bias of a layer.
    fn layer(file: &SafeTensors<'_>, names: [&'static str; 2], outputs: usize, inputs: usize) -> Result<[Vec<f32>; 2]> {
        let (shape, weight) = tensor(file, names[0])?;
        if !matches!(*shape, [o, i] | [o, i, 1, 1] if [o, i] == [outputs, inputs]) {
            return refuse(
                names[0],
                format!("{shape:?}"),
                format!("[{outputs}, {inputs}] or [{outputs}, {inputs}, 1, 1]"),
            );
        }
        let (shape, bias) = tensor(file, names[1])?;
        if shape != [outputs] {
            return refuse(names[1], format!("{shape:?}"), format!("[{outputs}]"));
        }
        Ok([weight, bias])
    }

    fn vector(file: &SafeTensors<'_>, name: &'static str) -> Result<Vec<f32>> {
        let (shape, values) = tensor(file, name)?;
        if shape.len() != 1 {
            return refuse(name, format!("{shape:?}"), "[D]");
        }
        Ok(values)
    }

    fn tensor(file: &SafeTensors<'_>, name: &'static str) -> Result<(Vec<usize>, Vec<f32>)> {
        let Ok(view) = file.tensor(name) else {
            return refuse(name, "missing", "a tensor of this name in the file");
        };
        let data = view.data();
        let halves = || data.as_chunks::<2>().0.iter().map(|&v| u16::from_le_bytes(v));
        let values = match view.dtype() {
            Dtype::F32 => data.as_chunks::<4>().0.iter().map(|&v| f32::from_le_bytes(v)).collect(),
            Dtype::F16 => halves().map(|v| f16::from_bits(v).to_f32()).collect(),
            Dtype::BF16 => halves().map(|v| bf16::from_bits(v).to_f32()).collect(),
            other => return refuse(name, format!("{other:?}"), "F32, F16 or BF16"),
        };
        Ok((view.shape().to_vec(), values))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(n: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / 8_388_608.0 - 1.0
        };
        (0..n).map(|_| next()).collect()
    }

    /// R^T R = [W2 b2]^T [W2 b2], for D below, at and above 65, and for columns that are zero or
    /// depend on one another.
    #[test]
    fn the_triangle_has_the_columns_products() {
        for rows in [1, 2, 63, 64, 65, 66, 300] {
            for kind in 0..3 {
                let (mut weight, bias) = (noise(rows * HIDDEN, rows as u32), noise(rows, 7));
                for row in weight.chunks_mut(HIDDEN) {
                    match kind {
                        0 => {}
                        1 => row[0..2].fill(0.0),
                        _ => row[9] = row[8],
                    }
                }
                let r = triangle(Layer { weight: &weight, bias: &bias });
                let entry =
                    |row: usize, k: usize| f64::from(if k < HIDDEN { weight[row * HIDDEN + k] } else { bias[row] });
                for a in 0..=HIDDEN {
                    for b in 0..=HIDDEN {
                        let want: f64 = (0..rows).map(|row| entry(row, a) * entry(row, b)).sum();
                        let got: f64 = (0..=HIDDEN).map(|row| r[row * 65 + a] * r[row * 65 + b]).sum();
                        assert!((got - want).abs() < 1e-11 * rows as f64, "{rows} rows, kind {kind}: {a}, {b}");
                        assert!(b >= a || r[a * 65 + b] == 0.0, "below the diagonal");
                    }
                }
            }
        }
    }
}
