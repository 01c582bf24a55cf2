use std::fmt::Debug;

use thalweg::{Error, LaunchError, PerThread, Stream};
use vocabulary::memory::*;

use super::on_each_device;

macro_rules! copies {
    ($($t:ident $launch:ident $most:literal;)*) => {
        #[test]
        fn vectors_of_each_width_are_copied_with_each_hint() {
            $({
                let x: Vec<$t> = (0..2060).map(|i| (i * 7 % 251) as $t).collect();
                on_each_device(|s| {
                    let there = s.upload_blocking(&x).unwrap();
                    for width in [1, 2, $most] {
                        for how in 0..5 {
                            let mut y = s.upload_blocking(&vec![255u8 as $t; x.len()]).unwrap();
                            $launch(s, x.len() as u32, width, how, &there, &mut y).unwrap();
                            let y = s.read_blocking(&y).unwrap();
                            assert!(y[..] == x[..], "{}: {}, width {width}, {how}", s.device(), stringify!($t));
                        }
                    }
                });
            })*
        }
    };
}
copies! {
    u8 copy_u8 4;
    i16 copy_i16 4;
    u32 copy_u32 4;
    f32 copy_f32 4;
    i64 copy_i64 2;
    f64 copy_f64 2;
}

#[test]
fn clocks_grow_and_a_thread_pauses() {
    on_each_device(|s| {
        let mut pairs = [(); 2].map(|()| s.alloc::<u64>(128).unwrap());
        let [time, count] = &mut pairs;
        times(s, 100_000, time, count).unwrap();
        for (k, pairs) in pairs.iter().enumerate() {
            let pairs = s.read_blocking(pairs).unwrap();
            for pair in pairs.chunks(2) {
                // A GPU may pause for less than it was asked for, but not for nothing.
                assert!(pair[1] > pair[0], "{}: {k}: {pair:?}", s.device());
            }
        }
    });
}

/// Launches `reverse` with so many elements of 4 bytes.
fn reversed(s: &Stream<PerThread<'_>>, n: u32) -> Result<(), Error> {
    let x: Vec<u32> = (0..n).collect();
    let mut there = s.upload_blocking(&x)?;
    reverse(s, n, &mut there)?;
    assert!(s.read_blocking(&there)?.iter().copied().eq((0..n).rev()), "{}: {n} elements", s.device());
    Ok(())
}

#[test]
fn a_block_has_as_much_shared_memory_as_the_device_grants() {
    on_each_device(|s| {
        let most = s.device().shared_memory_per_block();
        assert!(most >= 48 << 10, "{}: {most}", s.device());
        for bytes in [4, 48 << 10, (48 << 10) + 4, 60 << 10, most] {
            if bytes <= most {
                reversed(s, bytes / 4).unwrap();
            }
        }
        let granted = |bytes: u32| match reversed(s, bytes / 4) {
            Err(Error::Launch(e)) => e,
            other => panic!("{}: {bytes} bytes: {other:?}", s.device()),
        };
        let text = |e: &dyn Debug| format!("{e:?}");
        for bytes in [most + 4, 1 << 20] {
            let error = granted(bytes);
            match &error {
                LaunchError::SharedMemory { kernel, shared, granted } => {
                    assert_eq!((*kernel, *shared, *granted), ("reverse", bytes, most));
                }
                // More than any GPU grants is outside the limits of all launches.
                LaunchError::Shape { shared, .. } => assert_eq!(*shared, u128::from(bytes)),
                other => panic!("{}", text(other)),
            }
            assert!(error.to_string().contains(&bytes.to_string()), "{error}");
        }
        // The device is not harmed.
        reversed(s, 100).unwrap();
    });
}

#[test]
fn tables_and_windows_of_several_types() {
    let x: Vec<u8> = (0..=255).rev().collect();
    let expected: Vec<f64> = (0..256)
        .map(|i| {
            let v = f64::from(x[i]);
            let r = f64::from(x[255 - i]) + f64::from(x[255 - i]) + 1.0;
            v * v + 1e4 * r + 0.5 * v
        })
        .collect();
    on_each_device(|s| {
        let there = s.upload_blocking(&x).unwrap();
        let mut y = s.alloc::<f64>(256).unwrap();
        squares(s, &there, &mut y).unwrap();
        assert_eq!(*s.read_blocking(&y).unwrap(), *expected, "{}", s.device());
    });
}
