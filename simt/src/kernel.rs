//! The declaration of a kernel.

/// Declares a kernel: its `nvptx64` entry, its CPU entry and its typed host launcher, from one text.
///
/// ```text
/// kernel! {
///     /// Documentation of the launcher.
///     pub unsafe fn NAME(cx: impl Simt, n: u32, x: In<f32>, y: Out<f32>)
///     require { PREDICATE, ... }
///     grid(X, Y, Z) block(X, Y, Z) shared(BYTES)
///     { BODY }
/// }
/// ```
///
/// - The context is `impl Simt`, or `impl Cooperative` where threads of a block meet.
/// - Parameters are numbers (`u8` to `u64`, `i8` to `i64`, `f32`, `f64`) and buffers
///   ([`In`](crate::In), [`Out`](crate::Out), [`InOut`](crate::InOut) of an [`Element`](crate::Element)); at most 32.
/// - In `require`, `grid`, `block` and `shared` natural numbers are widened to `u128` and integers to `i128`, so that a
///   product of four `u32`, or of two `u64`, cannot overflow; for more factors use `checked_mul`, for a difference `checked_sub`.
///   A buffer `x` has `x.len()` and `x.is_aligned(bytes)`. Predicates are
///   checked at every launch; the first that fails becomes a typed error that shows all arguments.
///   A grid with a zero extent launches nothing.
/// - `require` and `shared` may be left out, `grid` and `block` have one to three extents. Without a body the
///   declaration describes an entry of PTX made elsewhere, whose name must be [`NAME__u32_rf32_wf32`](crate#).
/// - The crate's root says once, with [`ptx!`](crate::ptx), where the PTX of its kernels is.
///
/// On the host this makes the function
/// `NAME(on: &impl Launch<S>, n: u32, x: &DeviceSlice<S, f32>, y: &mut DeviceSlice<S, f32>) -> Result<(), _>`.
///
/// `unsafe` stands at the declaration, not at the call: whoever declares promises that for **every** argument
/// list that passes `require`, the body stays inside its buffers (and shared memory), no two threads touch the same
/// element where one of them stores without an atomic or a barrier between, and barriers and warp
/// operations are reached by all threads of the block or warp. At a barrier or warp operation the body holds no value with a
/// destructor and lends nothing of its stack to others: where threads diverge, the CPU device abandons it there.
///
/// The body stands in an `unsafe` block. **`#![forbid(unsafe_code)]` does not see it**: rustc does not apply that lint
/// inside macros of other crates. To find the kernels of a crate, search for `unsafe fn` in its text.
///
/// A launcher reaches the entry that was made from its own declaration and no other: it searches the PTX of its own crate
/// only, and there an entry of its own name, signature and module. Other crates can declare kernels of the same name.
#[macro_export]
macro_rules! kernel {
    ($(#[$meta:meta])* $vis:vis fn $($rest:tt)*) => {
        $crate::__core::compile_error!("a kernel is declared `unsafe fn`: a promise that its body stays inside its buffers");
    };
    (
        $(#[$meta:meta])*
        $vis:vis unsafe fn $name:ident(
            $cx:ident: impl $context:ident
            $(, $arg:ident: $kind:ident $(<$element:ident>)?)* $(,)?
        )
        $(require { $($require:expr),* $(,)? })?
        grid($($grid:expr),+) block($($block:expr),+) $(shared($shared:expr))?
        $body:block
    ) => {
        #[cfg(target_arch = "nvptx64")]
        #[unsafe(export_name = $crate::__entry_name!($name $($kind $(<$element>)?,)*))]
        $(#[$meta])*
        $vis unsafe extern "ptx-kernel" fn $name($($arg: $crate::__parameter!(raw $kind $(<$element>)?)),*) {
            #[inline(always)]
            #[allow(unused_variables, clippy::too_many_arguments)]
            unsafe fn __thalweg_body($cx: impl $crate::$context, $($arg: $crate::__parameter!(body $kind $(<$element>)?)),*) {
                // SAFETY: promised by the declaration.
                unsafe { $body }
            }
            // SAFETY: this is the kernel's entry, its arguments are what the launcher checked.
            unsafe { __thalweg_body($crate::Gpu::new(), $($crate::__parameter!(from $arg $kind $(<$element>)?)),*) }
        }

        // Read, and taken out of the PTX, by thalweg-ptx-builder: which declaration the entry was made from.
        #[cfg(target_arch = "nvptx64")]
        const _: () = {
            #[unsafe(export_name = $crate::__core::concat!(
                $crate::__entry_name!($name $($kind $(<$element>)?,)*), "__thalweg_origin"
            ))]
            static ORIGIN: [u8; $crate::__origin!().len()] = $crate::__bytes($crate::__origin!());
        };

        #[cfg(not(target_arch = "nvptx64"))]
        $crate::__launcher! {
            [
                {
                    #[inline(always)]
                    #[allow(unused_variables, clippy::too_many_arguments)]
                    unsafe fn __thalweg_body(
                        $cx: impl $crate::$context, $($arg: $crate::__parameter!(body $kind $(<$element>)?)),*
                    ) {
                        // SAFETY: promised by the declaration.
                        unsafe { $body }
                    }
                    #[allow(unused_variables)]
                    unsafe fn __thalweg_block(block: &$crate::cpu::CpuBlock<'_>, slots: &[u64]) {
                        let mut slots = slots.iter().copied();
                        // SAFETY: the launcher filled one slot for each parameter, in this order.
                        $(let $arg: $crate::__parameter!(body $kind $(<$element>)?) = unsafe {
                            $crate::host::Parameter::from_slot(slots.next().unwrap_or_default())
                        };)*
                        // SAFETY: promised by the declaration, for the body and for how it waits.
                        #[allow(unused_unsafe)]
                        unsafe {
                            $crate::__run!($context block, |cx| __thalweg_body(cx, $($arg),*))
                        };
                    }
                    $crate::__core::option::Option::Some(__thalweg_block as $crate::host::CpuEntry)
                }
                $crate::__cooperative!($context)
            ]
            $(#[$meta])*
            $vis unsafe fn $name($($arg: $kind $(<$element>)?),*)
            { $($($require),*)? }
            ($($grid),+) ($($block),+) ($($shared)?)
        }
    };
    (
        $(#[$meta:meta])*
        $vis:vis unsafe fn $name:ident($($arg:ident: $kind:ident $(<$element:ident>)?),* $(,)?)
        $(require { $($require:expr),* $(,)? })?
        grid($($grid:expr),+) block($($block:expr),+) $(shared($shared:expr))?
    ) => {
        $crate::__launcher! {
            [($crate::__core::option::Option::None) false]
            $(#[$meta])*
            $vis unsafe fn $name($($arg: $kind $(<$element>)?),*)
            { $($($require),*)? }
            ($($grid),+) ($($block),+) ($($shared)?)
        }
    };
}

/// The host side of a declaration.
#[doc(hidden)]
#[expect(clippy::crate_in_macro_def, reason = "`crate::PTX` is the one of the crate that declares the kernel")]
#[macro_export]
macro_rules! __launcher {
    (
        [$cpu:tt $($cooperative:tt)*]
        $(#[$meta:meta])*
        $vis:vis unsafe fn $name:ident($($arg:ident: $kind:ident $(<$element:ident>)?),*)
        { $($require:expr),* }
        ($($grid:expr),+) ($($block:expr),+) ($($shared:expr)?)
    ) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $name<__S, __L: $crate::host::Launch<__S> + ?Sized>(
            on: &__L,
            $($arg: $crate::__parameter!(host __S $kind $(<$element>)?)),*
        ) -> $crate::__core::result::Result<(), __L::Error> {
            static __KERNEL: $crate::host::Kernel = $crate::host::Kernel::new(
                &crate::PTX,
                $crate::__origin!(),
                $crate::__core::stringify!($name),
                $crate::__entry_name!($name $($kind $(<$element>)?,)*),
                $cpu,
                $($cooperative)*,
            );
            let slots = $crate::host::slots([$($crate::host::Argument::slot(&$arg)),*]);
            #[allow(unused_variables)]
            let shape = {
                $(let $arg = $crate::host::Argument::widen(&$arg);)*
                #[allow(unused_labels)]
                let unmet: $crate::__core::option::Option<&'static str> = 'unmet: {
                    $(if !($require) {
                        break 'unmet $crate::__core::option::Option::Some($crate::__core::stringify!($require));
                    })*
                    $crate::__core::option::Option::None
                };
                if let $crate::__core::option::Option::Some(requirement) = unmet {
                    return $crate::__core::result::Result::Err($crate::__core::convert::From::from(
                        $crate::host::LaunchError::requirement(
                            &__KERNEL,
                            requirement,
                            &[$(($crate::__core::stringify!($arg), &$arg as &dyn $crate::__core::fmt::Debug)),*],
                        ),
                    ));
                }
                $crate::host::LaunchShape::new(
                    &__KERNEL,
                    &[$($crate::host::extent($grid)),+],
                    &[$($crate::host::extent($block)),+],
                    [$($crate::host::extent($shared),)? 0][0],
                )?
            };
            // SAFETY: whoever declared the kernel promises that it is sound for arguments that pass
            // `require`, which they did; the slots are in the order of the parameters that the
            // entry's name spells; the slices are ordered by the launcher's stream.
            unsafe { on.launch(&__KERNEL, shape, &slots) }
        }
    };
}

/// A parameter as the host, the entry and the body see it.
#[doc(hidden)]
#[macro_export]
macro_rules! __parameter {
    (host $s:ident In<$t:ident>) => { &$crate::host::DeviceSlice<$s, $t> };
    (host $s:ident Out<$t:ident>) => { &mut $crate::host::DeviceSlice<$s, $t> };
    (host $s:ident InOut<$t:ident>) => { &mut $crate::host::DeviceSlice<$s, $t> };
    (host $s:ident $t:ident) => { $t };
    (raw In<$t:ident>) => { *const $t };
    (raw Out<$t:ident>) => { *mut $t };
    (raw InOut<$t:ident>) => { *mut $t };
    (raw $t:ident) => { $t };
    (body $kind:ident<$t:ident>) => { $crate::$kind<$t> };
    (body $t:ident) => { $t };
    (from $arg:ident $kind:ident<$t:ident>) => { $crate::$kind::from_ptr($arg) };
    (from $arg:ident $t:ident) => { $arg };
}

/// `NAME__u32_rf32_wf32_xu8`: `r` for `In`, `w` for `Out`, `x` for `InOut`.
#[doc(hidden)]
#[macro_export]
macro_rules! __entry_name {
    ($name:ident $($kind:ident $(<$t:ident>)?,)*) => {
        $crate::__core::concat!($crate::__core::stringify!($name), "_" $(, $crate::__entry_name!(@ $kind $(<$t>)?))*)
    };
    (@ In<$t:ident>) => { $crate::__core::concat!("_r", $crate::__core::stringify!($t)) };
    (@ Out<$t:ident>) => { $crate::__core::concat!("_w", $crate::__core::stringify!($t)) };
    (@ InOut<$t:ident>) => { $crate::__core::concat!("_x", $crate::__core::stringify!($t)) };
    (@ $t:ident) => { $crate::__core::concat!("_", $crate::__core::stringify!($t)) };
}

/// Which declarations these are: package, version and module, as `saxpy-kernels 0.1.0 saxpy_kernels::blas`.
#[doc(hidden)]
#[macro_export]
macro_rules! __origin {
    () => {
        $crate::__core::concat!(
            $crate::__core::env!("CARGO_PKG_NAME"),
            " ",
            $crate::__core::env!("CARGO_PKG_VERSION"),
            " ",
            $crate::__core::module_path!()
        )
    };
}

/// Whether the threads of a block meet.
#[doc(hidden)]
#[macro_export]
macro_rules! __cooperative {
    (Simt) => {
        false
    };
    (Cooperative) => {
        true
    };
}

/// Runs a block on the CPU.
#[doc(hidden)]
#[macro_export]
macro_rules! __run {
    (Simt $block:ident, $body:expr) => {
        $block.run_independent($body)
    };
    (Cooperative $block:ident, $body:expr) => {
        $block.run_cooperative($body)
    };
}

/// Says where the PTX of a crate's kernels is. It stands once, in the root of a crate that declares kernels.
///
/// ```text
/// ptx! { unsafe "kernels" }      // $OUT_DIR/kernels.ptx, which the build script made with thalweg-ptx-builder
/// ptx! {}                        // none: the kernels of this crate run on the CPU device only
/// ptx! { unsafe = TEXT }         // a constant `&'static str`: PTX made elsewhere, for declarations without a body
/// ```
///
/// Several names, separated by commas and each with attributes such as `#[cfg(feature = "blas")]` if need be, are
/// several files. No entry may be in two of them.
///
/// It declares `PTX`, private to the crate, which every [`kernel!`](crate::kernel) of the crate refers to. A launcher therefore
/// finds entries in its own crate's PTX only, whatever other crates are called and contain. A device loads a file when
/// the first kernel in it is launched there.
///
/// # Safety
/// `unsafe` is the promise that every entry in the files whose name is that of a [`kernel!`](crate::kernel) declaration
/// in this crate does what the declaration promises. It holds for PTX that thalweg-ptx-builder made from this crate. The builder
/// writes into the file which declaration an entry comes from, and a launch on a GPU checks that.
#[macro_export]
macro_rules! ptx {
    () => {
        $crate::ptx! { @ }
    };
    (unsafe = $text:expr) => {
        $crate::ptx! { @ [] $text, }
    };
    (unsafe $($(#[$attribute:meta])* $file:literal),+ $(,)?) => {
        $crate::ptx! { @ $(
            [$(#[$attribute])*] $crate::__core::include_str!($crate::__core::concat!($crate::__core::env!("OUT_DIR"), "/", $file, ".ptx")),
        )+ }
    };
    (@ $([$(#[$attribute:meta])*] $text:expr,)*) => {
        #[cfg(not(target_arch = "nvptx64"))]
        #[allow(dead_code)]
        pub(crate) static PTX: $crate::host::Ptx = {
            // SAFETY: Whoever wrote `unsafe` in `ptx!` promises that the entries do what the crate's declarations say.
            #[allow(unused_unsafe)]
            unsafe { $crate::host::Ptx::new(&[$($(#[$attribute])* $text),*]) }
        };
    };
}

/// The bytes of `text`, which has `N` of them.
#[doc(hidden)]
#[must_use]
pub const fn __bytes<const N: usize>(text: &str) -> [u8; N] {
    let mut bytes = [0; N];
    let mut i = 0;
    while i < N {
        bytes[i] = text.as_bytes()[i];
        i += 1;
    }
    bytes
}
