use std::fmt::Debug;

use vocabulary::warp::*;

use super::{noise, on_each_device};

/// A number that warps exchange, as a scalar program sees it.
trait Number: Copy + Debug + PartialEq {
    fn plus(self, other: Self) -> Self;
    fn smaller(self, other: Self) -> Self;
    fn larger(self, other: Self) -> Self;
    fn zero() -> Self;
}
macro_rules! numbers {
    ($($plus:ident: $($t:ident)*;)*) => {$($(
        impl Number for $t {
            fn plus(self, other: Self) -> Self {
                self.$plus(other)
            }
            fn smaller(self, other: Self) -> Self {
                if other < self { other } else { self }
            }
            fn larger(self, other: Self) -> Self {
                if other > self { other } else { self }
            }
            fn zero() -> Self {
                0 as $t
            }
        }
    )*)*};
}
numbers! {
    wrapping_add: u32 i32 u64 i64;
    add: f32 f64;
}
use std::ops::Add;

/// What the thread with this rank gets in a tile with these values.
fn exchanged<T: Number>(tile: &[T], ks: &[u32], rank: usize) -> [T; EXCHANGES as usize] {
    let (n, k) = (tile.len(), ks[rank] as usize % 32);
    let own = tile[rank];
    // The sum over all threads is a tree: it adds pairs that are half of the tile apart, then a
    // quarter, and so on.
    let mut tree = tile.to_vec();
    while tree.len() > 1 {
        let half = tree.len() / 2;
        tree = (0..half).map(|i| tree[i].plus(tree[i + half])).collect();
    }
    // A running sum adds to each element the one that is 1 before it, then 2, then 4, and so on.
    let mut running = tile.to_vec();
    let mut delta = 1;
    while delta < n {
        running = (0..n).map(|i| if i >= delta { running[i - delta].plus(running[i]) } else { running[i] }).collect();
        delta *= 2;
    }
    [
        tile[k % n],
        tile[rank ^ (k % n)],
        if k <= rank { tile[rank - k] } else { own },
        if rank + k < n { tile[rank + k] } else { own },
        tree[0],
        tile.iter().copied().reduce(T::smaller).unwrap(),
        tile.iter().copied().reduce(T::larger).unwrap(),
        running[rank],
        if rank == 0 { T::zero() } else { running[rank - 1] },
    ]
}

/// Numbers in which those of a tile are different, and some are too large for it or for a warp.
fn arguments() -> Vec<u32> {
    let mut noise = noise(4);
    (0..256).map(|_| noise() % 96).collect()
}

macro_rules! exchange {
    ($($t:ident $launch:ident $value:expr;)*) => {
        #[test]
        fn tiles_exchange_reduce_and_scan_numbers_of_32_and_64_bits() {
            let k = arguments();
            $({
                let mut noise = noise(7);
                let mut word = || u64::from(noise()) << 32 | u64::from(noise());
                let x: Vec<$t> = (0..256).map(|_| $value(word())).collect();
                on_each_device(|s| {
                    let (x_there, k_there) = (s.upload_blocking(&x).unwrap(), s.upload_blocking(&k).unwrap());
                    let mut out = s.alloc::<$t>(256 * 5 * EXCHANGES as usize).unwrap();
                    $launch(s, &x_there, &k_there, &mut out).unwrap();
                    let out = s.read_blocking(&out).unwrap();
                    let mut results = out.chunks(EXCHANGES as usize);
                    for i in 0..256 {
                        for n in [2, 4, 8, 16, 32] {
                            let first = i / n * n;
                            let expected = exchanged(&x[first..first + n], &k[first..first + n], i - first);
                            let found = results.next().unwrap();
                            assert_eq!(found, expected, "{}: {}, thread {i}, {n} lanes", s.device(), stringify!($t));
                        }
                    }
                });
            })*
        }
    };
}
exchange! {
    u32 exchange_u32 |v| v as u32;
    i32 exchange_i32 |v| v as i32;
    f32 exchange_f32 |v| (v as i32) as f32 * 1e-3;
    u64 exchange_u64 |v| v;
    i64 exchange_i64 |v| v as i64;
    f64 exchange_f64 |v| (v as i64) as f64 * 1e-9;
}

