//! Vector accesses, cache hints, prefetches, clocks, and much shared memory.

use thalweg_simt::memory::Cache;
use thalweg_simt::{Element, In, Out, Simt, hint, kernel};

/// Copies the `N` elements from `i` on. `how` says which hints it uses.
///
/// # Safety
/// `i + N` is at most the length of the buffers, which are aligned to 16 bytes, and `N` divides
/// `i`.
#[inline(always)]
unsafe fn copy<T: Element, const N: usize>(cx: impl Simt, how: u32, x: In<T>, i: u32, y: Out<T>) {
    // SAFETY: The caller promises what the accesses require. No thread writes `x`.
    unsafe {
        match how {
            0 => y.store::<N, _>(cx, i, x.load(cx, i, hint::Cached), hint::Cached),
            1 => y.store::<N, _>(cx, i, x.load(cx, i, hint::Global), hint::Global),
            2 => y.store::<N, _>(cx, i, x.load(cx, i, hint::Streaming), hint::Streaming),
            3 => y.store::<N, _>(cx, i, x.load(cx, i, hint::ReadOnly), hint::WriteThrough),
            _ => {
                x.prefetch(cx, i, Cache::L1);
                x.prefetch(cx, i, Cache::L2);
                y.store::<N, _>(cx, i, x.load(cx, i, hint::Volatile), hint::Cached);
            }
        }
    }
}

macro_rules! copies {
    ($($t:ident $name:ident $most:literal;)*) => {$(
        kernel! {
            /// Copies `x` to `y`, `width` elements at a time, with the hints that `how` names.
            pub unsafe fn $name(cx: impl Simt, n: u32, width: u32, how: u32, x: In<$t>, y: Out<$t>)
            require { x.len() == n, y.len() == n, n % 4 == 0, x.is_aligned(16), y.is_aligned(16) }
            grid(n.div_ceil(128)) block(128)
            {
                let i = cx.global_x() * width;
                if i < n {
                    match width {
                        1 => copy::<$t, 1>(cx, how, x, i, y),
                        2 => copy::<$t, 2>(cx, how, x, i, y),
                        _ => copy::<$t, $most>(cx, how, x, i, y),
                    }
                }
            }
        }
    )*};
}
copies! {
    u8 copy_u8 4;
    i16 copy_i16 4;
    u32 copy_u32 4;
    f32 copy_f32 4;
    i64 copy_i64 2;
    f64 copy_f64 2;
}

kernel! {
    /// Stores two times of each thread, with a pause between, and two counts.
    pub unsafe fn times(cx: impl Simt, pause: u32, time: Out<u64>, count: Out<u64>)
    require { time.len() == 128, count.len() == 128 }
    grid(1) block(64)
    {
        let i = 2 * cx.global_x();
        let (t, c) = (cx.timer(), cx.clock());
        cx.nanosleep(pause);
        time.set(cx, i, t);
        time.set(cx, i + 1, cx.timer());
        count.set(cx, i, c);
        count.set(cx, i + 1, cx.clock());
    }
}

kernel! {
    /// Reverses `n` elements through shared memory, by one block.
    pub unsafe fn reverse(cx: impl Cooperative, n: u32, x: InOut<u32>)
    require { x.len() == n }
    grid(1) block(256) shared(n * 4)
    {
        let s = cx.shared::<u32>(0);
        let mut i = cx.rank();
        while i < n {
            cx.shared_set(s, i, x.get(cx, i));
            i += 256;
        }
        cx.barrier();
        let mut i = cx.rank();
        while i < n {
            x.set(cx, i, cx.shared_get(s, n - 1 - i));
            i += 256;
        }
    }
}

/// The squares of 0 to 255.
static SQUARES: [u32; 256] = {
    let mut squares = [0; 256];
    let mut i = 0;
    while i < 256 {
        squares[i] = (i * i) as u32;
        i += 1;
    }
    squares
};

kernel! {
    /// Replaces each element by its square, from a table, and adds a number from shared memory that
    /// has another type and starts behind other numbers.
    pub unsafe fn squares(cx: impl Cooperative, x: In<u8>, y: Out<f64>)
    require { x.len() == 256, y.len() == 256 }
    grid(1) block(256) shared(256 + 256 * 2 + 256 * 8)
    {
        let i = cx.rank();
        let (bytes, halves) = (cx.shared::<u8>(0), cx.shared::<u16>(256));
        let wide = cx.shared::<f64>(768);
        let v = x.get(cx, i);
        cx.shared_set(bytes, 255 - i, v);
        cx.shared_set(halves, i, u16::from(v) + 1);
        cx.shared_set(wide, i, f64::from(v) * 0.5);
        cx.barrier();
        let r = f64::from(cx.shared_get(bytes, i)) + f64::from(cx.shared_get(halves, 255 - i));
        y.set(cx, i, f64::from(SQUARES[usize::from(v)]) + 1e4 * r + cx.shared_get(wide, i));
    }
}
