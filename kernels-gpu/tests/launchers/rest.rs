//! The families `collective`, `augment` and `linear`.

use thalweg::Result;
use thalweg_kernels::augment::{self, BLUR, FLIP, GRAYSCALE, RECORD_WORDS, ROWS, STEP_WORDS, SUM_COLUMNS};
use thalweg_kernels::collective::{self, ReduceOp};
use thalweg_kernels::linear::{
    Activation, Epilogue, Matrix, MatrixMut, Operand, Product, matmul, matmul_with_scratch, scratch_len,
};
use thalweg_simt::{bf16, f16};

use super::Launcher;
use super::trial::{Number, Piece, Trial};

pub(crate) const COLLECTIVE: &[Launcher] = &[
    Launcher { name: "reduce", cases: 270, run: reduce },
    Launcher { name: "reduce_in_place", cases: 540, run: reduce_in_place },
];
pub(crate) const AUGMENT: &[Launcher] = &[
    Launcher { name: "measure", cases: 180, run: measure },
    Launcher { name: "augment_f32", cases: 180, run: |t| augmented(t, true) },
    Launcher { name: "augment_bf16", cases: 180, run: |t| augmented(t, false) },
    Launcher { name: "finish_f32", cases: 180, run: |t| finished(t, true) },
    Launcher { name: "finish_bf16", cases: 180, run: |t| finished(t, false) },
];
pub(crate) const LINEAR: &[Launcher] = &[
    Launcher { name: "matmul", cases: 360, run: |t| product(t, false) },
    Launcher { name: "matmul_with_scratch", cases: 90, run: |t| product(t, true) },
];

fn reduce(t: &Trial<'_, '_>) -> Result<()> {
    fn of<T: collective::ReduceElement + Number>(t: &Trial<'_, '_>) -> Result<()> {
        let (ranks, n) = (t.below(5), t.below(700) as usize);
        let fold = t.pick(&[ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Min, ReduceOp::Max]);
        let x = t.numbers::<T>(ranks as usize * n)?;
        collective::reduce(t, fold, ranks, &x, &mut t.room(n)?)
    }
    let of_type = [of::<f32>, of::<f64>, of::<f16>, of::<bf16>, of::<i32>, of::<u32>, of::<i64>, of::<u64>, of::<u8>];
    of_type[t.number as usize % of_type.len()](t)
}

fn reduce_in_place(t: &Trial<'_, '_>) -> Result<()> {
    fn of<T: collective::ReduceElement + Number>(t: &Trial<'_, '_>) -> Result<()> {
        let (ranks, pitch) = (t.within(1, 5), t.below(5000) as usize);
        let (blocks, rank, n) = (t.below(8), t.below(ranks + 1), t.below(5000) as usize);
        // Half of them are whole words of 16 bytes.
        let [n, pitch] = if t.flip() { [n, pitch] } else { [n, pitch].map(|n| n / 16 * 16) };
        let fold = t.pick(&[ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Min, ReduceOp::Max]);
        let (mut x, mut rows) = (t.numbers::<T>(n)?, t.numbers::<T>(ranks.saturating_sub(1) as usize * pitch)?);
        collective::reduce_in_place(t, fold, blocks, [rank, ranks], &mut x, &mut rows)
    }
    let of_type = [of::<f32>, of::<f64>, of::<f16>, of::<bf16>, of::<i32>, of::<u32>, of::<i64>, of::<u64>, of::<u8>];
    of_type[t.number as usize % of_type.len()](t)
}

/// Images, their records, and how large the results are.
struct Augmented<'l> {
    images: u32,
    size: u32,
    bytes: usize,
    records: Piece<'l, u32>,
    rgb: Piece<'l, u8>,
    tiles: usize,
}

fn images<'l>(t: &Trial<'_, 'l>) -> Result<Augmented<'l>> {
    let (images, size) = (t.within(1, 3), t.pick(&[1_u32, 2, 6, 7, 8, 31, 56, 57, 64, 70]));
    let (mut records, mut bytes) = (Vec::new(), 0);
    for _ in 0..images {
        let [height, width] = [t.within(1, 60), t.within(1, 60)];
        let (top, left) = (t.below(height), t.below(width));
        let flags = t.below(8) & (FLIP | GRAYSCALE | BLUR);
        let crop = [t.within(1, height - top), t.within(1, width - left)];
        records.extend([bytes, 0, width, top, left, crop[0], crop[1], flags]);
        records.extend((0..7).map(|_| t.float().to_bits()));
        records.push(0);
        bytes += 3 * height * width;
    }
    let tiles = (images * size.div_ceil(SUM_COLUMNS) * size.div_ceil(ROWS)) as usize;
    let (records, bytes) = (t.table(records, RECORD_WORDS as usize)?, bytes as usize);
    Ok(Augmented { images, size, bytes, records, rgb: t.bytes(bytes)?, tiles })
}

fn three(t: &Trial<'_, '_>) -> [f32; 3] {
    [t.float(), t.float(), t.float()]
}

fn measure(t: &Trial<'_, '_>) -> Result<()> {
    let Augmented { images, size, bytes, records, rgb, tiles } = images(t)?;
    augment::measure(t, images, size, bytes as u64, three(t), &records, &rgb, &mut t.room(tiles)?)
}

