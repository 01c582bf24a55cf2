//! Generic kernels and their instances.

use thalweg_simt::{Element, kernel};

/// Numbers that [`axpy`] computes with.
pub trait Scalar: Element {
    /// Returns `a x + y`.
    fn axpy(a: Self, x: Self, y: Self) -> Self;
}
impl Scalar for f32 {
    #[inline(always)]
    fn axpy(a: Self, x: Self, y: Self) -> Self {
        a * x + y
    }
}
impl Scalar for f64 {
    #[inline(always)]
    fn axpy(a: Self, x: Self, y: Self) -> Self {
        a * x + y
    }
}

kernel! {
    /// Computes `y = a x + y`. A thread has `N` neighboring elements.
    pub unsafe fn axpy<T: Scalar, const N: u32>(cx: impl Simt, n: u32, a: T, x: In<T>, y: InOut<T>)
    instances { axpy_f32_4 = <f32, 4>, axpy_f32_1 = <f32, 1>, axpy_f64_2 = <f64, 2> }
    require { x.len() >= n, y.len() >= n, n.is_multiple_of(N) }
    grid(n.div_ceil(64 * N)) block(64)
    {
        let mut i = 0;
        while i < N {
            let at = (cx.global_x() * N + i) as usize;
            if at < n as usize {
                y.set(cx, at, T::axpy(a, x.get(cx, at), y.get(cx, at)));
            }
            i += 1;
        }
    }
}

kernel! {
    /// Adds `C` to each of the numbers of a block in shared memory, and stores them in reverse. The
    /// clause `shared` and the parameters depend on the instance.
    pub unsafe fn reverse_block<T, const N: usize, const C: i32>(cx: impl Cooperative, add: [T; N], x: In<T>, y: Out<T>)
    instances { reverse_block_i32 = <i32, 2, -3>, reverse_block_i64 = <i64, 3, { i32::MAX }> }
    require { x.len() == 32 * N, y.len() == 32 * N }
    grid(1) block(32) shared(size_of::<T>() as u128 * 32 * N)
    cpu {
        for i in 0..32 * N {
            y.set(cx, i, x.get(cx, 32 * N - 1 - i) + T::from(C) + add[(32 * N - 1 - i) / 32]);
        }
    }
    {
        let s = cx.shared::<T>(0);
        let rank = cx.rank();
        for i in 0..N {
            let at = i * 32 + rank as usize;
            cx.shared_set(s, at as u32, x.get(cx, at) + T::from(C) + add[i]);
        }
        cx.barrier();
        for i in 0..N {
            let at = i * 32 + rank as usize;
            y.set(cx, at, cx.shared_get(s, (32 * N - 1 - at) as u32));
        }
    }
}

kernel! {
    /// Computes `y = a x` in safe code. A thread has `K` neighboring elements.
    pub fn scale<T, const K: u32>(t: impl Simt, n: u32, a: T, x: In<T>[n], y: Out<T>[n] by [x(K)])
    instances { scale_f32 = <f32, 1>, scale_u64 = <u64, 4> }
    grid(n.div_ceil(32 * K)) block(32)
    {
        for y in y.mine(t) {
            y.set(a * x.get(t, y.at()));
        }
    }
}
