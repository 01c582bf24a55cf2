//! The PTX of a crate.

/// Says where the PTX of a crate's kernels is. Each crate that declares kernels has it once, in its
/// root.
///
/// ```text
/// ptx! { unsafe "kernels" }      // $OUT_DIR/kernels.ptx, which the build script made
/// ptx! {}                        // no PTX: the kernels run on the CPU device only
/// ptx! { unsafe = TEXT }         // PTX made elsewhere, a constant `&'static str`
/// ```
///
/// The third form is for declarations without a body. To embed several files, give several names,
/// separated by commas. A name may have attributes, such as `#[cfg(feature = "blas")]`.
///
/// Several files may have the same entry if they are for different architectures. A launch takes
/// the newest one that the GPU runs. A GPU runs PTX for `sm_NN` if its compute capability is at
/// least that, and PTX for `sm_NNa` if it is exactly that. It is an error if there is no such file,
/// or if two files with the entry are for the same architecture.
///
/// The macro declares `PTX`, which is private to the crate. Every [`kernel!`](crate::kernel) of the
/// crate refers to it. So a launcher finds only entries in the PTX of its own crate, whatever other
/// crates contain. A GPU loads a file when the first kernel in it is launched there.
///
/// # Safety
/// With `unsafe` you promise that every entry in the files whose name is that of a
/// [`kernel!`](crate::kernel) declaration in this crate does what the declaration promises. This is
/// true for PTX that thalweg-ptx-builder made from this crate. The builder records in the file
/// which declaration each entry comes from, and a launch on a GPU checks it.
#[macro_export]
macro_rules! ptx {
    () => {
        #[cfg(not(target_arch = "nvptx64"))]
        #[allow(dead_code)]
        pub(crate) static PTX: $crate::host::Ptx = $crate::host::Ptx::NONE;
    };
    (unsafe = $text:expr) => {
        $crate::ptx! { unsafe @ [] $text, }
    };
    (unsafe $($(#[$attribute:meta])* $file:literal),+ $(,)?) => {
        $crate::ptx! { unsafe @ $(
            [$(#[$attribute])*] $crate::__core::include_str!($crate::__core::concat!($crate::__core::env!("OUT_DIR"), "/", $file, ".ptx")),
        )+ }
    };
    (unsafe @ $([$(#[$attribute:meta])*] $text:expr,)*) => {
        #[cfg(not(target_arch = "nvptx64"))]
        #[allow(dead_code)]
        pub(crate) static PTX: $crate::host::Ptx = {
            // SAFETY: The author of the crate wrote `unsafe` in `ptx!`. With it they promise that
            // the entries do what the crate's declarations promise.
            #[allow(unused_unsafe)]
            unsafe { $crate::host::Ptx::new(&[$($(#[$attribute])* $text),*]) }
        };
    };
}
