//! The product on Hopper's tensor cores (`wgmma`), for matrices of 16-bit elements.
//!
//! ```text
//! each block, for its tiles of C (128 x 128), in an order that keeps neighbours in L2:
//!     warpgroup 0, one thread:  for each 64 of k: wait until a stage is empty, start the copies of
//!                               A (128 x 64) and B (64 x 128) into it
//!     warpgroups 1 and 2, in turns, a tile each:
//!                               for each 64 of k: wait until the stage is full, multiply A with B into
//!                               registers; when the products before are done, the stage before is empty
//!                               let the other one multiply, finish the sums and store the tile
//! ```
//!
//! Launch: 384 threads, one block for each multiprocessor, 209 KiB of shared memory. One warpgroup
//! stores its tile while the other one multiplies, and the copies are ahead by as many stages as
//! shared memory holds. The 128 sums of a thread need more registers than a third of the
//! multiprocessor's, so the first warpgroup gives most of its own away (`setmaxnreg`).
//!
//! A thread has pairs of neighbouring columns. Elements of 16 bits go through shared memory to be
//! stored: stores of 4 bytes reach 70 % of the speed of stores of 16 bytes. A warp has its own part of
//! it, so warps do not wait for each other. Pairs of `f32` fill a sector of 32 bytes with their
//! neighbours, and are stored as they are.
//!
//! Clusters of two blocks which share the copies of B were tried and are slower (70 %).

use thalweg_simt::hopper::{
    Mbarrier, Operand, Sums, TileMap, keep_registers, publish_barriers, shared_tiles, store_matrices, take_registers,
    wait_products,
};
use thalweg_simt::{Cooperative, Shared, bf16x2, f16x2};

use super::{RING_BYTES, STAGING_BYTES, TILE};
use crate::linear::epilogue::{ACCUMULATE, BIAS, GELU_ERF, GELU_TANH, RESIDUAL, WIDE, finish};

