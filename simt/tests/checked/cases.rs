//! The launches of the crate `simt/tests/mutants`, and which mistake each number makes.

use mutants::blocks::{BINS, BLOCK, histogram, pack, pass, scan, sum, transpose, windows};
use mutants::safe::{apart, counts, doubled_f32_1, doubled_f32_4, many, patches, pick, spread, tiles, turn};
use mutants::threads::{add, gather, prepare, quads, stencil, tally, total};
use thalweg::{DeviceSlice, PerThread, Result, Stream};

/// What the checked device must report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An access outside a buffer.
    Bounds,
    /// An access outside shared memory.
    Shared,
    /// A vector access at an address that does not allow it.
    Misaligned,
    /// A load of memory that nobody has written.
    Unwritten,
    /// Two accesses that nothing orders.
    Race,
    /// Threads that wait for others that do not come.
    Diverged,
    /// A coordinate that a kernel without `unsafe` checks itself, on every device.
    Reported,
    /// A launch that the launcher refuses, on every device.
    Refused,
}
use Kind::*;

type On<'s, 'l> = &'s Stream<PerThread<'l>>;

/// A kernel, what launches it, and the mistakes from number 1 on.
pub(crate) struct Family {
    pub(crate) kernel: &'static str,
    pub(crate) run: fn(On<'_, '_>, u32) -> Result<()>,
    pub(crate) mistakes: &'static [(Kind, &'static str)],
}

/// Numbers from 0 to 6, which are not all equal and not all 0.
fn numbers(n: u32) -> Vec<u32> {
    (0..n).map(|i| i * i % 7).collect()
}

fn floats(n: u32) -> Vec<f32> {
    numbers(n).into_iter().map(|v| v as f32).collect()
}

fn run_stencil(s: On<'_, '_>, m: u32) -> Result<()> {
    let x = s.upload_blocking(&floats(240))?;
    let mut y = s.alloc::<f32>(240)?;
    stencil(s, m, 20, 12, &x, &mut y)?;
    s.synchronize()
}

fn run_gather(s: On<'_, '_>, m: u32) -> Result<()> {
    let offsets: Vec<u32> = (0..=100).map(|i| if i == 100 { 1004 } else { 10 * i }).collect();
    let (offsets, x) = (s.upload_blocking(&offsets)?, s.upload_blocking(&floats(1000))?);
    let mut y = s.alloc::<f32>(100)?;
    gather(s, m, 100, &offsets, &x, &mut y)?;
    s.synchronize()
}

fn run_quads(s: On<'_, '_>, m: u32) -> Result<()> {
    let x = s.upload_blocking(&floats(516))?;
    let mut y = s.alloc::<f32>(512)?;
    quads(s, m, 512, &x, &mut y)?;
    s.synchronize()
}

fn run_tally(s: On<'_, '_>, m: u32) -> Result<()> {
    let x: Vec<u32> = (0..300).map(|i| i % 34).collect();
    let x = s.upload_blocking(&x)?;
    let (mut counts, mut most) = (s.upload_blocking(&[0; 16])?, s.upload_blocking(&[0])?);
    tally(s, m, 300, &x, &mut counts, &mut most)?;
    s.synchronize()
}

/// The kernel has two sound forms, so the numbers of its mistakes start at 2.
fn run_total(s: On<'_, '_>, m: u32) -> Result<()> {
    let form = if m == 0 { 0 } else { m + 1 };
    let (mut parts, mut y) = (s.alloc::<f32>(200)?, s.alloc::<f32>(2)?);
    for form in if form == 0 { vec![0, 1] } else { vec![form] } {
        let mut done = s.upload_blocking(&[0])?;
        total(s, form, 200, &mut parts, &mut done, y.slice_mut(form as usize % 2..)?.slice_mut(..1)?)?;
    }
    s.synchronize()
}

/// Mistakes 1 and 2 are those of `add`. 3 prepares nothing, 4 one element too few, and 5 adds
/// memory that nobody wrote. 6 adds a copy of such memory.
fn run_add(s: On<'_, '_>, m: u32) -> Result<()> {
    let mut x = s.alloc::<f32>(100)?;
    let unwritten = s.alloc::<f32>(100)?;
    match m {
        5 => {}
        6 => s.copy(&unwritten, &mut x)?,
        _ => s.fill(&mut x, 0.0)?,
    }
    let mut y = s.alloc::<f32>(100)?;
    if m != 3 {
        prepare(s, if m == 4 { 99 } else { 100 }, &mut y)?;
    }
    add(s, m, 100, 2.0, &x, &mut y)?;
    s.synchronize()
}

