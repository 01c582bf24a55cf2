//! The resize of an image on the host: two passes with levels between them.
//!
//! ```text
//! across, 16 rows at once:  [rows][columns][3] -> [columns][3][16] -> sums -> [rows][outputs][3]
//! down, a row at once:      sums over rows, 64 bytes at once
//! ```
//!
//! - **Across, a vector has a sample of 16 rows**, because neighboring outputs have different
//!   weights and different samples. That takes a transpose before and one after.
//! - **Down, a vector has neighboring bytes of a row**, which all have the same weights.
//! - **Rows between the passes are in a ring** that holds as many as an output needs, so they stay
//!   in the cache.

use crate::coefficients::AxisCoefficients;
use crate::wide::wide;

/// The rows that the pass across takes at once.
const ROWS: usize = 16;
/// The bytes that the pass down takes at once.
const BYTES: usize = 64;

/// A sample of each of the rows that are taken at once.
type Lanes = [u8; ROWS];

/// A resize of an image.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resize<'a> {
    /// Interleaved RGB.
    pub(crate) rgb: &'a [u8],
    /// The size of the image: rows, columns.
    pub(crate) size: [u32; 2],
    /// The size after the resize.
    pub(crate) to: [u32; 2],
    /// The weights across, unless the number of columns stays.
    pub(crate) across: Option<&'a AxisCoefficients>,
    /// The weights down, unless the number of rows stays.
    pub(crate) down: Option<&'a AxisCoefficients>,
    pub(crate) vertical_first: bool,
}

impl<'a> Resize<'a> {
    /// Computes the rows of the result in order, and passes each with its number to `emit`.
    pub(crate) fn rows(self, emit: impl FnMut(u32, &[u8])) {
        match (self.across, self.down) {
            (Some(across), Some(down)) if self.vertical_first => self.down_first(across, down, emit),
            (across, down) => self.across_first(across, down, emit),
        }
    }

    fn source(self, row: usize) -> &'a [u8] {
        let bytes = 3 * self.size[1] as usize;
        &self.rgb[row * bytes..][..bytes]
    }

    fn across_first(
        self,
        across: Option<&AxisCoefficients>,
        down: Option<&AxisCoefficients>,
        mut emit: impl FnMut(u32, &[u8]),
    ) {
        let last = self.size[0] as usize - 1;
        let mut ring = across.map(|across| Ring::new(across, down, self.size, self.to[1]));
        let mut out = vec![0; 3 * self.to[1] as usize];
        for y in 0..self.to[0] {
            let [first, count] = down.map_or([y, 1], |down| down.bounds(y as usize)).map(|n| n as usize);
            if let Some(ring) = &mut ring {
                ring.fill(first + count, |row| self.source(row.min(last)));
            }
            let row = |row: usize| ring.as_ref().map_or_else(|| self.source(row), |ring| ring.row(row));
            match down {
                None => emit(y, row(first)),
                Some(down) => {
                    sum_rows(|t| row(first + t), down.weights(y as usize), down.shift(), &mut out);
                    emit(y, &out);
                }
            }
        }
    }

    fn down_first(self, across: &AxisCoefficients, down: &AxisCoefficients, mut emit: impl FnMut(u32, &[u8])) {
        let (bytes, outputs) = (3 * self.size[1] as usize, 3 * self.to[1] as usize);
        let mut pass = Across::new(across, self.size[1], self.to[1]);
        let (mut between, mut out) = (vec![0; ROWS * bytes], vec![0; ROWS * outputs]);
        for start in (0..self.to[0] as usize).step_by(ROWS) {
            let rows = ROWS.min(self.to[0] as usize - start);
            for (y, to) in (start..start + rows).zip(between.chunks_exact_mut(bytes)) {
                let first = down.bounds(y)[0] as usize;
                sum_rows(|t| self.source(first + t), down.weights(y), down.shift(), to);
            }
            pass.run(std::array::from_fn(|r| &between[r * bytes..][..bytes]), &mut out);
            (start..start + rows).zip(out.chunks_exact(outputs)).for_each(|(y, row)| emit(y as u32, row));
        }
    }
}

/// Rows that were resized across, as many as an output of the pass down needs.
struct Ring<'a> {
    pass: Across<'a>,
    rows: Vec<u8>,
    /// The bytes of a row.
    bytes: usize,
    /// The rows that were computed so far.
    filled: usize,
}

impl<'a> Ring<'a> {
    fn new(
        across: &'a AxisCoefficients,
        down: Option<&AxisCoefficients>,
        [_, columns]: [u32; 2],
        outputs: u32,
    ) -> Self {
        let needed = down.map_or(1, |down| (0..down.outputs()).map(|y| down.bounds(y)[1] as usize).max().unwrap_or(1));
        let bytes = 3 * outputs as usize;
        // The rows of an output, and those that were computed together with the last one.
        let rows = needed.next_multiple_of(ROWS) + ROWS;
        Self { pass: Across::new(across, columns, outputs), rows: vec![0; rows * bytes], bytes, filled: 0 }
    }

    fn row(&self, row: usize) -> &[u8] {
        let start = row * self.bytes % self.rows.len();
        &self.rows[start..][..self.bytes]
    }

    /// Computes all rows below `end`.
    fn fill<'s>(&mut self, end: usize, source: impl Fn(usize) -> &'s [u8]) {
        while self.filled < end {
            let start = self.filled * self.bytes % self.rows.len();
            let to = &mut self.rows[start..][..ROWS * self.bytes];
            self.pass.run(std::array::from_fn(|r| source(self.filled + r)), to);
            self.filled += ROWS;
        }
    }
}

/// The pass across, with its memory.
struct Across<'a> {
    weights: &'a AxisCoefficients,
    samples: Vec<Lanes>,
    outputs: Vec<Lanes>,
}

