//! Libraries of NVIDIA that are loaded at run time, for the crates on top.
//!
//! A program does not link such a library, so it also runs where the library is missing. A crate
//! declares the functions that it calls with [`__library!`](crate::__library), and loads the library
//! once with [`once`] and [`open`].

use std::ffi::OsString;
use std::sync::OnceLock;

/// A library that stays loaded while the process lives.
#[derive(Clone, Copy, Debug)]
pub struct Loaded(&'static libloading::Library);

impl Loaded {
    /// Looks for a function.
    ///
    /// # Errors
    /// The library does not have it.
    ///
    /// # Safety
    /// `F` is the type of a pointer to that function.
    pub unsafe fn function<F: Copy>(self, name: &str) -> Result<F, String> {
        // SAFETY: [symbol] The caller says that the function has this type. The library is never
        // unloaded, so the pointer stays valid.
        let found = unsafe { self.0.get::<F>(name.as_bytes()) };
        found.map(|function| *function).map_err(|why| format!("it has no {name}: {why}"))
    }
}

/// Loads a library: the file `named`, or else the first of `files` that the loader of the system
/// finds and `check` takes. Returns what `check` made of it, and the file. `subject` and `variable`
/// are for the error: what cannot be loaded, and which variable names another file.
///
/// # Errors
/// No file can be used: what was tried, and why it failed.
///
/// # Safety
/// Loading runs the initializers of a library. Those of each of `files` and of the file `named` may
/// run at any time, on any thread.
pub unsafe fn open<L>(
    subject: &str,
    variable: &str,
    files: &[&str],
    named: Option<OsString>,
    check: impl Fn(Loaded) -> Result<L, String>,
) -> Result<(L, String), String> {
    let mut tried = Vec::new();
    let files = match named.filter(|name| !name.is_empty()) {
        Some(name) => vec![name],
        None => files.iter().map(Into::into).collect(),
    };
    for file in files {
        let shown = file.to_string_lossy().into_owned();
        // SAFETY: [symbol] The caller says that the initializers of the file may run now, on this
        // thread.
        let loaded = unsafe { libloading::Library::new(&file) }.map_err(|why| why.to_string());
        match loaded.and_then(|library| check(Loaded(Box::leak(Box::new(library))))) {
            Ok(library) => return Ok((library, shown)),
            Err(why) => tried.push(format!("{shown} ({why})")),
        }
    }
    Err(format!("{subject} cannot be loaded; tried {}; {variable} names another file", tried.join(", ")))
}

/// Returns the library of this process, which the first call opens. If that succeeds, `log` gets
/// the library and its file.
///
/// # Errors
/// It cannot be used: what `open` says.
pub fn once<L>(
    library: &'static OnceLock<Result<L, String>>,
    open: impl FnOnce() -> Result<(L, String), String>,
    log: impl FnOnce(&L, &str),
) -> Result<&'static L, &'static str> {
    let mut opened = None;
    let found = library.get_or_init(|| {
        let (library, file) = open()?;
        opened = Some(file);
        Ok(library)
    });
    if let (Some(file), Ok(library)) = (opened, found) {
        log(library, &file);
    }
    found.as_ref().map_err(|why| &why[..])
}

/// Declares the functions of a library that are called: a struct with a pointer to each, and
/// `Self::of`, which looks for them. Who writes `unsafe` knows that the functions have these types.
#[doc(hidden)]
#[macro_export]
macro_rules! __library {
    (unsafe $vis:vis struct $Library:ident { $(fn $field:ident = $name:ident($($ty:ty),* $(,)?) -> $result:ty;)* }) => {
        /// The functions that are called here. The library stays loaded while the process lives.
        $vis struct $Library {
            $($vis $field: unsafe extern "C" fn($($ty),*) -> $result,)*
        }

        impl $Library {
            /// Looks for the functions.
            fn of(loaded: $crate::library::Loaded) -> Result<Self, String> {
                $(
                    // SAFETY: [symbol] Who declares the library says that the function has this
                    // type.
                    let $field = unsafe {
                        loaded.function::<unsafe extern "C" fn($($ty),*) -> $result>(stringify!($name))
                    }?;
                )*
                Ok(Self { $($field,)* })
            }
        }
    };
}
