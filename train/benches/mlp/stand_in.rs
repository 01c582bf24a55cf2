//! A stand-in for the reductions of NCCL on a machine with one GPU. It reduces nothing.
//!
//! ```text
//! each of n blocks, for its part of the bucket, in tiles of 640 x LOADS x 16 bytes:
//!     as often as `passes` says: load the tile into registers, store it as it is
//!     until %globaltimer says that as much of the duration has passed as of the part is done: wait
//! ```
//!
//! What it has in common with NCCL on an H200: the number of blocks (CTAs), 640 threads and more than 100 KiB of shared memory in
//! each, 96 registers for a thread, so that hardly another block fits beside one, clusters of four, and the time that a sum over
//! two ranks took with so many CTAs. The clock gives the pace, not the memory. What differs: all memory is that of this GPU,
//! no other rank is late, and each block has one part of the bucket.
//!
//! A pass reads and writes each byte once. NCCL's ring of two ranks does that once or twice on a GPU, in part in buffers
//! that stay in L2, as the second pass over a tile does here. With no pass, multiprocessors are taken and no memory is touched.
//!
//! The kernel is PTX by hand, because kernels of thalweg have no clusters.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::fmt::Write;
use std::ptr::{from_mut, null_mut};

use libloading::Library;
use thalweg::{Device, LiveBrand, Stream};

use crate::Result;

const THREADS: u32 = 640;
/// The loads of 16 bytes that a thread has under way at once. With them it needs 95 registers.
const LOADS: u32 = 18;
const SHARED_BYTES: u32 = 104 << 10;

/// The MiB whose sums over two ranks were timed, and the microseconds by the number of CTAs: two H200, NCCL 2.28.9, `f32`
/// (`benches/record/2026-11-23-h200-mlp-ddp.txt`).
const MIB: [f64; 8] = [1.0, 4.0, 10.0, 25.0, 50.0, 100.0, 400.0, 1024.0];
const TIMES: [(u32, [f64; 8]); 7] = [
    (1, [148.3, 207.5, 512.1, 1262.1, 2508.0, 5015.1, 20035.9, 51268.9]),
    (2, [77.0, 115.2, 267.6, 644.7, 1272.6, 2537.2, 10071.5, 25764.5]),
    (4, [41.1, 68.5, 140.0, 331.4, 656.4, 1290.4, 5080.6, 13000.7]),
    (8, [23.2, 45.2, 81.0, 176.7, 344.8, 675.8, 2667.2, 6801.2]),
    (16, [15.2, 34.7, 58.7, 124.6, 231.7, 432.9, 1593.1, 3944.7]),
    (24, [13.6, 32.8, 52.6, 110.1, 201.8, 378.2, 1363.3, 3244.0]),
    (32, [13.2, 32.2, 50.7, 105.5, 191.0, 353.9, 1287.7, 3111.3]),
];

/// The time of a sum over two ranks in ns, on the lines between the measured ones.
pub(crate) fn duration(ctas: u32, bytes: usize) -> Result<u64> {
    let timed = TIMES.iter().find(|(n, _)| *n == ctas);
    let (_, us) = timed.ok_or_else(|| format!("no reduction by {ctas} CTAs was timed"))?;
    let mib = bytes as f64 / f64::from(1 << 20);
    let above = MIB.iter().position(|&m| m > mib).unwrap_or(MIB.len() - 1).max(1);
    let slope = (us[above] - us[above - 1]) / (MIB[above] - MIB[above - 1]);
    Ok((1e3 * (us[above - 1] + slope * (mib - MIB[above - 1]))) as u64)
}

