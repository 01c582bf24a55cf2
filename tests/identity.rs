//! A launcher reaches only the kernel of its own declaration. It never reaches a kernel with the
//! same name and signature in another crate, whatever the crates are called and whatever their
//! macros mean. The crate in `tests/forger` tries to break this.

use forged::{scale as tripling, shadowed, vision::entropy};
use testkit::devices::devices;
use thalweg::{DeviceKind, Error, NotFound, kernel};

kernel! {
    /// Computes `x = 2 x`.
    unsafe fn scale(cx: impl Simt, n: u32, x: InOut<f32>)
    require { x.len() == n }
    grid(n.div_ceil(256)) block(256)
    {
        let i = cx.global_x();
        if i < n {
            x.set(cx, i as usize, 2.0 * x.get(cx, i as usize));
        }
    }
}

kernel! {
    /// The PTX does not contain this kernel.
    unsafe fn missing(cx: impl Simt, x: InOut<f32>)
    grid(1) block(1)
    {
        x.set(cx, 0, 0.0);
    }
}

#[test]
fn kernels_of_one_name_in_two_crates_are_two_kernels() {
    for &device in devices() {
        let lane = thalweg::AnyStream::new(device).unwrap();
        lane.enter(|s| {
            let mut host = device.pinned_from(&[1.0f32; 1000])?;
            for (round, factor) in [6.0f32, 36.0].into_iter().enumerate() {
                let from = s.bind(host)?;
                let mut x = s.alloc::<f32>(1000)?;
                s.copy_to_device(&from, &mut x)?;
                // Each crate's kernel comes first in one of the rounds.
                if round == 0 {
                    scale(s, 1000, &mut x)?;
                    tripling::scale(s, 1000, &mut x)?;
                } else {
                    tripling::scale(s, 1000, &mut x)?;
                    scale(s, 1000, &mut x)?;
                }
                let mut to = from;
                s.copy_to_host(&x, &mut to)?;
                host = s.record(to)?.synchronize()?;
                assert_eq!(*host, [factor; 1000], "{device}");
            }
            // Each kernel also keeps its own `require`: the one of the other crate accepts a longer
            // buffer.
            let mut longer = s.alloc_zeroed::<f32>(1001)?;
            tripling::scale(s, 1000, &mut longer)?;
            assert!(matches!(scale(s, 1000, &mut longer), Err(Error::Launch(_))), "{device}");
            Ok::<_, Error>(())
        })
        .unwrap();
    }
}

#[test]
fn a_forged_declaration_does_not_reach_the_other_crates_kernel() {
    // The forger has the names of a kernel that there is.
    let there = include_str!("../kernels-gpu/ptx/vision.ptx").lines().any(|line| {
        line.starts_with("// entry: entropy__u32_u32_u32_ru8_wf32 ")
            && line.ends_with(" thalweg_kernels::vision::entropy")
    });
    assert!(there, "`thalweg-kernels` has no such entry: give the forger the names of another");

    for &device in devices() {
        thalweg::AnyStream::new(device)
            .unwrap()
            .enter(|s| {
                // The real kernel would read 1 GiB from a buffer of 16 bytes.
                let rgb = s.alloc_zeroed::<u8>(16)?;
                let mut result = s.alloc_zeroed::<f32>(1)?;
                let launched = entropy::entropy(s, 16384, 16384, 32, &rgb, &mut result);
                match device.kind() {
                    DeviceKind::Cuda => {
                        let error = launched.unwrap_err();
                        let Error::NoEntry { origin, found, .. } = &error else { panic!("{device}: {error}") };
                        assert_eq!(
                            (*origin, found),
                            ("forger 0.1.0 thalweg_kernels::vision::entropy", &NotFound::Absent)
                        );
                    }
                    _ => launched?, // runs the body of the declaration, which does nothing
                }
                s.synchronize()
            })
            .unwrap();
        device.check().unwrap();
    }
}

#[test]
fn names_that_mean_something_else_where_a_kernel_is_declared_do_not_switch_its_requirements_off() {
    for &device in devices() {
        thalweg::AnyStream::new(device)
            .unwrap()
            .enter(|s| {
                let mut short = s.alloc_zeroed::<f32>(10)?;
                let launched = shadowed::scale(s, 1000, &mut short);
                assert!(matches!(launched, Err(Error::Launch(_))), "{device}: {launched:?}");
                s.synchronize()
            })
            .unwrap();
        device.check().unwrap();
    }
}

#[test]
fn an_entry_that_is_not_in_the_ptx_is_named_with_its_declaration() {
    for &device in devices().iter().filter(|device| device.kind() == DeviceKind::Cuda) {
        let error = thalweg::AnyStream::new(device)
            .unwrap()
            .enter(|s| {
                let mut x = s.alloc_zeroed::<f32>(1)?;
                missing(s, &mut x)
            })
            .unwrap_err();
        let text = error.to_string();
        assert!(text.contains("missing__xf32") && text.contains("identity"), "{text}");
    }
}
