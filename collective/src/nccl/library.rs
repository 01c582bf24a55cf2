//! The functions of NCCL, from the library that this machine has.
//!
//! The program does not link the library. It is loaded when the first communicator on a GPU is
//! made, so a program also runs where it is missing.

use std::ffi::{CStr, OsString, c_char, c_int, c_void};
use std::mem::offset_of;
use std::sync::OnceLock;

use log::debug;
use thalweg::library;

use crate::element::{Kind, Op};
use crate::options::CtaRange;

/// The variable that names the library's file.
const VARIABLE: &str = "THALWEG_NCCL";

/// The names under which the loader of the system looks for it.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// The oldest version that has the fields of [`Config`]: 2.18.
const NEEDED: c_int = 21_800;

/// A communicator of NCCL.
pub(super) type RawComm = *mut c_void;
/// A result of NCCL, as a number: a newer library may have more of them.
pub(super) type Code = c_int;

pub(super) const SUCCESS: Code = 0;
pub(super) const IN_PROGRESS: Code = 7;

/// The id of a communicator that ranks are about to make.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct UniqueId(pub(super) [u8; 128]);

/// The options of a communicator, with the fields that version 2.18 has. A newer library takes its
/// defaults for the others, because `version` is older and `size` ends before them.
#[repr(C)]
pub(super) struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
    cluster: c_int,
    least_ctas: c_int,
    most_ctas: c_int,
    network: *const c_char,
    split_share: c_int,
    /// Padding to the size of version 2.18. Version 2.25 has another field here.
    traffic_class: c_int,
}

// `ncclConfig_t` of `nccl.h` 2.18 to 2.30.
const _: () = assert!(
    size_of::<Config>() == 48
        && offset_of!(Config, magic) == 8
        && offset_of!(Config, version) == 12
        && offset_of!(Config, blocking) == 16
        && offset_of!(Config, network) == 32
        && offset_of!(Config, traffic_class) == 44
);

impl Config {
    /// Calls of the communicator return before what they ask for is done. `ctas` bounds the
    /// blocks of an operation.
    pub(super) fn non_blocking(ctas: Option<CtaRange>) -> Self {
        const UNDEFINED: c_int = c_int::MIN;
        let [least_ctas, most_ctas] = ctas.map_or([UNDEFINED; 2], |ctas| [ctas.least, ctas.most].map(u32::cast_signed));
        Self {
            size: size_of::<Self>(),
            magic: 0xcafe_beef,
            version: NEEDED.cast_unsigned(),
            blocking: 0,
            cluster: UNDEFINED,
            least_ctas,
            most_ctas,
            network: std::ptr::null(),
            split_share: UNDEFINED,
            traffic_class: UNDEFINED,
        }
    }
}

thalweg::__library! {
    // `nccl.h` declares the functions with these types since version 2.14, and enumerations of C
    // are `int`.
    unsafe pub(super) struct Library {
        fn get_version = ncclGetVersion(*mut c_int) -> Code;
        fn unique_id = ncclGetUniqueId(*mut UniqueId) -> Code;
        fn init = ncclCommInitRankConfig(*mut RawComm, c_int, UniqueId, c_int, *mut Config) -> Code;
        fn async_error = ncclCommGetAsyncError(RawComm, *mut Code) -> Code;
        fn last_error = ncclGetLastError(RawComm) -> *const c_char;
        fn error_string = ncclGetErrorString(Code) -> *const c_char;
        fn abort = ncclCommAbort(RawComm) -> Code;
        fn group_start = ncclGroupStart() -> Code;
        fn group_end = ncclGroupEnd() -> Code;
        fn all_reduce = ncclAllReduce(*const c_void, *mut c_void, usize, c_int, c_int, RawComm, *mut c_void) -> Code;
        fn broadcast = ncclBroadcast(*const c_void, *mut c_void, usize, c_int, c_int, RawComm, *mut c_void) -> Code;
        fn reduce = ncclReduce(*const c_void, *mut c_void, usize, c_int, c_int, c_int, RawComm, *mut c_void) -> Code;
        fn reduce_scatter = ncclReduceScatter(*const c_void, *mut c_void, usize, c_int, c_int, RawComm, *mut c_void) -> Code;
        fn all_gather = ncclAllGather(*const c_void, *mut c_void, usize, c_int, RawComm, *mut c_void) -> Code;
        fn send = ncclSend(*const c_void, usize, c_int, c_int, RawComm, *mut c_void) -> Code;
        fn receive = ncclRecv(*mut c_void, usize, c_int, c_int, RawComm, *mut c_void) -> Code;
    }
}

