//! What bodies compute.

use thalweg_simt::kernel;

use crate::here::{Here, slice, slice_mut};

kernel! {
    unsafe fn vectors(cx: impl Simt, x: In<f32>, y: Out<f32>)
    require { x.is_aligned(16), y.is_aligned(16), x.len() == y.len(), x.len().is_multiple_of(4) }
    grid(x.len() / 4) block(1)
    {
        let i = 4 * cx.block_idx().x as usize;
        let v = cx.load4(x.as_ptr().add(i));
        cx.store4(y.as_ptr().add(i), v.map(|v| cx.recip_approx(cx.sqrt(cx.exp2_approx(cx.log2_approx(v))))));
    }
}

#[test]
fn vectors_and_functions() {
    #[repr(align(16))]
    struct Aligned([f32; 8]);
    let mut x = Aligned([0.25, 0.5, 1.0, 2.0, 4.0, 9.0, 16.0, 100.0]);
    let mut y = Aligned([0.0; 8]);
    vectors(&Here::default(), slice(&mut x.0), slice_mut(&mut y.0)).unwrap();
    for (y, x) in y.0.iter().zip(x.0) {
        assert!((y * x.sqrt() - 1.0).abs() < 1e-6, "{x}: {y}");
    }
}

kernel! {
    unsafe fn to_halves(cx: impl Simt, x: In<f32>, halves: Out<u16>, bfloats: Out<u16>, pairs: Out<u32>)
    require { halves.len() == x.len(), bfloats.len() == x.len(), pairs.len() == x.len() }
    grid(x.len()) block(1)
    {
        let i = cx.block_idx().x as usize;
        let v = x.get(cx, i);
        halves.set(cx, i, cx.to_f16_bits(v));
        bfloats.set(cx, i, cx.to_bf16_bits(v));
        pairs.set(cx, i, cx.to_f16_pair(v, -v));
    }
}

/// Rounds every half and bfloat16, the middle between it and the next one, and the two values
/// beside this middle.
#[test]
fn halves_are_the_nearest() {
    let half = |bits: u32| match (bits >> 10, bits & 1023) {
        (0, mantissa) => mantissa as f32 * 2f32.powi(-24),
        (exponent, mantissa) => (1024 + mantissa) as f32 * 2f32.powi(exponent as i32 - 25),
    };
    let cases = |last: u32, value: &dyn Fn(u32) -> f64| -> Vec<(f32, u32)> {
        let case = |bits: u32| {
            let (low, high) = (value(bits), value(bits + 1));
            let middle = ((low + high) * 0.5) as f32;
            [(low as f32, bits), (middle.next_down(), bits), (middle, bits + bits % 2), (middle.next_up(), bits + 1)]
        };
        (0..last).flat_map(case).collect()
    };
    // The last case goes to infinity, which rounding treats as the next power of two.
    let mut f16 = cases(0x7c00, &|bits| half(bits).into());
    f16.extend([(f32::INFINITY, 0x7c00), (f32::MAX, 0x7c00)]);
    let bf16 = cases(0x7f7f, &|bits| f32::from_bits(bits << 16).into());
    for (cases, bfloat) in [(f16, false), (bf16, true)] {
        let mut x: Vec<f32> = cases.iter().flat_map(|(v, _)| [*v, -v]).collect();
        let n = x.len();
        let (mut halves, mut bfloats, mut pairs) = (vec![0; n], vec![0; n], vec![0; n]);
        let device = Here::default();
        to_halves(&device, slice(&mut x), slice_mut(&mut halves), slice_mut(&mut bfloats), slice_mut(&mut pairs))
            .unwrap();
        let got = if bfloat { &bfloats } else { &halves };
        for (i, (v, bits)) in cases.into_iter().enumerate() {
            assert_eq!([got[2 * i], got[2 * i + 1]], [bits as u16, bits as u16 | 0x8000], "{v:e}");
        }
        for i in 0..n {
            assert_eq!(pairs[i], u32::from(halves[i]) | u32::from(halves[i] ^ 0x8000) << 16);
        }
    }
    let (mut x, mut halves, mut bfloats, mut pairs) = ([f32::NAN], [0], [0], [0]);
    let device = Here::default();
    to_halves(&device, slice(&mut x), slice_mut(&mut halves), slice_mut(&mut bfloats), slice_mut(&mut pairs)).unwrap();
    assert_eq!((halves, bfloats), ([0x7fff], [0x7fff]));
}