fn augmented(t: &Trial<'_, '_>, wide: bool) -> Result<()> {
    let Augmented { images, size, bytes, records, rgb, tiles } = images(t)?;
    let (measured, blurs, n) = (t.flip(), size >= 7 && t.flip(), (images * 3 * size * size) as usize);
    let sums = t.old(measured, tiles)?;
    let [luma, scale, shift] = [three(t), three(t), three(t)];
    macro_rules! launch {
        ($launcher:ident) => {
            augment::$launcher(
                t,
                images,
                size,
                bytes as u64,
                measured,
                blurs,
                luma,
                scale,
                shift,
                &records,
                &rgb,
                &sums,
                &mut t.room(n)?,
            )
        };
    }
    if wide { launch!(augment_f32) } else { launch!(augment_bf16) }
}

fn finished(t: &Trial<'_, '_>, wide: bool) -> Result<()> {
    let (images, size) = (t.within(1, 3), t.pick(&[1_u32, 2, 3, 31, 64, 70]));
    let mut steps = Vec::new();
    for _ in 0..images {
        let sign = |v: f64| ((v * f64::from(1 << 30)) as i32).cast_unsigned();
        let (sin, cos) = if t.flip() { (0.0, 1.0) } else { f64::from(t.below(360)).to_radians().sin_cos() };
        steps.extend([t.below(images), t.float().to_bits(), t.below(2), t.float().to_bits(), sign(cos), sign(sin)]);
        steps.extend([0, 0, t.below(size), t.below(size), t.below(size), t.below(size)]);
        steps.extend((0..12).map(|_| t.float().to_bits()));
    }
    let steps = t.table(steps, STEP_WORDS as usize)?;
    let n = (images * 3 * size * size) as usize;
    let x = t.numbers::<f32>(n)?;
    if wide {
        augment::finish_f32(t, images, size, &steps, &x, &mut t.room(n)?)
    } else {
        augment::finish_bf16(t, images, size, &steps, &x, &mut t.room(n)?)
    }
}

fn product(t: &Trial<'_, '_>, scratch: bool) -> Result<()> {
    let of = [of::<f32, f32>, of::<f16, f16>, of::<f16, f32>, of::<bf16, bf16>, of::<bf16, f32>];
    of[t.number as usize % of.len()](t, scratch)
}

fn of<T: Operand + Product<T> + Number, C: Product<T> + Number>(t: &Trial<'_, '_>, scratch: bool) -> Result<()> {
    let unit = if t.once_in(3) { 1 } else { 16 / size_of::<T>() as u32 };
    let extent = |most: u32| (t.within(0, most) * unit) as usize;
    let (m, n, k) =
        if t.flip() { (t.within(1, 9) as usize, extent(12), extent(12)) } else { (extent(20), extent(20), extent(12)) };
    // Also more than 128 rows, because fewer have kernels of their own.
    let m = if t.flip() { m + 128 } else { m };
    // So many steps that a GPU of compute capability 9.0 splits them, if it has scratch memory.
    let k = if scratch && t.once_in(4) { 8576 } else { k };
    let batch = t.pick(&[0, 1, 1, 1, 2, 3]);
    let extra = |t: &Trial<'_, '_>| if t.once_in(3) { unit as usize * t.below(3) as usize } else { 0 };
    // Of a matrix: its rows, columns, distances, and the elements that it needs.
    let shape = |rows: usize, columns: usize| {
        let stride = if t.once_in(10) { t.below(20) as usize } else { columns + extra(t) };
        let apart = if t.once_in(4) { t.below(100) as usize } else { rows * stride + extra(t) };
        let needs = batch.max(1) * apart.max(rows * stride) + columns + t.below(2) as usize;
        (rows, columns, stride, apart, needs)
    };
    let turn = [t.once_in(3), t.flip()];
    let (ar, ac, sa, da, na) = if turn[0] { shape(k, m) } else { shape(m, k) };
    let (br, bc, sb, db, nb) = if turn[1] { shape(n, k) } else { shape(k, n) };
    let (_, _, sc, dc, nc) = shape(m, n);
    let (_, _, sr, dr, nr) = shape(m, n);
    let (a, b) = (t.numbers::<T>(na)?, t.numbers::<T>(nb)?);
    let accumulate = t.flip();
    let (mut c, bias, residual) = (t.old::<C>(accumulate, nc)?, t.numbers::<C>(n)?, t.numbers::<C>(nr)?);
    let a = Matrix::new(&*a, ar, ac).with_stride(sa).with_batch_stride(da);
    let b = Matrix::new(&*b, br, bc).with_stride(sb).with_batch_stride(db);
    let [a, b] = [(a, turn[0]), (b, turn[1])].map(|(x, turned)| if turned { x.transposed() } else { x });
    let residual = Matrix::new(&*residual, m, n).with_stride(sr).with_batch_stride(dr);
    let epilogue = Epilogue {
        bias: t.flip().then_some(&*bias),
        activation: t.pick(&[Activation::None, Activation::GeluTanh, Activation::GeluErf]),
        residual: t.flip().then_some(residual),
        accumulate,
    };
    let c = MatrixMut::new(&mut c, m, n).with_stride(sc).with_batch_stride(dc);
    if !scratch {
        return matmul(t, batch, a, b, &epilogue, c);
    }
    let len = scratch_len(t)?;
    let mut memory = t.filled(t.pick(&[0, len / 2, len, len]), || t.below(4))?;
    matmul_with_scratch(t, &mut memory, batch, a, b, &epilogue, c)
}
