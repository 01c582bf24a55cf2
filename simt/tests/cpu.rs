//! Blocks on the host, declared and launched as users declare and launch them.
#![allow(missing_docs)]

use std::cell::RefCell;

use thalweg_simt::cpu::{BlockError, Fault, Workspace, run_block};
use thalweg_simt::host::{DeviceSlice, Kernel, Launch, LaunchError, LaunchShape};
use thalweg_simt::kernel;

/// Runs the blocks of a launch at once, in order, on the calling thread.
#[derive(Default)]
struct Here(RefCell<Workspace>);

#[derive(Debug)]
enum Failed {
    Launch(LaunchError),
    Block(BlockError),
}

impl From<LaunchError> for Failed {
    fn from(e: LaunchError) -> Self {
        Self::Launch(e)
    }
}

impl Failed {
    fn block(self) -> BlockError {
        match self {
            Self::Block(e) => e,
            Self::Launch(e) => panic!("{e}"),
        }
    }
}

impl Launch<()> for Here {
    type Error = Failed;

    unsafe fn launch(&self, kernel: &'static Kernel, shape: LaunchShape, slots: &[u64]) -> Result<(), Failed> {
        let [gx, gy, gz] = shape.grid;
        for i in 0..gx * gy * gz {
            let idx = [i % gx, i / gx % gy, i / (gx * gy)];
            // SAFETY: The caller of `launch` promises that `slots` and `shape` are the kernel's.
            // The helpers below expose the provenance of the vectors, and nothing else runs that
            // could access them.
            unsafe { run_block(kernel, shape, idx, slots, &mut self.0.borrow_mut()) }.map_err(Failed::Block)?;
        }
        Ok(())
    }
}

fn slice<T>(v: &mut [T]) -> &DeviceSlice<(), T> {
    let addr = v.as_mut_ptr().expose_provenance() as u64;
    // SAFETY: The result borrows the vector. Only `Here` uses the memory, and its launches are done
    // when they return.
    unsafe { DeviceSlice::from_raw(addr, v.len()) }
}

fn slice_mut<T>(v: &mut [T]) -> &mut DeviceSlice<(), T> {
    let addr = v.as_mut_ptr().expose_provenance() as u64;
    // SAFETY: The result borrows the vector exclusively. Only `Here` uses the memory, and its
    // launches are done when they return.
    unsafe { DeviceSlice::from_raw_mut(addr, v.len()) }
}

/// Returns a small generator of numbers that are the same on every machine.
fn noise(seed: u32) -> impl FnMut() -> u32 {
    let mut state = u64::from(seed) + 1;
    move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as u32
    }
}

thalweg_simt::ptx! {}

kernel! {
    unsafe fn saxpy(cx: impl Simt, n: u32, a: f32, x: In<f32>, y: InOut<f32>)
    require { x.len() == n, y.len() == n }
    grid(n.div_ceil(64)) block(64)
    {
        let i = cx.global_x();
        if i < n {
            let i = i as usize;
            y.set(cx, i, cx.fma(a, x.get(cx, i), y.get(cx, i)));
        }
    }
}

#[test]
fn saxpy_over_sizes_that_hurt() {
    for n in [0, 1, 31, 32, 33, 63, 64, 65, 1000] {
        let mut x: Vec<f32> = (0..n).map(|i| i as f32).collect();
        let mut y = vec![0.5; n];
        saxpy(&Here::default(), n as u32, 2.0, slice(&mut x), slice_mut(&mut y)).unwrap();
        assert!(y.iter().zip(&x).all(|(y, x)| *y == 2.0 * x + 0.5), "n = {n}");
    }
}

#[test]
fn a_requirement_names_itself_and_the_arguments() {
    let (mut x, mut y) = (vec![0.0; 3], vec![0.0; 4]);
    let error = saxpy(&Here::default(), 4, 2.0, slice(&mut x), slice_mut(&mut y)).unwrap_err();
    let Failed::Launch(error) = error else { panic!("{error:?}") };
    let text = error.to_string();
    assert!(
        text.contains("`saxpy` requires `x.len() == n`") && text.contains("n = 4") && text.contains("[3 elements"),
        "{text}"
    );
}

kernel! {
    unsafe fn positions(cx: impl Simt, out: Out<u32>)
    grid(2, 3, 4) block(3, 2, 5)
    {
        let (t, b, d, g) = (cx.thread_idx(), cx.block_idx(), cx.block_dim(), cx.grid_dim());
        let thread = (t.z * d.y + t.y) * d.x + t.x;
        let block = (b.z * g.y + b.y) * g.x + b.x;
        let i = block * d.x * d.y * d.z + thread;
        out.set(cx, i as usize, i);
    }
}

