//! The family `train`.

use thalweg::Result;
use thalweg_kernels::train::{self, AppendRows, Attention, AttentionBackward, GROUPS, PARTS, PagedAttention, SETTINGS};
use thalweg_simt::bf16;

use super::Launcher;
use super::trial::{Number, Piece, Trial};

pub(crate) const TRAIN: &[Launcher] = &[
    Launcher { name: "adamw", cases: 60, run: adamw },
    Launcher { name: "adamw_bf16", cases: 90, run: adamw_bf16 },
    Launcher { name: "answer_rows", cases: 90, run: answer_rows },
    Launcher { name: "answer_rows_backward", cases: 90, run: answer_rows_backward },
    Launcher { name: "append_rows", cases: 90, run: |t| of_type(t, append_rows::<f32>, append_rows::<bf16>) },
    Launcher { name: "argmax", cases: 90, run: argmax },
    Launcher { name: "attention", cases: 480, run: |t| of_type(t, attention::<f32>, attention::<bf16>) },
    Launcher { name: "attention_backward", cases: 300, run: |t| of_type(t, backward::<f32>, backward::<bf16>) },
    Launcher { name: "balance_backward", cases: 60, run: balance_backward },
    Launcher { name: "coupling", cases: 60, run: coupling },
    Launcher { name: "coupling_backward", cases: 60, run: coupling_backward },
    Launcher { name: "sum_rows", cases: 90, run: |t| of_type(t, columns::<f32>, columns::<bf16>) },
    Launcher { name: "cross_entropy", cases: 120, run: cross_entropy },
    Launcher { name: "gated", cases: 60, run: gated },
    Launcher { name: "gated_backward", cases: 60, run: gated_backward },
    Launcher { name: "gates", cases: 60, run: gates },
    Launcher { name: "gelu", cases: 120, run: |t| of_type(t, gelu::<f32>, gelu::<bf16>) },
    Launcher { name: "gelu_backward", cases: 120, run: |t| of_type(t, gelu_backward::<f32>, gelu_backward::<bf16>) },
    Launcher {
        name: "gelu_backward_columns",
        cases: 120,
        run: |t| of_type(t, gelu_columns::<f32>, gelu_columns::<bf16>),
    },
    Launcher { name: "gradient_norm", cases: 60, run: gradient_norm },
    Launcher { name: "id_chains", cases: 60, run: id_chains },
    Launcher { name: "id_gradients", cases: 90, run: id_gradients },
    Launcher { name: "image_rows", cases: 60, run: image_rows },
    Launcher { name: "join_ends", cases: 30, run: join_ends },
    Launcher { name: "join_rows", cases: 90, run: join_rows },
    Launcher { name: "newest_rows", cases: 60, run: newest_rows },
    Launcher { name: "norm", cases: 60, run: |t| of_type(t, norm::<f32>, norm::<bf16>) },
    Launcher { name: "norm_backward", cases: 40, run: norm_backward },
    Launcher { name: "norm_columns", cases: 90, run: norm_columns },
    Launcher {
        name: "paged_attention",
        cases: 60,
        run: |t| of_type(t, paged_attention::<f32>, paged_attention::<bf16>),
    },
    Launcher { name: "patches", cases: 90, run: |t| of_type(t, patches::<f32>, patches::<bf16>) },
    Launcher { name: "place_gradients", cases: 60, run: place_gradients },
    Launcher { name: "pool", cases: 180, run: pool },
    Launcher { name: "pool_backward", cases: 180, run: pool_backward },
    Launcher { name: "positions", cases: 90, run: positions },
    Launcher { name: "products_with_two", cases: 90, run: products_with_two },
    Launcher { name: "relu", cases: 60, run: relu },
    Launcher { name: "relu_backward", cases: 60, run: relu_backward },
    Launcher { name: "round", cases: 90, run: round },
    Launcher { name: "round_columns", cases: 90, run: round_columns },
    Launcher { name: "sample", cases: 60, run: sample },
    Launcher { name: "score_gradients", cases: 60, run: score_gradients },
    Launcher { name: "score_statistics", cases: 60, run: score_statistics },
    Launcher { name: "settings", cases: 10, run: settings },
    Launcher { name: "text", cases: 120, run: text },
    Launcher { name: "token_patches", cases: 60, run: token_patches },
];

