//! Structs, arrays and truth values by value.

use vocabulary::values::{Paint, Size, Table, paint, tabulate};

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
