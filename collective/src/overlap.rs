//! The overlap pattern of several ranks: gradients are reduced while the backward pass goes on.

use std::ops::Range;

use thalweg::{DeviceSlice, LiveBrand};

use crate::comm::Comm;
use crate::element::{CollectiveElement, Reduction};
use crate::error::{Error, Result};
use crate::gradients::{Backward, BucketGradient, Gradients};

/// Runs a step of data-parallel training: the gradients of all ranks are reduced by `op`, their
/// mean or their sum, on the communicator's stream while `backward` goes on on the stream of the
/// gradients.
///
/// `backward` gets the gradients in the order of the parameters, and hands each in with
/// [`Backward::mark_ready`] once its last work is enqueued. `update` is called for each bucket of
/// gradients with its elements of the flat buffer and the result; it runs beside the reduction of
/// the next bucket. Every rank ends with the same bits. Both closures get `model`, because a
/// backward pass reads the weights that the update writes; a model of any type will do.
///
/// ```
/// use thalweg::{Device, stream_tags};
/// use thalweg_collective::overlap::data_parallel;
/// use thalweg_collective::{BucketSizes, Error, Gradients, Mean, WorldOptions, Result, ranks};
///
/// stream_tags!(Compute, Reduce);
/// let devices = [Device::new_cpu()?, Device::new_cpu()?];
/// let learned = ranks(&devices, WorldOptions::default(), |rank, world| -> Result<Vec<f32>> {
///     let compute = rank.stream::<Compute>()?;
///     let mut comm = world.comm(rank.stream::<Reduce>()?)?;
///     let mut weights = compute.upload_blocking(&[rank.index() as f32; 3])?;
///     let places = [0..1, 1..3]; // of two parameters
///     let mut gradients = Gradients::new(&compute, &[1, 2], BucketSizes::default())?;
///     for _ in 0..2 {
///         gradients = data_parallel(
///             &mut comm,
///             Mean,
///             gradients,
///             &mut weights,
///             |weights, pass, grads| {
///                 for (mut grad, place) in grads.into_iter().zip(places.clone()).rev() {
///                     compute.copy(weights.slice(place)?, &mut grad)?; // work of the backward pass
///                     pass.mark_ready(grad)?; // from here on nobody can read or write it
///                 }
///                 Ok::<_, Error>(())
///             },
///             |weights, elements, means| Ok(compute.copy(means, weights.slice_mut(elements)?)?),
///         )?;
///     }
///     Ok(compute.read_blocking(&weights)?)
/// });
/// for weights in learned {
///     assert_eq!(weights?, [0.5; 3]); // the mean of 0 and 1
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The example `own_model` of `thalweg-train` trains a model of its own layers with
/// [`Comm::backward`], of which this function is made.
///
/// # Errors
/// The error of a closure, a gradient that was not handed in, or a failure of the ranks or the
/// device. The memory of the gradients is then freed.
pub fn data_parallel<
    C: LiveBrand,
    S: LiveBrand,
    T: CollectiveElement,
    R: Reduction<T> + Copy,
    M: ?Sized,
    E: From<Error>,
>(
    comm: &mut Comm<C>,
    op: R,
    gradients: Gradients<S, T>,
    model: &mut M,
    backward: impl FnOnce(&mut M, &mut Backward<'_, C, S, T, R>, Vec<BucketGradient<S, T>>) -> Result<(), E>,
    mut update: impl FnMut(&mut M, Range<usize>, &mut DeviceSlice<S, T>) -> Result<(), E>,
) -> Result<Gradients<S, T>, E> {
    let (mut pass, grads) = comm.backward(op, gradients)?;
    backward(model, &mut pass, grads)?;
    pass.finish(|elements, reduced| update(model, elements, reduced))
}
