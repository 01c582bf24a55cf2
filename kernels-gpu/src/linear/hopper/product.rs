//! The product on Hopper's tensor cores (`wgmma`), for matrices of 16-bit elements.
//!
//! ```text
//! each block, for its tiles of C (128 x 128), in an order that keeps neighbors in L2:
//!     warpgroup 0, one thread:  for each 64 of k: wait until a stage is empty, start the copies of
//!                               A (128 x 64) and B (64 x 128) into it
//!     warpgroups 1 and 2, in turns, a tile each:
//!                               load the bias, and the first fourth of what is added to the tile
//!                               for each 64 of k: wait until the stage is full, multiply A with B into
//!                               registers; when the products before are done, the stage before is empty
//!                               let the other one multiply, finish the sums and store the tile
//! with scratch memory, the last tiles are split into equal shares of their steps, one for each block:
//!     a warp stores its part of the sums; the last one of a tile adds all parts in the order of k and goes on
//! ```
//!
//! Launch: 384 threads, one block for each multiprocessor that the product may use, 213 KiB of
//! shared memory. One warpgroup stores its tile while the other one multiplies, and the copies are
//! ahead by as many stages as shared memory holds. The 128 sums of a thread need more registers
//! than a third of the multiprocessor's, so the first warpgroup gives most of its own away
//! (`setmaxnreg`).
//!
//! A residual, or the old C, is loaded two parts of a tile ahead, into the registers in which it is
//! added. Nothing may copy these registers before: the copy waits for the load, and then each part
//! takes the latency of memory.
//!
//! A thread has pairs of neighboring columns. Elements of 16 bits go through shared memory to be
//! stored: stores of 4 bytes reach 70 % of the speed of stores of 16 bytes. A warp has its own part
//! of it, so warps do not wait for each other. Pairs of `f32` fill a sector of 32 bytes with their
//! neighbors, and are stored as they are.
//!
//! Clusters of two blocks which share the copies of B were tried and are slower (70 %).

use core::arch::asm;

use thalweg_simt::hopper::{
    Accumulators, Mbarrier, TensorMap, TileOperand, keep_registers, publish_barriers, shared_tiles, store_matrices,
    take_registers, wait_products,
};
use thalweg_simt::{Atomic, Cooperative, SharedMemory, bf16x2, f16x2};

use super::{BIAS_BYTES, COUNTS, RING_BYTES, STAGING_BYTES, TILE};
use crate::linear::epilogue::{BIAS, GELU_ERF, GELU_TANH, RESIDUAL, WIDE, finish};

/// The parameters of a launch.
#[derive(Clone, Copy)]
pub(super) struct Job {
    pub(super) a: TensorMap,
    pub(super) b: TensorMap,
    pub(super) m: u32,
    pub(super) n: u32,
    pub(super) k: u32,
    pub(super) batch: u32,
    pub(super) ldc: u32,
    pub(super) ldr: u32,
    pub(super) flags: u32,
    pub(super) sc: u64,
    pub(super) sr: u64,
    /// Their elements are of the operands' type, or `f32` if the flags say so.
    pub(super) bias: *const u16,
    pub(super) residual: *const u16,
    pub(super) c: *mut u16,
    /// The number of tiles whose steps the blocks share evenly, and memory for their sums:
    /// [`words`](super::words) of the blocks. The other tiles have one block each.
    pub(super) split: u32,
    pub(super) scratch: *mut u32,
}

/// The number of tiles in a column of tiles that blocks take before they go on to the next column.
const GROUP: u32 = 8;
/// The elements of a stage: 64 columns of 128 rows of A, and as much of B.
const STAGE_LEN: u32 = 2 * TILE * 64;
const STAGES: u32 = RING_BYTES / (STAGE_LEN * 2);
/// The sums of a thread in half a tile, 64 rows.
type Half = [f32; TILE as usize / 2];

impl Job {
    /// The first row and column of a tile, and its matrix.
    #[inline(always)]
    fn place(&self, tile: u32) -> [u32; 3] {
        let (rows, columns) = (self.m.div_ceil(TILE), self.n.div_ceil(TILE));
        // A division takes as long as a product of 128 x 128 x 16.
        let z = if self.batch == 1 { 0 } else { tile / (rows * columns) };
        let tile = tile - z * rows * columns;
        let first = tile / (GROUP * columns) * GROUP;
        let tile = tile % (GROUP * columns);
        let group = GROUP.min(rows - first);
        [(first + tile % group) * TILE, tile / group * TILE, z]
    }

