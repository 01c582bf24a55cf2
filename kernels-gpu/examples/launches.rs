//! Prints each kernel's threads and dynamic shared memory of a block, as its declaration makes them for a 4K frame in
//! patches of 32 x 32: `.ci/registers.py` reads it. Nothing runs.

use std::cell::RefCell;
use std::collections::BTreeMap;

use thalweg_kernels::stream::probe;
use thalweg_kernels::vision::{
    Layout, allocate, analyze, balance, compress, compress_fused, compress_fused_bf16, compress_fused_f16, entropy,
    features, participatory, profile_sample, profile_scale, relevance, relevance_with_query, textures, textures_f16,
    top,
};
use thalweg_simt::Element;
use thalweg_simt::host::{DeviceSlice, Kernel, Launch, LaunchError, LaunchShape};

/// A device that notes what it is asked to launch.
#[derive(Default)]
struct Notes(RefCell<BTreeMap<&'static str, LaunchShape>>);

impl Launch<()> for Notes {
    type Error = LaunchError;

    unsafe fn launch(&self, kernel: &'static Kernel, shape: LaunchShape, _: &[u64]) -> Result<(), LaunchError> {
        self.0.borrow_mut().insert(kernel.name(), shape);
        Ok(())
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

fn main() -> Result<(), LaunchError> {
    let on = Notes::default();
    let (height, width) = (2160, 3840);
    let pixels = (height * width) as usize;
    // `analyze` has a kernel for patches of up to 32 pixels a side, and one for larger ones.
    for patch in [64, 32] {
        // Two images, since `allocate` packs the lists of more than one.
        let layout = Layout::new(&[[height, width]; 2], patch).expect("a legal batch");
        let (images, n, largest, bytes) = (layout.images(), layout.patches(), layout.largest(), layout.bytes());
        let (table, patches) = (|| of::<u32>(layout.table().len()), n as usize);
        analyze(&on, images, n, bytes, patch, 0.5, 0.5, table(), of(bytes as usize), out(13 * patches), out(patches))?;
        let pieces = 12 * (n / 64 + images) as usize;
        participatory(
            &on,
            images,
            n,
            8,
            1.0,
            0.1,
            table(),
            of(13 * patches),
            of(patches),
            of(3400),
            out(patches),
            out(patches),
            out(pieces),
        )?;
        balance(&on, images, n, table(), of(pieces), of(18179), out(6))?;
        let (features, maps) = (of(13 * patches), || out(patches));
        relevance(&on, images, n, largest, 0.1, 0.5, 0.5, table(), features, of(patches), maps(), maps())?;
        relevance_with_query(
            &on,
            images,
            n,
            largest,
            table(),
            of(patches),
            of(patches),
            of(pieces),
            of(6),
            out(patches),
            out(patches),
        )?;
        let (budget, selected) = (10_000, 2 * 10_000 / 64);
        let ints = |len: usize| out::<i32>(len);
        allocate(
            &on,
            images,
            n,
            largest,
            8,
            20,
            budget,
            table(),
            of(patches),
            of(13),
            ints(patches),
            ints(selected + 1),
            ints(selected),
            out(2),
            ints(3),
            ints(3),
        )?;
        let capacity = 20_000;
        macro_rules! fused {
            ($($kernel:ident)*) => {$(
                $kernel(
                    &on, images, n, bytes, patch, selected as u32, capacity, 0.5, 0.5,
                    table(), of(bytes as usize), of(patches), of(selected + 1), of(selected), of(2),
                    out(13 * capacity as usize), out(2 * capacity as usize),
                )?;
            )*};
        }
        fused!(compress_fused compress_fused_f16 compress_fused_bf16);
    }
    let patches = (height.div_ceil(32) * width.div_ceil(32)) as usize;
    textures(&on, height, width, 0.5, 0.5, of(3 * pixels), out(13 * pixels))?;
    textures_f16(&on, height, width, 0.5, 0.5, of(3 * pixels), out(13 * pixels))?;
    features(&on, height, width, 32, of(13 * pixels), out(13 * patches))?;
    entropy(&on, height, width, 32, of(3 * pixels), out(patches))?;
    compress(
        &on,
        height,
        width,
        32,
        100,
        10_000,
        of(13 * pixels),
        of(patches),
        of(101),
        of(100),
        of(2),
        out(13 * 10_000),
        out(2 * 10_000),
    )?;
    profile_sample(&on, 1, 3, of(3), of(3), out(13 * 1024))?;
    profile_scale(&on, 1, out(13 * 1024), out(13 * 1024), out(1024))?;
    top(&on, 1, 1024, 200, of(1024), out(200))?;
    probe(&on, 1, out(32))?;
    for (kernel, shape) in &*on.0.borrow() {
        println!("{kernel} {} {}", shape.block.iter().product::<u32>(), shape.shared);
    }
    Ok(())
}
