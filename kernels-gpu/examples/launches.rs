//! Prints each kernel's threads and dynamic shared memory of a block, as its declaration makes them
//! for a 4K frame in patches of 32 x 32: `.ci/registers.py` reads it. Nothing runs.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use thalweg_kernels::linear::{
    Epilogue, Matrix, MatrixMut, Operand, Product, matmul, matmul_with_scratch, scratch_len,
};
use thalweg_kernels::train;
use thalweg_kernels::vision::{
    BatchLayout, Budget, ParticipatoryMut, RelevanceMut, Salience, Scores, Selection, SelectionMut, TokensMut,
    allocate, analyze, balance, compress, compress_fused, compress_fused_bf16, compress_fused_f16, entropy, features,
    participatory, profile_sample, profile_scale, relevance, relevance_with_query, textures, top,
};
use thalweg_simt::host::{DeviceSlice, Kernel, Launch, LaunchError, LaunchShape, MatrixView, TensorMap};
use thalweg_simt::{Element, bf16, f16};

/// A device that notes what it is asked to launch.
#[derive(Default)]
struct Notes {
    shapes: RefCell<BTreeMap<&'static str, LaunchShape>>,
    /// Whether it has a copy engine for tiles.
    tiles: Cell<bool>,
}

// SAFETY: No kernel runs.
unsafe impl Launch<()> for Notes {
    type Error = LaunchError;

    unsafe fn launch(&self, kernel: &'static Kernel, shape: LaunchShape, _: &[u64]) -> Result<(), LaunchError> {
        self.shapes.borrow_mut().insert(kernel.name(), shape);
        Ok(())
    }

    fn multiprocessors(&self) -> u32 {
        132
    }

    fn tensor_map(&self, _: &MatrixView) -> Result<Option<TensorMap>, LaunchError> {
        Ok(self.tiles.get().then_some([0; 16]))
    }
}

/// A buffer that is somewhere, for kernels that never run.
fn of<'a, T: Element>(len: usize) -> &'a DeviceSlice<(), T> {
    // SAFETY: Nobody reads or writes it. The address is aligned for every element.
    unsafe { DeviceSlice::from_raw(1 << 20, len) }
}

fn out<'a, T: Element>(len: usize) -> &'a mut DeviceSlice<(), T> {
    // SAFETY: As for `of`; there is nothing behind it, so it overlaps nothing.
    unsafe { DeviceSlice::from_raw_mut(1 << 20, len) }
}

fn selection<'a>(patches: usize, most: usize) -> Selection<'a, ()> {
    Selection { sides: of(patches), cu_seqlens: of(most + 1), patch_id: of(most), counts: of(2), most: most as u32 }
}

fn tokens_mut<'a, T: Element>(capacity: usize) -> TokensMut<'a, (), T> {
    TokensMut { tokens: out(13 * capacity), position: out(2 * capacity), capacity: capacity as u32 }
}

/// Launches the reductions of what two ranks bring, the second one also of elements that are no
/// whole words of 16 bytes.
fn reductions<T: thalweg_kernels::collective::ReduceElement>(on: &Notes) -> Result<(), LaunchError> {
    use thalweg_kernels::collective::{ReduceOp, reduce, reduce_in_place};
    reduce(on, ReduceOp::Sum, 2, of::<T>(512), out(256))?;
    reduce_in_place(on, ReduceOp::Sum, 16, [0, 2], out::<T>(256), out(256))?;
    reduce_in_place(on, ReduceOp::Sum, 16, [0, 2], out::<T>(255), out(256))
}

/// Launches the product of operands of one type in each form, of operands that are not aligned, and
/// of few rows.
fn products<T: Operand + Product<T>>(on: &Notes) -> Result<(), LaunchError> {
    let n = 256;
    let x = Matrix::new(of(n * n), n, n);
    let unaligned = Matrix::new(of(n * (n + 1)), n, n).with_stride(n + 1);
    let (thin, few) = (Matrix::new(of(64 * n), 64, n), Matrix::new(of(n), 1, n));
    let y = x.transposed();
    for (a, b, rows) in [(x, x, n), (x, y, n), (y, x, n), (unaligned, x, n), (thin, y, 64), (few, y, 1)] {
        // Products that add to C have kernels of their own on some devices.
        for accumulate in [false, true] {
            let c = MatrixMut::new(out(rows * n), rows, n);
            matmul::<(), _, T, T>(on, 1, a, b, &Epilogue { accumulate, ..Epilogue::default() }, c)?;
        }
    }
    // A sum of so many steps is split, and a kernel clears the counts of its parts before.
    let k = 64 * 132;
    let (a, b, c) = (Matrix::new(of(8 * k), 8, k), Matrix::new(of(8 * k), k, 8), MatrixMut::new(out(64), 8, 8));
    matmul_with_scratch::<(), _, T, T>(on, out(scratch_len(on)?), 1, a, b, &Epilogue::default(), c)
}