/// Runs a case with elements of `f32`, and the next one with elements of `bf16`.
fn of_type<'s, 'l>(
    t: &Trial<'s, 'l>,
    wide: fn(&Trial<'s, 'l>) -> Result<()>,
    narrow: fn(&Trial<'s, 'l>) -> Result<()>,
) -> Result<()> {
    if t.number.is_multiple_of(2) { wide(t) } else { narrow(t) }
}

/// Rows and columns, which each have some kernel of their own. Those with many of both are rare,
/// since they take long.
fn shape(t: &Trial<'_, '_>) -> [u32; 2] {
    match t.number {
        10 | 11 => [2049, 260],
        12 | 13 => [2049, 800],
        _ => [t.pick(&[0, 1, 2, 5, 33, 70, 140]), t.pick(&[1, 2, 4, 7, 32, 36, 64, 65, 130, 256, 257, 800, 1030])],
    }
}

fn few(t: &Trial<'_, '_>) -> [u32; 2] {
    [t.pick(&[0, 1, 2, 5, 33, 70, 140, 4200]), t.pick(&[1, 2, 4, 7, 8, 32, 36])]
}

fn norm<E: train::TrainElement + Number>(t: &Trial<'_, '_>) -> Result<()> {
    let [rows, columns] = shape(t);
    let n = rows as usize * columns as usize;
    let (x, weight, bias) = (t.numbers(n)?, t.numbers(columns as usize)?, t.numbers(columns as usize)?);
    let (mut stats, mut y) = (t.room(2 * rows as usize)?, t.room::<E>(n)?);
    train::norm(t, [rows, columns], t.float(), &x, [&weight, &bias], &mut stats, &mut y)
}

fn norm_backward(t: &Trial<'_, '_>) -> Result<()> {
    let ([rows, columns], add) = (shape(t), t.flip());
    let n = rows as usize * columns as usize;
    let (dy, x, stats) = (t.numbers(n)?, t.numbers(n)?, t.numbers(2 * rows as usize)?);
    let weight = t.numbers(columns as usize)?;
    train::norm_backward(t, rows, columns, add, &dy, &x, &stats, &weight, &mut t.old(add, n)?)
}

fn norm_columns(t: &Trial<'_, '_>) -> Result<()> {
    let ([rows, columns], add) = (few(t), t.flip());
    let (n, c) = ((rows * columns) as usize, columns as usize);
    let (dy, x, stats) = (t.numbers(n)?, t.numbers(n)?, t.numbers(2 * rows as usize)?);
    let (mut parts, mut weight, mut bias) = (t.room(2 * GROUPS * c)?, t.old(add, c)?, t.old(add, c)?);
    train::norm_columns(t, [rows, columns], add, &dy, &x, &stats, &mut parts, [&mut weight, &mut bias])
}

fn gelu<E: train::TrainElement + Number>(t: &Trial<'_, '_>) -> Result<()> {
    let n = t.below(300) as usize;
    train::gelu(t, t.flip(), &t.numbers::<E>(n)?, &mut t.room::<E>(n)?)
}

fn gelu_backward<E: train::TrainElement + Number>(t: &Trial<'_, '_>) -> Result<()> {
    let n = t.below(300) as usize;
    train::gelu_backward(t, t.flip(), &t.numbers::<E>(n)?, &mut t.numbers::<E>(n)?)
}

fn gelu_columns<E: train::TrainElement + Number>(t: &Trial<'_, '_>) -> Result<()> {
    let ([rows, columns], add) = (few(t), t.flip());
    let (n, c) = ((rows * columns) as usize, columns as usize);
    let (x, mut d) = (t.numbers::<E>(n)?, t.numbers::<E>(n)?);
    let (mut parts, mut sums) = (t.room(GROUPS * c)?, t.old(add, c)?);
    train::gelu_backward_columns(t, [rows, columns], t.flip(), add, &x, &mut d, &mut parts, &mut sums)
}

