//! Occupancy: the number of blocks of a kernel that run at once.

use std::cell::Cell;
use std::fmt;

use thalweg_simt::host::{Kernel, Launch, LaunchShape};

use crate::brand::Brand;
use crate::error::{Error, Result};
use crate::stream::Stream;

/// The number of blocks of a launch that run at once on a multiprocessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Occupancy {
    /// The blocks. On the CPU device it is 1: each of the threads that run kernels, which are its
    /// multiprocessors, runs one block at a time.
    pub blocks: u32,
    /// The threads of a block.
    pub threads: u32,
    /// The bytes of dynamic shared memory of a block.
    pub dynamic_shared_bytes: u32,
}

/// A launcher that takes the place of the stream in [`Stream::occupancy`]. A launch on it is not
/// made.
pub struct OccupancyQuery<S: Brand> {
    stream: Stream<S>,
    answer: Cell<Option<Occupancy>>,
}

impl<S: Brand> fmt::Debug for OccupancyQuery<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OccupancyQuery").field("stream", &self.stream).finish_non_exhaustive()
    }
}

// SAFETY: [kernel] It has no maps, and nothing runs.
unsafe impl<S: Brand> Launch<S> for OccupancyQuery<S> {
    type Error = Error;

    unsafe fn launch(&self, kernel: &'static Kernel, shape: LaunchShape, _: &[u64]) -> Result<()> {
        let device = self.stream.device();
        device.ensure_usable()?;
        let function = device.function(kernel)?;
        let blocks = device.seen(device.driver().occupancy(function, shape))?;
        let threads = shape.block.iter().product(); // at most 1024, as every `LaunchShape`
        self.answer.set(Some(Occupancy { blocks, threads, dynamic_shared_bytes: shape.shared }));
        Ok(())
    }

    fn runs(&self) -> bool {
        false
    }
}

impl<S: Brand> Stream<S> {
    /// Asks how many blocks of a launch run at once on a multiprocessor of the stream's device. The
    /// launcher is called as for a launch, so it computes the block and the shared memory from the
    /// same arguments, but nothing runs. On a GPU, the first question for a kernel loads it.
    ///
    /// ```
    /// use thalweg::{Device, kernel, ptx, stream_tags};
    ///
    /// ptx! {} // this crate has no PTX, so its kernels run on the CPU device only
    ///
    /// kernel! {
    ///     unsafe fn ones(cx: impl Simt, n: u32, x: Out<f32>)
    ///     require { x.len() == n }
    ///     grid(n.div_ceil(128)) block(128)
    ///     {
    ///         let i = cx.global_x();
    ///         if i < n {
    ///             x.set(cx, i, 1.0);
    ///         }
    ///     }
    /// }
    ///
    /// stream_tags!(Work);
    /// # fn main() -> Result<(), thalweg::Error> {
    /// let gpu = Device::cpu()?;
    /// let work = gpu.stream::<Work>()?;
    /// let mut x = work.alloc_zeroed::<f32>(1000)?;
    /// let occupancy = work.occupancy(|query| ones(query, 1000, &mut x))?;
    /// assert_eq!((occupancy.blocks, occupancy.threads), (1, 128)); // 1 on the CPU device
    /// let at_once = occupancy.blocks * gpu.multiprocessors(); // a grid of so many blocks fills the device
    /// # let _ = at_once;
    /// assert_eq!(work.read_blocking(&x)?, [0.0; 1000]); // nothing ran
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// `launch` returned an error or launched nothing, the kernel cannot be found, or the device
    /// has failed. If it launched several kernels, the answer is about the last one.
    pub fn occupancy(self, launch: impl FnOnce(&OccupancyQuery<S>) -> Result<()>) -> Result<Occupancy> {
        let query = OccupancyQuery { stream: self, answer: Cell::new(None) };
        launch(&query)?;
        query.answer.get().ok_or_else(|| Error::Parameter {
            name: "launch",
            given: "a closure without a launch".into(),
            expected: "a call of a launcher on the query".into(),
        })
    }
}
