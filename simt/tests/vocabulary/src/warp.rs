//! Operations of warps, of tiles and of any lanes, and barriers that count.

use thalweg_simt::{Cooperative, Exchange, kernel};

/// The number of values that each thread stores for each size of a tile.
pub const EXCHANGES: u32 = 9;
/// The number of words that each thread stores for each size of a tile.
pub const VOTES: u32 = 7;

/// Calls `put` with what a thread gets from its tile of `N` threads.
#[inline(always)]
fn exchanges<T: Exchange, const N: u32>(cx: impl Cooperative, v: T, k: u32, mut put: impl FnMut(T)) {
    let tile = cx.tile::<N>();
    put(tile.shuffle(v, k));
    put(tile.shuffle_xor(v, k));
    put(tile.shuffle_up(v, k));
    put(tile.shuffle_down(v, k));
    put(tile.sum(v));
    put(tile.min(v));
    put(tile.max(v));
    put(tile.inclusive_sum(v));
    put(tile.exclusive_sum(v));
}

macro_rules! exchange {
    ($($t:ident $name:ident;)*) => {$(
        kernel! {
            /// Stores what each thread gets from its tiles of 2, 4, 8, 16 and 32 threads.
            pub unsafe fn $name(cx: impl Cooperative, x: In<$t>, k: In<u32>, out: Out<$t>)
            require { x.len() == 256, k.len() == 256, out.len() == 256 * 5 * EXCHANGES }
            grid(2) block(128)
            {
                let i = cx.global_x();
                let (v, k) = (x.get(cx, i), k.get(cx, i));
                let mut at = i * 5 * EXCHANGES;
                let mut put = |v| {
                    out.set(cx, at, v);
                    at += 1;
                };
                exchanges::<$t, 2>(cx, v, k, &mut put);
                exchanges::<$t, 4>(cx, v, k, &mut put);
                exchanges::<$t, 8>(cx, v, k, &mut put);
                exchanges::<$t, 16>(cx, v, k, &mut put);
                exchanges::<$t, 32>(cx, v, k, &mut put);
            }
        }
    )*};
}
exchange! {
    u32 exchange_u32;
    i32 exchange_i32;
    f32 exchange_f32;
    u64 exchange_u64;
    i64 exchange_i64;
    f64 exchange_f64;
}

/// Calls `put` with what a tile of `N` threads says of `v`.
#[inline(always)]
fn votes<const N: u32>(cx: impl Cooperative, v: u32, mut put: impl FnMut(u32)) {
    let tile = cx.tile::<N>();
    put(tile.ballot(v & 1 == 1));
    put(u32::from(tile.all(v & 4 == 0)) | u32::from(tile.any(v & 4 == 4)) << 1);
    put(tile.match_any(v & 3));
    put(tile.match_any(u64::from(v & 3) << 40 | 1));
    put(u32::from(tile.match_all(v & 8)) | u32::from(tile.match_all(i64::from(v & 8) << 32)) << 1);
    put(tile.and(v) ^ tile.or(v).rotate_left(11) ^ tile.xor(v).rotate_left(22));
    put(tile.len() | tile.rank() << 8 | u32::from(tile.elect()) << 16);
}

kernel! {
    /// Stores what each thread's tiles of 2, 4, 8, 16 and 32 threads say.
    pub unsafe fn vote(cx: impl Cooperative, x: In<u32>, out: Out<u32>)
    require { x.len() == 256, out.len() == 256 * 5 * VOTES }
    grid(2) block(128)
    {
        let i = cx.global_x();
        let v = x.get(cx, i);
        let mut at = i * 5 * VOTES;
        let mut put = |v| {
            out.set(cx, at, v);
            at += 1;
        };
        votes::<2>(cx, v, &mut put);
        votes::<4>(cx, v, &mut put);
        votes::<8>(cx, v, &mut put);
        votes::<16>(cx, v, &mut put);
        votes::<32>(cx, v, &mut put);
    }
}

