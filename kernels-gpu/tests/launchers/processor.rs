//! The family `processor`.

use thalweg::Result;
use thalweg_kernels::processor::{
    AXIS_WORDS, DOWN_FIRST, FRAGMENT_WORDS, InputNumber, QUADS, RECORD_WORDS, Sources, Units, VIEW_WORDS, fragments,
    inputs, interleaved_inputs,
};
use thalweg_simt::{bf16, f16};

use super::Launcher;
use super::trial::{Number, Trial};

pub(crate) const PROCESSOR: &[Launcher] = &[
    Launcher { name: "inputs", cases: 240, run: |t| processed(t, true) },
    Launcher { name: "interleaved_inputs", cases: 90, run: |t| processed(t, false) },
    Launcher { name: "fragments", cases: 40, run: made },
];

fn processed(t: &Trial<'_, '_>, planes: bool) -> Result<()> {
    let of = [of::<f32>, of::<f16>, of::<bf16>];
    of[t.number as usize % of.len()](t, planes)
}

/// Appends an axis whose samples are inside, and returns its place and form.
fn axis(t: &Trial<'_, '_>, axes: &mut Vec<u32>, samples: u32, outputs: u32) -> [u32; 2] {
    let (start, taps) = (axes.len() as u32 / RECORD_WORDS, t.within(1, samples.min(9)));
    let groups = taps.div_ceil(4);
    for _ in 0..outputs {
        let samples = t.below(samples - taps + 1) | taps << 16;
        axes.extend((0..groups).flat_map(|_| [t.below(u32::MAX), t.below(u32::MAX), t.below(u32::MAX), samples]));
    }
    [start, groups | t.within(1, 22) << 16 | t.pick(&[0, 255]) << 24]
}

fn of<E: InputNumber + Number>(t: &Trial<'_, '_>, planes: bool) -> Result<()> {
    let (side, merge) = (t.pick(&[1, 2, 7, 14, 16, 17, 33, 40]), t.pick(&[1, 2, 3]));
    let patches = side % 2 == 0 && side <= 16 && merge < 3;
    let order = Units {
        side,
        merge,
        copies: t.within(1, 2),
        window: t.pick(&[64, 100, 900, 4096]),
        quads: if patches { t.pick(&[0, 0, 1, 50, 800, QUADS]) } else { 0 },
    };
    let (mut views, mut axes, mut units, mut bytes) = (Vec::new(), Vec::new(), 0, 0);
    for _ in 0..t.within(1, 3) {
        let grid = [t.within(1, 3) * order.merge, t.within(1, 2) * order.merge];
        let ([height, width], resized) = ([t.within(1, 60), t.within(1, 60)], grid.map(|side| side * order.side));
        let (down, across) = (axis(t, &mut axes, height, resized[0]), axis(t, &mut axes, width, resized[1]));
        let at = [0, 1].map(|_| t.pick(&[0, 0, 3, u32::MAX]));
        views.extend([units, grid[0] * grid[1], grid[1], bytes, height, width, resized[0], resized[1], at[0], at[1]]);
        views.extend([down, across].as_flattened());
        views.push(if t.flip() { DOWN_FIRST } else { 0 });
        views.extend([t.below(40), t.below(40), t.within(0, 3) | t.within(0, 90) << 16]);
        units += grid[0] * grid[1] + t.pick(&[0, 0, 4]);
        bytes += 3 * height * width;
    }
    let (views, axes) = (t.table(views, VIEW_WORDS as usize)?, t.table(axes, RECORD_WORDS as usize)?);
    let (rgb, table) = (t.bytes(bytes.next_multiple_of(4) as usize)?, t.numbers::<E>(768)?);
    let weights = t.words((FRAGMENT_WORDS * t.within(1, 30)) as usize)?;
    let fragments = if patches { Some(&*weights) } else { None };
    let sources = Sources { rgb: &rgb, views: &views, axes: &axes, table: &table, fragments };
    let len = 3 * order.side * order.side * units;
    match planes {
        true => inputs(t, &sources, order, &mut t.room((len * order.copies) as usize)?),
        false => interleaved_inputs(t, &sources, order, &mut t.room(len as usize)?),
    }
}

fn made(t: &Trial<'_, '_>) -> Result<()> {
    let (mut axes, mut parts, mut fragments_) = (Vec::new(), Vec::new(), 0);
    for _ in 0..t.within(1, 3) {
        let (outputs, steps) = (t.within(1, 60), t.pick(&[0, 1, 1, 2]));
        let [start, form] = axis(t, &mut axes, 60, outputs);
        let at = t.pick(&[0, 0, 3, u32::MAX]);
        parts.extend([
            fragments_,
            start,
            form,
            outputs,
            at,
            t.within(1, 16) | steps << 16,
            t.below(2),
            t.pick(&[0, 3]),
        ]);
        fragments_ += t.within(1, 9);
    }
    let (parts, axes) = (t.table(parts, AXIS_WORDS as usize)?, t.table(axes, RECORD_WORDS as usize)?);
    fragments(t, &axes, &parts, &mut t.room((fragments_ * FRAGMENT_WORDS) as usize)?)
}
