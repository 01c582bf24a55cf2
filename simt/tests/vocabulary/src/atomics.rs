//! Atomic operations and fences.

use thalweg_simt::atomics::{Atomic, AtomicElement, AtomicInteger, Atomics, Scope};
use thalweg_simt::{kernel, order, scope};

/// What a test asks a thread to do with an atomic, as a number.
pub mod operation {
    /// Adds the first operand.
    pub const ADD: u32 = 0;
    /// Subtracts it.
    pub const SUB: u32 = 1;
    /// Takes the smaller one.
    pub const MIN: u32 = 2;
    /// Takes the larger one.
    pub const MAX: u32 = 3;
    /// Exchanges.
    pub const EXCHANGE: u32 = 4;
    /// Exchanges if the second operand is there.
    pub const COMPARE_EXCHANGE: u32 = 5;
    /// Takes the bits of both.
    pub const AND: u32 = 6;
    /// Takes the bits of either.
    pub const OR: u32 = 7;
    /// Takes the bits of one.
    pub const XOR: u32 = 8;
}

/// Does an operation that each type has. Returns the old value.
#[inline(always)]
fn update<T: AtomicElement, S: Scope>(cx: impl Atomics, at: Atomic<T, order::Relaxed, S>, what: u32, v: T, w: T) -> T {
    match what {
        operation::ADD => at.add(cx, v),
        operation::SUB => at.sub(cx, v),
        operation::MIN => at.min(cx, v),
        operation::MAX => at.max(cx, v),
        operation::EXCHANGE => at.exchange(cx, v),
        _ => at.compare_exchange(cx, w, v).unwrap_or_else(|old| old),
    }
}

/// Does an operation that integers have. Returns the old value.
#[inline(always)]
fn update_integer<T: AtomicInteger, S: Scope>(
    cx: impl Atomics,
    at: Atomic<T, order::Relaxed, S>,
    what: u32,
    v: T,
    w: T,
) -> T {
    match what {
        operation::AND => at.and(cx, v),
        operation::OR => at.or(cx, v),
        operation::XOR => at.xor(cx, v),
        _ => update(cx, at, what, v, w),
    }
}

macro_rules! updates {
    ($($t:ident $device:ident $shared:ident $update:ident;)*) => {$(
        kernel! {
            /// Does operation `what` on each element of `y` and stores the old value to `old`.
            pub unsafe fn $device(
                cx: impl Simt, n: u32, what: u32, v: In<$t>, w: In<$t>, y: InOut<$t>, old: Out<$t>
            )
            require { v.len() == n, w.len() == n, y.len() == n, old.len() == n }
            grid(n.div_ceil(128)) block(128)
            {
                let i = cx.global_x();
                if i < n {
                    old.set(cx, i, $update(cx, y.atomic(i), what, v.get(cx, i), w.get(cx, i)));
                }
            }
        }

        kernel! {
            /// Does the same on a copy of `y` in shared memory, which it stores to `y` afterwards.
pub unsafe fn $shared(
                cx: impl Cooperative, n: u32, what: u32, v: In<$t>, w: In<$t>, y: InOut<$t>, old: Out<$t>
            )
            require { v.len() == n, w.len() == n, y.len() == n, old.len() == n, n % 128 == 0 }
            grid(n / 128) block(128) shared(128 * 8)
            {
                let (i, rank) = (cx.global_x(), cx.rank());
                let s = cx.shared::<$t>(0);
                cx.shared_set(s, rank, y.get(cx, i));
                cx.barrier();
                old.set(cx, i, $update(cx, s.atomic(rank), what, v.get(cx, i), w.get(cx, i)));
                cx.barrier();
                y.set(cx, i, cx.shared_get(s, rank));
            }
        }
    )*};
}
updates! {
    u32 update_u32 update_shared_u32 update_integer;
    i32 update_i32 update_shared_i32 update_integer;
    u64 update_u64 update_shared_u64 update_integer;
    i64 update_i64 update_shared_i64 update_integer;
    f32 update_f32 update_shared_f32 update;
    f64 update_f64 update_shared_f64 update;
}

