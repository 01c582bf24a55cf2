use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Why there is no PTX.
///
/// `Debug` is the same text as `Display`, because a build script that returns this from `main` shows
/// the former to its user.
#[non_exhaustive]
pub enum Error {
    /// None of the compilers looked at can build for the GPU; `tried` says why, one line each.
    NoCompiler {
        /// Each compiler and what it lacks.
        tried: Vec<String>,
    },
    /// The build failed.
    Compile {
        /// The command that failed.
        command: String,
        /// What it wrote to standard error.
        stderr: String,
    },
    /// The compiler does not know the target, and made PTX for another.
    UnknownTarget {
        /// The target asked for.
        target: String,
    },
    /// The crate declares no kernel that the PTX could export.
    NoEntries,
    /// The PTX calls functions that are defined nowhere, so no driver would load it.
    Unresolved {
        /// Their names.
        symbols: Vec<String>,
    },
    /// Functions of `core::panicking` are left in the PTX.
    Panics {
        /// Their names.
        functions: Vec<String>,
    },
    /// A file could not be read or written.
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// `OUT_DIR` is not set: this is not a build script.
    NotABuildScript,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCompiler { tried } => write!(
                f,
                "found no Rust compiler that can build PTX: that takes rustc 1.{} or newer with the \
                 sources of `core`\ntried:\n  {}\ninstall one with\n  \
                 rustup component add rust-src\nor, on Debian 12,\n  \
                 apt-get install rustc-web rust-web-src\n\
                 or name one in THALWEG_RUSTC",
                crate::compiler::MINIMUM,
                tried.join("\n  ")
            ),
            Self::Compile { command, stderr } => write!(f, "`{command}` failed:\n{stderr}"),
            Self::UnknownTarget { target } => write!(
                f,
                "the compiler does not know the target {target}; expected one like sm_75 (`rustc --target nvptx64-nvidia-cuda \
                 --print=target-cpus` lists them)"
            ),
            Self::NoEntries => f.write_str(
                "the PTX has no `.visible .entry`: the crate exports no kernel; declare one with \
                 `thalweg_simt::kernel!`, or as `#[unsafe(no_mangle)] pub unsafe extern \"ptx-kernel\" fn`",
            ),
            Self::Unresolved { symbols } => write!(
                f,
                "the PTX calls functions that are defined nowhere: {}; there is no libc and no linker \
                 on the GPU, so whatever the kernels call has to be in Rust or an LLVM intrinsic",
                symbols.join(", ")
            ),
            Self::Panics { functions } => write!(
                f,
                "the PTX still has functions that panic with a message: {}; panics have to trap",
                functions.join(", ")
            ),
            Self::Io { path, source } => write!(f, "{}: {source}", path.display()),
            Self::NotABuildScript => f.write_str("OUT_DIR is not set: `build_to_out_dir` is for build scripts"),
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

/// Names the file that an `io::Error` is about.
pub(crate) trait IoContext<T> {
    fn at(self, path: &Path) -> Result<T, Error>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn at(self, path: &Path) -> Result<T, Error> {
        self.map_err(|source| Error::Io { path: path.into(), source })
    }
}
