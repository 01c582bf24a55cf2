//! The kernels that an image encoder and a text decoder need beside products: patches, the class
//! token, positions, and the rows of text.
//!
//! Launch: a block of one warp for each row, and of eight warps for a row of text, because a text
//! is written a row at a time.

use thalweg_simt::kernel;

use super::number::Stored;

kernel! {
    /// Cuts square images into patches of `side` pixels a side, in raster order. A row has the
    /// pixels of a patch, channel by channel.
    pub(super) fn patches<E: Stored>(
        t: impl Simt, images: u32, channels: u32, size: u32, side: u32, x: In<f32>[images, channels, size, size],
        y: Out<E>[rows = images * (size / side.max(1)) * (size / side.max(1)), columns = channels * side * side] by [block, rank],
    )
    instances { patches_f32 = <f32>, patches_bf16 = <u16> }
    require { side >= 1, size.is_multiple_of(side) }
    grid(rows) block(32)
    {
        let row = t.block_idx().x;
        let across = size / side;
        let (image, patch) = (row / (across * across), row % (across * across));
        let (top, left) = (patch / across * side, patch % across * side);
        for y in y.mine(t) {
            let [_, c] = y.at();
            let (channel, within) = (c / (side * side), c % (side * side));
            y.set(E::narrow(x.get(t, [image, channel, top + within / side, left + within % side])));
        }
    }
}

kernel! {
    /// Puts the class token in front of the rows of each image if there is one, `classes` = 1, and
    /// adds the positions.
    pub fn positions(
        t: impl Simt, images: u32, patches: u32, classes: u32, columns: u32, x: In<f32>[rows = images * patches, columns],
        class: In<f32>[classes, columns], position: In<f32>[places = patches + classes, columns],
        y: Out<f32>[all = images * (patches + classes), columns] by [block, rank],
    )
    require { classes <= 1, patches >= 1 }
    grid(all) block(32)
    {
        let row = t.block_idx().x;
        let (image, place) = (row / places, row % places);
        for y in y.mine(t) {
            let [_, c] = y.at();
            let v = if place < classes { class.get(t, [0, c]) } else { x.get(t, [image * patches + place - classes, c]) };
            y.set(v + position.get(t, [place, c]));
        }
    }
}

kernel! {
    /// Adds, for each text token, the row of its id and that of its place. An id outside the table,
    /// or a place outside the positions, gives NaN.
    pub fn text(
        t: impl Simt, tokens: u32, ids: u32, places: u32, columns: u32, start: u32, id: In<i32>[tokens],
        table: In<f32>[ids, columns], position: In<f32>[places, columns], y: Out<f32>[tokens, columns] by [block, rank],
    )
    grid(tokens) block(256)
    {
        let token = t.block_idx().x;
        let id = id.get(t, [token]) as u32;
        for y in y.mine(t) {
            let [_, c] = y.at();
            let row = table.try_get(t, [id, c]).unwrap_or(f32::NAN);
            y.set(row + position.try_get(t, [start.saturating_add(token), c]).unwrap_or(f32::NAN));
        }
    }
}
