//! Constants in the clauses of a declaration.

use thalweg_simt::cpu::{BlockWorkspace, CheckedLaunch};
use thalweg_simt::host::{Kernel, Launch, LaunchError, LaunchShape};
use thalweg_simt::kernel;

use super::here::{Failed, Here, slice_mut};

const BLOCK: u32 = 64;
const CHANNELS: u8 = 3;
const WORDS: usize = 4;
const BIG: u32 = u32::MAX;
const LIMIT: i64 = -2;
const SCALE: f32 = 0.5;
const STRICT: bool = true;
const SIDES: [u16; 3] = [7, 8, 9];
static ROWS: u64 = 5;
#[expect(clippy::upper_case_acronyms, reason = "it looks like a constant and is a type")]
type WIDE = f64;

mod layout {
    pub(super) struct Layout {
        pub(super) tile: u16,
    }
    pub(super) const LAYOUT: Layout = Layout { tile: 16 };
}

struct Tile;
impl Tile {
    const EDGE: u16 = 8;
}

trait Edge {
    const EDGE: u128;
}
impl Edge for Tile {
    const EDGE: u128 = 6;
}

fn twice(n: u128) -> u128 {
    2 * n
}

/// Keeps the shape of the launch.
#[derive(Default)]
struct Look(std::cell::Cell<Option<LaunchShape>>);

// SAFETY: It has no maps.
unsafe impl Launch<()> for Look {
    type Error = LaunchError;
    unsafe fn launch(&self, _: &'static Kernel, shape: LaunchShape, _: &[u64]) -> Result<(), LaunchError> {
        self.0.set(Some(shape));
        Ok(())
    }
}

kernel! {
    unsafe fn of_every_type(cx: impl Simt, n: u32, k: i32, a: f32, x: Out<u8>)
    require {
        x.len() == n * CHANNELS,
        (1..=BIG).contains(&n),
        n <= BIG * BIG,
        BLOCK <= n,
        BLOCK != n,
        k > LIMIT,
        a < SCALE,
        STRICT || n == 0,
        matches!(n, 64..=4096),
        SIDES.len() == 3,
        n >= SIDES[2] + SIDES[0],
        n.is_multiple_of(Tile::EDGE),
        n.is_multiple_of(crate::cpu::clauses::layout::LAYOUT.tile),
        n > <Tile as Edge>::EDGE,
        { const HERE: u32 = 3; HERE == 3 },
    }
    grid(n.div_ceil(BLOCK), ROWS, twice(CHANNELS)) block(BLOCK) shared(BLOCK * WORDS + size_of::<WIDE>() as u128)
    {}
}

#[test]
fn constants_of_every_type_mix_with_parameters() {
    let look = Look::default();
    let mut x = vec![0; 3 * 128];
    of_every_type(&look, 128, -1, 0.25, slice_mut(&mut x)).unwrap();
    let shape = look.0.get().unwrap();
    assert_eq!((shape.grid, shape.block, shape.shared), ([2, 5, 6], [64, 1, 1], 64 * 4 + 8));

    for (n, k, a, requirement) in
        [(127, -1, 0.25, "x.len() == n * CHANNELS"), (128, -2, 0.25, "k > LIMIT"), (128, -1, 0.5, "a < SCALE")]
    {
        let Err(LaunchError::Requirement { requirement: unmet, .. }) = of_every_type(&look, n, k, a, slice_mut(&mut x))
        else {
            panic!("{requirement} is not met")
        };
        assert_eq!(unmet, requirement);
    }
}

kernel! {
    unsafe fn fill(cx: impl Simt, n: u32, x: Out<u32>)
    require { x.len() == n }
    grid(n.div_ceil(BLOCK)) block(BLOCK)
    {
        let i = cx.global_x();
        if i < n {
            x.set(cx, i as usize, BLOCK);
        }
    }
}

#[test]
fn a_kernel_with_a_constant_block_runs() {
    let mut x = vec![0; 130];
    fill(&Here::default(), 130, slice_mut(&mut x)).unwrap();
    assert_eq!(x, [BLOCK; 130]);
    let error = fill(&Here::default(), 131, slice_mut(&mut x)).unwrap_err();
    assert!(matches!(error, Failed::Launch(LaunchError::Requirement { .. })), "{error:?}");
}

kernel! {
    /// Both bodies say which of them ran, so they differ here, and only here.
    unsafe fn two_bodies(cx: impl Cooperative, n: u32, out: Out<u32>)
    require { n <= 64, out.len() == n * 2 }
    grid(2) block(64)
    cpu {
        let place = cx.block_idx().x * n;
        assert_eq!((cx.thread_idx().x, cx.block_dim().x, cx.grid_dim().x), (0, 64, 2));
        for i in 0..n {
            out.set(cx, place + i, 100 + i);
        }
    }
    {
        let i = cx.rank();
        cx.barrier();
        if i < n {
            out.set(cx, cx.block_idx().x * n + i, 200 + i);
        }
    }
}

/// Runs launches as the checked device does.
struct WithChecks;

// SAFETY: It has no maps.
unsafe impl Launch<()> for WithChecks {
    type Error = Failed;
    unsafe fn launch(&self, kernel: &'static Kernel, shape: LaunchShape, slots: &[u64]) -> Result<(), Failed> {
        // SAFETY: The caller of `launch` promises that `slots` and `shape` are the kernel's. The
        // helpers expose the provenance of the vectors, and nothing else runs that could access
        // them.
        unsafe { CheckedLaunch::new(kernel, shape, slots, 1).run(&mut BlockWorkspace::default()) }
            .map_err(Failed::Block)
    }
}

#[test]
fn the_body_for_the_cpu_does_the_work_of_a_block_and_the_checked_device_runs_the_kernel() {
    for n in [0, 1, 5, 64] {
        let mut out = vec![0; 2 * n];
        two_bodies(&Here::default(), n as u32, slice_mut(&mut out)).unwrap();
        assert!(out.iter().enumerate().all(|(i, v)| *v == 100 + (i % n) as u32), "{out:?}");
        two_bodies(&WithChecks, n as u32, slice_mut(&mut out)).unwrap();
        assert!(out.iter().enumerate().all(|(i, v)| *v == 200 + (i % n) as u32), "{out:?}");
    }
}