fn columns<E: train::TrainElement + Number>(t: &Trial<'_, '_>) -> Result<()> {
    let ([rows, columns], add) = (few(t), t.flip());
    let (x, c) = (t.numbers::<E>((rows * columns) as usize)?, columns as usize);
    train::sum_rows(t, [rows, columns], add, &x, &mut t.room(GROUPS * c)?, &mut t.old(add, c)?)
}

fn round(t: &Trial<'_, '_>) -> Result<()> {
    let n = t.below(300) as usize;
    train::round(t, &t.numbers(n)?, &mut t.room(n)?)
}

fn round_columns(t: &Trial<'_, '_>) -> Result<()> {
    let ([rows, columns], add) = (few(t), t.flip());
    let (n, c) = ((rows * columns) as usize, columns as usize);
    let (x, mut y, mut parts) = (t.numbers(n)?, t.room(n)?, t.room(GROUPS * c)?);
    train::round_columns(t, [rows, columns], add, &x, &mut y, &mut parts, &mut t.old(add, c)?)
}

fn products_with_two(t: &Trial<'_, '_>) -> Result<()> {
    let ([rows, columns], add) = (few(t), t.flip());
    let c = 2 * columns as usize;
    let (x, y) = (t.numbers((rows * columns) as usize)?, t.numbers(2 * rows as usize)?);
    train::products_with_two(t, [rows, columns], add, &x, &y, &mut t.room(GROUPS * c)?, &mut t.old(add, c)?)
}

/// The number of heads and the elements of one, which each have some kernel of their own.
fn heads(t: &Trial<'_, '_>) -> [u32; 2] {
    [t.within(1, 2), t.pick(&[1, 5, 16, 17, 32, 64, 64, 64, 33])]
}

/// A number of keys for each sequence, or none.
fn prefixes<'l>(t: &Trial<'_, 'l>, sequences: u32) -> Result<Option<Piece<'l, i32>>> {
    let each = (0..sequences).map(|_| t.below(200)).collect();
    t.flip().then(|| t.signed(each)).transpose()
}

/// How many keys a query sees at least.
fn prefix(t: &Trial<'_, '_>) -> u32 {
    t.pick(&[0, 3, 100, u32::MAX])
}

fn attention<E: train::TrainElement + Number>(t: &Trial<'_, '_>) -> Result<()> {
    let (rows, keys) = (t.pick(&[0, 1, 20, 70, 150]), t.pick(&[0, 1, 20, 70, 150]));
    let ([count, size], sequences) = (heads(t), t.within(1, 4));
    let width = count * size;
    let strides = [0, 1].map(|_| if t.once_in(20) { t.below(width + 1) } else { width + t.pick(&[0, 0, 8, 16, 1]) });
    let len = |rows: u32, stride: u32| (rows * stride) as usize;
    let (cu_q, cu_k) = (t.bounds(sequences, rows)?, t.bounds(sequences, keys)?);
    let q = t.numbers::<E>(len(rows, strides[0]))?;
    let (k, v) = (t.numbers::<E>(len(keys, strides[1]))?, t.numbers::<E>(len(keys, strides[1]))?);
    let (mut out, mut logs) = (t.room::<E>((rows * width) as usize)?, t.room((rows * count) as usize)?);
    let prefixes = prefixes(t, sequences)?;
    train::attention(
        t,
        Attention {
            rows: [rows, keys],
            heads: [count, size],
            prefix: prefix(t),
            prefixes: prefixes.as_deref(),
            cu_q: &cu_q,
            cu_k: &cu_k,
            q: &q,
            k: &k,
            v: &v,
            strides,
            out: &mut out,
            logs: &mut logs,
        },
    )
}