fn run_sum(s: On<'_, '_>, m: u32) -> Result<()> {
    let x = s.upload_blocking(&floats(3 * 300))?;
    let mut y = s.alloc::<f32>(3)?;
    sum(s, m, 3, 300, &x, &mut y)?;
    s.synchronize()
}

fn run_histogram(s: On<'_, '_>, m: u32) -> Result<()> {
    let x: Vec<u32> = (0..3 * 200).map(|i| i * 13 % 70).collect();
    let x = s.upload_blocking(&x)?;
    let mut y = s.alloc::<u32>(3 * BINS as usize)?;
    histogram(s, m, 3, 200, &x, &mut y)?;
    s.synchronize()
}

fn run_scan(s: On<'_, '_>, m: u32) -> Result<()> {
    let x = s.upload_blocking(&numbers(2 * BLOCK))?;
    let mut y = s.alloc::<u32>(2 * BLOCK as usize)?;
    scan(s, m, &x, &mut y)?;
    s.synchronize()
}

fn run_pack(s: On<'_, '_>, m: u32) -> Result<()> {
    let x = numbers(BLOCK);
    let kept = x.iter().filter(|v| **v != 0).count() as u32;
    // For the mistakes with the capacity, there are more elements than it.
    let capacity = if m == 6 || m == 7 { kept - 5 } else { kept + 100 };
    let x = s.upload_blocking(&x)?;
    let mut y = s.alloc::<u32>(capacity as usize)?;
    pack(s, m, capacity, &x, &mut y)?;
    s.synchronize()
}

fn run_transpose(s: On<'_, '_>, m: u32) -> Result<()> {
    let x = s.upload_blocking(&floats(1024))?;
    let mut y = s.alloc::<f32>(1024)?;
    transpose(s, m, &x, &mut y)?;
    s.synchronize()
}

fn run_pass(s: On<'_, '_>, m: u32) -> Result<()> {
    let x = s.upload_blocking(&numbers(BLOCK))?;
    let mut y = s.alloc::<u32>(BLOCK as usize)?;
    pass(s, m, &x, &mut y)?;
    s.synchronize()
}

fn run_windows(s: On<'_, '_>, m: u32) -> Result<()> {
    let x = s.upload_blocking(&numbers(BLOCK))?;
    let mut y = s.alloc::<u32>(BLOCK as usize)?;
    windows(s, m, &x, &mut y)?;
    s.synchronize()
}

/// Loads all elements in the next kernel, as one does that uses a result.
fn use_all<'l>(s: On<'_, 'l>, y: &DeviceSlice<PerThread<'l>, f32>) -> Result<()> {
    let mut sums = s.upload_blocking(&vec![0.0; y.len()])?;
    add(s, 0, y.len() as u32, 1.0, y, &mut sums)?;
    s.synchronize()
}

fn run_pick(s: On<'_, '_>, m: u32) -> Result<()> {
    let offsets: Vec<u32> = (0..=100).map(|i| if i == 100 { 1004 } else { 10 * i }).collect();
    let (offsets, x) = (s.upload_blocking(&offsets)?, s.upload_blocking(&floats(1000))?);
    let mut y = s.alloc::<f32>(100)?;
    pick(s, m, 100, 1000, &offsets, &x, &mut y)?;
    use_all(s, &y)
}

/// Mistakes 6 and 7 have an image whose width is no multiple of the patch.
fn run_patches(s: On<'_, '_>, m: u32) -> Result<()> {
    let (height, width) = (16, if m == 6 || m == 7 { 20 } else { 24 });
    let planes = s.upload_blocking(&floats(3 * height * width))?;
    let mut sums = s.alloc::<f32>(3 * 3 * 2)?;
    patches(s, m, height, width, &planes, &mut sums)?;
    use_all(s, &sums)
}

/// With mistake 6 nobody writes the counts of all rows before.
fn run_counts(s: On<'_, '_>, m: u32) -> Result<()> {
    let x: Vec<u32> = (0..3 * 200).map(|i| i * 13 % 70).collect();
    let x = s.upload_blocking(&x)?;
    let (mut part, mut total) = (s.alloc::<u32>(3 * 64)?, s.alloc::<u32>(64)?);
    if m != 6 {
        s.fill(&mut total, 0)?;
    }
    counts(s, m, 3, 200, &x, &mut part, &mut total)?;
    s.synchronize()
}

