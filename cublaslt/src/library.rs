//! The functions of cuBLASLt, from the library that this machine has.
//!
//! The program does not link the library. It is loaded when the first [`CublasLt`](crate::CublasLt)
//! is made, so a program also runs where it is missing.

use std::ffi::{CStr, OsString, c_char, c_int, c_void};
use std::sync::OnceLock;

use log::debug;
use thalweg::{Error, library};

/// The variable that names the library's file.
const VARIABLE: &str = "THALWEG_CUBLASLT";

/// The names under which the loader of the system looks for it.
const NAMES: [&str; 3] = ["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"];

/// The oldest version whose functions and numbers are those used here: 12.0.
const NEEDED: usize = 120_000;

/// A handle or a description of cuBLASLt.
pub(crate) type Raw = *mut c_void;
/// A status, as a number: a newer library may have more of them.
type Status = c_int;

/// The algorithm that the library found for a product, `cublasLtMatmulHeuristicResult_t`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Found {
    pub(crate) algorithm: [u64; 8],
    pub(crate) workspace: usize,
    pub(crate) state: Status,
    waves: f32,
    reserved: [c_int; 4],
}

pub(crate) const SUCCESS: Status = 0;
/// The library has no kernel for a product.
const NOT_SUPPORTED: Status = 15;
/// The library does not accept the numbers of a product, such as a distance of rows that is below
/// their length.
const INVALID_VALUE: Status = 7;

thalweg::__library! {
    // `cublasLt.h` declares the functions with these types in versions 12 and 13. Enumerations of C
    // are `int`, and so are their values here, which are small.
    unsafe pub(crate) struct Library {
        fn get_version = cublasLtGetVersion() -> usize;
        fn status_string = cublasLtGetStatusString(Status) -> *const c_char;
        fn create = cublasLtCreate(*mut Raw) -> Status;
        fn layout_create = cublasLtMatrixLayoutCreate(*mut Raw, c_int, u64, u64, i64) -> Status;
        fn layout_set = cublasLtMatrixLayoutSetAttribute(Raw, c_int, *const c_void, usize) -> Status;
        fn layout_destroy = cublasLtMatrixLayoutDestroy(Raw) -> Status;
        fn description_create = cublasLtMatmulDescCreate(*mut Raw, c_int, c_int) -> Status;
        fn description_set = cublasLtMatmulDescSetAttribute(Raw, c_int, *const c_void, usize) -> Status;
        fn description_destroy = cublasLtMatmulDescDestroy(Raw) -> Status;
        fn preference_create = cublasLtMatmulPreferenceCreate(*mut Raw) -> Status;
        fn preference_set = cublasLtMatmulPreferenceSetAttribute(Raw, c_int, *const c_void, usize) -> Status;
        fn preference_destroy = cublasLtMatmulPreferenceDestroy(Raw) -> Status;
        fn heuristic = cublasLtMatmulAlgoGetHeuristic(Raw, Raw, Raw, Raw, Raw, Raw, Raw, c_int, *mut Found, *mut c_int) -> Status;
        fn matmul = cublasLtMatmul(
            Raw, Raw, *const f32, *const c_void, Raw, *const c_void, Raw, *const f32, *const c_void, Raw, *mut c_void, Raw,
            *const [u64; 8], *mut c_void, usize, Raw
        ) -> Status;
    }
}

impl Library {
    /// The library of this process, which the first call loads.
    ///
    /// # Errors
    /// It cannot be used: what was tried, and why it failed.
    pub(crate) fn get() -> Result<&'static Self, &'static str> {
        static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
        let open = || open(std::env::var_os(VARIABLE));
        library::once(&LIBRARY, open, |library, file| {
            debug!(target: "thalweg_cublaslt", "cuBLASLt {} was loaded as {file}", library.version());
        })
    }

    /// The version, as cuBLAS counts: 130002 is 13.0.2.
    pub(crate) fn version(&self) -> usize {
        // SAFETY: The function has no arguments and only returns a number.
        unsafe { (self.get_version)() }
    }

    /// Turns a status of the function `call` into an error.
    pub(crate) fn check(&self, call: &'static str, status: Status) -> thalweg::Result<()> {
        if status == SUCCESS {
            return Ok(());
        }
        // SAFETY: The function gives a static text for every number, or null.
        let text = unsafe { (self.status_string)(status) };
        let name = if text.is_null() {
            "a status without a name".to_owned()
        } else {
            // SAFETY: The library returned a static text that ends with NUL, and it is not null.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        let meaning = format!("a status of cuBLASLt {}", self.version());
        Err(Error::Cuda { call, code: status.cast_unsigned(), name, meaning })
    }

    /// Like [`check`](Self::check), but false means that the library has nothing for the product.
    pub(crate) fn supports(&self, call: &'static str, status: Status) -> thalweg::Result<bool> {
        match status {
            NOT_SUPPORTED | INVALID_VALUE => Ok(false),
            _ => self.check(call, status).map(|()| true),
        }
    }
}

/// Loads the file that the variable names, or else what the loader of the system finds.
fn open(named: Option<OsString>) -> Result<(Library, String), String> {
    let check = |loaded| {
        let library = Library::of(loaded)?;
        match library.version() {
            version if version < NEEDED => Err(format!("its version is {version}, and {NEEDED} is needed")),
            _ => Ok(library),
        }
    };
    // SAFETY: cuBLASLt may be loaded at any time, on any thread. A file that the variable names is
    // as trusted as the program.
    unsafe { library::open("it", VARIABLE, &NAMES, named, check) }
}

#[cfg(test)]
mod tests {
    use super::{NAMES, NEEDED, VARIABLE, open};

    #[test]
    fn the_error_says_what_was_tried() {
        let Err(why) = open(Some("/nowhere/cublaslt.so".into())) else { panic!("there is none") };
        assert!(why.contains("/nowhere/cublaslt.so") && why.contains(VARIABLE), "{why}");
        assert!(NAMES.iter().all(|name| !why.contains(name)), "a file that is named is the only one: {why}");
        // A library that is not cuBLASLt.
        #[cfg(target_os = "linux")]
        {
            let Err(why) = open(Some("libc.so.6".into())) else { panic!("it is no cuBLASLt") };
            assert!(why.contains("it has no cublasLtGetVersion"), "{why}");
        }
        match open(None) {
            Ok((library, _)) => assert!(library.version() >= NEEDED),
            Err(why) => assert!(NAMES.iter().all(|name| why.contains(&format!("{name} ("))), "{why}"),
        }
    }
}
