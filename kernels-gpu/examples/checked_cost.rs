//! Times each kernel of the family `vision` on one CPU core, as the ordinary CPU device and as the
//! checked one run it, and prints a table. Results are in `benches/record`.
//!
//! `cargo run --release -p thalweg-kernels --features vision --example checked_cost [height width]`

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use thalweg_kernels::vision::{
    Budget, Layout, ParticipatoryMut, RelevanceMut, Salience, Scores, Selection, SelectionMut, TokensMut, allocate,
    analyze, balance, compress, compress_fused, compress_fused_f16, entropy, features, gains, participatory, relevance,
    relevance_with_query, textures, textures_f16,
};
use thalweg_simt::cpu::{CheckedLaunch, Workspace, checker::memory, run_block};
use thalweg_simt::host::{DeviceSlice, Kernel, Launch, LaunchError, LaunchShape};

/// A device that runs each launch several times on this thread.
#[derive(Default)]
struct Timed {
    workspace: RefCell<Workspace>,
    times: RefCell<BTreeMap<&'static str, [Duration; 2]>>,
}

/// How often a launch runs on either device. The shortest time counts.
const TURNS: usize = 7;

// SAFETY: It has no maps.
unsafe impl Launch<()> for Timed {
    type Error = LaunchError;

    unsafe fn launch(&self, kernel: &'static Kernel, shape: LaunchShape, slots: &[u64]) -> Result<(), LaunchError> {
        let workspace = &mut *self.workspace.borrow_mut();
        let [x, y, z] = shape.grid;
        let ordinary = (0..TURNS).map(|_| {
            let start = Instant::now();
            for block in (0..z).flat_map(|z| (0..y).flat_map(move |y| (0..x).map(move |x| [x, y, z]))) {
                // SAFETY: The caller of `launch` promises what the kernel needs. `buffer` exposes
                // the provenance of the memory.
                unsafe { run_block(kernel, shape, block, slots, workspace) }.unwrap();
            }
            start.elapsed()
        });
        let ordinary = ordinary.min().unwrap_or_default();
        let checked = (0..TURNS).map(|_| {
            let start = Instant::now();
            // SAFETY: As for `run_block`.
            unsafe { CheckedLaunch::new(kernel, shape, slots, 0).run(workspace) }.unwrap();
            start.elapsed()
        });
        let checked = checked.min().unwrap_or_default();
        self.times.borrow_mut().insert(kernel.name(), [ordinary, checked]);
        Ok(())
    }
}

/// Makes a buffer that lives as long as the process, of memory that was written.
fn buffer<T: Copy>(len: usize, value: impl Fn(usize) -> T) -> &'static mut DeviceSlice<(), T> {
    let data: &'static mut [u128] = vec![0; (len * size_of::<T>()).div_ceil(16) + 1].leak();
    let p = data.as_mut_ptr().cast::<T>();
    for i in 0..len {
        // SAFETY: The memory has room for `len` values, and its alignment of 16 is enough.
        unsafe { p.add(i).write(value(i)) };
    }
    let address = p.expose_provenance();
    memory::allocated(address, len * size_of::<T>());
    memory::written(address, len * size_of::<T>());
    // SAFETY: Nobody else uses the memory, which is never freed.
    unsafe { DeviceSlice::from_raw_mut(address as u64, len) }
}

fn zeros<T: Copy + Default>(len: usize) -> &'static mut DeviceSlice<(), T> {
    buffer(len, |_| T::default())
}

