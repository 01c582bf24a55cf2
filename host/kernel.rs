//! Kernels: PTX, the functions in it, and their launch on a stream.

use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use thalweg_simt::host::{Kernel, Launch, LaunchShape};

use crate::device::Device;
use crate::driver::{Cuda, cuda};
use crate::error::{Error, Result};
use crate::lock;
use crate::stream::{Brand, Stream};

/// The crate's own kernels.
static BUILT_IN: Ptx = Ptx { text: include_str!(concat!(env!("OUT_DIR"), "/thalweg.ptx")) };

/// Where the crate's own kernels are declared.
const BUILT_IN_CRATE: &str = "thalweg_kernels";

/// PTX for [`Device::load`].
///
/// ```
/// use thalweg::Ptx;
///
/// // SAFETY: no kernel is declared for this text, so none can disagree with it.
/// static MINE: Ptx = unsafe { Ptx::new(".version 6.3\n.target sm_75\n.address_size 64\n") };
/// thalweg::Device::best()?.load(&MINE)?;
/// # Ok::<(), thalweg::Error>(())
/// ```
#[derive(Debug)]
pub struct Ptx {
    text: &'static str,
}

impl Ptx {
    /// PTX that `thalweg-ptx-builder` or another compiler made.
    ///
    /// # Safety
    /// Every entry in it whose name is that of a [`kernel!`](crate::kernel) declaration in the program does what
    /// the declaration promises; PTX built from the crate of the declarations does.
    pub const unsafe fn new(text: &'static str) -> Self {
        Self { text }
    }

    /// The text.
    pub fn text(&self) -> &'static str {
        self.text
    }
}

/// What a device has loaded.
#[derive(Debug, Default)]
pub(crate) struct Modules {
    built_in: Mutex<Option<cuda::Module>>,
    user: Mutex<Vec<(&'static str, cuda::Module)>>,
}

impl Modules {
    pub(crate) fn load(&self, cuda: &Cuda, ptx: &Ptx) -> Result<()> {
        let mut user = lock(&self.user);
        if !user.iter().any(|(text, _)| *text == ptx.text) {
            user.push((ptx.text, cuda.load(ptx.text)?));
        }
        Ok(())
    }

    /// Looks a kernel up, and lets it remember what was found.
    #[cold]
    pub(crate) fn find(&self, cuda: &Cuda, kernel: &Kernel, device: Device) -> Result<NonNull<()>> {
        // Our kernels are looked up in our PTX and no others, so that an entry of the same name cannot take their place.
        let found = if kernel.module().split("::").next() == Some(BUILT_IN_CRATE) {
            let mut built_in = lock(&self.built_in);
            let module = match *built_in {
                Some(module) => module,
                None => *built_in.insert(cuda.load(BUILT_IN.text)?),
            };
            cuda.function(module, kernel.entry())?
        } else {
            let mut found = None;
            for (_, module) in &*lock(&self.user) {
                found = cuda.function(*module, kernel.entry())?;
                if found.is_some() {
                    break;
                }
            }
            found
        };
        let function = found.ok_or_else(|| Error::NoEntry { entry: kernel.entry(), device: device.to_string() })?;
        if let Some(slot) = cuda::cached(kernel, cuda.ordinal) {
            slot.store(function.as_ptr(), Ordering::Release);
        }
        Ok(function)
    }
}

impl<S: Brand> Launch<S> for Stream<S> {
    type Error = Error;

    #[inline]
    #[track_caller]
    unsafe fn launch(&self, kernel: &'static Kernel, shape: LaunchShape, slots: &[u64]) -> Result<()> {
        let device = self.device();
        device.usable()?;
        if shape.grid.contains(&0) {
            return Ok(());
        }
        let function = device.function(kernel)?;
        // SAFETY: the caller's promise; the function is the kernel's on the stream's device.
        device.seen(unsafe { self.handle().launch(kernel, function, shape, slots) })
    }
}