    #[inline(always)]
    fn tiles(&self) -> u32 {
        self.m.div_ceil(TILE) * self.n.div_ceil(TILE) * self.batch
    }

    /// The number of steps of 64 of a tile.
    #[inline(always)]
    fn depth(&self) -> u32 {
        self.k.div_ceil(64)
    }
}

/// A tile, or a part of its steps.
#[derive(Clone, Copy)]
struct Unit {
    tile: u32,
    first: u32,
    depth: u32,
}

/// The work of a block: its share of the steps of the split tiles, and then whole tiles.
///
/// One number says how far it is, and the rest is computed again each time: it would be in
/// registers that the sums need.
#[derive(Clone, Copy)]
struct Units(u32);

impl Units {
    #[inline(always)]
    fn next(&mut self, job: &Job) -> Option<Unit> {
        let (block, blocks): (u32, u32);
        // SAFETY: The instructions only read special registers.
        unsafe {
            asm!("mov.u32 {0}, %ctaid.x;", out(reg32) block, options(nomem, nostack, preserves_flags));
            asm!("mov.u32 {0}, %nctaid.x;", out(reg32) blocks, options(nomem, nostack, preserves_flags));
        }
        let depth = job.depth();
        let mut share = 0;
        if job.split > 0 {
            // The launcher checked that the products have 32 bits.
            let steps = job.split * depth;
            let start = block * steps / blocks;
            share = (block + 1) * steps / blocks - start;
            if self.0 < share {
                let (tile, first) = ((start + self.0) / depth, (start + self.0) % depth);
                let depth = (depth - first).min(share - self.0);
                self.0 += depth;
                return Some(Unit { tile, first, depth });
            }
        }
        let tile = job.split + block + (self.0 - share) * blocks;
        self.0 += 1;
        if tile < job.tiles() { Some(Unit { tile, first: 0, depth }) } else { None }
    }
}

/// A stage of the ring and the number of times that the ring was passed, of which a barrier's phase
/// has the last bit.
#[derive(Clone, Copy)]
struct Place {
    stage: u32,
    phase: u32,
}

impl Place {
    #[inline(always)]
    fn next(&mut self) {
        self.stage += 1;
        if self.stage == STAGES {
            *self = Self { stage: 0, phase: self.phase ^ 1 };
        }
    }

    /// Passes `depth` stages.
    #[inline(always)]
    fn skip(&mut self, depth: u32) {
        let stage = self.stage + depth % STAGES;
        self.phase ^= depth / STAGES % 2;
        self.stage = stage;
        if stage >= STAGES {
            *self = Self { stage: stage - STAGES, phase: self.phase ^ 1 };
        }
    }
}

