//! The checked device beside the mutants: its reports, and what the host does to memory.

use mutants::threads::{add, prepare, stencil};
use thalweg::{Device, Error, PerThread, Result, Stream};
use thalweg_simt::cpu::{Fault, checker::Finding};

/// Runs `f` on a stream of a new checked device.
fn checked<T>(f: impl for<'l> FnOnce(&Stream<PerThread<'l>>) -> T) -> T {
    Device::checked_cpu().unwrap().per_thread(f).unwrap()
}

fn fault(result: Result<()>) -> Fault {
    match result.unwrap_err() {
        Error::Kernel(error) => error.fault,
        other => panic!("{other}"),
    }
}

#[test]
fn a_report_names_kernel_block_thread_line_element_and_seed() {
    let device = Device::checked_cpu().unwrap();
    device.reseed(7);
    let error = device.per_thread(|s| {
        let x = s.upload_blocking(&[1.0_f32; 240])?;
        let mut y = s.alloc::<f32>(240)?;
        stencil(s, 9, 20, 12, &x, &mut y)?;
        s.synchronize()
    });
    let error = error.unwrap().unwrap_err().to_string();
    for part in [
        "kernel `stencil`, block [",
        ": thread [",
        "stores to element ",
        " of `y`, and nothing orders this after thread [",
        "tests/mutants/src/threads.rs:",
        "THALWEG_CHECK_SEED=7",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
    // The device has failed as a whole, as with any other fault of a kernel.
    let again = device.per_thread(|s| s.synchronize()).unwrap();
    assert!(matches!(again, Err(Error::Kernel(_) | Error::Poisoned { .. })));
}

#[test]
fn the_same_seed_finds_the_same_access() {
    let report = |seed| {
        let device = Device::checked_cpu().unwrap();
        device.reseed(seed);
        let run = |s: &Stream<PerThread<'_>>| -> Result<()> {
            let x = s.upload_blocking(&[1.0_f32; 240])?;
            let mut y = s.alloc::<f32>(240)?;
            stencil(s, 8, 20, 12, &x, &mut y)?;
            s.synchronize()
        };
        let error = device.per_thread(|s| run(s)).unwrap().unwrap_err().to_string();
        error.split(" (to repeat").next().unwrap().to_owned()
    };
    assert_eq!(report(5), report(5));
    let reports: std::collections::HashSet<_> = (0..8).map(report).collect();
    assert!(reports.len() > 1, "{reports:?}");
}

#[test]
fn a_piece_of_a_buffer_ends_where_the_launcher_was_told() {
    for (piece, wanted) in [(90, "element 90 of `x`, which has 90 elements"), (100, "")] {
        let result = checked(|s| {
            let x = s.upload_blocking(&[1.0_f32; 200])?;
            let mut y = s.alloc::<f32>(200)?;
            prepare(s, 200, &mut y)?;
            let (low, high) = y.split_at_mut(100)?;
            add(s, 0, 100, 1.0, x.slice(..100)?, low)?;
            // The requirement compares with `n`, so `stencil` shows what a shorter piece does.
            stencil(
                s,
                3 * u32::from(piece == 90),
                10,
                piece / 10,
                x.slice(..piece as usize)?,
                high.slice_mut(..piece as usize)?,
            )?;
            s.synchronize()
        });
        match wanted {
            "" => result.unwrap(),
            wanted => {
                let error = result.unwrap_err().to_string();
                assert!(error.contains(" of `x`, which has 90 elements") || error.contains(wanted), "{error}");
            }
        }
    }
}

#[test]
fn copies_and_fills_count_as_writes_and_new_memory_does_not() {
    // Memory that was written and freed is not written when it is allocated again.
    checked(|s| {
        for _ in 0..20 {
            let x = s.upload_blocking(&[1.0_f32; 100]).unwrap();
            drop(x);
            s.synchronize().unwrap();
        }
        let (x, mut y) = (s.alloc::<f32>(100).unwrap(), s.alloc::<f32>(100).unwrap());
        prepare(s, 100, &mut y).unwrap();
        add(s, 0, 100, 1.0, &x, &mut y).unwrap();
        assert!(matches!(
            fault(s.synchronize()),
            Fault::Found { finding: Finding::Unwritten { memory }, .. } if memory.ends_with("of `x`")
        ));
    });
    // A part of a buffer that was copied is written, and the rest is not.
    for filled in [100, 60] {
        let result = checked(|s| {
            let mut x = s.alloc::<f32>(100)?;
            s.fill(x.slice_mut(..filled)?, 0.0)?;
            let mut copy = s.alloc::<f32>(100)?;
            s.copy(&x, &mut copy)?;
            let mut y = s.upload_blocking(&[2.0_f32; 100])?;
            add(s, 0, 100, 1.0, &copy, &mut y)?;
            s.synchronize()
        });
        match filled {
            100 => result.unwrap(),
            _ => assert!(matches!(fault(result), Fault::Found { finding: Finding::Unwritten { .. }, .. })),
        }
    }
}

#[test]
fn an_ordinary_device_finds_what_is_past_the_end_and_nothing_else() {
    if std::env::var_os("THALWEG_CHECK").is_some_and(|v| v == "1") {
        return;
    }
    let device = Device::new_cpu().unwrap();
    let run = |m| {
        let run = |s: &Stream<PerThread<'_>>| -> Result<()> {
            let x = s.upload_blocking(&[1.0_f32; 240])?;
            let mut y = s.alloc::<f32>(240)?;
            stencil(s, m, 20, 12, &x, &mut y)?;
            s.synchronize()
        };
        device.per_thread(|s| run(s)).unwrap()
    };
    run(0).unwrap();
    run(8).unwrap();
    let error = run(10).unwrap_err();
    assert!(matches!(&error, Error::Kernel(e) if matches!(e.fault, Fault::OutOfBounds { element: 240, len: 240, .. })));
    assert!(!error.to_string().contains("SEED"), "{error}");
}
