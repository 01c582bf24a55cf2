//! The precision of products and activations.

use thalweg::simt::bf16;
use thalweg::{Brand, DeviceCopy, DeviceSlice, Stream};
use thalweg_kernels::linear::{Epilogue, Matrix, MatrixMut, Operand};
use thalweg_kernels::train::{TrainElement, round};

use crate::matmul_backend::MatmulOn;

/// The type of the operands of matrix products and attention, and of activations: `f32`, or
/// [`bf16`].
///
/// Sums, the residual stream, norms, the softmax, the loss, gradients of weights, weights and
/// moments are `f32` with both.
pub trait Precision: Operand + TrainElement + DeviceCopy + std::fmt::Debug {
    /// The elements of room that [`rounded`](Self::rounded) needs for one number: 0 with `f32`, and
    /// 1 with `bf16`.
    const ROOM: usize;

    /// Computes a product whose result is `f32`.
    #[doc(hidden)]
    fn wide<S: Brand>(
        s: &Stream<S>,
        by: &mut MatmulOn<S>,
        a: Matrix<'_, S, Self>,
        b: Matrix<'_, S, Self>,
        epilogue: &Epilogue<'_, S, f32>,
        c: MatrixMut<'_, S, f32>,
    ) -> thalweg::Result<()>;

    /// Returns numbers as operands. `room` gets the rounded ones if they must be rounded.
    ///
    /// # Errors
    /// The room is too small, or the device failed.
    fn rounded<'a, S: Brand>(
        s: &Stream<S>,
        x: &'a DeviceSlice<S, f32>,
        room: &'a mut DeviceSlice<S, Self>,
    ) -> thalweg::Result<&'a DeviceSlice<S, Self>>;

    /// Returns what an earlier [`rounded`](Self::rounded) returned for the same arguments.
    ///
    /// # Panics
    /// The room is too small.
    fn operands<'a, S: Brand>(x: &'a DeviceSlice<S, f32>, room: &'a DeviceSlice<S, Self>) -> &'a DeviceSlice<S, Self>;
}

impl Precision for f32 {
    const ROOM: usize = 0;

    fn wide<S: Brand>(
        s: &Stream<S>,
        by: &mut MatmulOn<S>,
        a: Matrix<'_, S, Self>,
        b: Matrix<'_, S, Self>,
        epilogue: &Epilogue<'_, S, f32>,
        c: MatrixMut<'_, S, f32>,
    ) -> thalweg::Result<()> {
        by.matmul(s, a, b, epilogue, c)
    }
    fn rounded<'a, S: Brand>(
        _: &Stream<S>,
        x: &'a DeviceSlice<S, f32>,
        _: &'a mut DeviceSlice<S, Self>,
    ) -> thalweg::Result<&'a DeviceSlice<S, Self>> {
        Ok(x)
    }
    fn operands<'a, S: Brand>(x: &'a DeviceSlice<S, f32>, _: &'a DeviceSlice<S, Self>) -> &'a DeviceSlice<S, Self> {
        x
    }
}

impl Precision for bf16 {
    const ROOM: usize = 1;

    fn wide<S: Brand>(
        s: &Stream<S>,
        by: &mut MatmulOn<S>,
        a: Matrix<'_, S, Self>,
        b: Matrix<'_, S, Self>,
        epilogue: &Epilogue<'_, S, f32>,
        c: MatrixMut<'_, S, f32>,
    ) -> thalweg::Result<()> {
        by.matmul(s, a, b, epilogue, c)
    }
    fn rounded<'a, S: Brand>(
        s: &Stream<S>,
        x: &'a DeviceSlice<S, f32>,
        room: &'a mut DeviceSlice<S, Self>,
    ) -> thalweg::Result<&'a DeviceSlice<S, Self>> {
        let room = room.slice_mut(..x.len())?;
        round(s, x, room)?;
        Ok(room)
    }
    fn operands<'a, S: Brand>(x: &'a DeviceSlice<S, f32>, room: &'a DeviceSlice<S, Self>) -> &'a DeviceSlice<S, Self> {
        room.slice(..x.len()).expect("`rounded` has written as many elements")
    }
}
