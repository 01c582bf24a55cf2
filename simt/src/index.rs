//! The types by which bodies index buffers.

/// A number that indexes a buffer: `usize`, or a type of a thread's index. No other crate can
/// implement it.
///
/// An index is not below 0. `i32` is among the types because it is the type of a literal such as
/// the one in `x.get(cx, 0)`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not index a buffer",
    label = "expected `u32` or `usize`",
    note = "the index of a thread, such as `cx.global_x()`, is a `u32`, and a length in Rust is a `usize`"
)]
pub trait Index: Copy + sealed::Sealed {
    /// Returns the number as an offset in elements.
    #[doc(hidden)]
    fn index(self) -> usize;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! index {
    ($($t:ty)*) => {$(
        impl sealed::Sealed for $t {}
        impl Index for $t {
            #[inline(always)]
            fn index(self) -> usize {
                self as usize
            }
        }
    )*};
}
index!(u8 u16 u32 usize i32);
