//! Launchers of the kernels that exist for two types of activations.

use std::fmt;

use thalweg_simt::host::{DeviceSlice, Launch, LaunchError};
use thalweg_simt::{Element, bf16};

use super::{
    activation, attention as heads, columns as sums, embed, flash_attention, loss, norm as rows, optimizer, paged,
};

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for super::bf16 {}
}

/// The queries, keys and values of [`attention`], and where the result goes.
pub struct Attention<'a, S, E> {
    /// The rows of queries and those of keys and values.
    pub rows: [u32; 2],
    /// The number of heads, and the elements of one: 1 to 32, or 64.
    pub heads: [u32; 2],
    /// The number of keys of its sequence that each query sees whatever its place is. A query also
    /// sees the keys up to its own place. `u32::MAX` lets all see all, and 0 is causal.
    pub prefix: u32,
    /// A number for each sequence instead, \[B\].
    pub prefixes: Option<&'a DeviceSlice<S, i32>>,
    /// The starts and the end of the sequences of queries, [B + 1].
    pub cu_q: &'a DeviceSlice<S, i32>,
    /// The starts and the end of the sequences of keys, [B + 1].
    pub cu_k: &'a DeviceSlice<S, i32>,
    /// The queries: rows of all heads side by side.
    pub q: &'a DeviceSlice<S, E>,
    /// The keys.
    pub k: &'a DeviceSlice<S, E>,
    /// The values.
    pub v: &'a DeviceSlice<S, E>,
    /// The elements from one row of queries to the next, and from one row of keys, or of values, to
    /// the next. For heads of 64 elements in `bf16` they are multiples of 8, and all rows begin at
    /// multiples of 16 bytes.
    pub strides: [u32; 2],
    /// The result, [rows of queries, heads, size].
    pub out: &'a mut DeviceSlice<S, E>,
    /// The logarithms of the sums, to base 2, [heads, rows of queries]. The gradient needs them.
    pub logs: &'a mut DeviceSlice<S, f32>,
}

/// The arguments of [`attention_backward`]: queries, keys and values side by side in each row, as
/// one product makes them.
pub struct AttentionBackward<'a, S, E> {
    /// The rows, which are queries, keys and values.
    pub rows: u32,
    /// The number of heads, and the elements of one: 1 to 32, or 64.
    pub heads: [u32; 2],
    /// As in [`Attention`].
    pub prefix: u32,
    /// As in [`Attention`].
    pub prefixes: Option<&'a DeviceSlice<S, i32>>,
    /// The starts and the end of the sequences, [B + 1].
    pub cu_seqlens: &'a DeviceSlice<S, i32>,
    /// Queries, keys and values, [rows, 3, heads, size].
    pub qkv: &'a DeviceSlice<S, E>,
    /// The result of the attention, [rows, heads, size].
    pub out: &'a DeviceSlice<S, E>,
    /// Its gradient.
    pub dout: &'a DeviceSlice<S, E>,
    /// The contents of [`Attention::logs`] after the forward pass.
    pub logs: &'a DeviceSlice<S, f32>,
    /// Room for [heads, rows] numbers.
    pub deltas: &'a mut DeviceSlice<S, f32>,
    /// The gradient of `qkv`.
    pub dqkv: &'a mut DeviceSlice<S, E>,
}

/// The arguments of [`append_rows`].
pub struct AppendRows<'a, S, E> {
    /// The sequences, and how many rows of each are new.
    pub rows: [u32; 2],
    /// The blocks of the model, and the rows that `qkv` has of each.
    pub blocks: [u32; 2],
    /// The number of heads, and the elements of one: 1 to 64.
    pub heads: [u32; 2],
    /// The state of the sequences, [sequences, [`PROGRESS`](super::PROGRESS)]: the last new row
    /// will follow those that the cache has.
    pub progress: &'a DeviceSlice<S, i32>,
    /// Their rules, [sequences, [`RULES`](super::RULES)], with neighboring numbers.
    pub rules: &'a DeviceSlice<S, i32>,
    /// The number of the sequence that has each page, or -1, and which of its pages it is,
    /// [pages, 2].
    pub owners: &'a DeviceSlice<S, i32>,
    /// Queries, keys and values, [blocks, rows of each, 3, heads, size]. The first rows of a block
    /// are the new ones, [sequences, new rows].
    pub qkv: &'a DeviceSlice<S, E>,
    /// The keys of the cache, [pages, blocks, heads, size / n, [`PAGE`](super::PAGE), n], where `n`
    /// elements have 16 bytes, and the size is rounded up to a multiple of `n`.
    pub keys: &'a mut DeviceSlice<S, E>,
    /// The values of the cache, of the same shape.
    pub values: &'a mut DeviceSlice<S, E>,
}