kernel! {
    unsafe fn cooperative_positions(cx: impl Cooperative, out: Out<u32>)
    grid(2, 3, 4) block(4, 2, 8)
    {
        let (t, b, d, g) = (cx.thread_idx(), cx.block_idx(), cx.block_dim(), cx.grid_dim());
        let thread = (t.z * d.y + t.y) * d.x + t.x;
        assert_eq!((cx.rank(), cx.warp(), cx.lane()), (thread, thread / 32, thread % 32));
        let block = (b.z * g.y + b.y) * g.x + b.x;
        let i = block * d.x * d.y * d.z + thread;
        cx.barrier();
        out.set(cx, i as usize, i);
    }
}

#[test]
fn every_thread_of_every_block_runs_once_at_its_place() {
    let here = Here::default();
    let mut out = vec![0; 24 * 30];
    positions(&here, slice_mut(&mut out)).unwrap();
    assert!(out.iter().enumerate().all(|(i, v)| i == *v as usize));
    let mut out = vec![0; 24 * 64];
    cooperative_positions(&here, slice_mut(&mut out)).unwrap();
    assert!(out.iter().enumerate().all(|(i, v)| i == *v as usize));
}

kernel! {
    /// Reverses 96 elements three times.
    unsafe fn reverse(cx: impl Cooperative, data: InOut<u16>)
    require { data.len() == 96 }
    grid(1) block(96) shared(192)
    {
        let i = cx.rank();
        let s = cx.shared::<u16>(0);
        for _ in 0..3 {
            cx.shared_set(s, i, data.get(cx, i as usize));
            cx.barrier();
            data.set(cx, i as usize, cx.shared_get(s, 95 - i));
            cx.barrier();
        }
    }
}

#[test]
fn barriers_order_shared_memory() {
    let mut data: Vec<u16> = (0..96).collect();
    reverse(&Here::default(), slice_mut(&mut data)).unwrap();
    assert!(data.iter().rev().enumerate().all(|(i, v)| i == *v as usize));
}

kernel! {
    /// In each of two rounds, every thread reads what its neighbour stores, without a barrier
    /// between.
    unsafe fn forgets_a_barrier(cx: impl Cooperative, out: Out<u32>)
    grid(1) block(64) shared(256)
    {
        let (i, s) = (cx.rank(), cx.shared::<u32>(0));
        for round in 0..2 {
            cx.shared_set(s, i, 1 + round);
            let v = cx.shared_get(s, (i + 63) % 64);
            cx.barrier();
            out.set(cx, (64 * round + i) as usize, v);
        }
    }
}

#[test]
fn a_forgotten_barrier_shows() {
    let mut out = vec![0; 128];
    forgets_a_barrier(&Here::default(), slice_mut(&mut out)).unwrap();
    let wrong = |round: u32| out[64 * round as usize..][..64].iter().filter(|v| **v != 1 + round).count();
    assert_eq!((wrong(0), wrong(1)), (1, 63));
}

kernel! {
    /// Reads shared memory before any thread stores there.
    unsafe fn fresh(cx: impl Cooperative, out: Out<u64>)
    grid(2) block(32) shared(256)
    {
        let s = cx.shared::<u64>(0);
        out.set(cx, (cx.block_idx().x * 32 + cx.rank()) as usize, cx.shared_get(s, cx.rank()));
        cx.barrier();
        cx.shared_set(s, cx.rank(), 7);
    }
}

#[test]
fn shared_memory_starts_poisoned_in_every_block() {
    let mut out = vec![0; 64];
    fresh(&Here::default(), slice_mut(&mut out)).unwrap();
    assert!(out.iter().all(|v| *v == 0xA5A5_A5A5_A5A5_A5A5));
}

kernel! {
    /// Counts how often each of 8 values occurs, first in shared memory and then in device memory.
    unsafe fn histogram(cx: impl Cooperative, values: In<u8>, bins: InOut<u32>, extremes: InOut<u32>)
    require { values.len() == 512, bins.len() == 8, extremes.len() == 2 }
    grid(4) block(128) shared(32)
    {
        let s = cx.shared::<u32>(0);
        if cx.rank() < 8 {
            cx.shared_set(s, cx.rank(), 0);
        }
        cx.barrier();
        let v = u32::from(values.get(cx, cx.global_x() as usize));
        cx.shared_add(s, v, 1);
        cx.atomic_max(extremes.as_ptr(), v);
        cx.atomic_min(extremes.as_ptr().add(1), v);
        cx.barrier();
        if cx.rank() < 8 {
            cx.atomic_add(bins.as_ptr().add(cx.rank() as usize), cx.shared_get(s, cx.rank()));
        }
    }
}

