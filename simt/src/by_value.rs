//! Values that a kernel takes by value: numbers, truth values, arrays of them and structs of them.

use crate::{Element, bf16, f16};

/// A value that a launch passes to a kernel by value: a number, a `bool`, an array of such values,
/// or a struct that [`by_value!`](crate::by_value) declares.
///
/// # Safety
/// The type has no padding and no pointers. Its size and alignment are the same on the host and on
/// a GPU, and [`LAYOUT`](ByValue::LAYOUT) describes it.
#[diagnostic::on_unimplemented(
    message = "a kernel cannot have a parameter of type `{Self}`",
    label = "a parameter here is neither a value nor a buffer",
    note = "a parameter is a number (`u8` to `u64`, `usize`, `i8` to `i64`, `f16`, `bf16`, `f32`, `f64`), a `bool`, an \
            array of them, a struct that `by_value!` declares, or a buffer of numbers (`In<f32>`, `Out<f32>`, `InOut<f32>`)"
)]
pub unsafe trait ByValue: Copy + Send + 'static {
    /// Describes the type, with the names and the types of all fields.
    #[doc(hidden)]
    const LAYOUT: Layout;

    /// The type by which the clauses of [`kernel!`](crate::kernel) see the value.
    #[cfg(not(target_arch = "nvptx64"))]
    #[doc(hidden)]
    type Wide: Copy + core::fmt::Debug;

    /// Returns the value as the clauses see it.
    #[cfg(not(target_arch = "nvptx64"))]
    #[doc(hidden)]
    fn widen(self) -> Self::Wide;
}

macro_rules! numbers {
    ($($wide:ty: $($t:ident)*;)*) => {$($(
        // SAFETY: A primitive value has neither padding nor pointers. On the 64-bit hosts that this
        // crate supports, its size and alignment are those on a GPU.
        unsafe impl ByValue for $t {
            const LAYOUT: Layout = Layout { size: size_of::<$t>(), align: align_of::<$t>(), kind: Kind::Number(stringify!($t)) };
            #[cfg(not(target_arch = "nvptx64"))]
            type Wide = $wide;
            #[cfg(not(target_arch = "nvptx64"))]
            #[inline(always)]
            fn widen(self) -> $wide {
                self as $wide
            }
        }
    )*)*};
}
numbers! {
    i128: i8 i16 i32 i64;
    u128: u8 u16 u32 u64 usize;
    f32: f32;
    f64: f64;
    bool: bool; // 0 or 1, in one byte
}
macro_rules! halves {
    ($($t:ident)*) => {$(
        // SAFETY: The type is transparent over a `u16`, which has neither padding nor pointers.
        unsafe impl ByValue for $t {
            const LAYOUT: Layout = Layout { size: size_of::<$t>(), align: align_of::<$t>(), kind: Kind::Number(stringify!($t)) };
            #[cfg(not(target_arch = "nvptx64"))]
            type Wide = f32;
            #[cfg(not(target_arch = "nvptx64"))]
            #[inline(always)]
            fn widen(self) -> f32 {
                self.to_f32()
            }
        }
    )*};
}
halves! { f16 bf16 }
const _: () = assert!(
    size_of::<usize>() == 8 && cfg!(target_endian = "little"),
    "kernels need a little-endian host with a `usize` of 64 bits, as a GPU has"
);

// SAFETY: The elements of an array lie one after another, and each has neither padding nor
// pointers.
unsafe impl<T: ByValue, const N: usize> ByValue for [T; N] {
    const LAYOUT: Layout =
        Layout { size: size_of::<Self>(), align: align_of::<Self>(), kind: Kind::Array(&T::LAYOUT, N) };
    #[cfg(not(target_arch = "nvptx64"))]
    type Wide = [T::Wide; N];
    #[cfg(not(target_arch = "nvptx64"))]
    #[inline(always)]
    fn widen(self) -> [T::Wide; N] {
        self.map(T::widen)
    }
}

