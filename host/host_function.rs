//! Host functions: code of the program that a stream runs between its other work.

use std::sync::atomic::AtomicU32;

use thalweg_simt::host::HostSlice;

use crate::brand::LiveBrand;
use crate::driver::guard;
use crate::error::{Error, Result};
use crate::memory::DeviceCopy;
use crate::stream::Stream;

impl<S> Stream<S> {
    /// Runs `f` on a thread of the driver when the stream reaches it. Later work on the stream
    /// waits for `f`.
    ///
    /// `f` must not call into a device: such calls return [`Error::InHostFunction`]. It may drop
    /// resources, whose memory another thread then gives back. A [`SharedRead`](crate::SharedRead)
    /// that is dropped in it leaks its resource, because the end of the reading cannot be recorded
    /// there. A panic is caught, and [`Device::check`](crate::Device::check) and
    /// [`synchronize`](Stream::synchronize) report it.
    ///
    /// # Errors
    /// The device has failed, and `f` is dropped.
    #[track_caller]
    pub fn launch_host(self, f: impl FnOnce() + Send + 'static) -> Result<()>
    where
        S: LiveBrand,
    {
        self.launch_host_with(None, f)
    }

    /// Enqueues a host function that accesses this memory: an address, and bytes.
    #[track_caller]
    fn launch_host_with(self, memory: Option<(u64, usize)>, f: impl FnOnce() + Send + 'static) -> Result<()> {
        let device = self.device();
        let mut f = HostFunction(Some(f));
        let guarded = move || {
            if device.is_failed() {
                return; // What `f` would see may be wrong. It is dropped, as a host function.
            }
            let run = std::panic::AssertUnwindSafe(|| f.run());
            if let Err(panic) = std::panic::catch_unwind(run) {
                let message = match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
                    (Some(s), _) => (*s).to_owned(),
                    (_, Some(s)) => s.clone(),
                    _ => "a value that is not text".to_owned(),
                };
                // The payload is a user's value. Dropping it may panic again, and nothing would
                // catch that panic.
                std::mem::forget(panic);
                device.defer(Error::HostFunctionPanicked { message });
            }
        };
        self.call(|s| s.launch_host(memory, Box::new(guarded)))
    }

    /// Runs `f` on page-locked memory when the stream reaches it. Later work on the stream waits
    /// for `f`. It is [`launch_host`](Stream::launch_host) for code that computes with what the
    /// stream downloaded, or makes what the stream uploads, such as code that sends it over a
    /// network.
    ///
    /// ```
    /// use thalweg::{Device, stream_tags};
    ///
    /// stream_tags!(Work);
    /// let gpu = Device::best()?;
    /// let work = gpu.stream::<Work>()?;
    /// let mut x = work.upload_blocking(&[1.0f32, 2.0, 3.0])?;
    /// let mut host = work.bind(gpu.pinned::<f32>(3)?)?;
    /// work.copy_to_host(&x, &mut host)?;
    /// work.launch_host_on(&mut host, |x| x.iter_mut().for_each(|x| *x *= 10.0))?;
    /// work.copy_to_device(&host, &mut x)?;
    /// assert_eq!(work.read_blocking(&x)?, [10.0, 20.0, 30.0]);
    /// # Ok::<(), thalweg::Error>(())
    /// ```
    ///
    /// # Errors
    /// The device has failed, and `f` is dropped.
    #[track_caller]
    pub fn launch_host_on<T: DeviceCopy>(
        self,
        memory: &mut HostSlice<S, T>,
        f: impl FnOnce(&mut [T]) + Send + 'static,
    ) -> Result<()>
    where
        S: LiveBrand,
    {
        let (addr, len) = (memory.host_ptr(), memory.len());
        self.launch_host_with(Some((addr, len * size_of::<T>())), move || {
            let elements = std::ptr::with_exposed_provenance_mut::<T>(addr as usize);
            // SAFETY: [order] By the contract of `HostSlice::from_raw`, which the maker of the
            // slice kept, the memory has `len` aligned elements that the host can access (its owner
            // exposed the address), and this stream orders all uses of it. The stream runs this
            // function between those before and those after, and the memory is given back only
            // after the stream's work. So nothing else uses the elements during this call. The
            // slice cannot outlive the call, because `f` takes it for every lifetime. Every bit
            // pattern is a value of `DeviceCopy`.
            f(unsafe { std::slice::from_raw_parts_mut(elements, len) });
        })
    }

    /// Blocks the stream until the word in page-locked memory has reached `value`: until the word
    /// less `value`, modulo 2^32 and as a signed number, is not negative. It is a gate for tests.
    ///
    /// # Safety
    /// `flag` points to an aligned word in page-locked memory, which stays valid until the stream
    /// has passed this operation.
    ///
    /// # Errors
    /// The device has failed or does not support it.
    #[track_caller]
    pub unsafe fn wait_value(self, flag: *const AtomicU32, value: u32) -> Result<()>
    where
        S: LiveBrand,
    {
        // SAFETY: [alive] The caller of `wait_value` promises that `flag` points to an aligned word
        // of page-locked memory, which stays valid until the stream has passed this operation.
        self.call(|s| unsafe { s.wait_value(flag, value) })
    }
}

/// A host function that counts as one whether a queue calls it or drops it without a call. In both
/// cases calls into a device are refused.
struct HostFunction<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> HostFunction<F> {
    fn run(&mut self) {
        if let Some(f) = self.0.take() {
            guard::as_host_function(f);
        }
    }
}

impl<F: FnOnce()> Drop for HostFunction<F> {
    fn drop(&mut self) {
        if let Some(f) = self.0.take() {
            guard::as_host_function(|| drop(f));
        }
    }
}