fn backward<E: train::TrainElement + Number>(t: &Trial<'_, '_>) -> Result<()> {
    let (rows, [count, size]) = (t.pick(&[0, 1, 20, 70, 150]), heads(t));
    let n = (rows * count * size) as usize;
    let sequences = t.within(1, 4);
    let (cu_seqlens, prefixes) = (t.bounds(sequences, rows)?, prefixes(t, sequences)?);
    let (qkv, out, dout) = (t.numbers::<E>(3 * n)?, t.numbers::<E>(n)?, t.numbers::<E>(n)?);
    let logs = t.numbers((rows * count) as usize)?;
    let (mut deltas, mut dqkv) = (t.room((rows * count) as usize)?, t.room::<E>(3 * n)?);
    train::attention_backward(
        t,
        AttentionBackward {
            rows,
            heads: [count, size],
            prefix: prefix(t),
            prefixes: prefixes.as_deref(),
            cu_seqlens: &cu_seqlens,
            qkv: &qkv,
            out: &out,
            dout: &dout,
            logs: &logs,
            deltas: &mut deltas,
            dqkv: &mut dqkv,
        },
    )
}

/// The state of texts, of which some are idle: the newest id, rows, place, and tokens to write.
fn progress<'l>(t: &Trial<'_, 'l>, texts: u32) -> Result<Piece<'l, i32>> {
    t.signed((0..texts).flat_map(|_| [t.below(30), t.below(70), t.below(30), t.below(3)]).collect())
}

fn rules<'l>(t: &Trial<'_, 'l>, texts: u32) -> Result<Piece<'l, i32>> {
    let rule = |n| [t.word(), t.word(), t.float().abs().to_bits(), t.pick(&[1.0, 0.5, t.float()]).to_bits(), n];
    t.signed((0..texts).flat_map(rule).collect())
}

fn newest_rows(t: &Trial<'_, '_>) -> Result<()> {
    let (texts, ids, places, columns) = (t.below(20), t.below(30), t.below(30), t.below(70));
    let (table, position) = (t.numbers((ids * columns) as usize)?, t.numbers((places * columns) as usize)?);
    let mut y = t.room((texts * columns) as usize)?;
    train::newest_rows(t, texts, ids, places, columns, &progress(t, texts)?, &table, &position, &mut y)
}

/// The numbers of keys, or of values, in some pages.
fn pages<E>(count: u32, blocks: u32, [heads, size]: [u32; 2]) -> usize {
    let size = (size as usize).next_multiple_of(16 / size_of::<E>());
    train::PAGE * (count * blocks * heads) as usize * size
}

fn append_rows<E: train::TrainElement + Number>(t: &Trial<'_, '_>) -> Result<()> {
    let (sequences, new, count, heads) = (t.within(1, 4), t.pick(&[0, 1, 20]), t.below(12), heads(t));
    let blocks = [t.below(4), sequences * new + t.below(3)];
    let owners = t.signed((0..count).flat_map(|_| [t.below(5), t.below(5)]).collect())?;
    let qkv = t.numbers::<E>((blocks[0] * blocks[1] * 3 * heads[0] * heads[1]) as usize)?;
    let (progress, rules, rows) = (&progress(t, sequences)?, &rules(t, sequences)?, [sequences, new]);
    let room = pages::<E>(count, blocks[0], heads);
    let (keys, values) = (&mut t.room::<E>(room)?, &mut t.room::<E>(room)?);
    let (owners, qkv) = (&owners, &qkv);
    train::append_rows(t, AppendRows { rows, blocks, heads, progress, rules, owners, qkv, keys, values })
}

fn paged_attention<E: train::TrainElement + Number>(t: &Trial<'_, '_>) -> Result<()> {
    let (sequences, count, most, heads) = (t.within(1, 4), t.below(12), t.pick(&[0, 1, 5, 40]), heads(t));
    let table = t.signed((0..sequences * most).map(|_| t.below(14)).collect())?;
    let width = (sequences * heads[0] * heads[1]) as usize;
    let blocks = t.within(1, 3);
    let (block, room) = ([t.below(blocks), blocks], pages::<E>(count, blocks, heads));
    let (progress, qkv) = (&progress(t, sequences)?, &t.numbers::<E>(3 * width)?);
    let (table, keys, values) = (&table, &t.numbers::<E>(room)?, &t.numbers::<E>(room)?);
    let out = &mut t.room::<E>(width)?;
    train::paged_attention(t, PagedAttention { sequences, block, heads, progress, table, qkv, keys, values, out })
}