fn main() -> Result<(), LaunchError> {
    let mut extents = std::env::args().skip(1).filter_map(|n| n.parse().ok());
    let (height, width) = (extents.next().unwrap_or(384_u32), extents.next().unwrap_or(512_u32));
    let on = Timed::default();
    let pixels = (height * width) as usize;
    let noise = |i: usize| ((i as u32).wrapping_mul(2_654_435_761) >> 24) as u8;
    for patch in [64, 32] {
        let layout = Layout::new(&[[height, width]; 2], patch).expect("a legal batch");
        let (n, bytes) = (layout.patches() as usize, layout.bytes() as usize);
        let table = buffer(layout.table().len(), |i| layout.table()[i]);
        let (batch, rgb) = (layout.batch(table), buffer(bytes, noise));
        let pixels = layout.pixels(rgb, [0.5, 0.5]);
        let (means, bits) = (zeros::<f32>(13 * n), zeros::<f32>(n));
        analyze(&on, &batch, &pixels, means, bits)?;
        let pieces = 12 * (n / 64 + 2);
        let how = Salience { edge: 8, least_peak: 1.0, foveal_bias: 0.1 };
        let (part, salience, summaries) = (zeros(n), zeros(n), zeros(pieces));
        let out = ParticipatoryMut { participatory: part, salience, summaries };
        participatory(&on, &batch, how, means, bits, buffer(3400, |i| (i % 7) as f32 * 0.1), out)?;
        let mix = zeros(6);
        balance(&on, &batch, summaries, buffer(18179, |i| (i % 5) as f32 * 0.01), mix)?;
        let map = zeros(n);
        relevance(&on, &batch, 0.1, [0.5, 0.5], means, bits, RelevanceMut { salience, relevance: map })?;
        let scores = Scores { entropy: bits, participatory: part, summaries, mix };
        relevance_with_query(&on, &batch, &scores, RelevanceMut { salience, relevance: map })?;
        let (tokens, selected) = (4000, 2 * 4000 / 64);
        let (sides, cu_seqlens, patch_id, counts) = (zeros(n), zeros(selected + 1), zeros(selected), zeros(2));
        let steps = gains(8, 20, 0.8);
        let steps = buffer(steps.len(), |i| steps[i]);
        let (image_cu_seqlens, image_cu_patches) = (zeros(3), zeros(3));
        let out = SelectionMut { sides, cu_seqlens, patch_id, counts, image_cu_seqlens, image_cu_patches };
        allocate(&on, &batch, Budget { lo: 8, hi: 20, tokens }, map, steps, out)?;
        let selection = Selection { sides, cu_seqlens, patch_id, counts, most: selected as u32 };
        let out = TokensMut { tokens: zeros(13 * 8000), position: zeros(2 * 8000), capacity: 8000 };
        compress_fused(&on, &batch, &pixels, &selection, out)?;
        let out = TokensMut { tokens: zeros(13 * 8000), position: zeros(2 * 8000), capacity: 8000 };
        compress_fused_f16(&on, &batch, &pixels, &selection, out)?;
        if patch == 32 {
            let image = rgb.slice(..3 * height as usize * width as usize).expect("the first image");
            let count = (height.div_ceil(32) * width.div_ceil(32)) as usize;
            let (planes, halves) = (zeros::<f32>(13 * image.len() / 3), zeros::<u16>(13 * image.len() / 3));
            textures(&on, height, width, 0.5, 0.5, image, planes)?;
            textures_f16(&on, height, width, 0.5, 0.5, image, halves)?;
            features(&on, height, width, 32, planes, zeros(13 * count))?;
            entropy(&on, height, width, 32, image, zeros(count))?;
            // Every patch has four tokens.
            let selection = Selection {
                sides: buffer(count, |_| 2),
                cu_seqlens: buffer(count + 1, |i| 4 * i as i32),
                patch_id: buffer(count, |i| i as i32),
                counts: buffer(2, |i| [4 * count as u32, count as u32][i] as _),
                most: count as u32,
            };
            let out =
                TokensMut { tokens: zeros(13 * 4 * count), position: zeros(8 * count), capacity: 4 * count as u32 };
            compress(&on, height, width, 32, planes, &selection, out)?;
        }
    }
    println!("one image of {height} x {width}, {pixels} pixels; milliseconds on one core");
    println!("{:<24} {:>10} {:>10} {:>8}", "kernel", "ordinary", "checked", "times");
    let mut ratios = Vec::new();
    for (kernel, [ordinary, checked]) in &*on.times.borrow() {
        let [ordinary, checked] = [ordinary, checked].map(|t| t.as_secs_f64() * 1e3);
        ratios.push(checked / ordinary);
        println!("{kernel:<24} {ordinary:>10.3} {checked:>10.3} {:>8.1}", checked / ordinary);
    }
    ratios.sort_by(f64::total_cmp);
    println!("median: {:.1} times", ratios[ratios.len() / 2]);
    Ok(())
}
