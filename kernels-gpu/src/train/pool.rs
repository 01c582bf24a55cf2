//! From the rows of each sequence to one row: their mean, or the first one (the class token).
//!
//! Launch: a thread for each column and each sequence; backward a block of one warp for each row.
//! `cu_seqlens` may hold anything: rows outside the buffer are left out.

use thalweg_simt::kernel;

use super::sequences::sequence_of;

kernel! {
    /// Pools the rows of each sequence: `first` takes the first one, otherwise the result is their
    /// mean. A sequence without rows gives NaN.
    pub fn pool(
        t: impl Simt, rows: u32, columns: u32, sequences: u32, first: bool, cu_seqlens: In<i32>[ends = sequences + 1],
        x: In<f32>[rows, columns], y: Out<f32>[sequences, columns] by [y, x],
    )
    require { sequences <= 65535 }
    grid(columns.div_ceil(64), sequences) block(64)
    {
        if let Some(y) = y.cell(t) {
            let [sequence, column] = y.at();
            let start = (cu_seqlens.get(t, [sequence]) as u32).min(rows);
            let end = (cu_seqlens.get(t, [sequence + 1]) as u32).min(rows);
            let end = if first { end.min(start + 1) } else { end };
            let (mut sum, mut row) = (0.0, start);
            while row < end {
                sum += x.get(t, [row, column]);
                row += 1;
            }
            y.set(sum / end.saturating_sub(start) as f32);
        }
    }
}

kernel! {
    /// Computes the gradient of the rows from that of the pooled ones. Rows of no sequence get 0.
    pub fn pool_backward(
        t: impl Simt, rows: u32, columns: u32, sequences: u32, first: bool, cu_seqlens: In<i32>[ends = sequences + 1],
        dy: In<f32>[sequences, columns], dx: Out<f32>[rows, columns] by [block, rank],
    )
    require { sequences >= 1 }
    grid(rows) block(32)
    {
        let row = t.block_idx().x;
        let begins = |sequence| cu_seqlens.get(t, [sequence]) as u32;
        let sequence = sequence_of(row, sequences, begins);
        let (start, end) = (begins(sequence), begins(sequence + 1).min(rows));
        let inside = start <= row && row < end;
        let share = match first {
            false if inside => 1.0 / (end - start) as f32,
            true if inside && row == start => 1.0,
            _ => 0.0,
        };
        for dx in dx.mine(t) {
            let [_, column] = dx.at();
            dx.set(if share == 0.0 { 0.0 } else { dy.get(t, [sequence, column]) * share });
        }
    }
}