/// The arguments of [`paged_attention`].
pub struct PagedAttention<'a, S, E> {
    /// The sequences.
    pub sequences: u32,
    /// Which block of the model this is, and how many there are.
    pub block: [u32; 2],
    /// The number of heads, and the elements of one: 1 to 64.
    pub heads: [u32; 2],
    /// As in [`AppendRows`].
    pub progress: &'a DeviceSlice<S, i32>,
    /// The pages of each sequence in order, [sequences, the most pages of one].
    pub table: &'a DeviceSlice<S, i32>,
    /// Queries, keys and values of the newest rows, [sequences, 3, heads, size].
    pub qkv: &'a DeviceSlice<S, E>,
    /// As in [`AppendRows`].
    pub keys: &'a DeviceSlice<S, E>,
    /// As in [`AppendRows`].
    pub values: &'a DeviceSlice<S, E>,
    /// The result, [sequences, heads, size].
    pub out: &'a mut DeviceSlice<S, E>,
}

impl<S, E> fmt::Debug for AppendRows<'_, S, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rows, heads, .. } = self;
        f.debug_struct("AppendRows").field("rows", rows).field("heads", heads).finish_non_exhaustive()
    }
}
impl<S, E> fmt::Debug for PagedAttention<'_, S, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sequences, heads, .. } = self;
        f.debug_struct("PagedAttention").field("sequences", sequences).field("heads", heads).finish_non_exhaustive()
    }
}
impl<S, E> fmt::Debug for Attention<'_, S, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rows, heads, prefix, strides, .. } = self;
        f.debug_struct("Attention")
            .field("rows", rows)
            .field("heads", heads)
            .field("prefix", prefix)
            .field("strides", strides)
            .finish_non_exhaustive()
    }
}
impl<S, E> fmt::Debug for AttentionBackward<'_, S, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rows, heads, prefix, .. } = self;
        f.debug_struct("AttentionBackward")
            .field("rows", rows)
            .field("heads", heads)
            .field("prefix", prefix)
            .finish_non_exhaustive()
    }
}

