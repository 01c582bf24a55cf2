//! One row for each sequence.

use thalweg::{Brand, DeviceSlice, Stream};
use thalweg_kernels::train::{pool, pool_backward};

use super::Sequences;

/// The reduction of the rows of a sequence to one.
///
/// ```
/// use thalweg::{Device, stream_tags};
/// use thalweg_train::layers::{Pooling, Sequences};
///
/// stream_tags!(Work);
/// let s = Device::cpu()?.stream::<Work>()?;
/// let (x, ends) = (s.upload_blocking(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])?, s.upload_blocking(&[0, 2, 3])?);
/// let mut y = s.alloc(4)?; // of two sequences
/// Pooling::Mean.forward(&s, &Sequences::new(3, &ends), 2, &x, &mut y)?;
/// assert_eq!(s.read_blocking(&y)?, [2.0, 3.0, 5.0, 6.0]);
/// # Ok::<(), thalweg_train::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pooling {
    /// Their mean.
    #[default]
    Mean,
    /// The first one, which is the class token.
    Class,
}

impl Pooling {
    fn extents<S>(batch: &Sequences<'_, S>, width: usize) -> [u32; 3] {
        [batch.rows, width, batch.count()].map(|extent| extent as u32)
    }

    /// Computes `y` [sequences, width] from `x` [rows, width].
    ///
    /// # Errors
    /// A length does not fit, or the device failed.
    pub fn forward<S: Brand>(
        self,
        s: &Stream<S>,
        batch: &Sequences<'_, S>,
        width: usize,
        x: &DeviceSlice<S, f32>,
        y: &mut DeviceSlice<S, f32>,
    ) -> thalweg::Result<()> {
        let [r, c, b] = Self::extents(batch, width);
        pool(s, r, c, b, self == Self::Class, batch.cu_seqlens, x, y)
    }

    /// Computes the gradient `dx` [rows, width] from that of the result, `dy` [sequences, width].
    ///
    /// # Errors
    /// A length does not fit, or the device failed.
    pub fn backward<S: Brand>(
        self,
        s: &Stream<S>,
        batch: &Sequences<'_, S>,
        width: usize,
        dy: &DeviceSlice<S, f32>,
        dx: &mut DeviceSlice<S, f32>,
    ) -> thalweg::Result<()> {
        let [r, c, b] = Self::extents(batch, width);
        pool_backward(s, r, c, b, self == Self::Class, batch.cu_seqlens, dy, dx)
    }
}