#[test]
fn atomics_count() {
    let mut noise = noise(3);
    let mut values: Vec<u8> = (0..512).map(|_| (1 + noise() % 6) as u8).collect();
    let (mut bins, mut extremes) = (vec![0; 8], vec![0, u32::MAX]);
    histogram(&Here::default(), slice(&mut values), slice_mut(&mut bins), slice_mut(&mut extremes)).unwrap();
    for (bin, n) in bins.iter().enumerate() {
        assert_eq!(*n as usize, values.iter().filter(|v| **v == bin as u8).count());
    }
    assert_eq!(extremes, [6, 1]);
}

kernel! {
    /// Writes twelve results of each thread, one after another.
    unsafe fn warp_operations(cx: impl Cooperative, x: In<f32>, k: In<u32>, out: Out<u32>)
    require { x.len() == 64, k.len() == 64, out.len() == 12 * 64 }
    grid(1) block(64)
    {
        let i = cx.rank() as usize;
        let (x, k) = (x.get(cx, i), k.get(cx, i));
        let results = [
            cx.shuffle_xor(x, 5).to_bits(),
            cx.shuffle_xor(k, k),
            cx.shuffle_up(x, 3).to_bits(),
            cx.shuffle_up(k, k),
            cx.shuffle_down(k as i32, 3) as u32,
            cx.shuffle_down(k, k),
            cx.shuffle(x, k).to_bits(),
            cx.ballot(x > 0.0),
            cx.warp_sum(x).to_bits(),
            cx.warp_max(x).to_bits(),
            cx.warp_min(x).to_bits(),
            cx.warp_sum_u32(k << 27),
        ];
        for (j, r) in results.into_iter().enumerate() {
            out.set(cx, 12 * i + j, r);
        }
    }
}

#[test]
fn warp_operations_agree_with_a_scalar_model() {
    for seed in 0..50 {
        let mut noise = noise(seed);
        let mut x: Vec<f32> = (0..64).map(|_| (noise() as i32 - (1 << 30)) as f32 * 1e-3).collect();
        let mut k: Vec<u32> = (0..64).map(|_| noise() % 32).collect();
        let mut out = vec![0; 12 * 64];
        warp_operations(&Here::default(), slice(&mut x), slice(&mut k), slice_mut(&mut out)).unwrap();

        for i in 0..64 {
            let (base, lane) = (i / 32 * 32, i % 32);
            let (xs, ks) = (&x[base..base + 32], &k[base..base + 32]);
            let at = |from: Option<usize>| from.filter(|l| *l < 32).unwrap_or(lane);
            let (own, argument) = (lane, ks[lane] as usize);
            // The sum is a tree: it adds pairs that are 16 apart, then 8, 4, 2 and 1. Every lane
            // gets the same sum.
            let mut tree = xs.to_vec();
            for half in [16, 8, 4, 2, 1] {
                tree = (0..half).map(|l| tree[l] + tree[l + half]).collect();
            }
            let expected = [
                xs[own ^ 5].to_bits(),
                ks[own ^ argument],
                xs[at(own.checked_sub(3))].to_bits(),
                ks[at(own.checked_sub(argument))],
                ks[at(Some(own + 3))],
                ks[at(Some(own + argument))],
                xs[argument].to_bits(),
                (0..32).filter(|l| xs[*l] > 0.0).map(|l| 1 << l).sum(),
                tree[0].to_bits(),
                xs.iter().copied().fold(f32::MIN, f32::max).to_bits(),
                xs.iter().copied().fold(f32::MAX, f32::min).to_bits(),
                ks.iter().fold(0, |sum: u32, k| sum.wrapping_add(k << 27)),
            ];
            assert_eq!(out[12 * i..12 * i + 12], expected, "seed {seed}, thread {i}");
        }
    }
}