/// The type of activations: `f32` or [`bf16`].
pub trait TrainElement: Element + sealed::Sealed {
    #[doc(hidden)]
    const BITS16: bool = size_of::<Self>() == 2;
    #[doc(hidden)]
    fn norm<S, L: Launch<S> + ?Sized>(
        on: &L,
        shape: [u32; 2],
        eps: f32,
        x: &DeviceSlice<S, f32>,
        affine: [&DeviceSlice<S, f32>; 2],
        stats: &mut DeviceSlice<S, f32>,
        y: &mut DeviceSlice<S, Self>,
    ) -> Result<(), L::Error>;
    #[doc(hidden)]
    fn gelu<S, L: Launch<S> + ?Sized>(
        on: &L,
        n: u32,
        erf: bool,
        x: &DeviceSlice<S, Self>,
        y: &mut DeviceSlice<S, Self>,
    ) -> Result<(), L::Error>;
    #[doc(hidden)]
    fn gelu_backward<S, L: Launch<S> + ?Sized>(
        on: &L,
        n: u32,
        erf: bool,
        x: &DeviceSlice<S, Self>,
        d: &mut DeviceSlice<S, Self>,
    ) -> Result<(), L::Error>;
    #[doc(hidden)]
    fn columns<S, L: Launch<S> + ?Sized>(
        on: &L,
        shape: [u32; 2],
        group: u32,
        add: bool,
        x: &DeviceSlice<S, Self>,
        sums: &mut DeviceSlice<S, f32>,
    ) -> Result<(), L::Error>;
    #[doc(hidden)]
    fn patches<S, L: Launch<S> + ?Sized>(
        on: &L,
        extents: [u32; 4],
        x: &DeviceSlice<S, f32>,
        y: &mut DeviceSlice<S, Self>,
    ) -> Result<(), L::Error>;
    #[doc(hidden)]
    fn attention<S, L: Launch<S> + ?Sized>(on: &L, a: Attention<'_, S, Self>) -> Result<(), L::Error>;
    #[doc(hidden)]
    fn attention_backward<S, L: Launch<S> + ?Sized>(on: &L, a: AttentionBackward<'_, S, Self>) -> Result<(), L::Error>;
    #[doc(hidden)]
    fn append<S, L: Launch<S> + ?Sized>(on: &L, a: AppendRows<'_, S, Self>) -> Result<(), L::Error>;
    #[doc(hidden)]
    fn paged<S, L: Launch<S> + ?Sized>(on: &L, a: PagedAttention<'_, S, Self>) -> Result<(), L::Error>;
}

/// Returns whether all of these start at multiples of 16 bytes.
fn aligned(addresses: &[u64]) -> bool {
    aligned_by(16, addresses)
}
fn aligned_by(bytes: u64, addresses: &[u64]) -> bool {
    addresses.iter().all(|address| address.is_multiple_of(bytes))
}

/// Up to how many rows have eight warps each also where they are not wide. A warp that has a row
/// stores an element after the other, and each waits for its weight: 11 us on an H200, which more
/// rows hide behind one another.
const FEW_ROWS: u32 = 2048;

/// Launches a kernel whose lanes keep `$slots` elements of a row in registers, enough for rows of
/// so many columns, or one whose rows have eight warps.
macro_rules! by_width {
    ($rows:expr, $columns:expr, $slots:ident => $launch:expr, $wide:expr) => {
        match $columns {
            257.. if $rows <= FEW_ROWS => $wide,
            ..=256 => {
                const $slots: usize = 8;
                $launch
            }
            257..=768 => {
                const $slots: usize = 24;
                $launch
            }
            769..=1024 => {
                const $slots: usize = 32;
                $launch
            }
            _ => $wide,
        }
    };
}

macro_rules! numbers {
    ($($t:ident as $e:ty, $append:ident $paged:ident:
       $($d:literal $size:pat, $forward:ident $backward:ident)*
       $(words $gelu_words:ident $gelu_backward_words:ident)?
       $(tiles $tiles:ident $queries:ident $keys:ident)?;)*) => {$(
        impl TrainElement for $t {
            fn norm<S, L: Launch<S> + ?Sized>(
                on: &L, [r, c]: [u32; 2], eps: f32, x: &DeviceSlice<S, f32>, [w, b]: [&DeviceSlice<S, f32>; 2],
                stats: &mut DeviceSlice<S, f32>, y: &mut DeviceSlice<S, Self>,
            ) -> Result<(), L::Error> {
                let y = y.cast_mut::<$e>();
                by_width!(
                    r,
                    c,
                    SLOTS => rows::norm::<$e, SLOTS, _, _>(on, r, c, eps, x, w, b, stats, y),
                    rows::norm_wide::<$e, 8, _, _>(on, r, c, eps, x, w, b, stats, y)
                )
            }
            fn gelu<S, L: Launch<S> + ?Sized>(
                on: &L, n: u32, erf: bool, x: &DeviceSlice<S, Self>, y: &mut DeviceSlice<S, Self>,
            ) -> Result<(), L::Error> {
                $(
                    if x.len() == y.len() && let (Some(x), Some(y)) = (words(x), words_mut(y)) {
                        return activation::$gelu_words(on, count(x.len()), erf, x, y);
                    }
                )?
                activation::gelu(on, n, erf, x.cast::<$e>(), y.cast_mut::<$e>())
            }
            fn gelu_backward<S, L: Launch<S> + ?Sized>(
                on: &L, n: u32, erf: bool, x: &DeviceSlice<S, Self>, d: &mut DeviceSlice<S, Self>,
            ) -> Result<(), L::Error> {
                $(
                    if x.len() == d.len() && let (Some(x), Some(d)) = (words(x), words_mut(d)) {
                        return activation::$gelu_backward_words(on, count(x.len()), erf, x, d);
                    }
                )?
                activation::gelu_backward(on, n, erf, x.cast::<$e>(), d.cast_mut::<$e>())
            }
            fn columns<S, L: Launch<S> + ?Sized>(
                on: &L, [r, c]: [u32; 2], group: u32, add: bool, x: &DeviceSlice<S, Self>, to: &mut DeviceSlice<S, f32>,
            ) -> Result<(), L::Error> {
                sums::sum_rows(on, r, c, group, add, x.cast::<$e>(), to)
            }
            fn patches<S, L: Launch<S> + ?Sized>(
                on: &L, [images, channels, size, side]: [u32; 4], x: &DeviceSlice<S, f32>, y: &mut DeviceSlice<S, Self>,
            ) -> Result<(), L::Error> {
                embed::patches(on, images, channels, size, side, x, y.cast_mut::<$e>())
            }
            fn attention<S, L: Launch<S> + ?Sized>(on: &L, a: Attention<'_, S, Self>) -> Result<(), L::Error> {
                let [[rows, keys], [count, size], [q_stride, k_stride]] = [a.rows, a.heads, a.strides];
                let sequences = (a.cu_q.len() as u32).wrapping_sub(1);
                let (each, prefixes) = (a.prefixes.is_some(), a.prefixes.unwrap_or(a.cu_q));
                $(if size == 64 {
                    return flash_attention::$tiles(
                        on, rows, keys, count, sequences, a.prefix, each, q_stride, k_stride, scale(size), prefixes,
                        a.cu_q, a.cu_k, a.q.cast::<$e>(), a.k.cast::<$e>(), a.v.cast::<$e>(), a.out.cast_mut::<$e>(),
                        a.logs,
                    );
                })?
                let addresses = [a.q.device_ptr(), a.k.device_ptr(), a.v.device_ptr(), a.out.device_ptr()];
                let vector = [$($d),*].contains(&size) && q_stride % 4 == 0 && k_stride % 4 == 0 && aligned(&addresses);
                let launch = match size {
                    $($size => heads::$forward,)*
                    _ => return Err(no_kernel("attention", &a)),
                };
                launch(
                    on, rows, keys, count, size, sequences, a.prefix, each, q_stride, k_stride, vector, scale(size),
                    prefixes, a.cu_q, a.cu_k, a.q.cast::<$e>(), a.k.cast::<$e>(), a.v.cast::<$e>(), a.out.cast_mut::<$e>(), a.logs,
                )
            }
            fn attention_backward<S, L: Launch<S> + ?Sized>(
                on: &L, a: AttentionBackward<'_, S, Self>,
            ) -> Result<(), L::Error> {
                let [count, size] = a.heads;
                let sequences = (a.cu_seqlens.len() as u32).wrapping_sub(1);
                let (each, prefixes) = (a.prefixes.is_some(), a.prefixes.unwrap_or(a.cu_seqlens));
                let (qkv, out, dout) = (a.qkv.cast::<$e>(), a.out.cast::<$e>(), a.dout.cast::<$e>());
                $(if size == 64 {
                    match (words(a.out), words(a.dout)) {
                        (Some(out), Some(dout)) => heads::deltas_64_words(on, a.rows, count, out, dout, a.deltas)?,
                        _ => heads::deltas(on, a.rows, count, size, out, dout, a.deltas)?,
                    }
                    let (rows, prefix, cu) = (a.rows, a.prefix, a.cu_seqlens);
                    let dqkv = a.dqkv.cast_mut::<$e>();
                    flash_attention::$queries(
                        on, rows, count, sequences, prefix, each, scale(size), prefixes, cu, qkv, dout, a.logs, a.deltas,
                        &mut *dqkv,
                    )?;
                    return flash_attention::$keys(
                        on, rows, count, sequences, prefix, each, scale(size), prefixes, cu, qkv, dout, a.logs, a.deltas,
                        dqkv,
                    );
                })?
                let vector = [$($d),*].contains(&size) && aligned(&[a.qkv.device_ptr(), a.dout.device_ptr(), a.dqkv.device_ptr()]);
                let launch = match size {
                    $($size => heads::$backward,)*
                    _ => return Err(no_kernel("attention_backward", &a)),
                };
                heads::deltas(on, a.rows, count, size, out, dout, a.deltas)?;
                launch(
                    on, a.rows, count, size, sequences, a.prefix, each, vector, scale(size), prefixes, a.cu_seqlens,
                    qkv, dout, a.logs, a.deltas, a.dqkv.cast_mut::<$e>(),
                )
            }
            fn append<S, L: Launch<S> + ?Sized>(on: &L, a: AppendRows<'_, S, Self>) -> Result<(), L::Error> {
                let ([sequences, new], [blocks, room], [count, size]) = (a.rows, a.blocks, a.heads);
                paged::$append(
                    on, sequences, new, blocks, room, count, size, self::count(a.owners.len() / 2), a.progress, a.rules,
                    a.owners, a.qkv.cast(), a.keys.cast_mut(), a.values.cast_mut(),
                )
            }
            fn paged<S, L: Launch<S> + ?Sized>(on: &L, a: PagedAttention<'_, S, Self>) -> Result<(), L::Error> {
                let ([block, blocks], [count, size]) = (a.block, a.heads);
                let most = self::count(a.table.len()) / a.sequences.max(1);
                let piece = 16 / size_of::<Self>();
                let head = (size as usize).next_multiple_of(piece).max(piece);
                let page = (super::PAGE * count as usize).saturating_mul(head).saturating_mul(blocks as usize);
                paged::$paged(
                    on, a.sequences, block, blocks, count, size, self::count(a.keys.len() / page.max(1)), most,
                    scale(size), a.progress, a.table, a.qkv.cast(), a.keys.cast(), a.values.cast(), a.out.cast_mut(),
                )
            }
        }
    )*};
}
numbers! {
    f32 as f32, append_rows_f32 paged_attention_f32:
        16 1..=16, attention_16_f32 attention_16_backward_f32
        32 17..=32, attention_32_f32 attention_32_backward_f32
        64 64, attention_64_f32 attention_64_backward_f32;
    bf16 as u16, append_rows_bf16 paged_attention_bf16:
        16 1..=16, attention_16_bf16 attention_16_backward_bf16
        32 17..=32, attention_32_bf16 attention_32_backward_bf16
        words gelu_bf16_words gelu_backward_bf16_words
        tiles attention_64_bf16 attention_64_queries_bf16 attention_64_keys_bf16;
}

/// Returns what scores are multiplied by.
fn scale(size: u32) -> f32 {
    (1.0 / f64::from(size).sqrt()) as f32
}

fn no_kernel<E: From<LaunchError>>(kernel: &'static str, arguments: &impl fmt::Debug) -> E {
    let requirement = "a head has 1 to 32, or 64 elements";
    LaunchError::Requirement { kernel, requirement, arguments: format!("{arguments:?}") }.into()
}

/// Normalizes each row of `x`, [rows, columns]:
/// `y = (x - mean) / sqrt(variance + eps) * weight + bias`. `affine` is weight and bias, and
/// `stats` [rows, 2] gets mean and 1 / root for the gradient.
///
/// # Errors
/// A length does not fit, or what the launch fails with.
#[track_caller]
pub fn norm<S, L: Launch<S> + ?Sized, E: TrainElement>(
    on: &L,
    shape: [u32; 2],
    eps: f32,
    x: &DeviceSlice<S, f32>,
    affine: [&DeviceSlice<S, f32>; 2],
    stats: &mut DeviceSlice<S, f32>,
    y: &mut DeviceSlice<S, E>,
) -> Result<(), L::Error> {
    E::norm(on, shape, eps, x, affine, stats, y)
}

/// Computes the gradient `dx` of the rows `x`, [rows, columns], from that of their norms, `dy`.
/// `stats` is what [`norm`] stored. With `add`, the gradient is added to `dx`.
///
/// # Errors
/// A length does not fit, or what the launch fails with.
#[allow(clippy::too_many_arguments)]
#[track_caller]
pub fn norm_backward<S, L: Launch<S> + ?Sized>(
    on: &L,
    rows: u32,
    columns: u32,
    add: bool,
    dy: &DeviceSlice<S, f32>,
    x: &DeviceSlice<S, f32>,
    stats: &DeviceSlice<S, f32>,
    weight: &DeviceSlice<S, f32>,
    dx: &mut DeviceSlice<S, f32>,
) -> Result<(), L::Error> {
    by_width!(
        rows,
        columns,
        SLOTS => rows::norm_backward::<SLOTS, _, _>(on, rows, columns, add, dy, x, stats, weight, dx),
        rows::norm_wide_backward::<8, _, _>(on, rows, columns, add, dy, x, stats, weight, dx)
    )
}

/// Computes GELU of each element, by the error function (`erf`) or by the hyperbolic tangent.
///
/// # Errors
/// The lengths differ, or what the launch fails with.
#[track_caller]
pub fn gelu<S, L: Launch<S> + ?Sized, E: TrainElement>(
    on: &L,
    erf: bool,
    x: &DeviceSlice<S, E>,
    y: &mut DeviceSlice<S, E>,
) -> Result<(), L::Error> {
    E::gelu(on, count(x.len()), erf, x, y)
}

/// Multiplies the gradients `d` of GELU's results by its derivative at `x`.
///
/// # Errors
/// The lengths differ, or what the launch fails with.
#[track_caller]
pub fn gelu_backward<S, L: Launch<S> + ?Sized, E: TrainElement>(
    on: &L,
    erf: bool,
    x: &DeviceSlice<S, E>,
    d: &mut DeviceSlice<S, E>,
) -> Result<(), L::Error> {
    E::gelu_backward(on, count(x.len()), erf, x, d)
}

/// Rounds each element to `bf16`.
///
/// # Errors
/// The lengths differ, or what the launch fails with.
#[track_caller]
pub fn round<S, L: Launch<S> + ?Sized>(
    on: &L,
    x: &DeviceSlice<S, f32>,
    y: &mut DeviceSlice<S, bf16>,
) -> Result<(), L::Error> {
    match (words(x), words_mut(y)) {
        // `round_words` refuses lengths that do not fit each other.
        (Some(x), Some(y)) => activation::round_words(on, count(y.len()), x, y),
        _ => activation::round(on, count(x.len()), x, y.cast_mut()),
    }
}

/// Returns the elements as words of 64 bits, if they begin at a multiple of 8 bytes and are whole
/// words.
fn words<S, T: Element>(x: &DeviceSlice<S, T>) -> Option<&DeviceSlice<S, u64>> {
    let fits = x.device_ptr().is_multiple_of(8) && x.byte_len().is_multiple_of(8);
    // SAFETY: The words are the bytes of the slice, which the result borrows, and they are aligned.
    // Every bit pattern is a word.
    fits.then(|| unsafe { DeviceSlice::from_raw(x.device_ptr(), x.byte_len() / 8) })
}

/// Does the same as [`words`] for a slice that is written.
fn words_mut<S>(x: &mut DeviceSlice<S, bf16>) -> Option<&mut DeviceSlice<S, u64>> {
    let fits = x.device_ptr().is_multiple_of(8) && x.byte_len().is_multiple_of(8);
    // SAFETY: As for `words`, and the result borrows the slice exclusively. Every bit pattern is a
    // number.
    fits.then(|| unsafe { DeviceSlice::from_raw_mut(x.device_ptr(), x.byte_len() / 8) })
}

/// The most groups of rows that are summed by themselves: see [`sum_rows`] and [`norm_columns`].
pub const GROUPS: usize = 128;

/// Returns how many rows are summed by one thread.
fn group(rows: u32) -> u32 {
    rows.div_ceil(GROUPS as u32).max(32)
}

/// Sums the rows of `x`, [rows, columns]. With `add`, the sums are added to `sums`. `parts` is room
/// for [`GROUPS`] rows.
///
/// # Errors
/// A length does not fit, or what the launch fails with.
#[track_caller]
pub fn sum_rows<S, L: Launch<S> + ?Sized, E: TrainElement>(
    on: &L,
    shape: [u32; 2],
    add: bool,
    x: &DeviceSlice<S, E>,
    parts: &mut DeviceSlice<S, f32>,
    sums: &mut DeviceSlice<S, f32>,
) -> Result<(), L::Error> {
    let [rows, columns] = shape;
    let groups = rows.div_ceil(group(rows));
    if groups <= 1 {
        return E::columns(on, shape, rows.max(1), add, x, sums);
    }
    let parts = start_of(parts, groups as usize * columns as usize);
    E::columns(on, shape, group(rows), false, x, parts)?;
    sums::add_groups(on, groups, columns, add, parts, sums)
}

/// Returns how many sums the kernels make that sum columns on the way.
fn interleaved(rows: u32) -> u32 {
    rows.div_ceil(32).clamp(1, GROUPS as u32)
}

/// Multiplies the gradients `d`, [rows, columns], of GELU's results by its derivative at `x`, and
/// sums the rows of the products: [`gelu_backward`] and [`sum_rows`] in one pass. With `add`, the
/// sums are added to `sums`. `parts` is room for [`GROUPS`] rows.
///
/// Numbers in `f32`, rows that are no multiple of four, and buffers that are not aligned to as many
/// take two passes.
///
/// # Errors
/// A length does not fit, or what the launch fails with.
#[track_caller]
#[allow(clippy::too_many_arguments)] // each is an array of its own
pub fn gelu_backward_columns<S, L: Launch<S> + ?Sized, E: TrainElement>(
    on: &L,
    shape: [u32; 2],
    erf: bool,
    add: bool,
    x: &DeviceSlice<S, E>,
    d: &mut DeviceSlice<S, E>,
    parts: &mut DeviceSlice<S, f32>,
    sums: &mut DeviceSlice<S, f32>,
) -> Result<(), L::Error> {
    let [rows, columns] = shape;
    let fits = E::BITS16 && columns.is_multiple_of(4) && aligned_by(8, &[x.device_ptr(), d.device_ptr()]);
    if !(fits && aligned(&[parts.device_ptr()])) {
        gelu_backward(on, erf, x, d)?;
        return self::sum_rows(on, shape, add, d, parts, sums);
    }
    let groups = interleaved(rows);
    let parts = start_of(parts, groups as usize * columns as usize);
    activation::gelu_backward_columns(on, rows, columns, groups, erf, x.cast(), d.cast_mut(), parts)?;
    sums::add_groups(on, groups, columns, add, parts, sums)
}

/// Rounds each element of `x`, [rows, columns], to `bf16`, and sums the rows of the results:
/// [`round`] and [`sum_rows`] in one pass. With `add`, the sums are added to `sums`. `parts` is
/// room for [`GROUPS`] rows.
///
/// # Errors
/// A length does not fit, or what the launch fails with.
#[track_caller]
pub fn round_columns<S, L: Launch<S> + ?Sized>(
    on: &L,
    shape: [u32; 2],
    add: bool,
    x: &DeviceSlice<S, f32>,
    y: &mut DeviceSlice<S, bf16>,
    parts: &mut DeviceSlice<S, f32>,
    sums: &mut DeviceSlice<S, f32>,
) -> Result<(), L::Error> {
    let [rows, columns] = shape;
    let fits = columns.is_multiple_of(4) && aligned_by(8, &[y.device_ptr()]);
    if !(fits && aligned(&[x.device_ptr(), parts.device_ptr()])) {
        round(on, x, y)?;
        return self::sum_rows(on, shape, add, y, parts, sums);
    }
    let groups = interleaved(rows);
    let parts = start_of(parts, groups as usize * columns as usize);
    activation::round_columns(on, rows, columns, groups, x, y.cast_mut(), parts)?;
    sums::add_groups(on, groups, columns, add, parts, sums)
}

/// Computes `sums` [columns, 2], the product of `x` [rows, columns], transposed, and `y` [rows, 2].
/// With `add`, it is added to `sums`. `parts` is room for 2 [`GROUPS`] rows.
///
/// A general product would have few blocks here, of which each adds all rows.
///
/// # Errors
/// A length does not fit, or what the launch fails with.
#[track_caller]
pub fn products_with_two<S, L: Launch<S> + ?Sized>(
    on: &L,
    shape: [u32; 2],
    add: bool,
    x: &DeviceSlice<S, f32>,
    y: &DeviceSlice<S, f32>,
    parts: &mut DeviceSlice<S, f32>,
    sums: &mut DeviceSlice<S, f32>,
) -> Result<(), L::Error> {
    let [rows, columns] = shape;
    let groups = rows.div_ceil(group(rows));
    let parts = start_of(parts, groups as usize * 2 * columns as usize);
    sums::products_with_two(on, rows, columns, group(rows), x, y, parts)?;
    sums::add_groups(on, groups, columns.saturating_mul(2), add, parts, sums)
}

/// Computes the gradients of weight and bias of a [`norm`] of `x`, [rows, columns], from that of
/// its result, `dy`. `shape` is rows and columns, and `stats` [rows, 2] is what `norm` stored.
/// `affine` gets the gradients of weight and bias, \[columns\] each; with `add`, they are added to
/// it. `parts` is room for 2 [`GROUPS`] rows.
///
/// # Errors
/// A length does not fit, or what the launch fails with.
#[track_caller]
#[allow(clippy::too_many_arguments)] // each is an array of its own
pub fn norm_columns<S, L: Launch<S> + ?Sized>(
    on: &L,
    shape: [u32; 2],
    add: bool,
    dy: &DeviceSlice<S, f32>,
    x: &DeviceSlice<S, f32>,
    stats: &DeviceSlice<S, f32>,
    parts: &mut DeviceSlice<S, f32>,
    affine: [&mut DeviceSlice<S, f32>; 2],
) -> Result<(), L::Error> {
    let [count, columns] = shape;
    let groups = count.div_ceil(group(count));
    let half = groups as usize * columns as usize;
    let parts = start_of(parts, 2 * half);
    rows::norm_columns(on, count, columns, group(count), dy, x, stats, parts)?;
    for (k, sums) in affine.into_iter().enumerate() {
        let part = parts.slice(k * half..(k + 1) * half).expect("`norm_columns` has checked the length");
        sums::add_groups(on, groups, columns, add, part, sums)?;
    }
    Ok(())
}

/// Returns the first `len` elements, or all if there are fewer: the launcher reports the length.
fn start_of<S, T>(slice: &mut DeviceSlice<S, T>, len: usize) -> &mut DeviceSlice<S, T> {
    let end = len.min(slice.len());
    slice.slice_mut(..end).expect("the end is at most the length")
}

/// Returns a number of elements, which no launcher accepts if it is too large.
fn count(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// Computes attention: each query's mean of the values it sees, weighted by the softmax of its
/// products with their keys, divided by the root of a head's size.
///
/// # Errors
/// A head has other than 1 to 32 or 64 elements, a length does not fit, or what the launch fails
/// with.
#[track_caller]
pub fn attention<S, L: Launch<S> + ?Sized, E: TrainElement>(on: &L, a: Attention<'_, S, E>) -> Result<(), L::Error> {
    E::attention(on, a)
}

/// Computes the gradient of [`attention`].
///
/// # Errors
/// A head has other than 1 to 32 or 64 elements, a length does not fit, or what the launch fails
/// with.
#[track_caller]
pub fn attention_backward<S, L: Launch<S> + ?Sized, E: TrainElement>(
    on: &L,
    a: AttentionBackward<'_, S, E>,
) -> Result<(), L::Error> {
    E::attention_backward(on, a)
}

/// Writes keys and values of new rows, of all blocks of a model, to the pages of a cache, for the
/// sequences that have tokens left to write.
///
/// # Errors
/// `qkv` has fewer rows than are new, a length does not fit, or what the launch fails with.
#[track_caller]
pub fn append_rows<S, L: Launch<S> + ?Sized, E: TrainElement>(on: &L, a: AppendRows<'_, S, E>) -> Result<(), L::Error> {
    E::append(on, a)
}

/// Computes attention of the newest row of each sequence in a block of a model: to the rows that
/// [`append_rows`] has written, and to itself. A sequence without tokens left to write gets zeros.
///
/// # Errors
/// The model has no such block, a head has more than 64 elements or none, a length does not fit, or
/// what the launch fails with.
#[track_caller]
pub fn paged_attention<S, L: Launch<S> + ?Sized, E: TrainElement>(
    on: &L,
    a: PagedAttention<'_, S, E>,
) -> Result<(), L::Error> {
    E::paged(on, a)
}

/// Cuts square images [images, channels, size, size] into patches of `side` x `side` pixels, in
/// raster order: [images * patches, channels * side * side]. `extents` is images, channels, size
/// and side.
///
/// # Errors
/// The side does not divide the size, a length does not fit, or what the launch fails with.
#[track_caller]
pub fn patches<S, L: Launch<S> + ?Sized, E: TrainElement>(
    on: &L,
    extents: [u32; 4],
    x: &DeviceSlice<S, f32>,
    y: &mut DeviceSlice<S, E>,
) -> Result<(), L::Error> {
    E::patches(on, extents, x, y)
}

/// From how many classes on a block of 1024 threads has a row of logits, and not one warp.
const MANY: u32 = 2048;

/// Computes, for each row of `logits`, [rows, classes], its share of the loss and the gradient of
/// the logits, both multiplied by `scale`. The loss of a row whose label is no class is NaN.
///
/// # Errors
/// A length does not fit, or what the launch fails with.
#[track_caller]
#[allow(clippy::too_many_arguments)] // each is an array of its own
pub fn cross_entropy<S, L: Launch<S> + ?Sized>(
    on: &L,
    rows: u32,
    classes: u32,
    scale: f32,
    logits: &DeviceSlice<S, f32>,
    labels: &DeviceSlice<S, i32>,
    losses: &mut DeviceSlice<S, f32>,
    gradient: &mut DeviceSlice<S, f32>,
) -> Result<(), L::Error> {
    let launch = if classes < MANY { loss::cross_entropy_narrow } else { loss::cross_entropy_wide };
    launch(on, rows, classes, scale, logits, labels, losses, gradient)
}

/// Computes the norm of a gradient, and sets the factor in the `settings` of
/// [`adamw`](super::adamw) so that the norm is at most `most`. `parts` is room for 16384 numbers,
/// and `norm` gets one.
///
/// # Errors
/// A length does not fit, or what the launch fails with.
#[track_caller]
pub fn gradient_norm<S, L: Launch<S> + ?Sized>(
    on: &L,
    gradient: &DeviceSlice<S, f32>,
    most: f32,
    parts: &mut DeviceSlice<S, f32>,
    norm: &mut DeviceSlice<S, f32>,
    settings: &mut DeviceSlice<S, f32>,
) -> Result<(), L::Error> {
    let n = count(gradient.len());
    let blocks = n.div_ceil(optimizer::CHUNK).clamp(1, optimizer::BLOCKS);
    let parts = start_of(parts, blocks as usize);
    optimizer::squares(on, n, blocks, gradient, parts)?;
    // With fewer settings there is no factor, which the launcher reports.
    let (start, end) = (6.min(settings.len()), 7.min(settings.len()));
    let factor = settings.slice_mut(start..end).expect("the range is inside the slice");
    optimizer::clip(on, blocks, most, parts, norm, factor)
}

/// Updates weights and both moments as [`adamw`](super::adamw) does, by a gradient of `bf16`.
/// `rounded` gets the new weights, rounded to `bf16`. `settings` holds the 8 numbers that
/// [`settings`](super::settings) writes, and the moments are the first and the second one.
///
/// # Errors
/// The lengths of the others differ, or what the launch fails with.
#[track_caller]
pub fn adamw_bf16<S, L: Launch<S> + ?Sized>(
    on: &L,
    settings: &DeviceSlice<S, f32>,
    gradient: &DeviceSlice<S, bf16>,
    weights: &mut DeviceSlice<S, f32>,
    [first, second]: [&mut DeviceSlice<S, f32>; 2],
    rounded: &mut DeviceSlice<S, bf16>,
) -> Result<(), L::Error> {
    let n = count(weights.len());
    let numbers = [weights.device_ptr(), first.device_ptr(), second.device_ptr()];
    if n.is_multiple_of(4) && aligned(&numbers) && aligned_by(8, &[gradient.device_ptr(), rounded.device_ptr()]) {
        let (gradient, rounded) = (gradient.cast(), rounded.cast_mut());
        return optimizer::adamw_bf16_fours(on, n / 4, settings, gradient, weights, first, second, rounded);
    }
    optimizer::adamw_bf16(on, n, settings, gradient.cast(), weights, first, second, rounded.cast_mut())
}