kernel! {
    /// The lanes of a warp with the same `x % 4` work together, apart from the others: those of one
    /// value in another branch than those of the others. Each thread stores nine results.
    pub unsafe fn lanes(cx: impl Cooperative, x: In<u32>, out: Out<u32>)
    require { x.len() == 256, out.len() == 256 * 9 }
    grid(2) block(128)
    {
        let i = cx.global_x();
        let v = x.get(cx, i);
        let same = cx.lanes(cx.match_any(v % 4));
        let results = if v % 4 == 1 {
            // The order of the lanes matters to this operation.
            let last = same.reduce(v, |_, b| b);
            let first = same.reduce(v, |a, _| a);
            [same.sum(v), last, first, same.ballot(v & 8 == 8), 0, 0]
        } else {
            let highest = 31 - same.mask().leading_zeros();
            same.sync();
            [
                same.sum(v),
                same.shuffle(v, highest),
                same.shuffle(v, same.first()),
                same.ballot(v & 8 == 8),
                u32::from(same.all(v & 16 == 0)) | u32::from(same.any(v & 16 == 16)) << 1,
                same.match_any(v & 32) ^ u32::from(same.match_all(v & 64)),
            ]
        };
        for (k, v) in results.into_iter().enumerate() {
            out.set(cx, i as usize * 9 + k, v);
        }
        out.set(cx, i * 9 + 6, same.rank() | same.len() << 8 | u32::from(same.elect()) << 16);
        out.set(cx, i * 9 + 7, cx.active_mask() >> cx.lane() & 1);
        // The whole warp is together again.
        out.set(cx, i * 9 + 8, cx.ballot(v % 4 == 1) ^ u32::from(cx.all(v < 1 << 31)) ^ u32::from(cx.any(v == 0)) << 1);
    }
}

kernel! {
    /// Threads of different tiles do different things.
    pub unsafe fn tiles_apart(cx: impl Cooperative, x: In<f64>, out: Out<f64>)
    require { x.len() == 64, out.len() == 64 }
    grid(1) block(64)
    {
        let i = cx.rank();
        let (v, tile) = (x.get(cx, i), cx.tile::<4>());
        let r = match i / 4 % 3 {
            0 => tile.sum(v),
            1 => tile.max(v) + tile.min(v),
            _ => v,
        };
        out.set(cx, i, r);
    }
}

kernel! {
    /// A list without gaps of the elements that are odd, for each block: its threads count by a
    /// scan over warps.
    pub unsafe fn odd(cx: impl Cooperative, x: In<u32>, out: Out<u32>, counts: Out<u32>)
    require { x.len() == 4 * 256, out.len() == 4 * 256, counts.len() == 4 }
    grid(4) block(256) shared(32)
    {
        let (i, s) = (cx.global_x(), cx.shared::<u32>(0));
        let v = x.get(cx, i);
        let warp = cx.lanes(cx.ballot(true));
        let before = cx.tile::<32>().exclusive_sum(v & 1);
        if cx.lane() == 31 {
            cx.shared_set(s, cx.warp(), before + (v & 1));
        }
        let all = cx.barrier_count(v & 1 == 1);
        let mut start = 0;
        for w in 0..cx.warp() {
            start += cx.shared_get(s, w);
        }
        if v & 1 == 1 {
            out.set(cx, cx.block_idx().x * 256 + start + before, v);
        }
        if warp.elect() && cx.warp() == 0 {
            counts.set(cx, cx.block_idx().x, all);
        }
    }
}

kernel! {
    /// Each thread stores what the barriers say of the elements of its block.
    pub unsafe fn barriers(cx: impl Cooperative, bits: u32, x: In<u32>, out: Out<u32>)
    require { x.len() == 4 * 96, out.len() == 4 * 96 }
    grid(4) block(96)
    {
        let i = cx.global_x();
        let v = x.get(cx, i);
        let mut all = 0;
        for bit in 0..bits {
            let p = v >> bit & 1 == 1;
            let both = u32::from(cx.barrier_and(p)) + 2 * u32::from(cx.barrier_or(p));
            all = u32::wrapping_mul(all, 7).wrapping_add(both);
            all = u32::wrapping_mul(all, 7).wrapping_add(cx.barrier_count(p));
        }
        out.set(cx, i, all);
    }
}
