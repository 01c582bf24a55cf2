//! Numbers of 16 bits.

use thalweg_simt::{bf16, bf16x2, f16, f16x2, kernel};

kernel! {
    /// Rounds each value to both types, and to pairs of it and its negative.
    pub unsafe fn round(
        cx: impl Simt,
        n: u32,
        x: In<f32>,
        halves: Out<f16>,
        bfloats: Out<bf16>,
        pairs: Out<f16x2>,
        bfloat_pairs: Out<bf16x2>,
    )
    require { x.len() == n, halves.len() == n, bfloats.len() == n, pairs.len() == n, bfloat_pairs.len() == n }
    grid(n.div_ceil(256)) block(256)
    {
        let i = cx.global_x();
        if i < n {
            let v = x.get(cx, i);
            halves.set(cx, i, f16::from_f32(v));
            bfloats.set(cx, i, bf16::from_f32(v));
            pairs.set(cx, i, f16x2::from_f32s(v, -v));
            bfloat_pairs.set(cx, i, bf16x2::from_f32s(v, -v));
        }
    }
}

kernel! {
    /// Converts numbers of both types to `f32`.
    pub unsafe fn extend(cx: impl Simt, n: u32, halves: In<f16>, bfloats: In<bf16>, x: Out<f32>, y: Out<f32>)
    require { halves.len() == n, bfloats.len() == n, x.len() == n, y.len() == n }
    grid(n.div_ceil(256)) block(256)
    {
        let i = cx.global_x();
        if i < n {
            x.set(cx, i, halves.get(cx, i).to_f32());
            y.set(cx, i, bfloats.get(cx, i).to_f32());
        }
    }
}

/// The number of results for each element of the kernels below: sum, difference, product, quotient,
/// `a * b + c`, and all but the quotient again, as parts of pairs.
pub const RESULTS: u32 = 9;

macro_rules! arithmetic {
    ($(#[$doc:meta])* $name:ident $number:ident $pair:ident) => {
        kernel! {
            $(#[$doc])*
            pub unsafe fn $name(
                cx: impl Simt,
                n: u32,
                a: In<$number>,
                b: In<$number>,
                c: In<$number>,
                results: Out<$number>,
            )
            require { a.len() == n, b.len() == n, c.len() == n, results.len() == RESULTS * n }
            grid(n.div_ceil(256)) block(256)
            {
                let i = cx.global_x();
                if i < n {
                    let (a, b, c) = (a.get(cx, i), b.get(cx, i), c.get(cx, i));
                    // The other half of each pair is in the same place in every pair, and differs.
                    let (x, y, z) = match i % 2 {
                        0 => ($pair::new(a, b), $pair::new(b, c), $pair::new(c, a)),
                        _ => ($pair::new(b, a), $pair::new(c, b), $pair::new(a, c)),
                    };
                    let part = |pair: $pair| if i % 2 == 0 { pair.low() } else { pair.high() };
                    let values: [$number; RESULTS as usize] = [
                        a + b,
                        a - b,
                        a * b,
                        a / b,
                        a.mul_add(b, c),
                        part(x + y),
                        part(x - y),
                        part(x * y),
                        part(x.mul_add(y, z)),
                    ];
                    for (k, v) in values.into_iter().enumerate() {
                        results.set(cx, i * RESULTS + k as u32, v);
                    }
                }
            }
        }
    };
}
arithmetic! {
    /// Computes with halves.
    halves f16 f16x2
}
arithmetic! {
    /// Computes with bfloats.
    bfloats bf16 bf16x2
}