impl<'a> Across<'a> {
    fn new(weights: &'a AxisCoefficients, columns: u32, outputs: u32) -> Self {
        let lanes = |columns: u32| vec![[0; ROWS]; 3 * columns as usize];
        Self { weights, samples: lanes(columns), outputs: lanes(outputs) }
    }

    /// Resizes 16 rows to 16 rows, which lie one after another in `to`.
    fn run(&mut self, rows: [&[u8]; ROWS], to: &mut [u8]) {
        let Self { weights, samples, outputs } = self;
        wide!({
            transpose(rows, samples);
            sum_columns(weights, samples, outputs);
            transpose_back(outputs, to);
        });
    }
}

/// Writes sample `i` of each row to `to[i]`.
#[inline(always)]
fn transpose(rows: [&[u8]; ROWS], to: &mut [Lanes]) {
    let (squares, rest) = to.as_chunks_mut::<ROWS>();
    let start = ROWS * squares.len();
    for (i, square) in squares.iter_mut().enumerate() {
        *square = turned(rows.map(|row| first(&row[ROWS * i..])));
    }
    for (i, lanes) in (start..).zip(rest) {
        *lanes = rows.map(|row| row[i]);
    }
}

/// Writes lane `r` of `from` to row `r` of `to`.
#[inline(always)]
fn transpose_back(from: &[Lanes], to: &mut [u8]) {
    let (squares, rest) = from.as_chunks::<ROWS>();
    let start = ROWS * squares.len();
    for (i, square) in squares.iter().enumerate() {
        for (r, row) in turned(*square).iter().enumerate() {
            to[r * from.len() + ROWS * i..][..ROWS].copy_from_slice(row);
        }
    }
    for (i, lanes) in (start..).zip(rest) {
        for (r, &lane) in lanes.iter().enumerate() {
            to[r * from.len() + i] = lane;
        }
    }
}

#[inline(always)]
fn first(row: &[u8]) -> Lanes {
    row.first_chunk().copied().unwrap_or_default()
}

/// Transposes a square: four times, the first and the second half are interleaved.
#[inline(always)]
fn turned(mut square: [Lanes; ROWS]) -> [Lanes; ROWS] {
    for _ in 0..ROWS.ilog2() {
        let (low, high) = square.split_at(ROWS / 2);
        let mut next = [Lanes::default(); ROWS];
        for ((pair, low), high) in next.as_chunks_mut::<2>().0.iter_mut().zip(low).zip(high) {
            for i in 0..ROWS / 2 {
                pair[0][2 * i] = low[i];
                pair[0][2 * i + 1] = high[i];
                pair[1][2 * i] = low[ROWS / 2 + i];
                pair[1][2 * i + 1] = high[ROWS / 2 + i];
            }
        }
        square = next;
    }
    square
}

#[inline(always)]
fn sum_columns(weights: &AxisCoefficients, samples: &[Lanes], outputs: &mut [Lanes]) {
    let shift = weights.shift();
    let (pixels, outputs) = (samples.as_chunks::<3>().0, outputs.as_chunks_mut::<3>().0);
    for (i, to) in outputs.iter_mut().enumerate() {
        let [first, count] = weights.bounds(i).map(|n| n as usize);
        let mut sums = [[1 << (shift - 1); ROWS]; 3];
        for (pixel, &k) in pixels[first..first + count].iter().zip(weights.weights(i)) {
            let k = opaque(k);
            for (sums, lanes) in sums.iter_mut().zip(pixel) {
                add(sums, k, lanes);
            }
        }
        for (to, sums) in to.iter_mut().zip(sums) {
            *to = levels(sums, shift);
        }
    }
}

/// Keeps the compiler from making vectors of the samples of a sum, which lie far apart: it did so
/// for sums of eight samples and more, and they took three times as long.
#[inline(always)]
fn opaque(k: i32) -> i32 {
    std::hint::black_box(k)
}

/// Computes a row as the weighted sum of rows.
fn sum_rows<'a>(row: impl Fn(usize) -> &'a [u8], weights: &[i32], shift: u32, to: &mut [u8]) {
    wide!({
        // The last piece may overlap the one before it, and computes the same again.
        let last = to.len().saturating_sub(BYTES);
        for start in (0..to.len()).step_by(BYTES).map(|start| start.min(last)) {
            match to[start..].first_chunk_mut::<BYTES>() {
                Some(piece) => *piece = sum_piece(&row, weights, shift, start),
                None => to.iter_mut().enumerate().for_each(|(i, to)| {
                    [*to] = sum_piece(&row, weights, shift, i);
                }),
            }
        }
    });
}

#[inline(always)]
fn sum_piece<'a, const N: usize>(
    row: &impl Fn(usize) -> &'a [u8],
    weights: &[i32],
    shift: u32,
    start: usize,
) -> [u8; N] {
    let mut sums = [1 << (shift - 1); N];
    for (t, &k) in weights.iter().enumerate() {
        if let Some(samples) = row(t)[start..].first_chunk::<N>() {
            add(&mut sums, opaque(k), samples);
        }
    }
    levels(sums, shift)
}

#[inline(always)]
fn add<const N: usize>(sums: &mut [i32; N], k: i32, samples: &[u8; N]) {
    for (sum, &sample) in sums.iter_mut().zip(samples) {
        *sum += k * i32::from(sample);
    }
}

#[inline(always)]
fn levels<const N: usize>(sums: [i32; N], shift: u32) -> [u8; N] {
    let mut levels = [0; N];
    for (level, sum) in levels.iter_mut().zip(sums) {
        *level = (sum >> shift).clamp(0, 255) as u8;
    }
    levels
}
