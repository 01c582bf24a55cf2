//! Numbers that models derive from the grids of patches.

/// The patches of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PatchGrid {
    /// The number of frames, which is 1 for an image.
    pub frames: u32,
    /// The number of rows.
    pub rows: u32,
    /// The number of columns.
    pub columns: u32,
}

impl PatchGrid {
    /// Returns frames, rows and columns, as a row of `image_grid_thw`.
    #[must_use]
    pub fn thw(self) -> [i64; 3] {
        [self.frames, self.rows, self.columns].map(i64::from)
    }

    /// Calls `each` with row and column of each patch of a frame in the order of `pixel_values`:
    /// blocks of `merge` x `merge`, row by row, and the patches of a block likewise.
    pub(crate) fn each_patch(self, merge: u32, mut each: impl FnMut(u32, u32)) {
        for (y, x) in pairs(self.rows / merge, self.columns / merge) {
            pairs(merge, merge).for_each(|(dy, dx)| each(merge * y + dy, merge * x + dx));
        }
    }
}

/// Returns all pairs of numbers below `rows` and `columns`, row by row.
fn pairs(rows: u32, columns: u32) -> impl Iterator<Item = (u32, u32)> {
    (0..rows).flat_map(move |y| (0..columns).map(move |x| (y, x)))
}

/// Returns where each frame begins among the patches, and where the last one ends.
#[must_use]
pub fn cu_seqlens(grids: &[PatchGrid]) -> Vec<i32> {
    let frames = grids.iter().flat_map(|grid| (0..grid.frames).map(|_| (grid.rows * grid.columns) as i32));
    let ends = frames.scan(0, |end, patches| {
        *end += patches;
        Some(*end)
    });
    [0].into_iter().chain(ends).collect()
}

/// Returns row and column of each patch, in the order of `pixel_values`.
#[must_use]
pub fn vision_position_ids(grids: &[PatchGrid], merge: u32) -> Vec<[i64; 2]> {
    let mut ids = Vec::new();
    for grid in grids {
        (0..grid.frames).for_each(|_| grid.each_patch(merge, |y, x| ids.push([y.into(), x.into()])));
    }
    ids
}

/// The order in which the window attention of Qwen2.5-VL takes merged cells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowIndex {
    /// The merged cells window by window: `window_index` of transformers.
    pub order: Vec<i64>,
    /// The starts of the windows among the patches of that order, and the end of the last one:
    /// `cu_window_seqlens`.
    pub cu_seqlens: Vec<i32>,
}

/// Returns the merged cells window by window. Windows of `window` pixels a side are cut at the
/// border.
#[must_use]
pub fn window_index(grids: &[PatchGrid], merge: u32, window: u32, patch: u32) -> WindowIndex {
    let side = (window / merge / patch).max(1);
    let (mut order, mut ends, mut base) = (Vec::new(), vec![0], 0);
    for grid in grids {
        let (rows, columns) = (grid.rows / merge, grid.columns / merge);
        for _ in 0..grid.frames {
            for (y, x) in pairs(rows.div_ceil(side), columns.div_ceil(side)) {
                let (y, x) = (y * side, x * side);
                let (h, w) = (side.min(rows - y), side.min(columns - x));
                order.extend(pairs(h, w).map(|(dy, dx)| base + i64::from((y + dy) * columns + x + dx)));
                ends.push(ends[ends.len() - 1] + (h * w * merge * merge) as i32);
            }
            base += i64::from(rows * columns);
        }
    }
    WindowIndex { order, cu_seqlens: ends }
}