/// Computes C.
///
/// # Safety
/// - The maps are of A and B, in the layouts that `TA` and `TB` say: `k` numbers the columns
///   (false) or the rows (true). Their elements are halves if `F16` is true, and else bfloat16.
/// - `ADDS` is whether the flags have a residual or add to C.
/// - The rest of the job passed the `require` clause of the kernels, and the launch has their
///   shape.
/// - All threads of the block call this.
#[inline(always)]
pub(super) unsafe fn product<const F16: bool, const TA: bool, const TB: bool, const ADDS: bool>(
    cx: impl Cooperative,
    job: Job,
) {
    // SAFETY: The windows are inside the shared memory that the caller promises: the ring, the
    // elements that wait for their store, two barriers for each stage, and two for the turns.
    let (ring, staging, biases, barriers) = unsafe {
        (
            shared_tiles::<u16>(cx, 0),
            shared_tiles::<u16>(cx, RING_BYTES),
            shared_tiles::<f32>(cx, RING_BYTES + STAGING_BYTES),
            shared_tiles::<u64>(cx, RING_BYTES + STAGING_BYTES + BIAS_BYTES),
        )
    };
    // SAFETY: A stage has two barriers, and no other access to them is in this file.
    let full = |stage: u32| unsafe { Mbarrier::new(barriers, stage * 2) };
    // SAFETY: As for `full`.
    let empty = |stage: u32| unsafe { Mbarrier::new(barriers, stage * 2 + 1) };
    // SAFETY: The turns have the two barriers after those of the stages.
    let turn = |warpgroup: u32| unsafe { Mbarrier::new(barriers, STAGES * 2 + warpgroup) };
    if cx.rank() == 0 {
        let mut stage = 0;
        while stage < STAGES {
            // SAFETY: One thread starts each barrier once. A stage is full by one arrival and the
            // bytes that it announces, and empty by one arrival of the warpgroup that reads it.
            unsafe {
                full(stage).init(1);
                empty(stage).init(1);
            }
            stage += 1;
        }
        // SAFETY: One thread starts each barrier once. A turn begins by an arrival of the other
        // warpgroup.
        unsafe {
            turn(0).init(1);
            turn(1).init(1);
        }
        publish_barriers();
    }
    cx.barrier();

    let mut units = Units(0);
    let mut at = Place { stage: 0, phase: 0 };
    let warpgroup = cx.rank() / 128;
    if warpgroup == 0 {
        // SAFETY: The warpgroup is here. The kernels have bounds, by which a thread has 168
        // registers.
        unsafe { keep_registers::<40>() };
        if cx.rank() == 0 {
            while let Some(unit) = units.next(&job) {
                let [m0, n0, z] = job.place(unit.tile);
                let z = if job.batch == 1 { None } else { Some(z) };
                let mut i = unit.first;
                while i < unit.first + unit.depth {
                    // SAFETY: The stage's barriers were started. The wait for the phase before the
                    // first one does not wait, and later ones wait until the stage was read. The
                    // copies fill exactly the stage, whose bytes are announced. The host made maps
                    // of one matrix if the batch has one, and else of several.
                    unsafe {
                        empty(at.stage).wait(at.phase ^ 1);
                        let full = full(at.stage);
                        full.expect(STAGE_LEN * 2);
                        let to = at.stage * STAGE_LEN;
                        let mut j = 0;
                        while j < TILE / 64 {
                            let (x, y) = (i * 64, m0 + j * 64);
                            job.a.copy(ring, to + j * 4096, if TA { [y, x] } else { [x, y] }, z, full);
                            let y = n0 + j * 64;
                            let to = to + TILE * 64 + j * 4096;
                            job.b.copy(ring, to, if TB { [y, x] } else { [x, y] }, z, full);
                            j += 1;
                        }
                    }
                    at.next();
                    i += 1;
                }
            }
        }
    } else {
        // SAFETY: The warpgroup is here. With the 40 registers of each thread of the first
        // warpgroup, the registers of the block are 64512 of the multiprocessor's 65536.
        unsafe { take_registers::<232>() };
        let mine = || thread() / 128 - 1;
        let warp = || thread() / 32 - 4;
        let mut phase = warpgroup % 2; // the first turn of the first one begins without an arrival
        let mut whose = 0;
        while let Some(unit) = units.next(&job) {
            whose ^= 1;
            if mine() == whose {
                at.skip(unit.depth);
                continue;
            }
            let [m0, n0, z] = job.place(unit.tile);
            let whole = unit.depth == job.depth();
            let finish = |part: u32| {
                let warp = warp();
                let place = [m0 + part / 4 * 64 + warp % 4 * 16, n0 + part % 4 * 32, z];
                Finish::<_, F16, ADDS> { cx, job: &job, staging, biases, start: warp * 16 * 64, place }
            };
            // What is added to the first two parts is loaded while the other warpgroup multiplies,
            // or while this one does, and what is added to another part two parts before it.
            let mut added = [[0; 16]; 2];
            // SAFETY: All lanes of the warp are here. Nobody else has the elements of C of this
            // tile, if its unit is whole.
            unsafe {
                if job.flags & BIAS != 0 {
                    finish(0).fetch_bias(warp());
                }
                if ADDS {
                    added = [finish(0).added(whole), finish(1).added(whole)];
                }
            }
            // SAFETY: The barrier was started. The other warpgroup arrives once for each turn.
            unsafe { turn(mine()).wait(phase) };
            phase ^= 1;
            let (mut upper, mut lower) = (Half::ZERO, Half::ZERO);
            let mut before = at.stage;
            let mut i = 0;
            loop {
                // SAFETY: The stage is full after the wait, and it is not overwritten before
                // `release`. All threads of the warpgroup take the same path here. The sums are
                // used by `multiply` only until the waits after the loop. With two groups of
                // products for each stage, those of the stage before are done when two are under
                // way.
                unsafe {
                    full(at.stage).wait(at.phase);
                    let start = at.stage * STAGE_LEN;
                    let b = TileOperand::<TB>::new(ring, start + TILE * 64);
                    upper.multiply::<F16, TA, TB>(TileOperand::new(ring, start), b, i > 0);
                    lower.multiply::<F16, TA, TB>(TileOperand::new(ring, start + 4096), b, i > 0);
                    if i > 0 {
                        wait_products::<2>();
                        arrive(empty(before));
                    }
                }
                before = at.stage;
                at.next();
                i += 1;
                // `depth` is not 0. If the loop could be left out, `ptxas` would wait for each
                // product, because the sums would come from two places.
                if i >= unit.depth {
                    break;
                }
            }
            // SAFETY: All threads of the warpgroup are here, and these are the sums of all its
            // products.
            unsafe {
                arrive(turn(1 - mine()));
                upper.wait::<0>();
                lower.wait::<0>();
                arrive(empty(before));
            }
            if !whole {
                // SAFETY: All lanes of the warp are here, and the launcher checked the size of the
                // scratch memory.
                if !unsafe { join(cx, &job, unit, &mut upper, &mut lower) } {
                    continue;
                }
                if ADDS {
                    // SAFETY: Only the last one to join has the elements of C of this tile.
                    added = unsafe { [finish(0).added(true), finish(1).added(true)] };
                }
            }
            let mut part = 0;
            // One copy of the code finishes all pairs of parts, so that the PTX stays short.
            while part < 8 {
                let even = match part {
                    0 => upper.columns::<0>(),
                    2 => upper.columns::<2>(),
                    4 => lower.columns::<0>(),
                    _ => lower.columns::<2>(),
                };
                let bias = (warp() * 4 + part % 4) * 32;
                // SAFETY: All lanes of the warp are here, and its part of `staging` is its own: 16
                // rows of 64 elements. Nobody else has the elements of C.
                unsafe {
                    let v = finish(part).finished(even, &added[0], bias);
                    if ADDS {
                        added[0] = finish(part + 2).added(part < 6);
                    }
                    finish(part).store(v);
                    let odd = match part {
                        0 => upper.columns::<1>(),
                        2 => upper.columns::<3>(),
                        4 => lower.columns::<1>(),
                        _ => lower.columns::<3>(),
                    };
                    let v = finish(part + 1).finished(odd, &added[1], bias + 32);
                    if ADDS {
                        added[1] = finish(part + 3).added(part < 6);
                    }
                    finish(part + 1).store(v);
                }
                part += 2;
            }
        }
    }
}