/// The bits of the elements for which `p` is true.
fn bits(v: &[u32], p: impl Fn(u32) -> bool) -> u32 {
    v.iter().enumerate().map(|(i, v)| u32::from(p(*v)) << i).sum()
}

/// What a tile with these values says to the thread with this rank.
fn voted(tile: &[u32], rank: usize) -> [u32; VOTES as usize] {
    let own = tile[rank];
    let [and, or, xor] = [|a, b| a & b, |a, b| a | b, |a, b| a ^ b].map(|op| tile.iter().copied().reduce(op).unwrap());
    let equal = bits(tile, |v| v & 3 == own & 3);
    let same = u32::from(tile.iter().all(|v| v & 8 == own & 8));
    [
        bits(tile, |v| v & 1 == 1),
        u32::from(tile.iter().all(|v| v & 4 == 0)) | u32::from(tile.iter().any(|v| v & 4 == 4)) << 1,
        equal,
        equal,
        same | same << 1,
        and ^ or.rotate_left(11) ^ xor.rotate_left(22),
        tile.len() as u32 | (rank as u32) << 8 | u32::from(rank == 0) << 16,
    ]
}

/// Words whose low bits are equal in some tiles.
fn words(seed: u64) -> Vec<u32> {
    let mut noise = noise(seed);
    (0..256).map(|i| if i / 8 % 3 == 0 { noise() & !12 | 2 } else { noise() }).collect()
}

#[test]
fn tiles_vote_and_match() {
    let x = words(1);
    on_each_device(|s| {
        let there = s.upload_blocking(&x).unwrap();
        let mut out = s.alloc::<u32>(256 * 5 * VOTES as usize).unwrap();
        vote(s, &there, &mut out).unwrap();
        let out = s.read_blocking(&out).unwrap();
        let mut results = out.chunks(VOTES as usize);
        for i in 0..256 {
            for n in [2, 4, 8, 16, 32] {
                let first = i / n * n;
                let expected = voted(&x[first..first + n], i - first);
                assert_eq!(results.next().unwrap(), expected, "{}: thread {i}, {n} lanes", s.device());
            }
        }
    });
}

#[test]
fn any_lanes_of_a_warp_work_together_in_a_branch() {
    for seed in 0..20 {
        let mut x: Vec<u32> = words(seed).into_iter().map(|v| v >> 1).collect();
        // In one warp each value is alone, or with all others.
        x[32..64].fill(5 + seed as u32);
        on_each_device(|s| {
            let there = s.upload_blocking(&x).unwrap();
            let mut out = s.alloc::<u32>(256 * 9).unwrap();
            lanes(s, &there, &mut out).unwrap();
            let out = s.read_blocking(&out).unwrap();
            for (i, found) in out.chunks(9).enumerate() {
                let (first, lane, own) = (i / 32 * 32, i % 32, x[i]);
                let warp = &x[first..first + 32];
                let mask = bits(warp, |v| v % 4 == own % 4);
                let same: Vec<u32> = (0..32).filter(|l| mask >> l & 1 == 1).map(|l| warp[l as usize]).collect();
                let sum = same.iter().copied().fold(0, u32::wrapping_add);
                let rank = (mask & ((1 << lane) - 1)).count_ones();
                let ballot = mask & bits(warp, |v| v & 8 == 8);
                let votes =
                    u32::from(same.iter().all(|v| v & 16 == 0)) | u32::from(same.iter().any(|v| v & 16 == 16)) << 1;
                let equal = mask & bits(warp, |v| v & 32 == own & 32);
                let all_equal = same.iter().all(|v| v & 64 == own & 64);
                let apart = own % 4 == 1;
                let expected = [
                    sum,
                    same[same.len() - 1],
                    same[0],
                    ballot,
                    if apart { 0 } else { votes },
                    if apart { 0 } else { equal ^ u32::from(all_equal) },
                    rank | (same.len() as u32) << 8 | u32::from(rank == 0) << 16,
                    1,
                    bits(warp, |v| v % 4 == 1) ^ 1 ^ u32::from(warp.contains(&0)) << 1,
                ];
                assert_eq!(found, expected, "{}: seed {seed}, thread {i}", s.device());
            }
        });
    }
}