/// With mistake 6 the output starts between two vectors, and with 7 the width is no multiple of
/// four.
fn run_apart(s: On<'_, '_>, m: u32) -> Result<()> {
    let (height, width) = (11, if m == 7 { 14 } else { 12 });
    let all = (3 * height * width) as usize;
    let bytes: Vec<u8> = (0..all).map(|i| i as u8).collect();
    let (rgb, mut planes) = (s.upload_blocking(&bytes)?, s.alloc::<f32>(all + 4)?);
    let start = if m == 6 { 1 } else { 4 };
    apart(s, m, height, width, &rgb, planes.slice_mut(start..start + all)?)?;
    use_all(s, planes.slice(start..start + all)?)
}

fn run_turn(s: On<'_, '_>, m: u32) -> Result<()> {
    let (h, w) = (40, 12);
    let (x, mut y) = (s.upload_blocking(&floats(h * w))?, s.alloc::<f32>((h * w) as usize)?);
    turn(s, m, h, w, &x, &mut y)?;
    use_all(s, &y)
}

/// With mistake 6 the left matrix is a row short.
fn run_tiles(s: On<'_, '_>, m: u32) -> Result<()> {
    let (rows, columns, k) = (21, 18, 20);
    let given = if m == 6 { rows - 1 } else { rows };
    let (x, y) = (s.upload_blocking(&floats(given * k))?, s.upload_blocking(&floats(k * columns))?);
    let mut z = s.alloc::<f32>((rows * columns) as usize)?;
    tiles(s, m, rows, columns, k, &x, &y, &mut z)?;
    use_all(s, &z)
}

fn run_spread(s: On<'_, '_>, m: u32) -> Result<()> {
    let (x, mut y) = (s.upload_blocking(&numbers(BLOCK))?, s.alloc::<u32>(2 * BLOCK as usize)?);
    spread(s, m, &x, &mut y)?;
    s.synchronize()
}

/// Mistake 1 is one of the instance with four elements, and 2 one of the other. With 3 the output
/// is shorter than the input.
fn run_doubled(s: On<'_, '_>, m: u32) -> Result<()> {
    let (x, mut y) = (s.upload_blocking(&floats(200))?, s.alloc::<f32>(200)?);
    if m != 1 {
        doubled_f32_4(s, if m == 2 { 0 } else { m }, 200, &x, y.slice_mut(..if m == 3 { 199 } else { 200 })?)?;
    }
    if m != 3 {
        doubled_f32_1(s, m, 200, &x, &mut y)?;
    }
    use_all(s, &y)
}

fn run_many(s: On<'_, '_>, m: u32) -> Result<()> {
    let mut y = s.alloc::<f32>(1)?;
    many(s, if m == 1 { 1 << 22 } else { 2 }, &mut y)?;
    use_all(s, &y)
}