/// Stores the sums of half a tile, 16 bytes of a thread after those of the thread before.
///
/// # Safety
/// There is room for them, and nobody else accesses it.
#[inline(always)]
unsafe fn put_half(cx: impl Cooperative, to: *mut f32, sums: &Half) {
    macro_rules! put {
        ($($i:literal)*) => {$(
            // SAFETY: As the caller guarantees.
            unsafe { cx.store4(to.add($i * 512), [sums[$i * 4], sums[$i * 4 + 1], sums[$i * 4 + 2], sums[$i * 4 + 3]]) };
        )*};
    }
    put!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
}

/// Replaces the sums of half a tile by those that [`put_half`] stored, or adds them.
///
/// # Safety
/// They were stored, and what was done since lets this thread see them.
#[inline(always)]
unsafe fn get_half(from: *const f32, sums: &mut Half, add: bool) {
    macro_rules! get {
        ($($i:literal)*) => {$(
            let (a, b, c, d): (f32, f32, f32, f32);
            // `load4` may read what an earlier product left in a cache.
            // SAFETY: As the caller guarantees.
            unsafe {
                asm!(
                    "ld.global.v4.f32 {{{0}, {1}, {2}, {3}}}, [{4}];",
                    out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg64) from.add($i * 512),
                    options(readonly, nostack)
                );
            }
            if add {
                sums[$i * 4] += a;
                sums[$i * 4 + 1] += b;
                sums[$i * 4 + 2] += c;
                sums[$i * 4 + 3] += d;
            } else {
                sums[$i * 4] = a;
                sums[$i * 4 + 1] = b;
                sums[$i * 4 + 2] = c;
                sums[$i * 4 + 3] = d;
            }
        )*};
    }
    get!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
}

