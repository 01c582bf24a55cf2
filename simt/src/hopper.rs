//! The instructions of Hopper GPUs beyond [`Cooperative`](crate::Cooperative): the copy engine for
//! tiles (TMA), barriers that count bytes (`mbarrier`), and products of a warpgroup (`wgmma`).
//!
//! The module exists only on `nvptx64`, and code that uses it is built for `sm_90a`: such PTX runs
//! on compute capability 9.0 and on nothing else. There is no body for the CPU device, so a kernel
//! declares its host side without a body.
//!
//! # A tile in shared memory
//!
//! A *tile* here is a matrix of 64 x 64 elements of 16 bits, 8192 bytes, as [`TensorMap::copy`]
//! writes it: row `r` of the box begins at byte `128 * r`, and the piece of 16 bytes with number
//! `p` of the row is at piece `p ^ (r % 8)`. The first byte is at a multiple of 1024 bytes. This is
//! the "128-byte swizzle" of the PTX ISA, and [`TileOperand`] describes it to the product.
//!
//! # Order of accesses
//!
//! The copy engine and the products access shared memory through the *async proxy*. A wait on the
//! [`Mbarrier`] of a copy makes what it wrote visible to the products and to ordinary loads. A
//! place may be written again by a copy after the products that read it were [waited
//! for](Accumulators::wait) and the waiting threads have arrived at an [`Mbarrier`] on which the
//! thread waits that starts the copy.

use core::arch::asm;
use core::marker::PhantomData;

use crate::{Cooperative, Element, SharedMemory};

/// Returns the window of shared memory that begins `byte_offset` bytes after the first multiple of
/// 1024 bytes. A block asks for 1008 bytes more than its windows need.
///
/// # Safety
/// What [`shared`](Cooperative::shared) requires holds for the window.
#[inline(always)]
pub unsafe fn shared_tiles<T: Element>(cx: impl Cooperative, byte_offset: u32) -> SharedMemory<T> {
    // SAFETY: The caller guarantees that the window, which includes the start of shared memory, is
    // inside the block's shared memory.
    let start = unsafe { cx.shared::<u8>(0) }.start;
    SharedMemory { start: start.next_multiple_of(1024) + byte_offset, element: PhantomData }
}

/// Stores elements `i` and `i + 1` of a window with one instruction.
///
/// # Safety
/// Both are inside the window, and `i` is at a multiple of 8 bytes. Nobody else accesses them until
/// a barrier.
#[inline(always)]
pub unsafe fn shared_set_pair(s: SharedMemory<f32>, i: u32, [low, high]: [f32; 2]) {
    // SAFETY: The caller guarantees that the place is in shared memory and aligned.
    unsafe {
        asm!(
            "st.shared.v2.f32 [{0}], {{{1}, {2}}};",
            in(reg32) s.start + i * 4, in(reg32) low, in(reg32) high, options(nostack)
        );
    }
}

/// Stores four matrices of 8 x 8 elements of 16 bits (`stmatrix`). Lane `8 * j + r` names row `r`
/// of matrix `j` by its first element, element `i` of the window. Word `j` has the elements of row
/// `lane / 4` and columns `2 * (lane % 4)` and the next one of matrix `j`, the first one in the low
/// half.
///
/// # Safety
/// All lanes of the warp call this. Each row is inside the window and begins at a multiple of 16
/// bytes of shared memory. Nobody else accesses the rows until a barrier.
#[inline(always)]
pub unsafe fn store_matrices(s: SharedMemory<u16>, i: u32, words: [u32; 4]) {
    let [a, b, c, d] = words;
    // SAFETY: The caller guarantees that the warp is here and that the places are in shared memory.
    unsafe {
        asm!(
            "stmatrix.sync.aligned.m8n8.x4.shared.b16 [{0}], {{{1}, {2}, {3}, {4}}};",
            in(reg32) s.start + i * 2, in(reg32) a, in(reg32) b, in(reg32) c, in(reg32) d, options(nostack)
        );
    }
}

/// A barrier in shared memory that counts arrivals of threads and bytes of copies (`mbarrier`).
///
/// It is in a *phase*, first in phase 0. A phase is complete when as many threads have arrived as
/// [`init`](Mbarrier::init) said and all bytes that were [expected](Mbarrier::expect) have been
/// written; then the next phase begins.
#[derive(Clone, Copy, Debug)]
pub struct Mbarrier(u32);

