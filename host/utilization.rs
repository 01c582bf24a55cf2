//! The load of a GPU, as the driver's management library (NVML) says it.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::fmt::Write;
use std::sync::OnceLock;

use log::debug;

use crate::library;
use crate::runtime::device::Device;

/// The load of a GPU in the last moments, by all programs together, as `nvidia-smi` shows it.
/// [`Device::utilization`] returns it.
///
/// A [timeline](crate::Timeline)'s busy shares are of this program's spans, and exact. These are
/// samples of the driver, over a time between 1/6 s and 1 s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Utilization {
    /// The share of the time in which a kernel ran, in percent. A kernel that leaves most of the
    /// GPU idle counts in full.
    pub kernels: u32,
    /// The share of the time in which memory was read or written, in percent.
    pub memory: u32,
}

#[repr(C)]
struct Rates {
    gpu: c_uint,
    memory: c_uint,
}

crate::__library! {
    // Their types are those of NVIDIA's header (`nvml.h`).
    unsafe struct Nvml {
        fn init = nvmlInit_v2() -> c_int;
        fn handle = nvmlDeviceGetHandleByUUID(*const c_char, *mut *mut c_void) -> c_int;
        fn rates = nvmlDeviceGetUtilizationRates(*mut c_void, *mut Rates) -> c_int;
    }
}

/// Loads the library once. It is missing where no driver is.
fn nvml() -> Option<&'static Nvml> {
    static LIBRARY: OnceLock<Option<Nvml>> = OnceLock::new();
    let open = || {
        // SAFETY: [symbol] NVML may be loaded at any time, on any thread.
        let found = unsafe { library::open("NVML", "the loader's path", &["libnvidia-ml.so.1"], None, Nvml::of) };
        let nvml = found.inspect_err(|why| debug!(target: "thalweg::device", "{why}")).ok()?.0;
        // SAFETY: [symbol] The function has no requirements. It may be called more than once.
        let status = unsafe { (nvml.init)() };
        debug!(target: "thalweg::device", "NVML starts with status {status}");
        (status == 0).then_some(nvml)
    };
    LIBRARY.get_or_init(open).as_ref()
}

impl Device {
    /// Returns how busy the GPU was lately, or `None` where the driver does not say: NVML
    /// (`libnvidia-ml.so.1`) is missing or refuses, the device is part of a GPU, or it is the CPU
    /// device. The first call of a process loads NVML.
    ///
    /// ```
    /// # use thalweg::Device;
    /// assert!(Device::cpu()?.utilization().is_none());
    /// # Ok::<(), thalweg::Error>(())
    /// ```
    pub fn utilization(self) -> Option<Utilization> {
        let uuid = self.uuid()?;
        let mut text = String::from("GPU");
        for (i, byte) in uuid.iter().enumerate() {
            let dash = if [0, 4, 6, 8, 10].contains(&i) { "-" } else { "" };
            let _ = write!(text, "{dash}{byte:02x}");
        }
        let (nvml, text) = (nvml()?, CString::new(text).ok()?);
        let (mut handle, mut rates) = (std::ptr::null_mut(), Rates { gpu: 0, memory: 0 });
        // SAFETY: [symbol] NVML was initialized. The text ends with a NUL, and both results are
        // variables of these types. The handle is used only if the first call gave one.
        let given =
            unsafe { (nvml.handle)(text.as_ptr(), &raw mut handle) == 0 && (nvml.rates)(handle, &raw mut rates) == 0 };
        given.then_some(Utilization { kernels: rates.gpu, memory: rates.memory })
    }
}
