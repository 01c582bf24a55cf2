//! The reasons why there is no PTX.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::MINIMUM;

/// The reason why there is no PTX.
///
/// `Debug` gives the same text as `Display`, because a build script that returns this error from
/// `main` shows its user the text of `Debug`.
#[non_exhaustive]
pub enum Error {
    /// None of the compilers that were tried can build for the GPU.
    NoCompiler {
        /// One line for each compiler, which says what it lacks.
        tried: Vec<String>,
    },
    /// The build failed.
    Compile {
        /// The command that failed.
        command: String,
        /// The text that it wrote to standard error.
        stderr: String,
    },
    /// The compiler does not know the target and made PTX for another one.
    UnknownTarget {
        /// The requested target.
        target: String,
    },
    /// The crate declares no kernel that the PTX could export.
    NoEntries,
    /// The PTX declares functions that are defined nowhere, so no driver would load it.
    Unresolved {
        /// The names of these functions.
        symbols: Vec<String>,
    },
    /// Functions of `core::panicking` are left in the PTX.
    Panics {
        /// The names of these functions.
        functions: Vec<String>,
    },
    /// A file could not be read or written.
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// `THALWEG_PTX` has a value other than `none`.
    Setting {
        /// The value.
        value: String,
    },
    /// The variables that cargo sets for build scripts are not set.
    NotABuildScript,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCompiler { tried } => write!(
                f,
                "found no Rust compiler that can build PTX, which needs rustc 1.{MINIMUM} or newer with the \
                 sources of `core`\ntried:\n  {}\ninstall one with\n  \
                 rustup component add rust-src\nor, on Debian 12,\n  \
                 apt-get install rustc-web rust-web-src\n\
                 or name one in THALWEG_RUSTC; \
                 or set THALWEG_PTX=none to build for the CPU device only",
                tried.join("\n  ")
            ),
            Self::Compile { command, stderr } => write!(f, "`{command}` failed:\n{stderr}"),
            Self::UnknownTarget { target } => write!(
                f,
                "the compiler does not know the target {target}; expected one like sm_75 (`rustc --target nvptx64-nvidia-cuda \
                 --print=target-cpus` lists them)"
            ),
            Self::NoEntries => f.write_str(
                "the PTX has no `.visible .entry`, because the crate exports no kernel: declare one with \
                 `thalweg_simt::kernel!` or as `#[unsafe(no_mangle)] pub unsafe extern \"ptx-kernel\" fn`",
            ),
            Self::Unresolved { symbols } => write!(
                f,
                "the PTX calls functions that are defined nowhere: {}; the GPU has no libc and no linker, \
                 so kernels can call only Rust functions and LLVM intrinsics",
                symbols.join(", ")
            ),
            Self::Panics { functions } => write!(
                f,
                "the PTX has functions that panic with a message: {}; a panic of a kernel must be a trap",
                functions.join(", ")
            ),
            Self::Io { path, source } => write!(f, "{}: {source}", path.display()),
            Self::Setting { value } => {
                write!(f, "THALWEG_PTX is `{value}`; set it to `none` to build without PTX, or do not set it")
            }
            Self::NotABuildScript => {
                f.write_str("OUT_DIR or CARGO_MANIFEST_DIR is not set: call `build_to_out_dir` from a build script")
            }
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Adds to an `io::Error` the path of its file.
pub(crate) trait IoContext<T> {
    fn at(self, path: &Path) -> Result<T, Error>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn at(self, path: &Path) -> Result<T, Error> {
        self.map_err(|source| Error::Io { path: path.into(), source })
    }
}