#[test]
fn tiles_may_go_different_ways() {
    let x: Vec<f64> = (0..64).map(|i| f64::from(i * i % 17) - 5.5).collect();
    let expected: Vec<f64> = (0..64)
        .map(|i| {
            let tile = &x[i / 4 * 4..i / 4 * 4 + 4];
            match i / 4 % 3 {
                0 => (tile[0] + tile[2]) + (tile[1] + tile[3]),
                1 => tile.iter().copied().fold(f64::MIN, f64::max) + tile.iter().copied().fold(f64::MAX, f64::min),
                _ => x[i],
            }
        })
        .collect();
    on_each_device(|s| {
        let there = s.upload_blocking(&x).unwrap();
        let mut out = s.alloc::<f64>(64).unwrap();
        tiles_apart(s, &there, &mut out).unwrap();
        assert_eq!(*s.read_blocking(&out).unwrap(), *expected, "{}", s.device());
    });
}

#[test]
fn scans_and_counts_make_a_list_without_gaps() {
    let mut noise = noise(9);
    let x: Vec<u32> = (0..4 * 256).map(|_| noise()).collect();
    on_each_device(|s| {
        let there = s.upload_blocking(&x).unwrap();
        let (mut out, mut counts) = (s.upload_blocking(&[0; 4 * 256]).unwrap(), s.alloc::<u32>(4).unwrap());
        odd(s, &there, &mut out, &mut counts).unwrap();
        let (out, counts) = (s.read_blocking(&out).unwrap(), s.read_blocking(&counts).unwrap());
        for (block, x) in x.chunks(256).enumerate() {
            let expected: Vec<u32> = x.iter().copied().filter(|v| v & 1 == 1).collect();
            assert_eq!(counts[block] as usize, expected.len(), "{}", s.device());
            let out = &out[256 * block..][..256];
            assert_eq!(out[..expected.len()], expected, "{}", s.device());
            assert!(out[expected.len()..].iter().all(|v| *v == 0), "{}", s.device());
        }
    });
}

#[test]
fn barriers_tell_all_threads_of_a_block_the_same() {
    let mut noise = noise(3);
    // Bit 0 is set everywhere, bit 1 nowhere, bit 2 in one thread of all blocks, bit 3 in all but
    // one, and the others at random.
    let x: Vec<u32> =
        (0..4 * 96).map(|i| noise() & !15 | 1 | u32::from(i == 200) << 2 | u32::from(i != 17) << 3).collect();
    on_each_device(|s| {
        let there = s.upload_blocking(&x).unwrap();
        let mut out = s.alloc::<u32>(4 * 96).unwrap();
        barriers(s, 6, &there, &mut out).unwrap();
        let out = s.read_blocking(&out).unwrap();
        for (block, x) in x.chunks(96).enumerate() {
            let expected = (0..6).fold(0u32, |all, bit| {
                let count = x.iter().filter(|v| *v >> bit & 1 == 1).count() as u32;
                let both = u32::from(count == 96) + 2 * u32::from(count > 0);
                all.wrapping_mul(7).wrapping_add(both).wrapping_mul(7).wrapping_add(count)
            });
            assert!(out[96 * block..][..96].iter().all(|v| *v == expected), "{}: block {block}", s.device());
        }
    });
}
