//! The plan of an image and of a batch: sizes, views, and the order of what is written.

use crate::{Error, Result};

/// A resize of an image, and the part of it that becomes units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct View {
    /// The size after the resize.
    pub(crate) resized: [u32; 2],
    /// The size of what is cut into units. What the resized image does not cover is level 0.
    pub(crate) canvas: [u32; 2],
    /// The place of the resized image on the canvas: rows, columns.
    pub(crate) at: [i32; 2],
    /// The first unit, counted from the first one of the image.
    pub(crate) first: u32,
}

impl View {
    /// A view of the whole resized image.
    pub(crate) fn whole(resized: [u32; 2], first: u32) -> Self {
        Self { resized, canvas: resized, at: [0, 0], first }
    }
}

/// The plan of an image, which depends on its size only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ImagePlan {
    /// The size of the image.
    pub(crate) size: [u32; 2],
    pub(crate) views: Vec<View>,
    /// The number of units of all views.
    pub(crate) units: u32,
    /// The units of the first view: rows, columns.
    pub(crate) grid: [u32; 2],
}

/// The order of the numbers of a unit, which is a square of pixels: a patch or a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnitOrder {
    /// The pixels a side.
    pub(crate) side: u32,
    /// Units come in blocks of `merge` x `merge`.
    pub(crate) merge: u32,
    /// Each channel of a unit is written so many times.
    pub(crate) copies: u32,
    /// The channel is the fastest index, and not the slowest.
    pub(crate) channels_last: bool,
}

impl UnitOrder {
    /// Returns the numbers of a unit.
    pub(crate) fn len(self) -> usize {
        3 * self.copies as usize * self.channel()
    }

    /// Returns the pixels of a unit.
    pub(crate) fn channel(self) -> usize {
        self.side as usize * self.side as usize
    }

    /// Returns the distances of two channels, rows and columns.
    pub(crate) fn strides(self) -> [usize; 3] {
        let side = self.side as usize;
        if self.channels_last { [1, 3 * side, 3] } else { [self.copies as usize * self.channel(), side, 1] }
    }

    /// Returns the units of a canvas: rows, columns.
    pub(crate) fn grid(self, canvas: [u32; 2]) -> [u32; 2] {
        canvas.map(|side| side / self.side)
    }

    /// Returns the number of the unit in row `y` and column `x` of `columns`.
    pub(crate) fn unit(self, columns: u32, y: u32, x: u32) -> usize {
        let m = self.merge;
        let block = (y / m) * (columns / m) + x / m;
        (block * m * m + y % m * m + x % m) as usize
    }
}

/// The units of the images of a batch, one image after another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Units {
    /// The first unit of each image, and the number of all units.
    pub(crate) starts: Vec<usize>,
}

impl Units {
    /// Returns the units of images with so many each. With `room`, each image has room for as many.
    pub(crate) fn new(counts: impl Iterator<Item = u32>, room: Option<u32>) -> Result<Self> {
        let mut starts = vec![0];
        let mut total = 0u64;
        for count in counts {
            total += u64::from(room.unwrap_or(count));
            if total > i32::MAX as u64 {
                return Err(Error::Capacity { what: "rows", given: total, room: i32::MAX as u64 });
            }
            starts.push(total as usize);
        }
        Ok(Self { starts })
    }

    /// Returns the number of all units.
    pub(crate) fn total(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }
}