/// The parameters of a launch.
#[derive(Clone, Copy)]
pub(super) struct Job {
    pub(super) a: TileMap,
    pub(super) b: TileMap,
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
/// - The maps are of A and B, in the layouts that `TA` and `TB` say: `k` numbers the columns (false) or
///   the rows (true). Their elements are halves if `F16` is true, and else bfloat16.
/// - The rest of the job passed the `require` clause of the kernels, and the launch has their shape.
/// - All threads of the block call this.
#[inline(always)]
pub(super) unsafe fn product<const F16: bool, const TA: bool, const TB: bool>(cx: impl Cooperative, job: Job) {
    // SAFETY: The windows are inside the shared memory that the caller promises: the ring, the
    // elements that wait for their store, two barriers for each stage, and two for the turns.
    let (ring, staging, barriers) = unsafe {
        (
            shared_tiles::<u16>(cx, 0),
            shared_tiles::<u16>(cx, RING_BYTES),
            shared_tiles::<u64>(cx, RING_BYTES + STAGING_BYTES),
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

    let tiles = job.tiles();
    let (first, step) = (cx.block_idx().x, cx.grid_dim().x);
    let depth = job.k.div_ceil(64);
    let mut at = Place { stage: 0, phase: 0 };
    let warpgroup = cx.rank() / 128;
    if warpgroup == 0 {
        // SAFETY: The warpgroup is here. The kernels have bounds, by which a thread has 168 registers.
        unsafe { keep_registers::<24>() };
        if cx.rank() == 0 {
            let mut tile = first;
            while tile < tiles {
                let [m0, n0, z] = job.place(tile);
                let z = if job.batch == 1 { None } else { Some(z) };
                let mut i = 0;
                while i < depth {
                    // SAFETY: The stage's barriers were started. The wait for the phase before the
                    // first one does not wait, and later ones wait until the stage was read. The
                    // copies fill exactly the stage, whose bytes are announced. The host made maps of
                    // one matrix if the batch has one, and else of several.
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
                tile += step;
            }
        }
    } else {
        // SAFETY: The warpgroup is here. With the 24 registers of each thread of the first warpgroup,
        // the registers of the block are 64512 of the multiprocessor's 65536.
        unsafe { take_registers::<240>() };
        let mine = warpgroup - 1;
        let mut phase = warpgroup % 2; // the first turn of the first one begins without an arrival
        if mine == 1 {
            at.skip(depth);
        }
        let mut tile = first + mine * step;
        while tile < tiles {
            let [m0, n0, z] = job.place(tile);
            // SAFETY: The barrier was started. The other warpgroup arrives once for each turn.
            unsafe { turn(mine).wait(phase) };
            phase ^= 1;
            let (mut upper, mut lower) = (Half::ZERO, Half::ZERO);
            let mut before = at.stage;
            let mut i = 0;
            loop {
                // SAFETY: The stage is full after the wait, and it is not overwritten before
                // `release`. All threads of the warpgroup take the same path here. The sums are used
                // by `multiply` only until the waits after the loop. With two groups of products for
                // each stage, those of the stage before are done when two are under way.
                unsafe {
                    full(at.stage).wait(at.phase);
                    let start = at.stage * STAGE_LEN;
                    let b = Operand::<TB>::new(ring, start + TILE * 64);
                    upper.multiply::<F16, TA, TB>(Operand::new(ring, start), b, i > 0);
                    lower.multiply::<F16, TA, TB>(Operand::new(ring, start + 4096), b, i > 0);
                    if i > 0 {
                        wait_products::<2>();
                        arrive(cx, empty(before));
                    }
                }
                before = at.stage;
                at.next();
                i += 1;
                // `depth` is not 0. If the loop could be left out, `ptxas` would wait for each
                // product, because the sums would come from two places.
                if i >= depth {
                    break;
                }
            }
            let warp = cx.warp() - 4;
            let finish = |part: u32| {
                let place = [m0 + part / 4 * 64 + warp % 4 * 16, n0 + part % 4 * 32, z];
                Finish::<_, F16> { cx, job: &job, staging, start: warp * 16 * 64, place }
            };
            // What is added to a part is loaded before the part before is finished.
            let mut next = [[[0; 2]; 2]; 4];
            // SAFETY: All threads of the warpgroup are here, and these are the sums of all its products.
            // Nobody else has the elements of C of this tile.
            unsafe {
                arrive(cx, turn(1 - mine));
                if finish(0).adds() {
                    next = finish(0).added();
                }
                upper.wait::<0>();
                lower.wait::<0>();
                arrive(cx, empty(before));
            }
            let mut part = 0;
            // One copy of the code finishes all parts, so that the PTX stays short.
            while part < 8 {
                let sums = match part {
                    0 => upper.columns::<0>(),
                    1 => upper.columns::<1>(),
                    2 => upper.columns::<2>(),
                    3 => upper.columns::<3>(),
                    4 => lower.columns::<0>(),
                    5 => lower.columns::<1>(),
                    6 => lower.columns::<2>(),
                    _ => lower.columns::<3>(),
                };
                let added = next;
                // SAFETY: All lanes of the warp are here, and its part of `staging` is its own: 16 rows
                // of 64 elements. Nobody else has the elements of C.
                unsafe {
                    if finish(0).adds() {
                        next = finish((part + 1).min(7)).added();
                    }
                    finish(part).all(sums, added);
                }
                part += 1;
            }
            at.skip(depth);
            tile += 2 * step;
        }
    }
}

/// Says that this warpgroup has read a stage, or that the turn of the other one begins.
///
/// # Safety
/// All threads of the warpgroup are here. The barrier's phase gets one arrival.
#[inline(always)]
unsafe fn arrive(cx: impl Cooperative, barrier: Mbarrier) {
    if cx.rank().is_multiple_of(128) {
        // SAFETY: The barrier was started, for one arrival in each phase.
        unsafe { barrier.arrive() };
    }
}

/// Finishes the sums of a warp in 16 rows and 32 columns, and stores them.
struct Finish<'a, C, const F16: bool> {
    cx: C,
    job: &'a Job,
    staging: Shared<u16>,
    /// The first element of the warp's part of `staging`.
    start: u32,
    /// The first row and column, and the matrix.
    place: [u32; 3],
}

/// For 8 columns each: a lane's two neighbouring elements in one row, and those 8 rows below.
type Values = [[f32; 4]; 4];

/// The bits of what belongs to [`Values`]: for 8 columns each, a pair in one row, and one 8 rows below. A
/// pair of 16-bit elements is one word.
type Bits = [[[u32; 2]; 2]; 4];

/// Calls `f` with 0 to 3. A loop might not be unrolled, and then its results would be in memory.
#[inline(always)]
fn four<T>(f: impl Fn(u32) -> T) -> [T; 4] {
    [f(0), f(1), f(2), f(3)]
}

impl<C: Cooperative, const F16: bool> Finish<'_, C, F16> {
    /// Whether elements of a residual or of C are added.
    #[inline(always)]
    fn adds(&self) -> bool {
        self.job.flags & (RESIDUAL | ACCUMULATE) != 0
    }

    /// Loads the elements that are added: of the residual, or of C if there is none. Elements that are
    /// not in C are any others.
    ///
    /// # Safety
    /// Nobody else writes these elements of C.
    #[inline(always)]
    unsafe fn added(&self) -> Bits {
        let job = self.job;
        // SAFETY: The launcher checked that the residual has an element for each of C.
        unsafe {
            if job.flags & RESIDUAL == 0 {
                self.load(job.c, job.sc, job.ldc)
            } else {
                self.load(job.residual, job.sr, job.ldr)
            }
        }
    }

    /// Finishes and stores the sums. `added` is what [`added`](Self::added) returned.
    ///
    /// # Safety
    /// All lanes of the warp call this. Nobody else accesses the warp's part of `staging` and the
    /// elements of C.
    #[inline(always)]
    unsafe fn all(&self, sums: [f32; 16], added: Bits) {
        let (cx, job) = (self.cx, self.job);
        let mut v = four(|j| {
            let e = j as usize * 4;
            [sums[e], sums[e + 1], sums[e + 2], sums[e + 3]]
        });
        if job.flags & BIAS != 0 {
            v = self.each::<BIAS>(v, self.bias());
        }
        if job.flags & GELU_TANH != 0 {
            v = self.each::<GELU_TANH>(v, v);
        }
        if job.flags & GELU_ERF != 0 {
            v = self.each::<GELU_ERF>(v, v);
        }
        if self.adds() {
            // One addition serves both flags.
            v = self.each::<RESIDUAL>(v, self.values(added));
        }
        if job.flags & (RESIDUAL | ACCUMULATE) == RESIDUAL | ACCUMULATE {
            // SAFETY: The elements are those of C, and the caller guarantees that they are this lane's.
            let old = unsafe { self.load(job.c, job.sc, job.ldc) };
            v = self.each::<ACCUMULATE>(v, self.values(old));
        }
        if job.flags & WIDE != 0 {
            // SAFETY: C has `f32`.
            unsafe { self.store_pairs(v) };
        } else {
            // SAFETY: The caller guarantees that the warp is here and that its part is its own.
            unsafe { self.store_rows(v) };
        }
        cx.warp_barrier();
    }

    /// Does one part of `finish` for each sum: what `FLAG` names. So `flags` is looked at once and not
    /// for each sum.
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
    fn row(&self) -> u32 {
        self.place[0] + self.cx.lane() / 4
    }

    /// The column of this lane's first element of each 8.
    #[inline(always)]
    fn column(&self) -> u32 {
        self.place[1] + self.cx.lane() % 4 * 2
    }

    /// The index of an element in a buffer.
    #[inline(always)]
    fn index(&self, matrix: u64, stride: u32, row: u32, column: u32) -> usize {
        (u64::from(self.place[2]) * matrix + u64::from(row) * u64::from(stride) + u64::from(column)) as usize
    }

    /// The column of this lane's first element of group `j`, or, if that is not in C, of another one.
    #[inline(always)]
    fn column_inside(&self, j: u32) -> u32 {
        let column = self.column() + j * 8;
        if column < self.job.n { column } else { column % 8 }
    }

    /// Loads what belongs to the sums from a buffer of C's type. For elements that are not in C, it
    /// loads others: with branches, each load would wait for the one before.
    ///
    /// # Safety
    /// The buffer has an element for each of C, if it has this stride.
    #[inline(always)]
    unsafe fn load(&self, p: *const u16, matrix: u64, stride: u32) -> Bits {
        let (cx, last) = (self.cx, self.job.m - 1);
        let at = |row: u32, j: u32| self.index(matrix, stride, row.min(last), self.column_inside(j));
        let both = |j: u32| [at(self.row(), j), at(self.row() + 8, j)];
        // SAFETY: Row and column are inside C, and so is the next column, because `n` is a multiple of 8
        // and the column is even. For the same reason the pair begins at a multiple of its size.
        unsafe {
            if self.job.flags & WIDE != 0 {
                four(|j| both(j).map(|i| words(cx.load(p.cast::<f32>().add(i).cast::<u64>()))))
            } else {
                four(|j| both(j).map(|i| [cx.load(p.add(i).cast::<u32>()), 0]))
            }
        }
    }

    /// The elements that `load` loaded.
    #[inline(always)]
    fn values(&self, bits: Bits) -> Values {
        let wide = self.job.flags & WIDE != 0;
        four(|j| {
            let [[a, b], [c, d]] = bits[j as usize]
                .map(|[low, high]| if wide { [f32::from_bits(low), f32::from_bits(high)] } else { unpack::<F16>(low) });
            [a, b, c, d]
        })
    }

    /// The elements of the bias that belong to the sums.
    #[inline(always)]
    fn bias(&self) -> Values {
        let (cx, p) = (self.cx, self.job.bias);
        let wide = self.job.flags & WIDE != 0;
        let at = |j: u32| self.column_inside(j) as usize;
        // SAFETY: The launcher checked that the bias has an element for each column, and that it begins
        // at a multiple of 16 bytes. The columns are even.
        let bits = unsafe {
            if wide {
                four(|j| words(cx.load(p.cast::<f32>().add(at(j)).cast::<u64>())))
            } else {
                four(|j| [cx.load(p.add(at(j)).cast::<u32>()), 0])
            }
        };
        self.values(bits.map(|pair| [pair; 2]))
    }

    /// Stores elements of `f32`, 8 bytes a lane.
    ///
    /// # Safety
    /// C has `f32`.
    #[inline(always)]
    unsafe fn store_pairs(&self, v: Values) {
        let (cx, job) = (self.cx, self.job);
        let (row, column) = (self.row(), self.column());
        let store = |row: u32, j: u32, low: f32, high: f32| {
            if row < job.m && column + j * 8 < job.n {
                let i = self.index(job.sc, job.ldc, row, column) + j as usize * 8;
                let bits = u64::from(low.to_bits()) | u64::from(high.to_bits()) << 32;
                // SAFETY: Row and column are inside C, and so is the next column. The column is even, so
                // the pair begins at a multiple of its size. No other thread has these elements.
                unsafe { cx.store(job.c.cast::<f32>().add(i).cast::<u64>(), bits) };
            }
        };
        four(|j| {
            let [a, b, c, d] = v[j as usize];
            store(row, j, a, b);
            store(row + 8, j, c, d);
        });
    }

    /// Rounds elements to the operands' type. Stores them, with the 32 columns before, 16 bytes a lane.
    ///
    /// # Safety
    /// All lanes of the warp call this. Nobody else accesses the warp's part of `staging`.
    #[inline(always)]
    unsafe fn store_rows(&self, v: Values) {
        let (cx, job) = (self.cx, self.job);
        let lane = cx.lane();
        // Rows have 8 pieces of 16 bytes. Without the exclusive or, a column of pieces would be in the
        // same banks.
        let at = |row: u32, piece: u32| self.start + row * 64 + (piece ^ row % 8) * 8;
        let words = v.map(|[a, b, c, d]| [pack::<F16>([a, b]), pack::<F16>([c, d])]);
        let piece = self.place[1] % 64 / 8 + lane / 16;
        let [[a, b], [c, d], [e, f], [g, h]] = words;
        // SAFETY: The caller guarantees that the warp is here, and that the rows are its own. These are
        // rows 0 to 7 and 8 to 15 of 8 columns, and of the next 8.
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

/// The halves of 64 bits, the low one first.
#[inline(always)]
fn words(bits: u64) -> [u32; 2] {
    [bits as u32, (bits >> 32) as u32]
}

/// Rounds two neighbouring elements to the operands' type.
#[inline(always)]
fn pack<const F16: bool>([low, high]: [f32; 2]) -> u32 {
    if F16 { f16x2::from_f32s(low, high).to_bits() } else { bf16x2::from_f32s(low, high).to_bits() }
}

#[inline(always)]
fn unpack<const F16: bool>(pair: u32) -> [f32; 2] {
    if F16 { f16x2::from_bits(pair).to_f32s() } else { bf16x2::from_bits(pair).to_f32s() }
}
