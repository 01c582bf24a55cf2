//! Tests of branches in captures: what they compute, that they run side by side, and that an error
//! or a panic in one leaves the device usable.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use testkit::devices::{alone_on, devices, everywhere_and_seeded};
use thalweg::kernel;
use thalweg::{AnyStream, Capture, Device, DeviceBuffer, DeviceKind, Error, On, Result, Stream};

const LEN: usize = 300;

/// A program on some buffers: what a capture does with them.
#[derive(Clone, Debug)]
enum Program {
    Fill(usize, u32),
    /// Copies the first buffer to the second.
    Copy(usize, usize),
    Sequence(Vec<Program>),
    /// Each branch has a part of the buffers: those before the place, and those from it on.
    Fork(usize, Box<[Program; 2]>),
}

fn program() -> impl Strategy<Value = Program> {
    let leaf = prop_oneof![
        (any::<usize>(), any::<u32>()).prop_map(|(i, v)| Program::Fill(i, v)),
        (any::<usize>(), any::<usize>()).prop_map(|(i, j)| Program::Copy(i, j)),
    ];
    leaf.prop_recursive(5, 40, 6, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(Program::Sequence),
            (any::<usize>(), inner.clone(), inner).prop_map(|(at, a, b)| Program::Fork(at, Box::new([a, b]))),
        ]
    })
}

/// Captures a program.
fn capture<'g>(s: &Stream<Capture<'g>>, x: &mut [On<Capture<'g>, DeviceBuffer<u32>>], program: &Program) -> Result<()> {
    let n = x.len();
    match program {
        _ if n == 0 => Ok(()),
        Program::Fill(i, v) => s.fill(&mut x[i % n], *v),
        Program::Copy(i, j) if i % n == j % n => Ok(()),
        Program::Copy(i, j) => {
            let [from, to] = x.get_disjoint_mut([i % n, j % n]).unwrap();
            s.copy(from, to)
        }
        Program::Sequence(all) => all.iter().try_for_each(|program| capture(s, x, program)),
        Program::Fork(at, programs) => {
            let (left, right) = x.split_at_mut(at % (n + 1));
            s.fork(
                left.iter_mut().collect::<Vec<_>>(),
                right.iter_mut().collect::<Vec<_>>(),
                |a, x| capture(a, x, &programs[0]),
                |b, x| capture(b, x, &programs[1]),
            )
        }
    }
}

/// Runs a program one step after another, on one number for each buffer, whose elements are equal.
fn run(x: &mut [u32], program: &Program) {
    let n = x.len();
    match program {
        _ if n == 0 => {}
        Program::Fill(i, v) => x[i % n] = *v,
        Program::Copy(i, j) => x[j % n] = x[i % n],
        Program::Sequence(all) => all.iter().for_each(|program| run(x, program)),
        Program::Fork(at, programs) => {
            let (left, right) = x.split_at_mut(at % (n + 1));
            run(left, &programs[0]);
            run(right, &programs[1]);
        }
    }
}

#[test]
fn branches_compute_what_a_serial_run_does() {
    everywhere_and_seeded(|device| {
        let lanes = [AnyStream::new(device).unwrap(), AnyStream::new(device).unwrap()];
        let mut config = testkit::cases(if device.kind() == DeviceKind::Cuda { 60 } else { 40 });
        config.max_shrink_iters = 200;
        let result = TestRunner::new(config).run(&program(), |program| {
            let mut want: Vec<u32> = (0..5).collect();
            lanes[0].enter(|a| {
                let mut x: Vec<_> = want.iter().map(|v| a.upload_blocking(&[*v; LEN]).unwrap()).collect();
                let (mut graph, captured) = a.capture(x, |s, x| capture(s, x, &program)).unwrap();
                x = captured;
                // Replays on two streams, each on what the one before left.
                for _ in 0..3 {
                    x = a.replay(&mut graph, x).unwrap();
                    let there = a.record(x).unwrap();
                    let back = lanes[1].enter(|b| {
                        let x = b.wait(there).unwrap();
                        b.record(b.replay(&mut graph, x).unwrap()).unwrap()
                    });
                    x = a.wait(back).unwrap();
                    run(&mut want, &program);
                    run(&mut want, &program);
                }
                for (x, want) in x.iter().zip(&want) {
                    prop_assert_eq!(a.read_blocking(x).unwrap(), vec![*want; LEN]);
                }
                Ok(())
            })
        });
        result.unwrap_or_else(|error| panic!("{device}: {error}"));
    });
}

/// Where two kernels meet. Each tells whether the other came.
static MEETING: (Mutex<u32>, Condvar) = (Mutex::new(0), Condvar::new());

/// Waits until `all` kernels are here. Only a failure takes as long as the limit.
fn meet(all: u32) -> u32 {
    let (here, changed) = &MEETING;
    let mut count = here.lock().unwrap();
    *count += 1;
    changed.notify_all();
    let (count, timeout) = changed.wait_timeout_while(count, Duration::from_secs(20), |n| *n < all).unwrap();
    drop(count);
    u32::from(!timeout.timed_out())
}

