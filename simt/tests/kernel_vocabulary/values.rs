//! Structs, arrays, numbers of 16 bits and truth values by value, and bounds of a launch.

use thalweg::{Error, LaunchError};
use thalweg_simt::{bf16, f16};
use vocabulary::values::{MOST, Paint, Size, Table, bounded, bounded_positions, halves, halves_times, paint, tabulate};

use super::on_each_device;

#[test]
fn structs_and_arrays_arrive_as_they_were_given() {
    let sizes = [(1u32, 1u32), (8, 4), (9, 5), (33, 7), (0, 3)].map(|(width, height)| Size { width, height });
    on_each_device(|s| {
        let device = s.device();
        for size in sizes {
            for (upwards, negate) in [(false, false), (false, true), (true, false), (true, true)] {
                let weights = [0.5, -16.0, 3.0];
                let given = Paint { offset: 1e10, size, weights, step: -7, scale: 200, upwards };
                let mut out = s.alloc_zeroed::<f64>((size.width * size.height) as usize).unwrap();
                paint(s, 250, given, [2.5, -1.0], negate, &mut out).unwrap();
                let out = s.read_blocking(&out).unwrap();
                for (i, out) in out.into_iter().enumerate() {
                    let (x, y) = ((i % size.width as usize) as f64, (i / size.width as usize) as f64);
                    let step = -7.0 * 200.0 + 250.0;
                    let sum = 0.5 * x - 16.0 * y + (7.5 + 1.0) + 1e10 + if upwards { step } else { -step };
                    assert_eq!(out, if negate { -sum } else { sum }, "{device}, {given:?}, {x} {y}");
                }
            }
        }
        // 800 bytes: the command of the CPU device does not hold them itself.
        let table = Table { values: std::array::from_fn(|i| (i * i) as u32) };
        let mut out = s.alloc_zeroed::<u64>(200).unwrap();
        tabulate(s, 1 << 40, table, true, &mut out).unwrap();
        let out = s.read_blocking(&out).unwrap();
        assert!((0..200).all(|i| out[i] == (1 << 40) + (i * i) as u64 + 1), "{device}: {out:?}");

        let mut short = s.alloc_zeroed::<f64>(1).unwrap();
        let size = Size { width: 2, height: 3 };
        let given = Paint { offset: 0.0, size, weights: [0.0; 3], step: 0, scale: 0, upwards: true };
        let text = paint(s, 0, given, [0.0; 2], false, &mut short).unwrap_err().to_string();
        assert!(text.contains("size: Size { width: 2, height: 3 }"), "{text}");
    });
}

#[test]
fn numbers_of_16_bits_arrive_as_they_were_given() {
    on_each_device(|s| {
        let (a, b) = (f16::from_f32(0.5625), bf16::from_f32(-3e20));
        let both = [bf16::from_f32(-1.0), bf16::from_f32(1.5)];
        let mut out = s.alloc_zeroed::<f32>(5).unwrap();
        halves(s, a, b, both, 200, &mut out).unwrap();
        assert_eq!(s.read_blocking(&out).unwrap(), [0.5625, b.to_f32(), -1.0, 1.5, 200.0], "{}", s.device());
        // Clauses see them as `f32`.
        let text = halves(s, f16::from_f32(0.25), b, both, 0, &mut out).unwrap_err().to_string();
        assert!(text.contains("requires `a > 0.5`") && text.contains("a = 0.25"), "{text}");

        let x: Vec<f16> = (0..100).map(|i| f16::from_f32(i as f32)).collect();
        let x = s.upload_blocking(&x).unwrap();
        let mut y = s.alloc_zeroed::<f32>(100).unwrap();
        halves_times(s, 100, bf16::from_f32(-0.5), &x, &mut y).unwrap();
        let y = s.read_blocking(&y).unwrap();
        assert!((0..100).all(|i| y[i] == i as f32 * -0.5), "{}: {y:?}", s.device());
    });
}

#[test]
fn a_block_beyond_its_bounds_is_refused() {
    on_each_device(|s| {
        let mut out = s.alloc_zeroed::<u32>(2).unwrap();
        for threads in [32, 64, MOST] {
            bounded(s, threads, &mut out).unwrap();
            assert_eq!(s.read_blocking(&out).unwrap(), [threads; 2], "{}", s.device());
        }
        match bounded(s, MOST + 32, &mut out).unwrap_err() {
            Error::Launch(LaunchError::Bounds { kernel: "bounded", block, most: MOST }) => assert_eq!(block, [128]),
            other => panic!("{other}"),
        }
        let mut out = s.alloc_zeroed::<u32>(100).unwrap();
        for threads in [1, 63, 64] {
            bounded_positions(s, 100, threads, &mut out).unwrap();
            assert!(s.read_blocking(&out).unwrap().iter().enumerate().all(|(i, v)| *v == i as u32));
        }
        let text = bounded_positions(s, 100, 65, &mut out).unwrap_err().to_string();
        assert!(text.contains("`bounded_positions` declares bounds of 64 threads") && text.contains("[65]"), "{text}");
    });
}