impl Mbarrier {
    /// Names element `i` of a window as a barrier.
    ///
    /// # Safety
    /// The element is inside the window, and only barrier operations access it.
    #[inline(always)]
    pub unsafe fn new(s: SharedMemory<u64>, i: u32) -> Self {
        Self(s.start + i * 8)
    }

    /// Starts the barrier. Other threads may use it after [`publish_barriers`] and a barrier of the
    /// block.
    ///
    /// # Safety
    /// One thread calls this, once, and `arrivals` is from 1 to 2^20 - 1.
    #[inline(always)]
    pub unsafe fn init(self, arrivals: u32) {
        // SAFETY: The barrier's place is in shared memory, by the contract of `new`.
        unsafe {
            asm!("mbarrier.init.shared::cta.b64 [{0}], {1};", in(reg32) self.0, in(reg32) arrivals, options(nostack));
        }
    }

    /// Arrives, after announcing that copies of so many bytes will report to this barrier in its
    /// phase.
    ///
    /// # Safety
    /// The barrier was started. The phase gets no more arrivals than [`init`](Mbarrier::init) said,
    /// and copies of exactly so many bytes report to it.
    #[inline(always)]
    pub unsafe fn expect(self, bytes: u32) {
        // SAFETY: The barrier's place is in shared memory, by the contract of `new`.
        unsafe {
            asm!("mbarrier.arrive.expect_tx.shared::cta.b64 _, [{0}], {1};", in(reg32) self.0, in(reg32) bytes, options(nostack));
        }
    }

    /// Arrives.
    ///
    /// # Safety
    /// The barrier was started, and the phase gets no more arrivals than [`init`](Mbarrier::init)
    /// said.
    #[inline(always)]
    pub unsafe fn arrive(self) {
        // SAFETY: The barrier's place is in shared memory, by the contract of `new`.
        unsafe {
            asm!("mbarrier.arrive.shared::cta.b64 _, [{0}];", in(reg32) self.0, options(nostack));
        }
    }

    /// Waits until the current phase is complete if `parity` is that of its number. Returns at once
    /// if `parity` is the other one: so a wait for parity 1 on a new barrier does not wait.
    ///
    /// # Safety
    /// The barrier was started, and it is at most one phase behind the one that the caller waits
    /// for.
    #[inline(always)]
    pub unsafe fn wait(self, parity: u32) {
        loop {
            let done: u32;
            // SAFETY: The barrier's place is in shared memory, by the contract of `new`.
            unsafe {
                asm!(
                    "{{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [{1}], {2}; selp.u32 {0}, 1, 0, p; }}",
                    out(reg32) done, in(reg32) self.0, in(reg32) parity, options(nostack)
                );
            }
            if done != 0 {
                break;
            }
        }
    }
}

/// Gives registers of this warpgroup back: each thread keeps `COUNT`.
///
/// # Safety
/// - All 128 threads of a warpgroup call this, and the declaration has [`bounds`](crate::kernel!).
/// - `COUNT` is a multiple of 8 from 24 to 256 and not above the registers that a thread has.
#[inline(always)]
pub unsafe fn keep_registers<const COUNT: u32>() {
    // SAFETY: The caller guarantees that the whole warpgroup is here, and how many registers it
    // has.
    unsafe { asm!("setmaxnreg.dec.sync.aligned.u32 {n};", n = const COUNT, options(nostack)) };
}

/// Takes more registers for this warpgroup, so that each thread has `COUNT`. It waits until others
/// have [given](keep_registers) so many back.
///
/// # Safety
/// - All 128 threads of a warpgroup call this, and the declaration has [`bounds`](crate::kernel!).
/// - `COUNT` is a multiple of 8 from 24 to 256 and not below the registers that a thread has. The
///   registers of all warpgroups fit into the multiprocessor.
#[inline(always)]
pub unsafe fn take_registers<const COUNT: u32>() {
    // SAFETY: The caller guarantees that the whole warpgroup is here, and that there are registers.
    unsafe { asm!("setmaxnreg.inc.sync.aligned.u32 {n};", n = const COUNT, options(nostack)) };
}