fn sample(t: &Trial<'_, '_>) -> Result<()> {
    let (texts, ids) = (t.below(4), t.pick(&[1, 2, 31, 255, 257, 5000]));
    let (logits, mut next) = (t.numbers((texts * ids) as usize)?, t.room(texts as usize)?);
    train::sample(t, texts, ids, &logits, &rules(t, texts)?, &mut progress(t, texts)?, &mut next)
}

fn pool(t: &Trial<'_, '_>) -> Result<()> {
    let (rows, columns, sequences) = (t.below(60), t.below(70), t.within(1, 5));
    let (ends, x) = (t.bounds(sequences, rows)?, t.numbers((rows * columns) as usize)?);
    let mut y = t.room((sequences * columns) as usize)?;
    train::pool(t, rows, columns, sequences, t.flip(), &ends, &x, &mut y)
}

fn pool_backward(t: &Trial<'_, '_>) -> Result<()> {
    let (rows, columns, sequences) = (t.below(60), t.below(70), t.within(1, 5));
    let (ends, dy) = (t.bounds(sequences, rows)?, t.numbers((sequences * columns) as usize)?);
    let mut dx = t.room((rows * columns) as usize)?;
    train::pool_backward(t, rows, columns, sequences, t.flip(), &ends, &dy, &mut dx)
}

fn cross_entropy(t: &Trial<'_, '_>) -> Result<()> {
    let (rows, classes) = (t.below(5), t.pick(&[1, 2, 31, 33, 100, 2047, 2048, 2100]));
    let n = (rows * classes) as usize;
    let labels = t.signed((0..rows).map(|_| t.below(classes)).collect())?;
    let (mut losses, mut gradient) = (t.room(rows as usize)?, t.room(n)?);
    train::cross_entropy(t, rows, classes, t.float(), &t.numbers(n)?, &labels, &mut losses, &mut gradient)
}

fn argmax(t: &Trial<'_, '_>) -> Result<()> {
    let (rows, columns) = (t.below(4), t.pick(&[1, 2, 31, 33, 1023, 1025, 3000]));
    train::argmax(t, rows, columns, &t.numbers((rows * columns) as usize)?, &mut t.room(rows as usize)?)
}

fn patches<E: train::TrainElement + Number>(t: &Trial<'_, '_>) -> Result<()> {
    let (images, channels, side) = (t.below(3), t.below(4), t.within(1, 5));
    let size = side * t.below(4) + u32::from(t.once_in(20));
    let n = (images * channels * size * size) as usize;
    train::patches::<_, _, E>(t, [images, channels, size, side], &t.numbers(n)?, &mut t.room(n)?)
}

fn positions(t: &Trial<'_, '_>) -> Result<()> {
    let (images, patches, classes, columns) = (t.below(4), t.within(1, 10), t.below(2), t.below(70));
    let (x, class) = (t.numbers((images * patches * columns) as usize)?, t.numbers((classes * columns) as usize)?);
    let position = t.numbers(((patches + classes) * columns) as usize)?;
    let mut y = t.room((images * (patches + classes) * columns) as usize)?;
    train::positions(t, images, patches, classes, columns, &x, &class, &position, &mut y)
}

fn text(t: &Trial<'_, '_>) -> Result<()> {
    let (tokens, ids, places, columns) = (t.below(20), t.below(30), t.below(30), t.below(70));
    let start = if t.flip() { t.below(10) } else { t.word() };
    let id = t.signed((0..tokens).map(|_| t.below(30)).collect())?;
    let (table, position) = (t.numbers((ids * columns) as usize)?, t.numbers((places * columns) as usize)?);
    let mut y = t.room((tokens * columns) as usize)?;
    train::text(t, tokens, ids, places, columns, start, &id, &table, &position, &mut y)
}

