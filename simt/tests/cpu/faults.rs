//! Bodies that do what they must not.

use thalweg_simt::cpu::Fault;
use thalweg_simt::kernel;

use super::here::{Failed, Here, slice, slice_mut};

kernel! {
    /// In the last block, threads with a rank of `n` or more return without the barrier.
    unsafe fn early_return(cx: impl Cooperative, n: u32)
    grid(3) block(64)
    {
        if cx.block_idx().x < 2 || cx.rank() < n {
            cx.barrier();
        }
    }
}

kernel! {
    /// The first `n` threads wait at the barrier, the others in a warp operation.
    unsafe fn barrier_or_ballot(cx: impl Cooperative, n: u32)
    grid(1) block(32)
    {
        if cx.rank() < n {
            cx.barrier();
        } else {
            cx.ballot(true);
        }
    }
}

kernel! {
    unsafe fn two_shuffles(cx: impl Cooperative, n: u32)
    grid(1) block(64)
    {
        if cx.lane() == n {
            _ = cx.shuffle_up(n, 1);
        } else {
            _ = cx.shuffle_down(n, 1);
        }
    }
}

kernel! {
    unsafe fn half_a_warp_sums(cx: impl Cooperative, n: u32)
    grid(1) block(64)
    {
        cx.barrier();
        if cx.warp() == 1 && cx.lane() < n {
            _ = cx.warp_sum(1.0);
        }
    }
}

/// Removes the lines of this file from a message, after looking that each is one.
fn without_lines(message: &str) -> String {
    let mut parts = message.split(" (simt/tests/cpu/faults.rs:");
    let mut text = parts.next().unwrap().to_owned();
    for part in parts {
        let (line, rest) = part.split_once(')').unwrap();
        assert!(line.chars().all(|c| c.is_ascii_digit() || c == ':'), "{message}");
        text += rest;
    }
    text
}

#[test]
fn divergence_says_who_waits_where() {
    let here = Here::default();
    early_return(&here, 64).unwrap();
    early_return(&here, 0).unwrap();
    let error = early_return(&here, 40).unwrap_err().block();
    assert_eq!(error.block, [2, 0, 0]);
    assert_eq!(
        without_lines(&error.to_string()),
        "kernel `early_return`, block [2, 0, 0]: its threads diverged: threads 0 to 39 at `barrier`, threads 40 \
         to 63 returned (a barrier must be reached by every thread of the block, a warp operation by all 32 threads \
         of the warp)"
    );

    let diverged = |result: Result<(), Failed>| match result.unwrap_err().block().fault {
        Fault::Diverged { threads } => without_lines(&threads),
        other => panic!("{other:?}"),
    };
    assert_eq!(diverged(barrier_or_ballot(&here, 1)), "thread 0 at `barrier`, threads 1 to 31 in `ballot`");
    assert_eq!(diverged(two_shuffles(&here, 0)), "thread 0 in `shuffle_up`, threads 1 to 31 in `shuffle_down`");
    assert_eq!(diverged(half_a_warp_sums(&here, 31)), "threads 32 to 62 in `warp_sum`, thread 63 returned");
    // The workspace still works after all these faults.
    half_a_warp_sums(&here, 32).unwrap();
}

kernel! {
    unsafe fn panics(cx: impl Simt, at: u32)
    grid(1) block(4, 4)
    {
        let t = cx.thread_idx();
        assert!(t.y * 4 + t.x != at, "thread {at} was told to");
    }
}

kernel! {
    unsafe fn panics_among_waiting(cx: impl Cooperative, at: u32)
    grid(1) block(64)
    {
        cx.barrier();
        if cx.rank() == at {
            std::panic::panic_any(7);
        }
        cx.barrier();
    }
}

#[test]
fn a_panic_is_an_error_of_its_thread() {
    let here = Here::default();
    let error = panics(&here, 9).unwrap_err().block();
    assert_eq!(error.to_string(), "kernel `panics`, block [0, 0, 0]: thread [1, 2, 0] panicked: thread 9 was told to");
    let error = panics_among_waiting(&here, 40).unwrap_err().block();
    assert_eq!(error.fault, Fault::Panicked { thread: [40, 0, 0], message: "(no message)".into() });
    panics_among_waiting(&here, 64).unwrap();
}

kernel! {
    unsafe fn touches(cx: impl Cooperative, offset: u32, i: u32)
    grid(1) block(32) shared(64)
    {
        cx.barrier();
        if cx.rank() == 5 {
            let s = cx.shared::<u32>(offset);
            cx.shared_set(s, i, 1);
            cx.shared_add(s, i, 1);
            assert_eq!(cx.shared_get(s, i), 2);
        }
        cx.barrier();
    }
}

#[test]
fn shared_memory_is_checked() {
    let here = Here::default();
    touches(&here, 0, 15).unwrap();
    touches(&here, 60, 0).unwrap();
    for (offset, i) in [(0, 16), (60, 1), (64, 0), (u32::MAX - 3, 0), (4, u32::MAX)] {
        let error = touches(&here, offset, i).unwrap_err().block();
        assert!(matches!(error.fault, Fault::SharedMemory { thread: [5, 0, 0], shared: 64, .. }), "{error}");
    }
    let error = touches(&here, 6, 0).unwrap_err().block().to_string();
    let expected = "kernel `touches`, block [0, 0, 0]: thread [5, 0, 0] accessed a window of `u32` at byte 6, which is \
                    not a multiple of 4; the kernel declares 64 bytes of shared memory, at ";
    assert!(error.starts_with(expected) && error.contains("faults.rs:"), "{error}");
}