kernel! {
    unsafe fn vectors(cx: impl Simt, x: In<f32>, y: Out<f32>)
    require { x.is_aligned(16), y.is_aligned(16), x.len() == y.len(), x.len().is_multiple_of(4) }
    grid(x.len() / 4) block(1)
    {
        let i = 4 * cx.block_idx().x as usize;
        let v = cx.load4(x.as_ptr().add(i));
        cx.store4(y.as_ptr().add(i), v.map(|v| cx.recip(cx.sqrt(cx.exp2(cx.log2(v))))));
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

kernel! {
    unsafe fn dots(cx: impl Simt, a: u32, b: u32, c: u32, out: Out<u32>)
    require { out.len() == 4 }
    grid(1) block(1)
    {
        let values = [cx.dot2_low(a, b, c), cx.dot2_high(a, b, c), cx.dot4(a, b, c), cx.scale(b >> 9, 0.1).to_bits()];
        for (i, v) in values.into_iter().enumerate() {
            out.set(cx, i, v);
        }
    }
}

#[test]
fn dot_products_wrap() {
    let mut noise = noise(9);
    for round in 0..1000 {
        let [a, b, c] = if round == 0 { [u32::MAX; 3] } else { [0; 3].map(|_| noise()) };
        let mut out = [0; 4];
        dots(&Here::default(), a, b, c, slice_mut(&mut out)).unwrap();
        let dot =
            |x: &[u64], y: &[u8]| x.iter().zip(y).fold(u64::from(c), |sum, (x, y)| sum + x * u64::from(*y)) as u32;
        let (halves, bytes) = ([u64::from(a & 0xffff), u64::from(a >> 16)], b.to_le_bytes());
        assert_eq!([out[0], out[1]], [dot(&halves, &bytes[..2]), dot(&halves, &bytes[2..])]);
        assert_eq!(out[2], dot(&a.to_le_bytes().map(u64::from), &bytes));
        assert_eq!(f32::from_bits(out[3]), (f64::from(b >> 9) * f64::from(0.1f32)) as f32);
    }
}

kernel! {
    unsafe fn round(cx: impl Simt, n: u32, scale: f32, v: In<f32>, out: Out<u32>)
    require { v.len() == n, out.len() == n }
    grid(n.div_ceil(64)) block(64)
    {
        let i = cx.global_x();
        if i < n {
            out.set(cx, i as usize, cx.nearest(v.get(cx, i as usize), scale));
        }
    }
}

/// Rounds values around every half, where a product that is rounded first gives a wrong integer.
/// The expected product in f64 is exact.
#[test]
fn nearest_rounds_the_exact_product() {
    let mut noise = noise(10);
    for scale in [65535.0, 1.0, 0.1, 4_194_303.0] {
        let mut v: Vec<f32> = (0..65535u32)
            .flat_map(|half| {
                let middle = ((f64::from(half) + 0.5) / f64::from(scale)) as f32;
                (-3..=3).map(move |step| f32::from_bits(middle.to_bits().wrapping_add_signed(step)))
            })
            .chain((0..10000).map(|_| f32::from_bits(noise() >> 2)))
            .filter(|v| f64::from(*v) * f64::from(scale) < 4_194_304.0)
            .collect();
        let mut out = vec![0; v.len()];
        round(&Here::default(), v.len() as u32, scale, slice(&mut v), slice_mut(&mut out)).unwrap();
        for (v, got) in v.into_iter().zip(out) {
            assert_eq!(got, (f64::from(v) * f64::from(scale)).round_ties_even() as u32, "{v:e} * {scale}");
        }
    }
}

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
            cx.shuffle_up(n, 1);
        } else {
            cx.shuffle_down(n, 1);
        }
    }
}

kernel! {
    unsafe fn half_a_warp_sums(cx: impl Cooperative, n: u32)
    grid(1) block(64)
    {
        cx.barrier();
        if cx.warp() == 1 && cx.lane() < n {
            cx.warp_sum(1.0);
        }
    }
}

#[test]
fn divergence_says_who_waits_where() {
    let here = Here::default();
    early_return(&here, 64).unwrap();
    early_return(&here, 0).unwrap();
    let error = early_return(&here, 40).unwrap_err().block();
    assert_eq!(error.block, [2, 0, 0]);
    assert_eq!(
        error.to_string(),
        "kernel `early_return`, block [2, 0, 0]: its threads diverged: threads 0 to 39 at `barrier`, threads 40 \
         to 63 returned (a barrier must be reached by every thread of the block, a warp operation by all 32 threads \
         of the warp)"
    );

    let diverged = |result: Result<(), Failed>| match result.unwrap_err().block().fault {
        Fault::Diverged { threads } => threads,
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
    assert_eq!(
        touches(&here, 6, 0).unwrap_err().block().to_string(),
        "kernel `touches`, block [0, 0, 0]: thread [5, 0, 0] accessed a window of `u32` at byte 6, which is not a \
         multiple of 4; the kernel declares 64 bytes of shared memory"
    );
}

kernel! {
    unsafe fn made_elsewhere(n: u32)
    grid(n) block(1)
}

#[test]
fn a_declaration_without_a_body_has_no_cpu_entry() {
    struct Look;
    impl Launch<()> for Look {
        type Error = LaunchError;
        unsafe fn launch(&self, kernel: &'static Kernel, shape: LaunchShape, slots: &[u64]) -> Result<(), LaunchError> {
            assert!(kernel.cpu().is_none());
            assert_eq!((kernel.entry(), shape.grid, slots), ("made_elsewhere__u32", [9, 1, 1], &[9][..]));
            Ok(())
        }
    }
    made_elsewhere(&Look, 9).unwrap();
}