/// Makes the start of barriers visible to the copy engine and to the other threads that wait at the
/// next barrier of the block.
#[inline(always)]
pub fn publish_barriers() {
    // SAFETY: A fence only orders memory accesses.
    unsafe { asm!("fence.mbarrier_init.release.cluster;", options(nostack)) };
}

/// Matrices in device memory as the copy engine sees them. `Launch::tensor_map` of the host makes
/// the map, and the kernel takes it by value.
#[derive(Clone, Copy, Debug)]
pub struct TensorMap(u64);

impl TensorMap {
    /// Names the map at this generic address.
    ///
    /// # Safety
    /// The address is a multiple of 64, and a map that the host made is there, in a parameter of
    /// the kernel.
    #[inline(always)]
    pub unsafe fn new(address: u64) -> Self {
        Self(address)
    }

    /// Starts a copy of the box of 64 x 64 elements whose first element is in column `x` and row
    /// `y` of matrix `z`, if the map is of several, to element `i` of a window. The elements of the
    /// box that are outside the matrix are written as zeros. The copy reports 8192 bytes to
    /// `barrier`.
    ///
    /// # Safety
    /// - The place of the box is inside the window and begins at a multiple of 1024 bytes of shared
    ///   memory.
    /// - Until the wait on `barrier`, nobody else accesses the place, and nobody writes the matrix.
    /// - `barrier` expects these bytes in its current phase.
    /// - `z` is `None` if the map is of one matrix, and else a number.
    #[inline(always)]
    pub unsafe fn copy(self, s: SharedMemory<u16>, i: u32, [x, y]: [u32; 2], z: Option<u32>, barrier: Mbarrier) {
        // SAFETY: `new` says what the map is, and the caller what the place is.
        unsafe {
            let Some(z) = z else {
                asm!(
                    "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [{0}], [{1}, {{{2}, {3}}}], [{4}];",
                    in(reg32) s.start + i * 2, in(reg64) self.0, in(reg32) x, in(reg32) y, in(reg32) barrier.0,
                    options(nostack)
                );
                return;
            };
            asm!(
                "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [{0}], [{1}, {{{2}, {3}, {4}}}], [{5}];",
                in(reg32) s.start + i * 2, in(reg64) self.0, in(reg32) x, in(reg32) y, in(reg32) z, in(reg32) barrier.0,
                options(nostack)
            );
        }
    }
}

/// Tiles in shared memory as an operand of a product.
///
/// The product's depth `k` runs through the 64 elements of a row (`k` is contiguous), or through
/// the rows (`T`, transposed).
#[derive(Clone, Copy, Debug)]
pub struct TileOperand<const T: bool>(u64);

impl<const T: bool> TileOperand<T> {
    /// Names the tiles that begin at element `i` of a window: one for 64 rows of A, `N / 64` one
    /// after another for the `N` columns of B.
    #[inline(always)]
    #[must_use]
    pub fn new(s: SharedMemory<u16>, i: u32) -> Self {
        // The fields, each in units of 16 bytes: the address; the distance of tiles if k is not
        // contiguous; the distance of 8 rows; and 1 for the swizzle of 128 bytes.
        let (tiles, rows) = if T { (8192 / 16, 1024 / 16) } else { (1, 1024 / 16) };
        let address = u64::from((s.start + i * 2) / 16 & 0x3fff);
        Self(address | tiles << 16 | rows << 32 | 1 << 62)
    }
}

mod sealed {
    pub trait Sealed {}
}

/// The sums that a thread of a warpgroup holds: its part of a matrix of 64 x `COLUMNS`.
///
/// With `l = lane % 4`, `g = lane / 4` and `w` the number of the warp in its warpgroup, element
/// `4 * j + e` is in row `16 * w + g + 8 * (e / 2)` and column `8 * j + 2 * l + e % 2`.
pub trait Accumulators: sealed::Sealed + Copy {
    /// The columns of the matrix.
    const COLUMNS: u32;
    /// Accumulators that are zero.
    const ZERO: Self;