kernel! {
    /// Each of four threads reads element `i` plus its own index, and the last one writes behind
    /// `tail`.
    unsafe fn goes_past(cx: impl Simt, i: u32, tail: u32, x: In<f32>, y: Out<f32>)
    grid(1) block(4)
    {
        let t = cx.thread_idx().x;
        let v = x.get(cx, i + t);
        if t == 3 {
            y.tail(tail).set(cx, 1, v);
        }
    }
}

#[test]
fn an_index_past_the_end_of_a_buffer_is_reported() {
    let here = Here::default();
    let (mut x, mut y) = (vec![1.0_f32; 8], vec![0.0_f32; 8]);
    // What lies behind the slice is memory of the same vector, so only the length can tell.
    let mut run = |i: u32, tail: u32| {
        let (x, y) = (slice(&mut x).slice(..5).unwrap(), slice_mut(&mut y).slice_mut(..6).unwrap());
        goes_past(&here, i, tail, x, y)
    };
    run(1, 4).unwrap();
    let error = run(3, 4).unwrap_err().block();
    assert!(
        matches!(
            error.fault,
            Fault::OutOfBounds { thread: [2, 0, 0], buffer: "x", element: 5, len: 5, location }
                if location.file().ends_with("faults.rs")
        ),
        "{error}"
    );
    assert!(error.to_string().contains("thread [2, 0, 0] used element 5 of `x`, which has 5 elements, at "), "{error}");
    for (tail, element, len) in [(5, 1, 1), (6, 1, 0), (7, 7, 6)] {
        let error = run(0, tail).unwrap_err().block();
        let Fault::OutOfBounds { thread: [3, 0, 0], buffer: "y", element: e, len: l, .. } = error.fault else {
            panic!("{error}");
        };
        assert_eq!((e, l), (element, len), "{error}");
    }
    run(1, 4).unwrap();
    assert_eq!(y, [0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0]);
}

kernel! {
    /// In each warp, the lanes below `n` vote with mask `mask`, and lane 31 with mask `alone`.
    unsafe fn votes_of_some_lanes(cx: impl Cooperative, n: u32, mask: u32, alone: u32)
    grid(1) block(64)
    {
        if cx.lane() < n {
            assert!(cx.lanes(mask).any(true));
        } else if cx.lane() == 31 {
            assert!(cx.lanes(alone).all(true));
        }
        cx.barrier();
    }
}

kernel! {
    /// The tiles of 8 threads add up, except for those of the thread `n`.
    unsafe fn tiles_but_one(cx: impl Cooperative, n: u32)
    grid(1) block(32)
    {
        if cx.lane() != n {
            _ = cx.tile::<8>().sum(1u64);
        }
    }
}

kernel! {
    unsafe fn asks_outside(cx: impl Cooperative, source: u32)
    grid(1) block(32)
    {
        if cx.lane() < 4 {
            _ = cx.lanes(15).shuffle(1.0f64, source);
        }
    }
}

kernel! {
    unsafe fn two_barriers(cx: impl Cooperative, n: u32)
    grid(1) block(64)
    {
        if cx.rank() < n {
            cx.barrier_and(true);
        } else {
            cx.barrier_or(true);
        }
    }
}

#[test]
fn lanes_of_a_mask_that_do_not_come_are_reported() {
    let here = Here::default();
    let fault = |result: Result<(), Failed>| result.unwrap_err().block().to_string();
    votes_of_some_lanes(&here, 8, 0xff, 1 << 31).unwrap();
    let text = fault(votes_of_some_lanes(&here, 7, 0xff, 1 << 31));
    assert!(text.contains("threads 0 to 6 in a vote of some lanes, 0x000000ff"), "{text}");
    assert!(text.contains("threads 7 to 31 at `barrier`"), "{text}");
    // The lanes name each other, but by different masks.
    let text = fault(votes_of_some_lanes(&here, 8, 0x8000_00ff, 0xc000_00ff));
    assert!(text.contains("0x800000ff") && text.contains("0xc00000ff"), "{text}");
    let text = fault(votes_of_some_lanes(&here, 8, 0x7f, 1 << 31));
    assert!(text.contains("thread [7, 0, 0] panicked: lane 7 is not among the lanes 0x0000007f"), "{text}");

    tiles_but_one(&here, 32).unwrap();
    let text = without_lines(&fault(tiles_but_one(&here, 9)));
    assert!(text.contains("thread 8 in a `shuffle_xor` of some lanes, 0x0000ff00, thread 9 returned"), "{text}");

    asks_outside(&here, 3).unwrap();
    assert!(fault(asks_outside(&here, 4)).contains("lane 4, which is not among the lanes 0x0000000f"));

    two_barriers(&here, 64).unwrap();
    let text = without_lines(&fault(two_barriers(&here, 10)));
    assert!(text.contains("threads 0 to 9 at `barrier_and`, threads 10 to 63 at `barrier_or`"), "{text}");
}