macro_rules! tickets {
    ($($t:ident $name:ident;)*) => {$(
        kernel! {
            /// Each thread adds 1 to the counter of the grid and to that of its block, and stores
            /// which numbers it got.
            pub unsafe fn $name(cx: impl Cooperative, blocks: u32, counter: InOut<$t>, grid: Out<$t>, block: Out<$t>)
            require { counter.len() == 1, grid.len() == blocks * 256, block.len() == blocks * 256 }
            grid(blocks) block(256) shared(8)
            {
                let (i, s) = (cx.global_x(), cx.shared::<$t>(0));
                if cx.rank() == 0 {
                    cx.shared_set(s, 0, 0 as $t);
                }
                cx.barrier();
                grid.set(cx, i, counter.atomic(0).add(cx, 1 as $t));
                block.set(cx, i, s.atomic(0).add(cx, 1 as $t));
            }
        }
    )*};
}
tickets! {
    u32 tickets_u32;
    i32 tickets_i32;
    u64 tickets_u64;
    i64 tickets_i64;
    f32 tickets_f32;
    f64 tickets_f64;
}

macro_rules! modes {
    ($($t:ident $updates:ident $accesses:ident;)*) => {$(
        kernel! {
            /// Adds 1 to the first elements of `y` and then replaces 1 by 9 there. Each block uses
            /// another order and scope. It does so in device memory, and in shared memory for the
            /// second half of the block.
            pub unsafe fn $updates(cx: impl Cooperative, y: InOut<$t>)
            require { y.len() == 12 * 64 }
            grid(12) block(64) shared(64 * 8)
            {
                let (i, rank) = (cx.global_x(), cx.rank());
                let (a, s) = (y.atomic(i), cx.shared::<$t>(0));
                let b = s.atomic(rank);
                cx.shared_set(s, rank, y.get(cx, i));
                macro_rules! update {
                    ($a:expr) => {{
                        $a.add(cx, 1 as $t);
                        _ = $a.compare_exchange(cx, 1 as $t, 9 as $t);
                    }};
                }
                macro_rules! in_both {
                    ($order:ident $scope:ident) => {
                        if rank < 32 { update!(a.$order().$scope()) } else { update!(b.$order().$scope()) }
                    };
                }
                match cx.block_idx().x {
                    0 => in_both!(relaxed block),
                    1 => in_both!(relaxed device),
                    2 => in_both!(relaxed system),
                    3 => in_both!(acquire block),
                    4 => in_both!(acquire device),
                    5 => in_both!(acquire system),
                    6 => in_both!(release block),
                    7 => in_both!(release device),
                    8 => in_both!(release system),
                    9 => in_both!(acq_rel block),
                    10 => in_both!(acq_rel device),
                    _ => in_both!(acq_rel system),
                }
                if rank >= 32 {
                    y.set(cx, i, cx.shared_get(s, rank));
                }
            }
        }

        kernel! {
            /// Loads each element and stores it again, plus 1. Each block uses another order and
            /// scope. It does so in device memory, and in shared memory for the second half of the
            /// block.
            pub unsafe fn $accesses(cx: impl Cooperative, y: InOut<$t>)
            require { y.len() == 6 * 64 }
            grid(6) block(64) shared(64 * 8)
            {
                let (i, rank) = (cx.global_x(), cx.rank());
                let (a, s) = (y.atomic(i), cx.shared::<$t>(0));
                let b = s.atomic(rank);
                cx.shared_set(s, rank, y.get(cx, i));
                macro_rules! in_both {
                    ($load:ident $store:ident $scope:ident) => {
                        if rank < 32 {
                            a.$store().$scope().store(cx, a.$load().$scope().load(cx) + 1 as $t);
                        } else {
                            b.$store().$scope().store(cx, b.$load().$scope().load(cx) + 1 as $t);
                        }
                    };
                }
                match cx.block_idx().x {
                    0 => in_both!(relaxed relaxed block),
                    1 => in_both!(relaxed relaxed device),
                    2 => in_both!(relaxed relaxed system),
                    3 => in_both!(acquire release block),
                    4 => in_both!(acquire release device),
                    _ => in_both!(acquire release system),
                }
                if rank >= 32 {
                    y.set(cx, i, cx.shared_get(s, rank));
                }
            }
        }
    )*};
}
modes! {
    u32 update_in_each_mode_u32 access_in_each_mode_u32;
    f64 update_in_each_mode_f64 access_in_each_mode_f64;
}