/// The description of a type that is passed by value. It decides the sizes, the order and the
/// meaning of the bytes.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    size: usize,
    align: usize,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Number(&'static str),
    Array(&'static Layout, usize),
    Struct(&'static str, &'static [(&'static str, Layout)]),
    /// A number that a buffer holds, or another type if the name is empty.
    Element(&'static str),
}

impl Layout {
    /// Returns what an origin says of a parameter that is written as `text` in the entry's name, if
    /// that does not say all: the module of the declaration may give the name of a number to
    /// another type, and to another one on a GPU than on the host.
    #[must_use]
    pub const fn beside(self, text: &str) -> Option<Self> {
        match self.kind {
            Kind::Number(name) | Kind::Element(name) if same(name, text) => None,
            _ => Some(self),
        }
    }

    /// Describes an element of a buffer.
    #[must_use]
    pub const fn of_element<T: Element>() -> Self {
        Self { size: size_of::<T>(), align: align_of::<T>(), kind: Kind::Element(T::NUMBER) }
    }

    /// Describes a struct of this size and alignment, whose fields are in this order.
    #[must_use]
    pub const fn of_struct(
        size: usize,
        align: usize,
        name: &'static str,
        fields: &'static [(&'static str, Self)],
    ) -> Self {
        let (mut bytes, mut largest, mut i) = (0, 1, 0);
        while i < fields.len() {
            let field = &fields[i].1;
            assert!(
                bytes % field.align == 0,
                "a struct by value has no padding: put its fields in the order of their sizes, the largest first"
            );
            bytes += field.size;
            largest = if field.align > largest { field.align } else { largest };
            i += 1;
        }
        assert!(size == bytes, "a struct by value has no padding: add a field, such as `unused: u32`, at its end");
        assert!(align == largest, "a struct by value is neither packed nor aligned by an attribute");
        Self { size, align, kind: Kind::Struct(name, fields) }
    }
}

/// Writes a struct that [`by_value!`] declares, as `derive(Debug)` does.
#[cfg(not(target_arch = "nvptx64"))]
#[doc(hidden)]
pub fn debug(
    f: &mut core::fmt::Formatter<'_>,
    name: &str,
    fields: &[(&str, &dyn core::fmt::Debug)],
) -> core::fmt::Result {
    let mut text = f.debug_struct(name);
    for (field, value) in fields {
        text.field(field, value);
    }
    text.finish()
}

const fn same(a: &str, b: &str) -> bool {
    let (a, b, mut i) = (a.as_bytes(), b.as_bytes(), 0);
    while i < a.len() && i < b.len() && a[i] == b[i] {
        i += 1;
    }
    i == a.len() && i == b.len()
}

/// Returns the number of bytes of [`origin`]'s result.
#[doc(hidden)]
#[must_use]
pub const fn origin_len(place: &str, layouts: &[Option<Layout>]) -> usize {
    let mut text = Text { bytes: [], len: 0 };
    text.origin(place, layouts);
    text.len
}

/// Returns the text that says from which declaration an entry was made: its place, and the layouts
/// of those parameters of which the entry's name does not say all. It has `N` bytes.
#[doc(hidden)]
#[must_use]
pub const fn origin<const N: usize>(place: &str, layouts: &[Option<Layout>]) -> [u8; N] {
    let mut text = Text { bytes: [0; N], len: 0 };
    text.origin(place, layouts);
    text.bytes
}

/// A text that is written when the crate is compiled. What does not fit is only counted.
struct Text<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Text<N> {
    const fn origin(&mut self, place: &str, layouts: &[Option<Layout>]) {
        self.put(place);
        let mut i = 0;
        while i < layouts.len() {
            if let Some(layout) = &layouts[i] {
                self.put(" ");
                self.layout(layout);
            }
            i += 1;
        }
    }

    const fn layout(&mut self, layout: &Layout) {
        match layout.kind {
            Kind::Number(name) => self.put(name),
            Kind::Array(element, len) => {
                self.put("[");
                self.layout(element);
                self.put("; ");
                self.number(len);
                self.put("]");
            }
            Kind::Struct(name, fields) => {
                self.put(name);
                self.put(" { ");
                let mut i = 0;
                while i < fields.len() {
                    self.put(if i == 0 { "" } else { ", " });
                    self.put(fields[i].0);
                    self.put(": ");
                    self.layout(&fields[i].1);
                    i += 1;
                }
                self.put(" }");
            }
            Kind::Element(name) if name.is_empty() => {
                self.put("(");
                self.number(layout.size);
                self.put(" bytes at multiples of ");
                self.number(layout.align);
                self.put(")");
            }
            Kind::Element(name) => {
                self.put("(");
                self.put(name);
                self.put(")");
            }
        }
    }

    const fn number(&mut self, n: usize) {
        if n >= 10 {
            self.number(n / 10);
        }
        self.byte(b'0' + (n % 10) as u8);
    }

    const fn put(&mut self, text: &str) {
        let mut i = 0;
        while i < text.len() {
            self.byte(text.as_bytes()[i]);
            i += 1;
        }
    }

    const fn byte(&mut self, byte: u8) {
        if self.len < N {
            self.bytes[self.len] = byte;
        }
        self.len += 1;
    }
}

/// Declares a struct that kernels take by value.
///
/// ```
/// use thalweg_simt::{kernel, by_value, ptx};
///
/// # fn main() {}
/// # ptx! {}
/// by_value! {
///     /// The size of an image, in pixels.
///     #[derive(Clone, Copy, Debug)]
///     pub struct Size {
///         /// The number of columns.
///         pub width: u32,
///         /// The number of rows.
///         pub height: u32,
///     }
/// }
///
/// kernel! {
///     /// Adds the same three numbers to each pixel.
///     pub unsafe fn tint(cx: impl Simt, size: Size, by: [f32; 3], pixels: InOut<f32>)
///     require { pixels.len() == size.width * size.height * 3 }
///     grid(size.width.div_ceil(32), size.height.div_ceil(8)) block(32, 8)
///     {
///         let (x, y) = (cx.global_x(), cx.global_y());
///         if x < size.width && y < size.height {
///             let first = (y * size.width + x) as usize * 3;
///             pixels.set(cx, first, pixels.get(cx, first) + by[0]);
///             pixels.set(cx, first + 1, pixels.get(cx, first + 1) + by[1]);
///             pixels.set(cx, first + 2, pixels.get(cx, first + 2) + by[2]);
///         }
///     }
/// }
/// ```
///
/// - The fields are numbers, `bool`s, arrays of such values, or other structs that the macro
///   declares. The struct has no padding, which the compiler checks: order the fields by size, the
///   largest first.
/// - The macro adds `#[repr(C)]` and implements [`ByValue`]. You write `#[derive(Clone, Copy)]`,
///   and other derives as for any struct.
/// - The clauses of `kernel!` see the fields, widened as parameters are: `size.width * size.height`
///   above is a `u128`.
/// - The PTX records the names and the types of the fields. A launcher refuses an entry that was
///   made for other ones.
///
/// On a GPU a struct by value is in the memory of the launch's parameters, and its fields are
/// loaded as other parameters are. An array that is indexed by what the compiler does not know is
/// copied to memory of the thread, which is slow: put such a table into a buffer.
#[macro_export]
macro_rules! by_value {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident {
            $($(#[$field_meta:meta])* $field_vis:vis $field:ident: $t:ty),+ $(,)?
        }
    ) => {
        $(#[$meta])*
        #[repr(C)]
        $vis struct $name {
            $($(#[$field_meta])* $field_vis $field: $t),+
        }

        const _: () = {
            /// The struct as the clauses of `kernel!` see it.
            #[cfg(not(target_arch = "nvptx64"))]
            #[allow(missing_docs, unreachable_pub, dead_code)]
            #[$crate::__core::prelude::v1::derive($crate::__core::clone::Clone, $crate::__core::marker::Copy)]
            pub struct __ThalwegWide {
                $($field_vis $field: <$t as $crate::ByValue>::Wide),+
            }

            #[cfg(not(target_arch = "nvptx64"))]
            impl $crate::__core::fmt::Debug for __ThalwegWide {
                fn fmt(&self, f: &mut $crate::__core::fmt::Formatter<'_>) -> $crate::__core::fmt::Result {
                    $crate::__debug(f, $crate::__core::stringify!($name), &[
                        $(($crate::__core::stringify!($field), &self.$field)),+
                    ])
                }
            }

            // SAFETY: Every field is `ByValue`, so it has no pointers and the same size and
            // alignment on both machines. `#[repr(C)]` keeps the order of the fields, and
            // `of_struct` checks when the crate is compiled that there is no padding.
            unsafe impl $crate::ByValue for $name {
                const LAYOUT: $crate::__Layout = $crate::__Layout::of_struct(
                    $crate::__core::mem::size_of::<$name>(),
                    $crate::__core::mem::align_of::<$name>(),
                    $crate::__core::stringify!($name),
                    &[$(($crate::__core::stringify!($field), <$t as $crate::ByValue>::LAYOUT)),+],
                );
                #[cfg(not(target_arch = "nvptx64"))]
                type Wide = __ThalwegWide;
                #[cfg(not(target_arch = "nvptx64"))]
                #[inline(always)]
                fn widen(self) -> __ThalwegWide {
                    __ThalwegWide { $($field: <$t as $crate::ByValue>::widen(self.$field)),+ }
                }
            }

            const _: $crate::__Layout = <$name as $crate::ByValue>::LAYOUT;
        };
    };
}