    /// Adds the product of a tile of A, with 64 rows, and the tiles of B: 64 steps of `k`. The
    /// elements are IEEE halves if `F16` is true, and else bfloat16. With `add` false, the sums are
    /// overwritten instead. The four products run beside the kernel as one group.
    ///
    /// # Safety
    /// - All 128 threads of a warpgroup call this with the same operands.
    /// - The operands' tiles hold what was waited for, and nobody writes them until
    ///   [`wait`](Accumulators::wait).
    /// - Until then, the sums are used by nothing else but this function.
    unsafe fn multiply<const F16: bool, const TA: bool, const TB: bool>(
        &mut self,
        a: TileOperand<TA>,
        b: TileOperand<TB>,
        add: bool,
    );

    /// Waits until at most `PENDING` groups of this warpgroup are under way. The sums of the others
    /// are complete.
    ///
    /// # Safety
    /// All 128 threads of a warpgroup call this. `self` are the sums of all groups that are under
    /// way.
    unsafe fn wait<const PENDING: u32>(&mut self);

    /// Returns elements `16 * I` to `16 * I + 15`: the columns from `32 * I` on.
    fn columns<const I: usize>(&self) -> [f32; 16];
}

/// Waits until at most `PENDING` groups of products of this warpgroup are under way, and leaves the
/// sums alone. It tells when tiles may be written again.
///
/// # Safety
/// All 128 threads of a warpgroup call this.
#[inline(always)]
pub unsafe fn wait_products<const PENDING: u32>() {
    // SAFETY: The caller guarantees that the whole warpgroup is here.
    unsafe { asm!("wgmma.wait_group.sync.aligned {p};", p = const PENDING, options(nostack)) };
}

/// One step of 64 in `k`. It is one `asm!`, so that nothing comes between the products: `ptxas`
/// would wait for one before it starts the next.
macro_rules! multiply {
    ($n:literal, $kind:literal, $registers:expr, [$($i:literal)*], $d:ident, $a:ident, $b:ident, $add:ident) => {
        asm!(
            concat!(
                "{{ .reg .pred p; .reg .b64 a1, a2, a3, b1, b2, b3; setp.ne.b32 p, {add}, 0;\n",
                "add.s64 a1, {a}, {sa}; add.s64 a2, a1, {sa}; add.s64 a3, a2, {sa};\n",
                "add.s64 b1, {b}, {sb}; add.s64 b2, b1, {sb}; add.s64 b3, b2, {sb};\n",
                "wgmma.fence.sync.aligned;\n",
                "wgmma.mma_async.sync.aligned.m64n", $n, "k16.f32.", $kind, ".", $kind, " {{", $registers, "}}, {a}, {b}, p, 1, 1, {ta}, {tb};\n",
                "wgmma.mma_async.sync.aligned.m64n", $n, "k16.f32.", $kind, ".", $kind, " {{", $registers, "}}, a1, b1, 1, 1, 1, {ta}, {tb};\n",
                "wgmma.mma_async.sync.aligned.m64n", $n, "k16.f32.", $kind, ".", $kind, " {{", $registers, "}}, a2, b2, 1, 1, 1, {ta}, {tb};\n",
                "wgmma.mma_async.sync.aligned.m64n", $n, "k16.f32.", $kind, ".", $kind, " {{", $registers, "}}, a3, b3, 1, 1, 1, {ta}, {tb};\n",
                "wgmma.commit_group.sync.aligned; }}"
            ),
            $(inout(reg32) $d[$i],)*
            a = in(reg64) $a.0,
            b = in(reg64) $b.0,
            add = in(reg32) u32::from($add),
            ta = const TA as u32,
            tb = const TB as u32,
            // 16 steps of k are 32 bytes of a row, or 16 rows.
            sa = const if TA { 16 * 128 / 16 } else { 32 / 16 },
            sb = const if TB { 16 * 128 / 16 } else { 32 / 16 },
            options(nostack)
        )
    };
}