kernel! {
    /// Adds up `x`: each block its 1000 elements, and the block that is done last all parts. `how`
    /// says what orders the parts before the last block: 0 to 2 are the order of the counter, or a
    /// fence of either kind beside a relaxed counter.
    pub unsafe fn total(
        cx: impl Simt, how: u32, blocks: u32, x: In<u32>, parts: InOut<u32>, done: InOut<u32>, sum: Out<u32>
    )
    require { x.len() == 1000 * blocks, parts.len() == blocks, done.len() == 1, sum.len() == 1 }
    grid(blocks) block(1)
    {
        let (block, blocks) = (cx.block_idx().x, cx.grid_dim().x);
        let mut part = 0u32;
        for i in 0..1000 {
            part = part.wrapping_add(x.get(cx, 1000 * block + i));
        }
        parts.set(cx, block, part);
        let before = match how {
            0 => done.atomic(0).acq_rel().add(cx, 1),
            1 => {
                cx.fence(order::AcqRel, scope::Device);
                let before = done.atomic(0).add(cx, 1);
                cx.fence(order::AcqRel, scope::Device);
                before
            }
            _ => {
                cx.fence(order::SeqCst, scope::System);
                let before = done.atomic(0).system().add(cx, 1);
                cx.fence(order::SeqCst, scope::System);
                before
            }
        };
        if before == blocks - 1 {
            let mut all = 0u32;
            for i in 0..blocks {
                all = all.wrapping_add(parts.get(cx, i));
            }
            sum.set(cx, 0, all);
        }
    }
}

kernel! {
    /// Even blocks store a message and then raise a flag. Odd blocks look at the flag of the block
    /// before them some times, and store 1 if it was up and the message complete, 2 if it was up
    /// and the message not complete, and 0 if it was never up.
    pub unsafe fn messages(cx: impl Simt, pairs: u32, message: InOut<u32>, flags: InOut<u32>, seen: Out<u32>)
    require { message.len() == 64 * pairs, flags.len() == pairs, seen.len() == pairs }
    grid(2 * pairs) block(1)
    {
        let (pair, reader) = (cx.block_idx().x / 2, cx.block_idx().x % 2 == 1);
        let flag = flags.atomic(pair);
        if reader {
            let mut found = 0;
            for _ in 0..1000 {
                if found == 0 && flag.acquire().load(cx) == 1 {
                    found = 1;
                    for i in 0..64 {
                        if message.get(cx, 64 * pair + i) != pair + i + 1 {
                            found = 2;
                        }
                    }
                }
            }
            seen.set(cx, pair, found);
        } else {
            for i in 0..64 {
                message.set(cx, 64 * pair + i, pair + i + 1);
            }
            flag.release().store(cx, 1);
        }
    }
}

kernel! {
    /// Each thread multiplies the element that `which` names by `x`, modulo 2^32, by a loop that
    /// tries again if another thread came between.
    pub unsafe fn multiply(cx: impl Simt, n: u32, which: In<u32>, x: In<u32>, y: InOut<u32>)
    require { which.len() == n, x.len() == n, y.len() == 4 }
    grid(n.div_ceil(128)) block(128)
    {
        let i = cx.global_x();
        if i < n {
            let at = y.atomic(which.get(cx, i) % 4);
            let mut old = at.load(cx);
            while let Err(now) = at.compare_exchange(cx, old, old.wrapping_mul(x.get(cx, i))) {
                old = now;
            }
        }
    }
}
