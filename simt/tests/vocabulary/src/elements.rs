//! Arrays and structs as elements.

use thalweg_simt::{Element, f16, kernel};

/// Four words that one access loads.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(16))]
pub struct Point {
    /// The coordinates.
    pub place: [f32; 3],
    /// A label.
    pub label: u32,
}

// SAFETY: Every bit pattern is a `Point`, it is `repr(C)`, and its fields fill its 16 bytes.
unsafe impl Element for Point {}

/// Two accesses of 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(16))]
pub struct Pair(pub [u64; 4]);

// SAFETY: Every bit pattern is a `Pair`, it is `repr(C)`, and its field fills its 32 bytes.
unsafe impl Element for Pair {}

/// Fields of several sizes, in pieces of 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct Mixed {
    /// 8 bytes, which give the struct its alignment.
    pub sum: f64,
    /// Two bytes.
    pub half: f16,
    /// Two bytes.
    pub bytes: [u8; 2],
    /// Four bytes.
    pub count: i32,
}

// SAFETY: Every bit pattern is a `Mixed`, it is `repr(C)`, and its fields follow one another
// without padding.
unsafe impl Element for Mixed {}

macro_rules! plain {
    ($($t:ty)*) => {$(
        // SAFETY: All bits 0 are a value, because every bit pattern is one.
        unsafe impl bytemuck::Zeroable for $t {}
        // SAFETY: It has what `Element` asks for, which is what `Pod` asks for too.
        unsafe impl bytemuck::Pod for $t {}
    )*};
}
plain!(Point Pair Mixed);

/// Three bytes.
pub type Pixel = [u8; 3];
/// Twelve bytes, in words.
pub type Triple = [f32; 3];
/// Six bytes, in pieces of 2.
pub type Halves = [[u16; 3]; 1];

macro_rules! reverse {
    ($(#[$doc:meta])* $name:ident $element:ident) => {
        kernel! {
            $(#[$doc])*
            pub unsafe fn $name(cx: impl Cooperative, x: In<$element>, y: InOut<$element>)
            require { x.len() == 64, y.len() == 64 }
            grid(1) block(64) shared(64 * size_of::<$element>() as u128)
            {
                let i = cx.thread_idx().x;
                let window = cx.shared::<$element>(0);
                cx.shared_set(window, i, x.get(cx, i));
                cx.barrier();
                let v = cx.shared_get(window, 63 - cx.thread_idx().x);
                y.set(cx, cx.thread_idx().x, v);
            }
        }
    };
}
reverse! {
    /// Reverses 64 elements by way of shared memory.
    reverse_points Point
}
reverse! {
    /// Reverses 64 elements by way of shared memory.
    reverse_pairs Pair
}
reverse! {
    /// Reverses 64 elements by way of shared memory.
    reverse_mixed Mixed
}
reverse! {
    /// Reverses 64 elements by way of shared memory.
    reverse_pixels Pixel
}
reverse! {
    /// Reverses 64 elements by way of shared memory.
    reverse_triples Triple
}
reverse! {
    /// Reverses 64 elements by way of shared memory.
    reverse_halves Halves
}
reverse! {
    /// Reverses 64 elements by way of shared memory.
    reverse_words u64
}
