//! The launchers: safe functions over those that the declarations make. They take what the kernels
//! share as one group, and read all counts from the lengths of the slices.
//!
//! # Errors
//! Each returns what the launch fails with. That includes every argument that the declaration of
//! the kernel rules out, such as a slice of another length.

use thalweg_simt::Element;
use thalweg_simt::host::{DeviceSlice, Launch};

use super::record::{IMAGE_WORDS, SEGMENT_WORDS};
use super::{TABLE_WORDS, admit as admission, color, dct, huffman};

/// The images of a batch, whose pieces, planes and pixels are disjoint. Only [`admit`] makes it.
///
/// It borrows the table for as long as it lives, so nobody else can change it.
#[derive(Debug)]
pub struct Images<'a, S> {
    table: &'a DeviceSlice<S, u32>,
}

impl<S> Clone for Images<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<S> Copy for Images<'_, S> {}

impl<S> Images<'_, S> {
    fn count(&self) -> u32 {
        items(self.table, IMAGE_WORDS)
    }
}

/// Admits the images of a table, [`IMAGE_WORDS`] words each, whose parts overlap no other image's.
/// Copies their records to `admitted`, which is as long.
///
/// In a proper table, images are in the order of their pieces, of their planes and of their pixels,
/// and the planes of an image follow one another. An image is left out if one of its parts starts
/// before the end of that part of an image before it, or if it has no components. Its record
/// becomes zeros, in which the other kernels find nothing to do.
///
/// # Errors
/// See the launchers of this module. There are at most 65535 images.
pub fn admit<'a, S, L: Launch<S> + ?Sized>(
    on: &L,
    images: &DeviceSlice<S, u32>,
    admitted: &'a mut DeviceSlice<S, u32>,
) -> Result<Images<'a, S>, L::Error> {
    admission::admit(on, items(images, IMAGE_WORDS), images, &mut *admitted)?;
    // A query about this launch copies nothing, so `admitted` may hold any records. The launchers
    // refuse an empty table.
    let end = if on.runs() { admitted.len() } else { 0 };
    Ok(Images { table: admitted.slice(..end).expect("the end is inside") })
}

/// The coded data of a batch of images, and how to decode it. It only borrows, and nothing in it is
/// checked when it is made: the declarations check each launch.
#[derive(Debug)]
pub struct Coded<'a, S> {
    /// The largest number of pieces of an image. Of an image that has more, [`find_sync_points`]
    /// decodes no more than these.
    pub most_pieces: u32,
    /// The images.
    pub images: Images<'a, S>,
    /// The segments, [`SEGMENT_WORDS`] words each.
    pub segments: &'a DeviceSlice<S, u32>,
    /// The segment of each piece \[P\].
    pub pieces: &'a DeviceSlice<S, u32>,
    /// The Huffman tables, [`TABLE_WORDS`] words each.
    pub huffman: &'a DeviceSlice<S, u32>,
    /// The data without stuffing, as little-endian words of its bytes.
    pub data: &'a DeviceSlice<S, u32>,
}

/// The number of items of `size` elements in a slice. If a part of an item is left over, or if
/// there are too many, then the declaration refuses the slice.
fn items<S, T: Element>(slice: &DeviceSlice<S, T>, size: u32) -> u32 {
    u32::try_from(slice.len() / size as usize).unwrap_or(u32::MAX)
}

impl<S> Coded<'_, S> {
    /// Images, segments, pieces, words of data and Huffman tables.
    fn counts(&self) -> [u32; 5] {
        let Self { images, segments, pieces, huffman, data, .. } = self;
        [images.count(), items(segments, SEGMENT_WORDS), items(pieces, 1), items(data, 1), items(huffman, TABLE_WORDS)]
    }
}

/// Decodes every piece, and each again until it starts where the piece before it in its block
/// ended. Writes `states` [P, 2] and `counts` [P, 4].
///
/// # Errors
/// See the launchers of this module.
pub fn find_sync_points<S, L: Launch<S> + ?Sized>(
    on: &L,
    coded: &Coded<'_, S>,
    states: &mut DeviceSlice<S, u32>,
    counts: &mut DeviceSlice<S, u32>,
) -> Result<(), L::Error> {
    let &Coded { most_pieces, images, segments, pieces, huffman, data } = coded;
    let [n, s, p, w, t] = coded.counts();
    huffman::find_sync_points(
        on,
        n,
        s,
        p,
        w,
        most_pieces,
        t,
        images.table,
        segments,
        pieces,
        huffman,
        data,
        states,
        counts,
    )
}

/// Decodes pieces again where the first piece of a block does not start where the piece before it
/// ended. Changes `states` [P, 2] and `counts` [P, 4].
///
/// # Errors
/// See the launchers of this module.
pub fn repair_sync_points<S, L: Launch<S> + ?Sized>(
    on: &L,
    coded: &Coded<'_, S>,
    states: &mut DeviceSlice<S, u32>,
    counts: &mut DeviceSlice<S, u32>,
) -> Result<(), L::Error> {
    let &Coded { images, segments, pieces, huffman, data, .. } = coded;
    let [n, s, p, w, t] = coded.counts();
    huffman::repair_sync_points(on, n, s, p, w, t, images.table, segments, pieces, huffman, data, states, counts)
}