/// Stores the sums of a part of a tile's steps. The warp that is the last one of the tile's blocks
/// to do so gets the sums of all of them, added in the order of the steps, and true.
///
/// A warp has the same elements of the tile in each block, so warps do not wait for each other.
///
/// # Safety
/// All lanes of the warp are here. The scratch memory has its size, and its counts were 0.
#[inline(always)]
unsafe fn join(cx: impl Cooperative, job: &Job, unit: Unit, upper: &mut Half, lower: &mut Half) -> bool {
    let (block, blocks) = (cx.block_idx().x, cx.grid_dim().x);
    let (depth, steps) = (job.depth(), job.split * job.depth());
    // The block that has a step. The shares begin at the steps that `Units` computes.
    let owner = |step: u32| ((step + 1) * blocks - 1) / steps;
    let (first, last) = (owner(unit.tile * depth), owner(unit.tile * depth + depth - 1));
    // A block has at most two parts: the end of a tile, and the start of a later one.
    let slot = |of: u32| {
        let at = COUNTS + (of * 2 + u32::from(of == first)) * TILE * TILE + thread() % 128 * 4;
        // SAFETY: The scratch memory has two slots for each block.
        unsafe { job.scratch.add(at as usize).cast::<f32>() }
    };
    let half = (TILE * TILE / 2) as usize;
    // SAFETY: A slot has one writer, and its readers come after all writers of the tile.
    unsafe {
        put_half(cx, slot(block), upper);
        put_half(cx, slot(block).add(half), lower);
    }
    cx.warp_barrier();
    let mut before = 0;
    // SAFETY: The scratch memory has a count for each warp of each split tile.
    let count = unsafe { job.scratch.add((unit.tile * 4 + thread() / 32 % 4) as usize) };
    if thread().is_multiple_of(32) {
        // The release publishes the sums of the warp, and the acquire lets it see those of others.
        // SAFETY: As above.
        before = unsafe { Atomic::<u32>::from_ptr(count).acq_rel().add(cx, 1) };
    }
    if cx.shuffle(before, 0) != last - first {
        return false;
    }
    cx.warp_barrier();
    // SAFETY: All parts were stored before their counts.
    unsafe {
        get_half(slot(first), upper, false);
        get_half(slot(first).add(half), lower, false);
        let mut of = first + 1;
        while of <= last {
            get_half(slot(of), upper, true);
            get_half(slot(of).add(half), lower, true);
            of += 1;
        }
    }
    true
}

/// The number of this thread in its block, read again each time, because a register that holds it
/// is one less for the sums.
#[inline(always)]
fn thread() -> u32 {
    let thread;
    // SAFETY: The instruction only reads a special register.
    unsafe { asm!("mov.u32 {0}, %tid.x;", out(reg32) thread, options(nomem, nostack, preserves_flags)) };
    thread
}

/// Says that this warpgroup has read a stage, or that the turn of the other one begins.
///
/// # Safety
/// All threads of the warpgroup are here. The barrier's phase gets one arrival.
#[inline(always)]
unsafe fn arrive(barrier: Mbarrier) {
    if thread().is_multiple_of(128) {
        // SAFETY: The barrier was started, for one arrival in each phase.
        unsafe { barrier.arrive() };
    }
}

/// Finishes the sums of a warp in 16 rows and 32 columns, and stores them.
struct Finish<'a, C, const F16: bool, const ADDS: bool> {
    cx: C,
    job: &'a Job,
    staging: SharedMemory<u16>,
    /// The bias of a tile for each warp, in `f32`.
    biases: SharedMemory<f32>,
    /// The first element of the warp's part of `staging`.
    start: u32,
    /// The first row and column, and the matrix.
    place: [u32; 3],
}

/// For 8 columns each: a lane's two neighboring elements in one row, and those 8 rows below.
type Values = [[f32; 4]; 4];

/// The bits of what belongs to [`Values`], two words for each pair: for 8 columns each, a pair in
/// one row, and one 8 rows below. Of a pair of 16-bit elements, the second word does not count.
type Bits = [u32; 16];

/// Calls `f` with 0 to 3. A loop might not be unrolled, and then its results would be in memory.
#[inline(always)]
fn four<T>(f: impl Fn(u32) -> T) -> [T; 4] {
    [f(0), f(1), f(2), f(3)]
}