/// Launches what training needs, with rows of 768 numbers in heads of each size.
fn training<T: train::TrainElement>(on: &Notes) -> Result<(), LaunchError> {
    let (rows, width) = (128usize, 768usize);
    let n = rows * width;
    let shape = [rows as u32, width as u32];
    // Few rows have other kernels.
    for (rows, width) in [(rows, 256), (4096, 768), (4096, 1024), (rows, 2048)] {
        let (n, shape) = (rows * width, [rows as u32, width as u32]);
        train::norm::<(), _, T>(on, shape, 1e-5, of(n), [of(width), of(width)], out(2 * rows), out(n))?;
        train::norm_backward(on, shape[0], shape[1], true, of(n), of(n), of(2 * rows), of(width), out(n))?;
    }
    let parts = 2 * train::GROUPS * width;
    train::norm_columns(on, shape, false, of(n), of(n), of(2 * rows), out(parts), [out(width), out(width)])?;
    // Also a number of elements that is no number of words.
    for n in [n, n - 1] {
        train::adamw_bf16(on, of(train::SETTINGS), of(n), out(n), [out(n), out(n)], out(n))?;
        train::gelu::<(), _, T>(on, false, of(n), out(n))?;
        train::gelu_backward::<(), _, T>(on, false, of(n), out(n))?;
        train::round(on, of(n), out(n))?;
    }
    train::products_with_two(on, shape, false, of(n), of(2 * rows), out(parts), out(2 * width))?;
    train::sum_rows::<(), _, T>(on, shape, false, of(n), out(parts), out(width))?;
    train::gelu_backward_columns::<(), _, T>(on, shape, false, false, of(n), out(n), out(parts), out(width))?;
    train::round_columns(on, shape, false, of(n), out(n), out(parts), out(width))?;
    for size in [16usize, 32, 64] {
        let (heads, shape) = (width / size, [(width / size) as u32, size as u32]);
        let attention = train::Attention::<(), T> {
            rows: [rows as u32; 2],
            heads: shape,
            prefix: u32::MAX,
            prefixes: None,
            cu_q: of(2),
            cu_k: of(2),
            q: of(n),
            k: of(n),
            v: of(n),
            strides: [width as u32; 2],
            out: out(n),
            logs: out(rows * heads),
        };
        train::attention(on, attention)?;
        let backward = train::AttentionBackward::<(), T> {
            rows: rows as u32,
            heads: shape,
            prefix: u32::MAX,
            prefixes: None,
            cu_seqlens: of(2),
            qkv: of(3 * n),
            out: of(n),
            dout: of(n),
            logs: of(rows * heads),
            deltas: out(rows * heads),
            dqkv: out(3 * n),
        };
        train::attention_backward(on, backward)?;
    }
    let [r, c] = shape;
    // A page of one sequence.
    let (heads, page) = ([(width / 64) as u32, 64], train::PAGE * width);
    let (progress, rules, qkv) = (of(train::PROGRESS), of(train::RULES), of::<T>(3 * width));
    let (keys, values) = (out(page), out(page));
    let append =
        train::AppendRows { rows: [1, 1], blocks: [1, 1], heads, progress, rules, owners: of(2), qkv, keys, values };
    train::append_rows(on, append)?;
    let (keys, values, out_row) = (of(page), of(page), out(width));
    let attention = train::PagedAttention {
        sequences: 1,
        block: [0, 1],
        heads,
        progress,
        table: of(1),
        qkv,
        keys,
        values,
        out: out_row,
    };
    train::paged_attention(on, attention)?;
    train::newest_rows(on, 1, 1, 1, c, progress, of(width), of(width), out(width))?;
    train::sample(on, 1, 1, of(1), rules, out(train::PROGRESS), out(1))?;
    train::pool(on, r, c, 1, false, of(2), of(n), out(width))?;
    train::pool_backward(on, r, c, 1, false, of(2), of(width), out(n))?;
    train::cross_entropy(on, r, c, 1.0, of(n), of(rows), out(rows), out(n))?;
    let many = 4096;
    train::cross_entropy(on, r, many as u32, 1.0, of(rows * many), of(rows), out(rows), out(rows * many))?;
    train::argmax(on, r, c, of(n), out(rows))?;
    train::settings(on, 1.0, 1.0, 1.0, 0.9, 0.999, 1e-8, out(train::SETTINGS))?;
    train::gradient_norm(on, of(n), 1.0, out(n), out(1), out(train::SETTINGS))?;
    train::adamw(on, n as u32, of(train::SETTINGS), of(n), out(n), out(n), out(n))?;
    train::patches::<(), _, T>(on, [1, 3, 224, 16], of(3 * 224 * 224), out(3 * 224 * 224))?;
    train::positions(on, 1, 127, 1, c, of(127 * width), of(width), of(n), out(n))?;
    train::text(on, r, 2, r, c, 0, of(rows), of(2 * width), of(n), out(n))?;
    // A sequence of an image and a text.
    let (all, many) = (2 * r, 2 * n);
    train::join_ends(on, 1, of(2), of(2), of(1), out(2), out(1), out(2))?;
    train::join_rows(on, r, r, c, 1, 2, r, of(2), of(2), of(n), of(rows), of(2 * width), of(n), out(many))?;
    train::image_rows(on, r, r, c, 1, of(2), of(2), of(many), out(n))?;
    train::answer_rows(on, all, r, r, c, 1, of(2), of(2), of(2), of(1), of(rows), of(many), out(rows), out(n))?;
    train::answer_rows_backward(on, all, r, c, 1, of(2), of(2), of(2), of(1), of(n), out(many))?;
    train::place_gradients(on, all, c, r, 1, false, of(2), of(2), of(many), out(n))?;
    train::id_chains(on, 2, r, of(rows), out(rows + 2))?;
    train::id_gradients(on, r, r, c, 2, 1, of(2), of(2), of(rows + 2), of(many), out(2 * width))?;
    // The gate of an image whose patches have a token each.
    let seen = width + 9;
    train::relu(on, n as u32, out(n))?;
    train::relu_backward(on, n as u32, of(n), out(n))?;
    train::coupling(on, r, c, 1, of(2), of(n), of(width), out(rows))?;
    train::coupling_backward(on, r, c, 1, of(2), of(n), of(width), of(rows), out(n))?;
    train::score_statistics(on, r, c, 1, of(2), of(rows), of(rows), of(rows), of(width), out(seen), out(1))?;
    train::gates(on, r, 1, false, of(2), of(rows), of(rows), of(rows), of(3), out(rows))?;
    train::balance_backward(on, r, 1, false, of(2), of(rows), of(rows), of(rows), of(rows), of(3), out(3))?;
    train::score_gradients(on, r, c, 1, false, of(2), of(rows), of(3), of(rows), of(seen), of(seen), of(1), out(rows))?;
    train::gated(on, r, c, r, of(rows), of(rows), of(n), out(n))?;
    train::gated_backward(on, r, c, r, of(rows), of(n), of(n), out(rows))?;
    train::token_patches(on, r, 1, of(2), of(1), out(rows))
}