/// The text of the kernel.
fn ptx() -> String {
    let mut text = format!(
        ".version 7.8
.target sm_90
.address_size 64
.visible .entry stand_in(.param .b64 to, .param .b64 len, .param .b64 duration, .param .b32 passes)
.maxntid {THREADS}, 1, 1
{{
.reg .pred %p, %in<{LOADS}>;
.reg .b32 %v<{}>, %pass, %passes, %x;
.reg .b64 %at, %i, %n, %len, %from, %done, %own, %begin, %duration, %until, %now;
mov.u64 %begin, %globaltimer;
ld.param.b64 %at, [to];
cvta.to.global.u64 %at, %at;
ld.param.b64 %len, [len];
ld.param.b64 %duration, [duration];
ld.param.b32 %passes, [passes];
// The pieces of 16 bytes of this block: `own` from `from` on.
mov.u32 %x, %nctaid.x;
cvt.u64.u32 %n, %x;
mov.u32 %x, %ctaid.x;
cvt.u64.u32 %i, %x;
mul.lo.u64 %from, %len, %i;
div.u64 %from, %from, %n;
add.u64 %i, %i, 1;
mul.lo.u64 %own, %len, %i;
div.u64 %own, %own, %n;
sub.u64 %own, %own, %from;
mov.u32 %x, %tid.x;
cvt.u64.u32 %i, %x;
add.u64 %from, %from, %i;
shl.b64 %from, %from, 4;
add.u64 %at, %at, %from;
mov.b64 %done, 0;
TILE:
setp.ge.u64 %p, %done, %own;
@%p ret;
mov.b32 %pass, 0;
",
        4 * LOADS
    );
    for j in 0..LOADS {
        let _ = writeln!(text, "add.u64 %n, %i, {};\nsetp.lt.u64 %in{j}, %n, %own;", j * THREADS);
    }
    text += "PASS:\nsetp.ge.u32 %p, %pass, %passes;\n@%p bra PACE;\n";
    let four = |j: u32| format!("{{%v{}, %v{}, %v{}, %v{}}}", 4 * j, 4 * j + 1, 4 * j + 2, 4 * j + 3);
    for j in 0..LOADS {
        let _ = writeln!(text, "@%in{j} ld.relaxed.gpu.global.v4.b32 {}, [%at+{}];", four(j), j * THREADS * 16);
    }
    for j in 0..LOADS {
        let _ = writeln!(text, "@%in{j} st.relaxed.gpu.global.v4.b32 [%at+{}], {};", j * THREADS * 16, four(j));
    }
    let tile = LOADS * THREADS;
    text + &format!(
        "add.u32 %pass, %pass, 1;
bra PASS;
PACE:
add.u64 %at, %at, {};
add.u64 %i, %i, {tile};
add.u64 %done, %done, {tile};
min.u64 %done, %done, %own;
mul.lo.u64 %until, %duration, %done;
div.u64 %until, %until, %own;
add.u64 %until, %until, %begin;
WAIT:
mov.u64 %now, %globaltimer;
setp.ge.u64 %p, %now, %until;
@%p bra TILE;
nanosleep.u32 200;
bra WAIT;
}}
",
        tile * 16
    )
}

/// `CUlaunchAttribute`: a number, and 64 bytes of which these kinds use the first.
#[repr(C)]
struct Attribute(c_uint, c_uint, [c_uint; 16]);
const CLUSTER: c_uint = 4;
const POLICY: c_uint = 5;
const SPREAD: c_uint = 1;

/// `CUlaunchConfig`: grid, block, bytes of shared memory, stream, attributes.
#[repr(C)]
struct Config([c_uint; 3], [c_uint; 3], c_uint, *mut c_void, *mut Attribute, c_uint);

type LoadData = unsafe extern "C" fn(*mut *mut c_void, *const c_void) -> c_int;
type GetFunction = unsafe extern "C" fn(*mut *mut c_void, *mut c_void, *const c_char) -> c_int;
type SetAttribute = unsafe extern "C" fn(*mut c_void, c_int, c_int) -> c_int;
type Launch = unsafe extern "C" fn(*const Config, *mut c_void, *mut *mut c_void, *mut *mut c_void) -> c_int;

fn check(call: &str, code: c_int) -> Result<()> {
    if code == 0 { Ok(()) } else { Err(format!("{call} gives {code}").into()) }
}