impl<C: Cooperative, const F16: bool, const ADDS: bool> Finish<'_, C, F16, ADDS> {
    /// The number of this lane, read again each time: what is computed from it would else be kept
    /// in registers beside the sums, and the activations would have none for themselves.
    #[inline(always)]
    fn lane(&self) -> u32 {
        let lane;
        // SAFETY: The instruction only reads a special register.
        unsafe { asm!("mov.u32 {0}, %laneid;", out(reg32) lane, options(nomem, nostack, preserves_flags)) };
        lane
    }

    /// Loads the elements that are added: of the residual, or of C if there is none. Elements that
    /// are not in C are any others, or zeros, and so are all elements if `there` is false.
    ///
    /// # Safety
    /// Nobody else writes these elements of C.
    #[inline(always)]
    #[allow(named_asm_labels)] // PTX has no others, and these are local to the braces
    unsafe fn added(&self, there: bool) -> Bits {
        let job = self.job;
        let (p, matrix, stride) = if job.flags & RESIDUAL == 0 {
            (job.c.cast_const(), job.sc, job.ldc)
        } else {
            (job.residual, job.sr, job.ldr)
        };
        let lane = self.lane();
        let (column, last) = (self.column(lane), job.m - 1);
        let left = if there { job.n.saturating_sub(column) } else { 0 };
        let wide = job.flags & WIDE;
        let at = |row: u32| p.wrapping_byte_add(self.index(matrix, stride, row.min(last), column) << (1 + wide / WIDE));
        let (x, y) = (at(self.row(lane)), at(self.row(lane) + 8));
        let mut bits = [0; 16];
        // SAFETY: The launcher checked that the residual has an element for each of C. Row and
        // column are inside C where a pair is loaded, and so is the next column, because `n` is a
        // multiple of 8 and the column is even. For the same reason the pair begins at a multiple
        // of its size.
        //
        // The branch is in the assembly. If it was in Rust, LLVM would put both ways together by
        // instructions on what was loaded, which wait for the loads.
        unsafe {
            asm!(
                "{{ .reg .pred w, p0, p1, p2, p3; setp.ne.u32 w, {wide}, 0;",
                "setp.gt.u32 p0, {left}, 0; setp.gt.u32 p1, {left}, 8; setp.gt.u32 p2, {left}, 16; setp.gt.u32 p3, {left}, 24;",
                "mov.u32 {0}, 0; mov.u32 {1}, 0; mov.u32 {2}, 0; mov.u32 {3}, 0; mov.u32 {4}, 0; mov.u32 {5}, 0;",
                "mov.u32 {6}, 0; mov.u32 {7}, 0; mov.u32 {8}, 0; mov.u32 {9}, 0; mov.u32 {10}, 0; mov.u32 {11}, 0;",
                "mov.u32 {12}, 0; mov.u32 {13}, 0; mov.u32 {14}, 0; mov.u32 {15}, 0;",
                "@!w bra.uni narrow;",
                "@p0 ld.global.v2.u32 {{{0}, {1}}}, [{x}]; @p0 ld.global.v2.u32 {{{2}, {3}}}, [{y}];",
                "@p1 ld.global.v2.u32 {{{4}, {5}}}, [{x} + 32]; @p1 ld.global.v2.u32 {{{6}, {7}}}, [{y} + 32];",
                "@p2 ld.global.v2.u32 {{{8}, {9}}}, [{x} + 64]; @p2 ld.global.v2.u32 {{{10}, {11}}}, [{y} + 64];",
                "@p3 ld.global.v2.u32 {{{12}, {13}}}, [{x} + 96]; @p3 ld.global.v2.u32 {{{14}, {15}}}, [{y} + 96];",
                "bra.uni done;",
                "narrow:",
                "@p0 ld.global.u32 {0}, [{x}]; @p0 ld.global.u32 {2}, [{y}];",
                "@p1 ld.global.u32 {4}, [{x} + 16]; @p1 ld.global.u32 {6}, [{y} + 16];",
                "@p2 ld.global.u32 {8}, [{x} + 32]; @p2 ld.global.u32 {10}, [{y} + 32];",
                "@p3 ld.global.u32 {12}, [{x} + 48]; @p3 ld.global.u32 {14}, [{y} + 48];",
                "done: }}",
                out(reg32) bits[0], out(reg32) bits[1], out(reg32) bits[2], out(reg32) bits[3],
                out(reg32) bits[4], out(reg32) bits[5], out(reg32) bits[6], out(reg32) bits[7],
                out(reg32) bits[8], out(reg32) bits[9], out(reg32) bits[10], out(reg32) bits[11],
                out(reg32) bits[12], out(reg32) bits[13], out(reg32) bits[14], out(reg32) bits[15],
                x = in(reg64) x, y = in(reg64) y, left = in(reg32) left, wide = in(reg32) wide,
                options(readonly, nostack)
            );
        }
        bits
    }

    /// Finishes the sums. `added` is what [`added`](Self::added) returned, and `bias` the place of
    /// the first column's bias in `biases`.
    #[inline(always)]
    fn finished(&self, sums: [f32; 16], added: &Bits, bias: u32) -> Values {
        let job = self.job;
        let mut v = four(|j| {
            let e = j as usize * 4;
            [sums[e], sums[e + 1], sums[e + 2], sums[e + 3]]
        });
        if job.flags & BIAS != 0 {
            v = self.each::<BIAS>(v, self.bias(bias));
        }
        if job.flags & GELU_TANH != 0 {
            v = self.each::<GELU_TANH>(v, v);
        }
        if job.flags & GELU_ERF != 0 {
            v = self.each::<GELU_ERF>(v, v);
        }
        if ADDS {
            // One addition serves both flags, of which one is set.
            v = self.each::<RESIDUAL>(v, self.values(added));
        }
        v
    }

    /// Stores elements.
    ///
    /// # Safety
    /// All lanes of the warp call this. Nobody else accesses the warp's part of `staging` and the
    /// elements of C.
    #[inline(always)]
    unsafe fn store(&self, v: Values) {
        if self.job.flags & WIDE != 0 {
            // SAFETY: C has `f32`.
            unsafe { self.store_pairs(v) };
        } else {
            // SAFETY: The caller guarantees that the warp is here and that its part is its own.
            unsafe { self.store_rows(v) };
        }
        self.cx.warp_barrier();
    }

    /// Does one part of `finish` for each sum: what `FLAG` names. So `flags` is looked at once and
    /// not for each sum.
    #[inline(always)]
    fn each<const FLAG: u32>(&self, v: Values, more: Values) -> Values {
        four(|j| {
            let (v, more) = (v[j as usize], more[j as usize]);
            let one = |i: usize| finish(self.cx, FLAG, v[i], more[i], more[i], more[i]);
            [one(0), one(1), one(2), one(3)]
        })
    }

    /// The row of this lane's first element. The second pair is 8 rows below.
    #[inline(always)]
    fn row(&self, lane: u32) -> u32 {
        self.place[0] + lane / 4
    }

    /// The column of this lane's first element of each 8.
    #[inline(always)]
    fn column(&self, lane: u32) -> u32 {
        self.place[1] + lane % 4 * 2
    }

    /// The index of an element in a buffer.
    #[inline(always)]
    fn index(&self, matrix: u64, stride: u32, row: u32, column: u32) -> usize {
        (u64::from(self.place[2]) * matrix + u64::from(row) * u64::from(stride) + u64::from(column)) as usize
    }

    /// The elements that `added` loaded.
    #[inline(always)]
    fn values(&self, bits: &Bits) -> Values {
        let wide = self.job.flags & WIDE != 0;
        four(|j| {
            let e = j as usize * 4;
            if wide {
                [bits[e], bits[e + 1], bits[e + 2], bits[e + 3]].map(f32::from_bits)
            } else {
                let ([a, b], [c, d]) = (unpack::<F16>(bits[e]), unpack::<F16>(bits[e + 2]));
                [a, b, c, d]
            }
        })
    }

    /// Loads the bias of the tile's columns into the warp's part of `biases`. It is for the first
    /// part of the tile.
    ///
    /// # Safety
    /// All lanes of the warp call this. There is a bias.
    #[inline(always)]
    unsafe fn fetch_bias(&self, warp: u32) {
        let (cx, p) = (self.cx, self.job.bias);
        let (within, mut v) = (self.lane() * 4, [0.0; 4]);
        let column = self.place[1] + within;
        if column < self.job.n {
            // SAFETY: The launcher checked that the bias has an element for each column, and that
            // it begins at a multiple of 16 bytes. `n` is a multiple of 8, so all four columns are
            // there.
            v = unsafe {
                if self.job.flags & WIDE != 0 {
                    cx.load4(p.cast::<f32>().add(column as usize))
                } else {
                    let [ab, cd] = words(cx.load(p.add(column as usize).cast::<u64>()));
                    let ([a, b], [c, d]) = (unpack::<F16>(ab), unpack::<F16>(cd));
                    [a, b, c, d]
                }
            };
        }
        // SAFETY: The warp has 128 elements there, and has read those of the tile before.
        unsafe { cx.shared_set4(self.biases, warp * TILE + within, v) };
        cx.warp_barrier();
    }

    /// The elements of the bias that belong to the sums.
    #[inline(always)]
    fn bias(&self, at: u32) -> Values {
        let from = at + self.lane() % 4 * 2;
        four(|j| {
            // SAFETY: `fetch_bias` stored them, and the place is even.
            let [a, b] = unsafe { pair(self.biases, from + j * 8) };
            [a, b, a, b]
        })
    }

    /// Stores elements of `f32`, 8 bytes a lane.
    ///
    /// # Safety
    /// C has `f32`.
    #[inline(always)]
    unsafe fn store_pairs(&self, v: Values) {
        let (cx, job) = (self.cx, self.job);
        let lane = self.lane();
        let (row, column) = (self.row(lane), self.column(lane));
        let store = |row: u32, j: u32, low: f32, high: f32| {
            if row < job.m && column + j * 8 < job.n {
                let i = self.index(job.sc, job.ldc, row, column) + j as usize * 8;
                let bits = u64::from(low.to_bits()) | u64::from(high.to_bits()) << 32;
                // SAFETY: Row and column are inside C, and so is the next column. The column is
                // even, so the pair begins at a multiple of its size. No other thread has these
                // elements.
                unsafe { cx.store(job.c.cast::<f32>().add(i).cast::<u64>(), bits) };
            }
        };
        four(|j| {
            let [a, b, c, d] = v[j as usize];
            store(row, j, a, b);
            store(row + 8, j, c, d);
        });
    }

    /// Rounds elements to the operands' type. Stores them, with the 32 columns before, 16 bytes a
    /// lane.
    ///
    /// # Safety
    /// All lanes of the warp call this. Nobody else accesses the warp's part of `staging`.
    #[inline(always)]
    unsafe fn store_rows(&self, v: Values) {
        let (cx, job) = (self.cx, self.job);
        let lane = self.lane();
        // Rows have 8 pieces of 16 bytes. Without the exclusive or, a column of pieces would be in
        // the same banks.
        let at = |row: u32, piece: u32| self.start + row * 64 + (piece ^ row % 8) * 8;
        let words = v.map(|[a, b, c, d]| [pack::<F16>([a, b]), pack::<F16>([c, d])]);
        let piece = self.place[1] % 64 / 8 + lane / 16;
        let [[a, b], [c, d], [e, f], [g, h]] = words;
        // SAFETY: The caller guarantees that the warp is here, and that the rows are its own. These
        // are rows 0 to 7 and 8 to 15 of 8 columns, and of the next 8.
        unsafe {
            store_matrices(self.staging, at(lane % 16, piece), [a, b, c, d]);
            store_matrices(self.staging, at(lane % 16, piece + 2), [e, f, g, h]);
        }
        if self.place[1].is_multiple_of(64) {
            return; // The next 32 columns make the rows 128 bytes long.
        }
        cx.warp_barrier();
        let mut h = 0;
        while h < 4 {
            let (row, piece) = (h * 4 + lane / 8, lane % 8);
            // SAFETY: The part was written before the barrier, and is aligned for the words.
            let v = unsafe { cx.shared_get4(cx.shared_at::<u32>(self.staging.address()), at(row, piece) / 2) };
            let (row, column) = (self.place[0] + row, self.place[1] - 32 + piece * 8);
            if row < job.m && column < job.n {
                // SAFETY: The row and the column are inside C, and so are the 8 columns from it on,
                // because `n` is a multiple of 8. No other thread has them.
                unsafe { cx.store4(job.c.add(self.index(job.sc, job.ldc, row, column)).cast::<u32>(), v) };
            }
            h += 1;
        }
    }
}

