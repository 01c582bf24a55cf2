//! Measures the texture array in CUDA C++. nvcc compiles it during the run; it is loaded beside our
//! kernels and timed in the same way.

use std::ffi::{CStr, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::null_mut;
use testkit::oracle;

use cudarc::driver::sys;
use thalweg::{DeviceSlice, Stream};

use crate::Result;
use crate::bencher::{Bench, Bencher, compare};
use crate::images::{Content, Photo, Size};
use crate::kernels::{CHECKED, FIXATION, checked};

/// The bound on the error of planes. It leaves room for `-use_fast_math`.
const BOUND: f64 = 2e-5;

/// A kernel of `benches/peers/textures.cu`.
struct Version {
    by: &'static str,
    flags: &'static [&'static str],
    entry: &'static CStr,
    /// Pixels of a block, and threads, across and down.
    pixels: [u32; 2],
    threads: [u32; 2],
}

const PLAIN: Version = Version {
    by: "CUDA C++, straightforward",
    flags: &[],
    entry: c"textures_plain",
    pixels: [32, 8],
    threads: [32, 8],
};

const VERSIONS: [Version; 3] = [
    PLAIN,
    Version { by: "CUDA C++, straightforward, fast math", flags: &["-use_fast_math"], ..PLAIN },
    Version {
        by: "CUDA C++, the same algorithm",
        entry: c"textures_ported",
        pixels: [1024, 2],
        threads: [256, 1],
        ..PLAIN
    },
];

/// A kernel that nvcc compiled.
pub(crate) struct Kernel {
    function: sys::CUfunction,
    version: &'static Version,
}

/// Returns the kernels that compile and compute the right planes, and notes why the others do not
/// count.
pub(crate) fn kernels(bench: &mut Bencher, photo: &Photo, scratch: &Path) -> Vec<Kernel> {
    let mut kernels = vec![];
    for version in &VERSIONS {
        let checked = Kernel::new(bench, version, scratch).and_then(|kernel| {
            Content::ALL.iter().try_for_each(|content| kernel.check(bench.stream, *content, photo))?;
            Ok(kernel)
        });
        match checked {
            Ok(kernel) => kernels.push(kernel),
            Err(why) => bench.record.absent(format!("{}: {why}", version.by)),
        }
    }
    kernels
}

impl Kernel {
    /// As nvcc makes it for this device.
    fn new(bench: &Bencher, version: &'static Version, scratch: &Path) -> Result<Self> {
        let thalweg::Version { major, minor } = bench.device.compute_capability().ok_or("this is no GPU")?;
        let (source, cubin) = (scratch.join("textures.cu"), scratch.join("textures.cubin"));
        std::fs::write(&source, include_str!("../peers/textures.cu"))?;
        let output = Command::new(nvcc()?)
            .args(["-O3", "-cubin", &format!("-arch=sm_{major}{minor}")])
            .args(version.flags)
            .arg("-o")
            .args([&cubin, &source])
            .output()?;
        if !output.status.success() {
            return Err(format!("nvcc fails:\n{}", String::from_utf8_lossy(&output.stderr)).into());
        }
        let cubin = std::fs::read(cubin)?;
        let (mut module, mut function) = (null_mut(), null_mut());
        // SAFETY: `cubin` is a whole file of nvcc's, copied by the driver; the device's context is
        // current; each call stores one handle. The module stays loaded.
        unsafe {
            check(sys::cuModuleLoadData(&mut module, cubin.as_ptr().cast()), "loading what nvcc wrote")?;
            check(sys::cuModuleGetFunction(&mut function, module, version.entry.as_ptr()), "finding its entry")?;
        }
        Ok(Self { function, version })
    }

    /// Names who made the kernel, as the record does.
    pub(crate) fn by(&self) -> &'static str {
        self.version.by
    }

    pub(crate) fn launch(
        &self,
        stream: Stream<Bench>,
        size: Size,
        rgb: &DeviceSlice<Bench, u8>,
        planes: &mut DeviceSlice<Bench, f32>,
    ) -> Result {
        let (height, width, fixation) = (size.height, size.width, 0.5f32);
        assert!([rgb.len(), planes.len()] == [3 * size.pixels(), 13 * size.pixels()] && width.is_multiple_of(4));
        let (rgb, planes) = (rgb.device_ptr(), planes.device_ptr());
        let p = |v: *const c_void| v.cast_mut();
        let mut parameters = [
            p((&raw const height).cast()),
            p((&raw const width).cast()),
            p((&raw const fixation).cast()),
            p((&raw const fixation).cast()),
            p((&raw const rgb).cast()),
            p((&raw const planes).cast()),
        ];
        let Version { pixels: [across, down], threads: [x, y], .. } = *self.version;
        let (columns, rows, raw) = (width.div_ceil(across), height.div_ceil(down), stream.raw().unwrap_or(null_mut()));
        // SAFETY: the function takes these parameters; the buffers have the lengths of the image
        // and its planes, as asserted, and are ordered by this stream. The device's context is
        // current, since its buffers were made on this thread.
        let code = unsafe {
            sys::cuLaunchKernel(
                self.function,
                columns,
                rows,
                1,
                x,
                y,
                1,
                0,
                raw.cast(),
                parameters.as_mut_ptr(),
                null_mut(),
            )
        };
        check(code, self.by())
    }

    fn check(&self, stream: Stream<Bench>, content: Content, photo: &Photo) -> Result {
        let image = checked(content, photo);
        let rgb = stream.upload_blocking(&image.rgb)?;
        let mut planes = stream.alloc::<f32>(13 * CHECKED.pixels())?;
        stream.fill(&mut planes, f32::NAN)?;
        self.launch(stream, CHECKED, &rgb, &mut planes)?;
        let want = oracle::textures(&image, [f64::from(FIXATION); 2]);
        compare("textures", &stream.read_blocking(&planes)?, &want, BOUND)
    }
}

fn check(code: sys::CUresult, what: &str) -> Result {
    match code {
        sys::cudaError_enum::CUDA_SUCCESS => Ok(()),
        code => Err(format!("{what}: {code:?}").into()),
    }
}

/// Returns the compiler: the one in the path, the one where the toolkit usually is, or the one that
/// `CUDA_HOME` names.
fn nvcc() -> Result<PathBuf> {
    let home = std::env::var_os("CUDA_HOME").map(PathBuf::from);
    let places = [Some(PathBuf::new()), home.map(|home| home.join("bin")), Some("/usr/local/cuda/bin".into())];
    let works = |nvcc: &PathBuf| Command::new(nvcc).arg("--version").output().is_ok_and(|o| o.status.success());
    let found = places.into_iter().flatten().map(|place| place.join("nvcc")).find(works);
    Ok(found.ok_or("no nvcc in PATH, CUDA_HOME or /usr/local/cuda")?)
}