macro_rules! sums {
    ($n:literal, $len:literal, $registers:expr, $all:tt [$($i:literal)*]) => {
        impl sealed::Sealed for [f32; $len] {}
        impl Accumulators for [f32; $len] {
            const COLUMNS: u32 = $len * 2;
            const ZERO: Self = [0.0; $len];

            #[inline(always)]
            unsafe fn multiply<const F16: bool, const TA: bool, const TB: bool>(
                &mut self,
                a: TileOperand<TA>,
                b: TileOperand<TB>,
                add: bool,
            ) {
                // SAFETY: The caller guarantees that the whole warpgroup is here with the same
                // operands, and what their tiles hold.
                unsafe {
                    if F16 {
                        multiply!($n, "f16", $registers, $all, self, a, b, add);
                    } else {
                        multiply!($n, "bf16", $registers, $all, self, a, b, add);
                    }
                }
            }

            #[inline(always)]
            unsafe fn wait<const PENDING: u32>(&mut self) {
                // The sums are operands, so that the compiler reads none of them before the wait.
                // SAFETY: The caller guarantees that the whole warpgroup is here.
                unsafe {
                    asm!(
                        concat!("wgmma.wait_group.sync.aligned {p}; //", $registers),
                        $(inout(reg32) self[$i],)*
                        p = const PENDING,
                        options(nostack)
                    );
                }
            }

            #[inline(always)]
            fn columns<const I: usize>(&self) -> [f32; 16] {
                const { assert!(I < $len / 16, "there are fewer columns") };
                // Each index is a constant. A loop would put the sums into memory.
                let [a, b, c, d] = [I * 16, I * 16 + 4, I * 16 + 8, I * 16 + 12];
                [
                    self[a], self[a + 1], self[a + 2], self[a + 3], self[b], self[b + 1], self[b + 2], self[b + 3],
                    self[c], self[c + 1], self[c + 2], self[c + 3], self[d], self[d + 1], self[d + 2], self[d + 3],
                ]
            }
        }
    };
}
sums! {
    "128", 64,
    concat!(
        "{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}, {10}, {11}, {12}, {13}, {14}, {15}, {16}, ",
        "{17}, {18}, {19}, {20}, {21}, {22}, {23}, {24}, {25}, {26}, {27}, {28}, {29}, {30}, {31}, {32}, ",
        "{33}, {34}, {35}, {36}, {37}, {38}, {39}, {40}, {41}, {42}, {43}, {44}, {45}, {46}, {47}, {48}, ",
        "{49}, {50}, {51}, {52}, {53}, {54}, {55}, {56}, {57}, {58}, {59}, {60}, {61}, {62}, {63}"
    ),
    [
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36
        37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63
    ]
    [
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36
        37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63
    ]
}
sums! {
    "256", 128,
    concat!(
        "{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}, {10}, {11}, {12}, {13}, {14}, {15}, {16}, ",
        "{17}, {18}, {19}, {20}, {21}, {22}, {23}, {24}, {25}, {26}, {27}, {28}, {29}, {30}, {31}, {32}, ",
        "{33}, {34}, {35}, {36}, {37}, {38}, {39}, {40}, {41}, {42}, {43}, {44}, {45}, {46}, {47}, {48}, ",
        "{49}, {50}, {51}, {52}, {53}, {54}, {55}, {56}, {57}, {58}, {59}, {60}, {61}, {62}, {63}, {64}, ",
        "{65}, {66}, {67}, {68}, {69}, {70}, {71}, {72}, {73}, {74}, {75}, {76}, {77}, {78}, {79}, {80}, ",
        "{81}, {82}, {83}, {84}, {85}, {86}, {87}, {88}, {89}, {90}, {91}, {92}, {93}, {94}, {95}, {96}, ",
        "{97}, {98}, {99}, {100}, {101}, {102}, {103}, {104}, {105}, {106}, {107}, {108}, {109}, {110}, ",
        "{111}, {112}, {113}, {114}, {115}, {116}, {117}, {118}, {119}, {120}, {121}, {122}, {123}, ",
        "{124}, {125}, {126}, {127}"
    ),
    [
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36
        37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64 65 66 67 68 69 70
        71 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86 87 88 89 90 91 92 93 94 95 96 97 98 99 100 101 102
        103 104 105 106 107 108 109 110 111 112 113 114 115 116 117 118 119 120 121 122 123 124 125 126 127
    ]
    [
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36
        37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64 65 66 67 68 69 70
        71 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86 87 88 89 90 91 92 93 94 95 96 97 98 99 100 101 102
        103 104 105 106 107 108 109 110 111 112 113 114 115 116 117 118 119 120 121 122 123 124 125 126 127
    ]
}
