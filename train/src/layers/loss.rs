//! The loss of a classifier.

use thalweg::{Brand, DeviceSlice, Stream};
use thalweg_kernels::train::cross_entropy;

/// The cross-entropy of logits and labels, by the natural logarithm:
/// `-log(softmax(logits)[label])`.
///
/// ```
/// use thalweg::{Device, stream_tags};
/// use thalweg_train::layers::CrossEntropy;
///
/// stream_tags!(Work);
/// let s = Device::cpu()?.stream::<Work>()?;
/// let (logits, labels) = (s.upload_blocking(&[0.0, 0.0])?, s.upload_blocking(&[1])?); // one row
/// let (mut losses, mut dlogits) = (s.alloc(1)?, s.alloc(2)?);
/// CrossEntropy::new(2).forward(&s, 1, &logits, &labels, &mut losses, &mut dlogits)?;
/// assert!((s.read_blocking(&losses)?[0] - 2f32.ln()).abs() < 1e-6);
/// assert_eq!(s.read_blocking(&dlogits)?, [0.5, -0.5]);
/// # Ok::<(), thalweg_train::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct CrossEntropy {
    classes: usize,
}

impl CrossEntropy {
    /// Makes the loss of a classifier with `classes` classes.
    #[must_use]
    pub fn new(classes: usize) -> Self {
        Self { classes }
    }

    /// Computes the loss of each row of `logits` [rows, classes] with its label in `losses`
    /// \[rows\], and the gradient `dlogits` [rows, classes]. There are as many rows as labels, and
    /// `of` is what all losses and gradients are divided by: with the number of rows, or of the
    /// rows of all batches and ranks of a step, the sum of the losses is their mean. The loss of a
    /// row whose label is no class is NaN.
    ///
    /// # Errors
    /// A length does not fit, or the device failed.
    pub fn forward<S: Brand>(
        self,
        s: &Stream<S>,
        of: usize,
        logits: &DeviceSlice<S, f32>,
        labels: &DeviceSlice<S, i32>,
        losses: &mut DeviceSlice<S, f32>,
        dlogits: &mut DeviceSlice<S, f32>,
    ) -> thalweg::Result<()> {
        let (rows, classes) = (labels.len() as u32, self.classes as u32);
        cross_entropy(s, rows, classes, (1.0 / of as f64) as f32, logits, labels, losses, dlogits)
    }
}
