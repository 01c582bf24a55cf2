//! A device that times launches, and buffers for them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use thalweg_simt::cpu::{BlockWorkspace, CheckedLaunch, checker::memory, run_block};
use thalweg_simt::host::{DeviceSlice, Kernel, Launch, LaunchError, LaunchShape};

/// The number of runs of a launch on either device, in turn. The median time counts.
const TURNS: usize = 7;

/// A device that runs each launch several times on this thread.
#[derive(Default)]
pub(crate) struct Timed {
    workspace: RefCell<BlockWorkspace>,
    times: RefCell<BTreeMap<&'static str, [Duration; 2]>>,
}

impl Timed {
    /// Returns the times on the ordinary device and on the checked one by the names of the kernels:
    /// those of the longest launch, if there were several.
    pub(crate) fn times(&self) -> BTreeMap<&'static str, [Duration; 2]> {
        self.times.borrow().clone()
    }
}

// SAFETY: It has no maps.
unsafe impl Launch<()> for Timed {
    type Error = LaunchError;

    unsafe fn launch(&self, kernel: &'static Kernel, shape: LaunchShape, slots: &[u64]) -> Result<(), LaunchError> {
        let workspace = &mut *self.workspace.borrow_mut();
        let [x, y, z] = shape.grid;
        let mut times = [[Duration::ZERO; TURNS]; 2];
        for turn in 0..TURNS {
            let start = Instant::now();
            for block in (0..z).flat_map(|z| (0..y).flat_map(move |y| (0..x).map(move |x| [x, y, z]))) {
                // SAFETY: The caller of `launch` promises what the kernel needs. `buffer` exposes
                // the provenance of the memory.
                unsafe { run_block(kernel, shape, block, slots, workspace) }.unwrap();
            }
            times[0][turn] = start.elapsed();
            let start = Instant::now();
            // SAFETY: As for `run_block`.
            unsafe { CheckedLaunch::new(kernel, shape, slots, 0).run(workspace) }.unwrap();
            times[1][turn] = start.elapsed();
        }
        let times = times.map(|mut times| {
            times.sort();
            times[TURNS / 2]
        });
        let mut all = self.times.borrow_mut();
        if all.get(kernel.name()).is_none_or(|before| before[0] < times[0]) {
            all.insert(kernel.name(), times);
        }
        Ok(())
    }
}

/// As large as the largest alignment that a kernel asks for.
#[derive(Clone)]
#[repr(align(64))]
struct Line {
    _bytes: [u8; 64],
}

/// Makes a buffer that lives as long as the process, of memory that was written.
pub(crate) fn buffer<T: Copy>(len: usize, value: impl Fn(usize) -> T) -> &'static mut DeviceSlice<(), T> {
    let data: &'static mut [Line] = vec![Line { _bytes: [0; 64] }; (len * size_of::<T>()).div_ceil(64) + 1].leak();
    let p = data.as_mut_ptr().cast::<T>();
    for i in 0..len {
        // SAFETY: The memory has room for `len` values, and its alignment of 64 is enough.
        unsafe { p.add(i).write(value(i)) };
    }
    let address = p.expose_provenance();
    memory::allocated(address, len * size_of::<T>());
    memory::written(address, len * size_of::<T>());
    // SAFETY: Nobody else uses the memory, which is never freed.
    unsafe { DeviceSlice::from_raw_mut(address as u64, len) }
}

/// Makes a buffer of zeros.
pub(crate) fn zeros<T: Copy + Default>(len: usize) -> &'static mut DeviceSlice<(), T> {
    buffer(len, |_| T::default())
}

/// Makes a buffer of numbers.
pub(crate) fn of<T: Copy>(numbers: &[T]) -> &'static mut DeviceSlice<(), T> {
    buffer(numbers.len(), |i| numbers[i])
}

/// Returns a byte that looks random.
pub(crate) fn noise(i: usize) -> u8 {
    ((i as u32).wrapping_mul(2_654_435_761) >> 24) as u8
}

/// Returns a number between -1 and 1 that looks random.
pub(crate) fn number(i: usize) -> f32 {
    f32::from(noise(i)) / 128.0 - 1.0
}
