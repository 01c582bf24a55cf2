//! The places of the weights of a model in one flat buffer.

use std::ops::Range;

use crate::error::{Error, Result, room};
use crate::tensors::{Tensors, elements};

/// The most elements of a flat buffer, because kernels count them in 32 bits.
const MOST: usize = (u32::MAX - 7) as usize;

/// The place of a tensor in the flat buffers of a model. Its name and its shape are those of its
/// file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterSlot {
    /// The name.
    pub name: String,
    /// The extents.
    pub shape: Vec<usize>,
    /// The elements of the flat buffer.
    pub range: Range<usize>,
}

/// The tensors of a model in flat buffers: weights, gradients and both moments have the same
/// layout. So one launch updates all weights, one sum reduces all gradients, and one copy saves
/// them.
///
/// ```
/// use thalweg_train::ParameterLayout;
/// use thalweg_train::layers::Linear;
///
/// let mut layout = ParameterLayout::default();
/// let layer = Linear::new(&mut layout, "head", 3, 2)?;
/// assert_eq!((layer.inputs(), layer.outputs()), (3, 2));
/// assert_eq!((&*layout.slots()[0].name, &*layout.slots()[0].shape), ("head.weight", &[2, 3][..]));
/// assert_eq!((layout.slots()[1].range.clone(), layout.len()), (8..10, 16));
/// # Ok::<(), thalweg_train::Error>(())
/// ```
///
/// Each tensor begins at a multiple of 8 elements, as the fast matrix products want it. The
/// elements between two tensors are zero and stay zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParameterLayout {
    slots: Vec<ParameterSlot>,
    len: usize,
}

impl ParameterLayout {
    /// Returns the number of elements of a flat buffer.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no tensors.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Returns the tensors in the order of the buffer.
    #[must_use]
    pub fn slots(&self) -> &[ParameterSlot] {
        &self.slots
    }

    /// Returns the elements of each tensor with those up to the next one, in the order of the
    /// buffer. Buckets of gradients are made of them.
    #[must_use]
    pub fn lens(&self) -> Vec<usize> {
        let ends = self.slots.iter().skip(1).map(|slot| slot.range.start).chain([self.len]);
        self.slots.iter().zip(ends).map(|(slot, end)| end - slot.range.start).collect()
    }

    /// Adds a tensor behind the others, and returns its elements of the flat buffer. Layers add
    /// their tensors themselves.
    ///
    /// # Errors
    /// There are too many elements.
    pub fn add(&mut self, name: impl Into<String>, shape: &[usize]) -> Result<Range<usize>> {
        let (name, start) = (name.into(), self.len);
        let end = elements(shape).and_then(|n| start.checked_add(n)).filter(|&end| end <= MOST);
        let end = end.ok_or_else(|| {
            Error::Config(format!("with `{name}` of {shape:?} the model has more than {MOST} weights"))
        })?;
        self.len = end.next_multiple_of(8);
        self.slots.push(ParameterSlot { name, shape: shape.to_vec(), range: start..end });
        Ok(start..end)
    }

    /// Makes a flat buffer of zeros.
    fn zeros(&self) -> Result<Vec<f32>> {
        let mut flat = room(self.len)?;
        flat.resize(self.len, 0.0);
        Ok(flat)
    }

    /// Puts the tensors of a file into the order of the buffer. `prefix` stands before each name.
    ///
    /// # Errors
    /// A tensor is missing or has another shape, or there is no memory.
    pub fn flatten(&self, tensors: &Tensors, prefix: &str) -> Result<Vec<f32>> {
        let find = |place: &ParameterSlot| tensors.f32(&format!("{prefix}{}", place.name), &place.shape);
        // All tensors are there before memory is taken, so a small file does not make a large
        // buffer.
        let found = self.slots.iter().map(find).collect::<Result<Vec<_>>>()?;
        let mut flat = self.zeros()?;
        for (place, data) in self.slots.iter().zip(found) {
            flat[place.range.clone()].copy_from_slice(data);
        }
        Ok(flat)
    }

    /// Adds the tensors of a flat buffer to `tensors`. `prefix` is put before each name.
    ///
    /// # Panics
    /// The buffer has another length.
    pub fn unflatten(&self, flat: &[f32], prefix: &str, tensors: &mut Tensors) {
        assert_eq!(flat.len(), self.len, "a flat buffer of this layout");
        for ParameterSlot { name, shape, range } in &self.slots {
            tensors.insert(format!("{prefix}{name}"), shape, flat[range.clone()].to_vec());
        }
    }

    /// Draws weights: matrices from a normal distribution with variance 1 / inputs, weights of
    /// norms 1, and biases 0. The same seed gives the same weights.
    ///
    /// # Errors
    /// There is no memory.
    pub fn init(&self, seed: u64) -> Result<Vec<f32>> {
        let mut flat = self.zeros()?;
        let mut normal = Normal(seed);
        for ParameterSlot { name, shape, range } in &self.slots {
            if let [_, inputs @ ..] = &shape[..]
                && !inputs.is_empty()
            {
                let scale = 1.0 / (inputs.iter().product::<usize>() as f64).sqrt();
                flat[range.clone()].fill_with(|| (normal.next() * scale) as f32);
            } else if name.contains("norm") && name.ends_with("weight") {
                flat[range.clone()].fill(1.0);
            }
        }
        Ok(flat)
    }
}

/// Normal numbers, by SplitMix64 and the transform of Box and Muller.
struct Normal(u64);

impl Normal {
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn next(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}
