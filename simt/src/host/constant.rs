//! The constants in the clauses of a declaration.

use super::argument::Extent;

/// A constant as it stands in a clause. Numbers are widened as parameters are. `Wide` is the type
/// by which a clause sees it. Each type has only one, so it could be an associated type, but then
/// the compiler would report each mistake twice.
#[diagnostic::on_unimplemented(
    message = "a constant of type `{Self}` cannot be used in a clause of `kernel!`",
    label = "this is neither a number nor a `bool`",
    note = "in `require`, `grid`, `block` and `shared`, a name in capital letters is a constant. Integers are widened \
            to `u128` or `i128`, as parameters are. Give other values a name in small letters, such as that of a `fn`"
)]
#[doc(hidden)]
pub trait Constant<Wide> {
    /// Returns the constant as a clause sees it.
    fn widen(self) -> Wide;
}

macro_rules! constants {
    ($($wide:ty: $($t:ty)*;)*) => {$($(
        impl Constant<$wide> for $t {
            #[inline(always)]
            fn widen(self) -> $wide {
                self as $wide
            }
        }
    )*)*};
}
constants! {
    u128: u8 u16 u32 u64 u128 usize;
    i128: i8 i16 i32 i64 i128 isize;
    f32: f32;
    f64: f64;
    bool: bool;
    // A parameter may have a name in capital letters too.
    Extent: Extent;
}

/// Returns a constant as a clause sees it.
#[doc(hidden)]
#[inline(always)]
pub fn widened<C: Constant<Wide>, Wide>(constant: C) -> Wide {
    constant.widen()
}