/// Loads elements `i` and `i + 1` of a window with one instruction.
///
/// # Safety
/// Both are inside the window, and `i` is at a multiple of 8 bytes. A barrier is after their
/// stores.
#[inline(always)]
unsafe fn pair(s: SharedMemory<f32>, i: u32) -> [f32; 2] {
    let (low, high);
    // SAFETY: The caller guarantees that the place is in shared memory and aligned.
    unsafe {
        asm!("ld.shared.v2.f32 {{{0}, {1}}}, [{2}];", out(reg32) low, out(reg32) high, in(reg32) s.address() + i * 4, options(nostack, readonly));
    }
    [low, high]
}

/// The halves of 64 bits, the low one first.
#[inline(always)]
fn words(bits: u64) -> [u32; 2] {
    [bits as u32, (bits >> 32) as u32]
}

/// Rounds two neighboring elements to the operands' type.
#[inline(always)]
fn pack<const F16: bool>([low, high]: [f32; 2]) -> u32 {
    if F16 { f16x2::from_f32s(low, high).to_bits() } else { bf16x2::from_f32s(low, high).to_bits() }
}

#[inline(always)]
fn unpack<const F16: bool>(pair: u32) -> [f32; 2] {
    if F16 { f16x2::from_bits(pair).to_f32s() } else { bf16x2::from_bits(pair).to_f32s() }
}