impl Library {
    /// The library of this process, which the first call loads.
    ///
    /// # Errors
    /// It cannot be used: what was tried, and why it failed.
    pub(super) fn get() -> Result<&'static Self, &'static str> {
        static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
        let open = || open(std::env::var_os(VARIABLE));
        library::once(&LIBRARY, open, |library, file| {
            debug!(target: "thalweg_collective::nccl", "NCCL {} was loaded as {file}", version(library.version()));
        })
    }

    /// Returns the version as NCCL counts: 22809 is 2.28.9. It is 0 if the call fails.
    pub(super) fn version(&self) -> c_int {
        let mut version = 0;
        // SAFETY: The call stores one integer in `version`.
        unsafe { (self.get_version)(&mut version) };
        version
    }

    /// Returns the meaning of a result, with the library's text about its last error.
    pub(super) fn meaning(&self, code: Code) -> String {
        // SAFETY: The call gives a static text for every number. The last error is kept for the
        // process; NCCL ignores the communicator, which may be null.
        let (meaning, detail) = unsafe { ((self.error_string)(code), (self.last_error)(std::ptr::null_mut())) };
        match (text(meaning), text(detail)) {
            (meaning, detail) if detail.trim().is_empty() => format!("{meaning} ({code})"),
            (meaning, detail) => format!("{meaning} ({code}): {}", detail.trim()),
        }
    }
}

/// A text of the library, which lives as long as the process.
fn text(p: *const c_char) -> String {
    if p.is_null() {
        return String::new();
    }
    // SAFETY: NCCL returns a static, NUL-terminated text or null, and it is not null.
    unsafe { CStr::from_ptr(p) }.to_string_lossy().into_owned()
}

/// Loads the file that the variable names, or else what the loader of the system finds.
fn open(named: Option<OsString>) -> Result<(Library, String), String> {
    let check = |loaded| {
        let library = Library::of(loaded)?;
        match library.version() {
            old if old < NEEDED => Err(format!("its version is {}, and 2.18 is needed", version(old))),
            _ => Ok(library),
        }
    };
    // SAFETY: NCCL may be loaded at any time, on any thread. A file that the variable names is as
    // trusted as the program.
    unsafe { library::open("NCCL", VARIABLE, &NAMES, named, check) }
}

/// A version in the usual form.
pub(super) fn version(code: c_int) -> String {
    format!("{}.{}.{}", code / 10_000, code % 10_000 / 100, code % 100)
}

/// The number of a type in `ncclDataType_t`.
pub(super) fn kind(kind: Kind) -> c_int {
    match kind {
        Kind::U8 => 1,
        Kind::I32 => 2,
        Kind::U32 => 3,
        Kind::I64 => 4,
        Kind::U64 => 5,
        Kind::F16 => 6,
        Kind::F32 => 7,
        Kind::F64 => 8,
        Kind::Bf16 => 9,
    }
}

/// The number of a reduction in `ncclRedOp_t`.
pub(super) fn op(op: Op) -> c_int {
    match op {
        Op::Sum => 0,
        Op::Max => 2,
        Op::Min => 3,
        Op::Mean => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::{NAMES, VARIABLE, open, version};

    #[test]
    fn the_error_says_what_was_tried() {
        let Err(why) = open(Some("/nowhere/nccl.so".into())) else { panic!("there is none") };
        assert!(why.contains("/nowhere/nccl.so") && why.contains(VARIABLE), "{why}");
        assert!(
            NAMES.iter().all(|name| !why.contains(&format!("{name} ("))),
            "a file that is named is the only one: {why}"
        );
        // A library that is not NCCL.
        #[cfg(target_os = "linux")]
        {
            let Err(why) = open(Some("libc.so.6".into())) else { panic!("it is no NCCL") };
            assert!(why.contains("it has no ncclGetVersion"), "{why}");
        }
        match open(None) {
            Ok((library, _)) => assert!(library.version() >= super::NEEDED),
            Err(why) => assert!(NAMES.iter().all(|name| why.contains(&format!("{name} ("))), "{why}"),
        }
        assert_eq!(version(22_809), "2.28.9");
    }
}