/// The kernel, loaded for one device.
pub(crate) struct Kernel {
    launch: Launch,
    function: *mut c_void,
}

impl Kernel {
    pub(crate) fn new(device: Device) -> Result<Self> {
        // SAFETY: Loading the driver's library again runs nothing that it has not run already.
        let cuda = Box::leak(Box::new(unsafe { Library::new("libcuda.so.1") }?));
        let text = CString::new(ptx())?;
        // SAFETY: `cuda.h` declares the functions with these types. The context of the device is current, the text ends with
        // NUL, and the handles are those that the calls before have stored. Module and library are never unloaded.
        device.with_context(|| unsafe {
            let (mut module, mut function) = (null_mut(), null_mut());
            check("cuModuleLoadData", cuda.get::<LoadData>(b"cuModuleLoadData")?(&mut module, text.as_ptr().cast()))?;
            let get = cuda.get::<GetFunction>(b"cuModuleGetFunction")?;
            check("cuModuleGetFunction", get(&mut function, module, c"stand_in".as_ptr()))?;
            const DYNAMIC_SHARED: c_int = 8; // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            let set = cuda.get::<SetAttribute>(b"cuFuncSetAttribute")?;
            check("cuFuncSetAttribute", set(function, DYNAMIC_SHARED, SHARED_BYTES.cast_signed()))?;
            Ok(Self { launch: *cuda.get::<Launch>(b"cuLaunchKernelEx")?, function })
        })?
    }
}

/// The load of a stand-in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Shape {
    pub(crate) ctas: u32,
    /// The number of times that each byte is read and written.
    pub(crate) passes: u32,
    /// The most blocks of a cluster, 4 with NCCL. If this does not divide the CTAs, there are no clusters, as there.
    pub(crate) cluster: u32,
}

impl Shape {
    /// The blocks of a cluster.
    pub(crate) fn cluster(self) -> u32 {
        if self.ctas.is_multiple_of(self.cluster) { self.cluster } else { 1 }
    }
}

/// A stand-in for reductions on the stream `C`.
pub(crate) struct StandIn<'k, C: LiveBrand> {
    pub(crate) kernel: &'k Kernel,
    pub(crate) stream: Stream<C>,
    pub(crate) shape: Shape,
}

impl<C: LiveBrand> StandIn<'_, C> {
    /// Enqueues the stand-in for the reduction of `bytes` bytes at an address.
    ///
    /// # Safety
    /// The memory is that of the stream's device, and until the stream has passed this, no other work writes it.
    pub(crate) unsafe fn enqueue(&self, address: u64, bytes: usize) -> Result<()> {
        let Shape { ctas, passes, .. } = self.shape;
        assert!(address.is_multiple_of(16));
        let mut numbers = [address, bytes as u64 / 16, duration(ctas, bytes)?, passes.into()];
        let mut arguments = numbers.each_mut().map(|number| from_mut(number).cast());
        let mut words = [0; 16];
        words[..3].copy_from_slice(&[self.shape.cluster(), 1, 1]);
        let mut policy = [0; 16];
        policy[0] = SPREAD;
        let mut attributes = [Attribute(CLUSTER, 0, words), Attribute(POLICY, 0, policy)];
        let stream = self.stream.raw().ok_or("the stand-in needs a GPU")?;
        let config = Config([ctas, 1, 1], [THREADS, 1, 1], SHARED_BYTES, stream, attributes.as_mut_ptr(), 2);
        // SAFETY: The context of the stream's device is current. The function has four parameters with the first bytes of
        // these numbers, which the call copies. The kernel stores in the pieces of 16 bytes what it has loaded from them, and the caller keeps others away.
        let code = self.stream.device().with_context(|| unsafe {
            (self.kernel.launch)(&config, self.kernel.function, arguments.as_mut_ptr(), null_mut())
        })?;
        check("cuLaunchKernelEx", code)
    }
}