kernel! {
    unsafe fn meeting(cx: impl Simt, all: u32, met: Out<u32>)
    require { met.len() == 1 }
    grid(1) block(1)
    {
        met.set(cx, 0usize, meet(all));
    }
}

/// Three kernels in three branches wait for one another, on the CPU device. If one branch waited
/// for another, they would not meet.
#[test]
fn branches_run_side_by_side() {
    let cpu = Device::new_cpu().unwrap();
    let lane = AnyStream::new(cpu).unwrap();
    lane.enter(|s| {
        let flags = [(); 3].map(|()| s.alloc_zeroed::<u32>(1).unwrap());
        let (mut graph, mut flags) = s
            .capture(flags, |s, [x, y, z]| {
                s.fork(
                    &mut *x,
                    (&mut *y, &mut *z),
                    |a, x| meeting(a, 3, x),
                    |b, (y, z)| b.fork(&mut *y, &mut *z, |a, y| meeting(a, 3, y), |b, z| meeting(b, 3, z)),
                )
            })
            .unwrap();
        assert_eq!(graph.len(), 3);
        for _ in 0..3 {
            *MEETING.0.lock().unwrap() = 0;
            flags = s.replay(&mut graph, flags).unwrap();
            assert_eq!(flags.each_ref().map(|x| s.read_blocking(x).unwrap()[0]), [1; 3], "a branch waited for another");
        }
    });
}

#[test]
fn captures_use_the_streams_of_earlier_branches() {
    let lane = AnyStream::new(Device::new_cpu().unwrap()).unwrap();
    lane.enter(|s| {
        let streams = Mutex::new(Vec::new());
        for _ in 0..5 {
            let pair = (s.alloc::<u32>(1).unwrap(), s.alloc::<u32>(1).unwrap());
            let captured = s.capture(pair, |s, (x, y)| {
                s.fork(
                    &mut *x,
                    &mut *y,
                    |a, x| {
                        streams.lock().unwrap().push(a.unique_id());
                        a.fill(x, 1)
                    },
                    |b, y| {
                        streams.lock().unwrap().push(b.unique_id());
                        b.fill(y, 2)
                    },
                )
            });
            drop(captured.unwrap());
        }
        let streams = streams.into_inner().unwrap();
        let distinct = streams.iter().enumerate().filter(|(i, stream)| !streams[..*i].contains(stream)).count();
        assert!(distinct <= 3, "{streams:?}");
    });
}

#[test]
fn an_error_or_a_panic_in_a_branch_ends_its_capture_only() {
    for &device in devices() {
        let _alone = alone_on(device);
        let lane = AnyStream::new(device).unwrap();
        lane.enter(|s| {
            let pair = || (s.alloc_zeroed::<u32>(LEN).unwrap(), s.alloc_zeroed::<u32>(LEN).unwrap());
            let wrong = || Err(Error::Thread { reason: "on purpose".into() });
            for second in [false, true] {
                let failed = s.capture(pair(), |s, (x, y)| {
                    s.fork(
                        &mut *x,
                        &mut *y,
                        |a, x| if second { a.fill(x, 1) } else { wrong() },
                        |b, y| if second { wrong() } else { b.fill(y, 1) },
                    )
                });
                assert!(matches!(failed.unwrap_err().error, Error::Thread { .. }));
                let panicked = catch_unwind(AssertUnwindSafe(|| {
                    let _ = s.capture(pair(), |s, (x, y)| {
                        s.fork(
                            &mut *x,
                            &mut *y,
                            |a, x| if second { a.fill(x, 1) } else { panic!("on purpose") },
                            |b, y| if second { panic!("on purpose") } else { b.fill(y, 1) },
                        )
                    });
                }));
                assert!(panicked.is_err());
            }
            let (mut graph, both) = s
                .capture(pair(), |s, (x, y)| {
                    s.fork(&mut *x, &mut *y, |a, x| a.fill(x, 1), |b, y| b.fill(y, 2))?;
                    s.copy(x, y)
                })
                .unwrap();
            assert_eq!(graph.len(), 3);
            let (x, y) = s.replay(&mut graph, both).unwrap();
            assert_eq!((s.read_blocking(&x).unwrap()[0], s.read_blocking(&y).unwrap()[LEN - 1]), (1, 1));
            // Graphs that are gone leave nothing behind that disturbs later ones.
            for v in 0..50 {
                let (mut graph, both) = s
                    .capture(pair(), |s, (x, y)| s.fork(&mut *x, &mut *y, |a, x| a.fill(x, v), |b, y| b.fill(y, v)))
                    .unwrap();
                let (x, y) = s.replay(&mut graph, both).unwrap();
                drop(graph);
                assert_eq!([&x, &y].map(|x| s.read_blocking(x).unwrap()), [vec![v; LEN], vec![v; LEN]]);
            }
        });
    }
}