/// Computes, for each piece, the sums of `counts` [P, 4] over the pieces of its image before it.
/// Writes `places` [P, 4].
///
/// # Errors
/// See the launchers of this module.
pub fn offsets<S, L: Launch<S> + ?Sized>(
    on: &L,
    coded: &Coded<'_, S>,
    counts: &DeviceSlice<S, u32>,
    places: &mut DeviceSlice<S, u32>,
) -> Result<(), L::Error> {
    huffman::offsets(on, coded.images.count(), items(coded.pieces, 1), coded.images.table, counts, places)
}

/// The state of each piece that [`find_sync_points`], [`repair_sync_points`] and [`offsets`] share.
#[derive(Debug)]
pub struct Pieces<'a, S> {
    /// The states at which it starts and ends [P, 2].
    pub states: &'a DeviceSlice<S, u32>,
    /// Its number of coefficients and its sums of DC differences [P, 4].
    pub counts: &'a DeviceSlice<S, u32>,
    /// The sums of `counts` over the pieces before it [P, 4].
    pub places: &'a DeviceSlice<S, u32>,
}

/// Decodes every piece and writes `coefficients` [B, 64], column by column in each block. Nothing
/// has to be there before: an image that is decoded gets all of its blocks whole. `status` \[I\],
/// which is 0 before, gets bit 0 for an image with data that does not fit its tables, bit 1 for one
/// whose data ends too early, and bit 2 for one whose pieces did not fall into step: its data is
/// made so that [`repair_sync_points`] does not end within 16 rounds.
///
/// # Errors
/// See the launchers of this module.
pub fn coefficients<S, L: Launch<S> + ?Sized>(
    on: &L,
    coded: &Coded<'_, S>,
    known: &Pieces<'_, S>,
    coefficients: &mut DeviceSlice<S, i16>,
    status: &mut DeviceSlice<S, u32>,
) -> Result<(), L::Error> {
    let &Coded { most_pieces, images, segments, pieces, huffman, data } = coded;
    let &Pieces { states, counts, places } = known;
    let [n, s, p, w, t] = coded.counts();
    let blocks = items(coefficients, 64);
    huffman::coefficients(
        on,
        n,
        s,
        p,
        w,
        most_pieces,
        t,
        blocks,
        images.table,
        segments,
        pieces,
        huffman,
        data,
        states,
        counts,
        places,
        coefficients,
        status,
    )
}

/// Turns `coefficients` [B, 64] into `planes`. `quantization` [Q, 32] has two steps in each word,
/// in the order of the coefficients, which is column by column. `most` is the largest number of
/// blocks of an image. An image whose `status` \[I\] is not 0 is left out: its coefficients are not
/// all written.
///
/// # Errors
/// See the launchers of this module.
pub fn inverse_dct<S, L: Launch<S> + ?Sized>(
    on: &L,
    images: Images<'_, S>,
    status: &DeviceSlice<S, u32>,
    most: u32,
    quantization: &DeviceSlice<S, u32>,
    coefficients: &DeviceSlice<S, i16>,
    planes: &mut DeviceSlice<S, u8>,
) -> Result<(), L::Error> {
    let (count, tables, blocks) = (images.count(), items(quantization, 32), items(coefficients, 64));
    let bytes = planes.len() as u64;
    dct::inverse_dct(on, count, tables, blocks, most, bytes, images.table, status, quantization, coefficients, planes)
}

/// Turns `planes` into `rgb`, the upright images. `most` is the largest number of groups of an
/// image: a row of the file's image has one for each [`PIXELS`](super::PIXELS) pixels, and one for
/// the rest. An image whose `status` \[I\] is not 0 is left out.
///
/// # Errors
/// See the launchers of this module.
pub fn colors<S, L: Launch<S> + ?Sized>(
    on: &L,
    images: Images<'_, S>,
    status: &DeviceSlice<S, u32>,
    most: u32,
    planes: &DeviceSlice<S, u8>,
    rgb: &mut DeviceSlice<S, u8>,
) -> Result<(), L::Error> {
    let (bytes, rgb_bytes) = (planes.len() as u64, rgb.len() as u64);
    color::colors(on, images.count(), most, bytes, rgb_bytes, images.table, status, planes, rgb)
}

/// Does the same as [`colors`] for upright images of YCbCr whose chroma is enlarged by 2 in both
/// directions, has more than 2 columns, and has luma of full size. `colors` leaves these alone.
/// `most` is the largest number of groups of such an image of H rows: H / 2 + 1 times one for each
/// [`PIXELS`](super::PIXELS) pixels of a row, and one for the rest.
///
/// # Errors
/// See the launchers of this module.
pub fn colors_420<S, L: Launch<S> + ?Sized>(
    on: &L,
    images: Images<'_, S>,
    status: &DeviceSlice<S, u32>,
    most: u32,
    planes: &DeviceSlice<S, u8>,
    rgb: &mut DeviceSlice<S, u8>,
) -> Result<(), L::Error> {
    let (bytes, rgb_bytes) = (planes.len() as u64, rgb.len() as u64);
    color::colors_420(on, images.count(), most, bytes, rgb_bytes, images.table, status, planes, rgb)
}