/// Images, texts and answers as rows, columns and sequences.
fn joined(t: &Trial<'_, '_>) -> [u32; 5] {
    [t.below(40), t.below(40), t.below(40), t.pick(&[1, 3, 64, 130]), t.within(1, 4)]
}

fn join_ends(t: &Trial<'_, '_>) -> Result<()> {
    let [images, texts, _, _, b] = joined(t);
    let (ends, question) = ((b + 1) as usize, t.signed((0..b).map(|_| t.below(20)).collect())?);
    let (image_ends, text_ends) = (t.bounds(b, images)?, t.bounds(b, texts)?);
    let (mut all, mut rows, mut answers) = (t.room(ends)?, t.room(b as usize)?, t.room(ends)?);
    train::join_ends(t, b, &image_ends, &text_ends, &question, &mut all, &mut rows, &mut answers)
}

fn join_rows(t: &Trial<'_, '_>) -> Result<()> {
    let ([images, texts, _, c, b], ids, places) = (joined(t), t.below(30), t.below(30));
    let (image_ends, text_ends) = (t.bounds(b, images)?, t.bounds(b, texts)?);
    let (image, id) = (t.numbers((images * c) as usize)?, t.signed((0..texts).map(|_| t.below(30)).collect())?);
    let (table, position) = (t.numbers((ids * c) as usize)?, t.numbers((places * c) as usize)?);
    let mut y = t.room(((images + texts) * c) as usize)?;
    let ends = (&image_ends, &text_ends);
    train::join_rows(t, images, texts, c, b, ids, places, ends.0, ends.1, &image, &id, &table, &position, &mut y)
}

fn image_rows(t: &Trial<'_, '_>) -> Result<()> {
    let [images, texts, _, c, b] = joined(t);
    let (image_ends, text_ends) = (t.bounds(b, images)?, t.bounds(b, texts)?);
    let (x, mut y) = (t.numbers(((images + texts) * c) as usize)?, t.room((images * c) as usize)?);
    train::image_rows(t, images, texts, c, b, &image_ends, &text_ends, &x, &mut y)
}

fn answer_rows(t: &Trial<'_, '_>) -> Result<()> {
    let [images, texts, answers, c, b] = joined(t);
    let (image_ends, text_ends, ends) = (t.bounds(b, images)?, t.bounds(b, texts)?, t.bounds(b, answers)?);
    let question = t.signed((0..b).map(|_| t.below(20)).collect())?;
    let (id, x) = (t.signed((0..texts).map(|_| t.below(30)).collect())?, t.numbers(((images + texts) * c) as usize)?);
    let (mut labels, mut y) = (t.room(answers as usize)?, t.room((answers * c) as usize)?);
    let shape = [images + texts, texts, answers, c, b];
    let [rows, texts, answers, c, b] = shape;
    train::answer_rows(
        t,
        rows,
        texts,
        answers,
        c,
        b,
        &image_ends,
        &text_ends,
        &ends,
        &question,
        &id,
        &x,
        &mut labels,
        &mut y,
    )
}

fn answer_rows_backward(t: &Trial<'_, '_>) -> Result<()> {
    let [images, texts, answers, c, b] = joined(t);
    let (image_ends, text_ends, ends) = (t.bounds(b, images)?, t.bounds(b, texts)?, t.bounds(b, answers)?);
    let question = t.signed((0..b).map(|_| t.below(20)).collect())?;
    let (dy, mut dx) = (t.numbers((answers * c) as usize)?, t.room(((images + texts) * c) as usize)?);
    let rows = images + texts;
    train::answer_rows_backward(t, rows, answers, c, b, &image_ends, &text_ends, &ends, &question, &dy, &mut dx)
}