fn main() -> Result<(), LaunchError> {
    let on = Notes::default();
    let (height, width) = (2160, 3840);
    let pixels = (height * width) as usize;
    // `analyze` has a kernel for patches of up to 32 pixels a side, and one for larger ones.
    for patch in [64, 32] {
        // Two images, since `allocate` packs the lists of more than one.
        let layout = BatchLayout::new(&[[height, width]; 2], patch).expect("a legal batch");
        let (n, bytes) = (layout.patches() as usize, layout.bytes() as usize);
        let (batch, pixels) = (layout.batch(of(layout.table().len())), layout.pixels(of(bytes), [0.5, 0.5]));
        analyze(&on, &batch, &pixels, out(13 * n), out(n))?;
        let pieces = 12 * (n / 64 + 2);
        let how = Salience { edge: 8, least_peak: 1.0, foveal_bias: 0.1 };
        let scores = ParticipatoryMut { participatory: out(n), salience: out(n), summaries: out(pieces) };
        participatory(&on, &batch, how, of(13 * n), of(n), of(3400), scores)?;
        balance(&on, &batch, of(pieces), of(18179), false, out(6))?;
        let maps = || RelevanceMut { salience: out(n), relevance: out(n) };
        relevance(&on, &batch, 0.1, [0.5, 0.5], of(13 * n), of(n), maps())?;
        let scores = Scores { entropy: of(n), participatory: of(n), summaries: of(pieces), mix: of(6) };
        relevance_with_query(&on, &batch, &scores, maps())?;
        let (tokens, selected) = (10_000, 2 * 10_000 / 64);
        let lists = SelectionMut {
            sides: out(n),
            cu_seqlens: out(selected + 1),
            patch_id: out(selected),
            counts: out(2),
            image_cu_seqlens: out(3),
            image_cu_patches: out(3),
        };
        allocate(&on, &batch, Budget { lo: 8, hi: 20, tokens }, of(n), of(13), lists)?;
        let selection = selection(n, selected);
        macro_rules! fused {
            ($($kernel:ident)*) => {$(
                $kernel(&on, &batch, &pixels, &selection, tokens_mut(20_000))?;
            )*};
        }
        fused!(compress_fused compress_fused_f16 compress_fused_bf16);
    }
    let patches = (height.div_ceil(32) * width.div_ceil(32)) as usize;
    textures(&on, height, width, 0.5, 0.5, of(3 * pixels), out(13 * pixels))?;
    features(&on, height, width, 32, of(13 * pixels), out(13 * patches))?;
    entropy(&on, height, width, 32, of(3 * pixels), out(patches))?;
    compress(&on, height, width, 32, of(13 * pixels), &selection(patches, 100), tokens_mut(10_000))?;
    profile_sample(&on, 1, 3, of(3), of(3), out(13 * 1024))?;
    profile_scale(&on, 1, out(13 * 1024), out(13 * 1024), out(1024))?;
    top(&on, 1, 1024, 200, of(1024), out(200))?;
    {
        use thalweg_kernels::jpeg::{
            Coded, IMAGE_WORDS, Pieces, SEGMENT_WORDS, TABLE_WORDS, admit, coefficients, colors, colors_420,
            find_sync_points, inverse_dct, offsets, repair_sync_points,
        };
        // One image with one component, one segment, one piece and one block of coefficients.
        let images = admit(&on, of(IMAGE_WORDS as usize), out(IMAGE_WORDS as usize))?;
        let (segments, huffman) = (of(SEGMENT_WORDS as usize), of(TABLE_WORDS as usize));
        let coded = Coded { most_pieces: 1, images, segments, pieces: of(1), huffman, data: of(1) };
        find_sync_points(&on, &coded, out(2), out(4))?;
        repair_sync_points(&on, &coded, out(2), out(4))?;
        offsets(&on, &coded, of(4), out(4))?;
        let known = Pieces { states: of(2), counts: of(4), places: of(4) };
        coefficients(&on, &coded, &known, out(64), out(1))?;
        inverse_dct(&on, images, of(1), 1, of(32), of(64), out(64))?;
        colors_420(&on, images, of(1), 64, of(64), out(192))?;
        colors(&on, images, of(1), 64, of(64), out(192))?;
    }
    {
        use thalweg_kernels::augment::{
            RECORD_WORDS, ROWS, STEP_WORDS, SUM_COLUMNS, augment_bf16, augment_f32, finish_bf16, finish_f32, measure,
        };
        let (size, record) = (224u32, RECORD_WORDS as usize);
        let tiles = (size.div_ceil(SUM_COLUMNS) * size.div_ceil(ROWS)) as usize;
        let (elements, numbers) = ((3 * size * size) as usize, [1.0; 3]);
        measure(&on, 1, size, 3, numbers, of(record), of(3), out(tiles))?;
        macro_rules! augment {
            ($($kernel:ident)*) => {$(
                $kernel(
                    &on, 1, size, 3, true, true, numbers, numbers, numbers, of(record), of(3), of(tiles), out(elements),
                )?;
            )*};
        }
        augment!(augment_f32 augment_bf16);
        finish_f32(&on, 1, size, of(STEP_WORDS as usize), of(elements), out(elements))?;
        finish_bf16(&on, 1, size, of(STEP_WORDS as usize), of(elements), out(elements))?;
    }
    {
        use thalweg_kernels::processor::{Sources, Units, VIEW_WORDS, fragments, inputs, interleaved_inputs};
        macro_rules! processed {
            ($($e:ty)*) => {$(
                for (made, quads) in [(Some(of(512)), 1792), (Some(of(512)), 0), (None, 0)] {
                    let (views, table) = (of(VIEW_WORDS as usize), of::<$e>(768));
                    let sources = Sources { rgb: of(4), views, axes: of(4), table, fragments: made };
                    let order = |side| Units { side, merge: 2, copies: 2, window: 1024, quads };
                    inputs(&on, &sources, order(14), out(4 * 6 * 14 * 14))?;
                    interleaved_inputs(&on, &sources, order(16), out(3 * 16 * 16))?;
                }
            )*};
        }
        processed!(f32 bf16);
        fragments(&on, of(4), of(8), out(128))?;
    }
    macro_rules! reductions {
        ($($t:ty)*) => { $(reductions::<$t>(&on)?;)* };
    }
    reductions!(f32 f64 f16 bf16 i32 u32 i64 u64 u8);
    training::<f32>(&on)?;
    training::<bf16>(&on)?;
    products::<f32>(&on)?;
    products::<f16>(&on)?;
    products::<bf16>(&on)?;
    on.tiles.set(true);
    products::<f16>(&on)?;
    products::<bf16>(&on)?;
    for (kernel, shape) in &*on.shapes.borrow() {
        println!("{kernel} {} {}", shape.block.iter().product::<u32>(), shape.shared);
    }
    Ok(())
}
