//! Constants in the clauses of a declaration.

use thalweg_simt::host::{Kernel, Launch, LaunchError, LaunchShape};
use thalweg_simt::kernel;

use crate::here::{Failed, Here, slice_mut};

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

impl Launch<()> for Look {
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
        n.is_multiple_of(crate::clauses::layout::LAYOUT.tile),
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