fn place_gradients(t: &Trial<'_, '_>) -> Result<()> {
    let ([images, texts, places, c, b], add) = (joined(t), t.flip());
    let (image_ends, text_ends) = (t.bounds(b, images)?, t.bounds(b, texts)?);
    let (dx, mut dw) = (t.numbers(((images + texts) * c) as usize)?, t.old(add, (places * c) as usize)?);
    train::place_gradients(t, images + texts, c, places, b, add, &image_ends, &text_ends, &dx, &mut dw)
}

fn id_chains(t: &Trial<'_, '_>) -> Result<()> {
    let (ids, texts) = (t.below(40), t.below(40));
    let id = t.signed((0..texts).map(|_| t.below(9)).collect())?;
    train::id_chains(t, ids, texts, &id, &mut t.room((ids + texts) as usize)?)
}

fn id_gradients(t: &Trial<'_, '_>) -> Result<()> {
    let [images, texts, ids, c, b] = joined(t);
    let (image_ends, text_ends) = (t.bounds(b, images)?, t.bounds(b, texts)?);
    let next = t.given(&(0..ids + texts).map(|_| t.below(50)).collect::<Vec<_>>())?;
    let (dx, mut dw) = (t.numbers(((images + texts) * c) as usize)?, t.numbers((ids * c) as usize)?);
    train::id_gradients(t, images, texts, c, ids, b, &image_ends, &text_ends, &next, &dx, &mut dw)
}

fn gradient_norm(t: &Trial<'_, '_>) -> Result<()> {
    let n = t.pick(&[0, 1, 100, 2048, 2049, 20_000]);
    let (mut parts, mut norm, mut settings) = (t.room(PARTS)?, t.room(1)?, t.room(SETTINGS)?);
    train::gradient_norm(t, &t.numbers(n)?, t.float(), &mut parts, &mut norm, &mut settings)
}

fn settings(t: &Trial<'_, '_>) -> Result<()> {
    let [a, b, c, d, e, f] = [0; 6].map(|_| t.float());
    train::settings(t, a, b, c, d, e, f, &mut t.room(SETTINGS)?)
}

fn adamw(t: &Trial<'_, '_>) -> Result<()> {
    let n = t.below(300);
    let (settings, gradient) = (t.numbers(SETTINGS)?, t.numbers(n as usize)?);
    let [mut weights, mut first, mut second] = [t.numbers(n as usize)?, t.numbers(n as usize)?, t.numbers(n as usize)?];
    train::adamw(t, n, &settings, &gradient, &mut weights, &mut first, &mut second)
}

fn adamw_bf16(t: &Trial<'_, '_>) -> Result<()> {
    let n = t.below(300) as usize;
    let (settings, gradient) = (t.numbers(SETTINGS)?, t.numbers(n)?);
    let [mut weights, mut first, mut second] = [t.numbers(n)?, t.numbers(n)?, t.numbers(n)?];
    train::adamw_bf16(t, &settings, &gradient, &mut weights, [&mut first, &mut second], &mut t.room(n)?)
}

fn relu(t: &Trial<'_, '_>) -> Result<()> {
    let n = t.below(300);
    train::relu(t, n, &mut t.old(true, n as usize)?)
}

fn relu_backward(t: &Trial<'_, '_>) -> Result<()> {
    let n = t.below(300);
    train::relu_backward(t, n, &t.numbers(n as usize)?, &mut t.old(true, n as usize)?)
}

/// Patches, numbers of a query, and images.
fn of_gate(t: &Trial<'_, '_>) -> [u32; 3] {
    [t.below(150), t.pick(&[1, 3, 31, 33, 70]), t.within(1, 4)]
}

fn coupling(t: &Trial<'_, '_>) -> Result<()> {
    let [n, c, b] = of_gate(t);
    let (ends, z, query) = (t.bounds(b, n)?, t.numbers((n * c) as usize)?, t.numbers((b * c) as usize)?);
    train::coupling(t, n, c, b, &ends, &z, &query, &mut t.room(n as usize)?)
}

