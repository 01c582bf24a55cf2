//! Blocks on the host, declared and launched as users declare and launch them.
#![allow(missing_docs)]

mod clauses;
mod faults;
mod here;
mod numbers;
mod values;

use thalweg_simt::host::{Kernel, Launch, LaunchError, LaunchShape};
use thalweg_simt::kernel;

use here::{Failed, Here, noise, slice, slice_mut};

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
    /// In each of two rounds, every thread reads what its neighbor stores, without a barrier
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
        extremes.atomic(0).max(cx, v);
        extremes.atomic(1).min(cx, v);
        cx.barrier();
        if cx.rank() < 8 {
            bins.atomic(cx.rank()).add(cx, cx.shared_get(s, cx.rank()));
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
        let mut k: Vec<u32> = (0..64).map(|_| noise() % 96).collect(); // only the low five bits count
        let mut out = vec![0; 12 * 64];
        warp_operations(&Here::default(), slice(&mut x), slice(&mut k), slice_mut(&mut out)).unwrap();

        for i in 0..64 {
            let (base, lane) = (i / 32 * 32, i % 32);
            let (xs, ks) = (&x[base..base + 32], &k[base..base + 32]);
            let at = |from: Option<usize>| from.filter(|l| *l < 32).unwrap_or(lane);
            let (own, argument) = (lane, ks[lane] as usize % 32);
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
    unsafe fn made_elsewhere(n: u32)
    grid(n) block(1)
}

#[test]
fn a_declaration_without_a_body_has_no_cpu_entry() {
    struct Look;
    // SAFETY: It has no maps.
    unsafe impl Launch<()> for Look {
        type Error = LaunchError;
        unsafe fn launch(&self, kernel: &'static Kernel, shape: LaunchShape, slots: &[u64]) -> Result<(), LaunchError> {
            assert!(kernel.cpu().is_none());
            assert_eq!((kernel.entry(), shape.grid, slots), ("made_elsewhere__u32", [9, 1, 1], &[9][..]));
            Ok(())
        }
    }
    made_elsewhere(&Look, 9).unwrap();
}