pub(crate) const FAMILIES: [Family; 22] = [
    Family {
        kernel: "stencil",
        run: run_stencil,
        mistakes: &[
            (Bounds, "the check of the row is off by one"),
            (Bounds, "the check of the column is off by one"),
            (Bounds, "the check of the row is dropped"),
            (Bounds, "the clamp at the upper border is dropped"),
            (Bounds, "the clamp at the left border is dropped"),
            (Bounds, "the pitch is one too large"),
            (Race, "a thread stores to its neighbor's pixel too"),
            (Race, "all threads store to one pixel"),
            (Race, "blocks of a row store to the same pixels"),
            (Bounds, "the index of the store is one too large"),
            (Bounds, "rows and columns are swapped"),
        ],
    },
    Family {
        kernel: "gather",
        run: run_gather,
        mistakes: &[
            (Bounds, "the check of the thread is off by one"),
            (Bounds, "the start of a cell is that of the cell after the next"),
            (Bounds, "the end of a cell is that of the next cell"),
            (Bounds, "the clamp of the table's values is dropped"),
            (Bounds, "the clamp of the table's values is one too large"),
        ],
    },
    Family {
        kernel: "quads",
        run: run_quads,
        mistakes: &[
            (Misaligned, "a vector load is one element too far"),
            (Misaligned, "a vector store is two elements too far"),
            (Bounds, "a vector store is one vector too far"),
            (Race, "the vectors of two threads overlap"),
            (Misaligned, "a store of two words is on an odd word"),
        ],
    },
    Family {
        kernel: "tally",
        run: run_tally,
        mistakes: &[
            (Bounds, "a bin too many"),
            (Race, "an atomic addition made plain"),
            (Race, "a plain load decides whether the atomic maximum is needed"),
            (Race, "an atomic maximum made plain"),
            (Race, "a plain store resets a count that others update"),
            (Race, "a count of all blocks is loaded in the same launch"),
        ],
    },
    Family {
        kernel: "add",
        run: run_add,
        mistakes: &[
            (Bounds, "the check of the thread is off by one"),
            (Race, "the element of a neighbor is loaded"),
            (Unwritten, "the kernel that writes the buffer is dropped"),
            (Unwritten, "the kernel that writes the buffer leaves out the last element"),
            (Unwritten, "the fill of the input is dropped"),
            (Unwritten, "the input is a copy of memory that nobody wrote"),
        ],
    },
    Family {
        kernel: "total",
        run: run_total,
        mistakes: &[
            (Race, "the counter orders nothing"),
            (Race, "the counter does not acquire"),
            (Race, "the fence after the counter is dropped"),
            (Race, "the fence before the counter is dropped"),
            (Race, "the counter is ordered for its block only"),
            (Race, "the thread before the last one adds up"),
        ],
    },
    Family {
        kernel: "sum",
        run: run_sum,
        mistakes: &[
            (Bounds, "the loop goes one element too far"),
            (Bounds, "the loop goes one row too far"),
            (Diverged, "half a warp sums"),
            (Shared, "the index of the warp's part is one too large"),
            (Race, "all warps store to one part"),
            (Unwritten, "the last warp does not store its part"),
            (Race, "the barrier is removed"),
            (Race, "the barrier is one of the warp"),
            (Diverged, "one thread of each warp reaches the barrier"),
            (Diverged, "one warp reaches the barrier"),
            (Race, "all threads store the result"),
            (Shared, "the last loop goes one part too far"),
            (Race, "all blocks store to one element"),
            (Diverged, "the threads wait at two barriers"),
        ],
    },
    Family {
        kernel: "histogram",
        run: run_histogram,
        mistakes: &[
            (Unwritten, "the bins are not cleared"),
            (Unwritten, "one bin is not cleared"),
            (Shared, "one bin too many is cleared"),
            (Diverged, "some threads return before the barrier"),
            (Race, "the barrier after the clearing is removed"),
            (Shared, "the index of the bin is one too large"),
            (Race, "the atomic addition made plain"),
            (Diverged, "a barrier in a loop that threads leave at different times"),
            (Race, "the barrier before the result is removed"),
            (Race, "the offset of the row is dropped"),
            (Bounds, "the index of the result is one too large"),
            (Race, "the bins are cleared while other warps load them"),
            (Unwritten, "one block does not clear the bins"),
        ],
    },
    Family {
        kernel: "scan",
        run: run_scan,
        mistakes: &[
            (Race, "the first barrier is removed"),
            (Shared, "the check of the step is off by one"),
            (Race, "the barrier between load and store is removed"),
            (Race, "the barrier between load and store is one of the warp"),
            (Race, "the barrier after the store is removed"),
            (Diverged, "only the threads that add reach the barrier"),
            (Shared, "the result is loaded one word too far"),
        ],
    },
    Family {
        kernel: "pack",
        run: run_pack,
        mistakes: &[
            (Diverged, "only lanes with an element vote"),
            (Shared, "the index of the warp's count is two too large"),
            (Race, "the barrier before the counts are loaded is removed"),
            (Race, "lane 0 is not counted"),
            (Race, "the counts of the warps before are dropped"),
            (Bounds, "the capacity is not checked"),
            (Bounds, "the check of the capacity is off by one"),
            (Race, "the barrier before the total is loaded is removed"),
            (Race, "two threads clear the same elements"),
        ],
    },
    Family {
        kernel: "transpose",
        run: run_transpose,
        mistakes: &[
            (Shared, "the pitch of the tile is one too large"),
            (Race, "the barrier after the tile's stores is removed"),
            (Race, "the barrier after the tile's stores is one of the warp"),
            (Diverged, "half the rows reach the barrier"),
            (Unwritten, "a load takes the pad of the tile"),
            (Race, "two blocks store to the same elements"),
            (Race, "the second half is stored one row too far"),
            (Race, "the barrier before the tile's next use is removed"),
        ],
    },
    Family {
        kernel: "pass",
        run: run_pass,
        mistakes: &[
            (Race, "the barrier of the warp is removed"),
            (Race, "a shuffle stands for the barrier of the warp"),
            (Diverged, "half the lanes reach the barrier of the warp"),
            (Race, "the partner is in another warp"),
            (Shared, "the partner of the last thread is past the end"),
            (Race, "words are cleared after a warp's sum and no barrier"),
            (Race, "words are cleared without a barrier"),
            (Diverged, "a lane returns before a shuffle"),
        ],
    },
    Family {
        kernel: "windows",
        run: run_windows,
        mistakes: &[
            (Shared, "the shared memory is a word too small"),
            (Race, "the second window starts inside the first one"),
            (Shared, "a vector in shared memory is one word too far"),
            (Shared, "a vector in shared memory is one vector too far"),
            (Race, "a byte is stored while another thread loads the word"),
            (Race, "a vector is stored while other threads load its words"),
            (Race, "a warp loads what another one stored before its own barrier"),
        ],
    },
    Family {
        kernel: "pick",
        run: run_pick,
        mistakes: &[
            (Reported, "the start of a cell is that of the cell after the next"),
            (Reported, "the end of a cell is that of the next cell"),
            (Reported, "the clamp of the table's values is dropped"),
            (Reported, "the index of the store is one too large"),
            (Reported, "all threads store to one element"),
            (Refused, "the extent of the table is one too large"),
            (Unwritten, "the grid is a block too small"),
        ],
    },
    Family {
        kernel: "patches",
        run: run_patches,
        mistakes: &[
            (Reported, "the area starts a row too low"),
            (Reported, "the plane of the area is one too far"),
            (Reported, "the index of the warp's sum is one too large"),
            (Reported, "the shared memory is a word too small"),
            (Reported, "the plane of the result is one too far"),
            (Reported, "the requirement is dropped"),
            (Refused, "the image is none that the requirement allows"),
            (Refused, "the block is half a warp too small"),
            (Refused, "the block has more threads than its bounds"),
        ],
    },
    Family {
        kernel: "counts",
        run: run_counts,
        mistakes: &[
            (Reported, "the loop goes one element too far"),
            (Reported, "the bin is not limited"),
            (Reported, "the index of the bin is counted from the wrong end"),
            (Reported, "the index of the atomic addition is one too large"),
            (Reported, "the offset of the row is dropped"),
            (Unwritten, "the fill of the counts is dropped"),
            (Reported, "the window is a bin too large"),
        ],
    },
    Family {
        kernel: "apart",
        run: run_apart,
        mistakes: &[
            (Reported, "the clamp at the lower border is dropped"),
            (Reported, "the clamp at the right border is dropped"),
            (Reported, "the plane is one too far"),
            (Reported, "a thread stores to its neighbor's row"),
            (Reported, "a thread stores to the row of the next block"),
            (Refused, "the output starts between two vectors"),
            (Refused, "the width is no multiple of the vector"),
        ],
    },
    Family {
        kernel: "turn",
        run: run_turn,
        mistakes: &[
            (Reported, "the check of the border is dropped"),
            (Reported, "the pitch of the tile is one too large"),
            (Reported, "rows and columns are swapped"),
            (Reported, "the shared memory is a row too small"),
            (Unwritten, "the grid is that of the matrix and not of its transpose"),
        ],
    },
    Family {
        kernel: "tiles",
        run: run_tiles,
        mistakes: &[
            (Reported, "the check of the last tile is dropped"),
            (Reported, "the loop over a tile goes one turn too far"),
            (Reported, "a thread stores to the element below"),
            (Unwritten, "the sum is added to an output that nobody wrote"),
            (Refused, "the extent of the right matrix is that of the left one"),
            (Refused, "the left matrix is a row short"),
        ],
    },
    Family {
        kernel: "spread",
        run: run_spread,
        mistakes: &[
            (Reported, "the pitch is smaller than the block"),
            (Reported, "the rows do not fit into the window"),
            (Reported, "the neighbor of the last thread is behind the window"),
        ],
    },
    Family {
        kernel: "doubled",
        run: run_doubled,
        mistakes: &[
            (Unwritten, "the grid is that of the other instance"),
            (Reported, "the element is that of the other instance"),
            (Refused, "the output is shorter than the input"),
        ],
    },
    Family { kernel: "many", run: run_many, mistakes: &[(Refused, "the threads of the grid do not fit into 32 bits")] },
];