fn coupling_backward(t: &Trial<'_, '_>) -> Result<()> {
    let [n, c, b] = of_gate(t);
    let (ends, z, query) = (t.bounds(b, n)?, t.numbers((n * c) as usize)?, t.numbers((b * c) as usize)?);
    let (dscore, mut dz) = (t.numbers(n as usize)?, t.room((n * c) as usize)?);
    train::coupling_backward(t, n, c, b, &ends, &z, &query, &dscore, &mut dz)
}

fn score_statistics(t: &Trial<'_, '_>) -> Result<()> {
    let [n, c, b] = of_gate(t);
    let maps = [t.numbers(n as usize)?, t.numbers(n as usize)?, t.numbers(n as usize)?];
    let (ends, query) = (t.bounds(b, n)?, t.numbers((b * c) as usize)?);
    let (mut x, mut peak) = (t.room((b * (c + 9)) as usize)?, t.room(b as usize)?);
    train::score_statistics(t, n, c, b, &ends, &maps[0], &maps[1], &maps[2], &query, &mut x, &mut peak)
}

fn gates(t: &Trial<'_, '_>) -> Result<()> {
    let [n, _, b] = of_gate(t);
    let maps = [t.numbers(n as usize)?, t.numbers(n as usize)?, t.numbers(n as usize)?];
    let (ends, said) = (t.bounds(b, n)?, t.numbers(3 * b as usize)?);
    train::gates(t, n, b, t.flip(), &ends, &maps[0], &maps[1], &maps[2], &said, &mut t.room(n as usize)?)
}

fn balance_backward(t: &Trial<'_, '_>) -> Result<()> {
    let [n, _, b] = of_gate(t);
    let maps = [t.numbers(n as usize)?, t.numbers(n as usize)?, t.numbers(n as usize)?];
    let (ends, dgate, said) = (t.bounds(b, n)?, t.numbers(n as usize)?, t.numbers(3 * b as usize)?);
    let mut dv = t.room(3 * b as usize)?;
    train::balance_backward(t, n, b, t.flip(), &ends, &maps[0], &maps[1], &maps[2], &dgate, &said, &mut dv)
}

fn score_gradients(t: &Trial<'_, '_>) -> Result<()> {
    let [n, c, b] = of_gate(t);
    let (ends, score, dgate) = (t.bounds(b, n)?, t.numbers(n as usize)?, t.numbers(n as usize)?);
    let (said, peak) = (t.numbers(3 * b as usize)?, t.signed((0..b).map(|_| t.below(150)).collect())?);
    let (x, dx) = (t.numbers((b * (c + 9)) as usize)?, t.numbers((b * (c + 9)) as usize)?);
    let mut d = t.room(n as usize)?;
    train::score_gradients(t, n, c, b, t.flip(), &ends, &score, &said, &dgate, &x, &dx, &peak, &mut d)
}

fn gated(t: &Trial<'_, '_>) -> Result<()> {
    let ([n, c, _], rows) = (of_gate(t), t.below(100));
    let (patch, gate) = (t.signed((0..rows).map(|_| t.below(150)).collect())?, t.numbers(n as usize)?);
    let (x, mut y) = (t.numbers((rows * c) as usize)?, t.room((rows * c) as usize)?);
    train::gated(t, rows, c, n, &patch, &gate, &x, &mut y)
}

fn gated_backward(t: &Trial<'_, '_>) -> Result<()> {
    let ([n, c, _], rows) = (of_gate(t), t.below(100));
    let patch = t.signed((0..rows).map(|_| t.below(150)).collect())?;
    let (x, dy) = (t.numbers((rows * c) as usize)?, t.numbers((rows * c) as usize)?);
    train::gated_backward(t, rows, c, n, &patch, &x, &dy, &mut t.room(n as usize)?)
}

fn token_patches(t: &Trial<'_, '_>) -> Result<()> {
    let (rows, selected) = (t.below(100), t.within(1, 20));
    let (ends, id) = (t.bounds(selected, rows)?, t.signed((0..selected).map(|_| t.below(150)).collect())?);
    train::token_patches(t, rows, selected, &ends, &id, &mut t.room(rows as usize)?)
}
