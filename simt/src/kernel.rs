//! The declaration of a kernel.

/// Declares a kernel: one text makes its `nvptx64` entry, its CPU entry and its typed host
/// launcher.
///
/// # Grammar
///
/// ```text
/// kernel! {
///     /// Documentation of the launcher.
///     pub unsafe fn NAME(cx: impl Simt, n: u32, x: In<f32>, y: Out<f32>)
///     require { PREDICATE, ... }
///     grid(X, Y, Z) block(X, Y, Z) bounds(THREADS, BLOCKS) shared(BYTES) cpu { CPU BODY }
///     { BODY }
/// }
/// ```
///
/// - The context `cx` is `impl Simt`, or `impl Cooperative` if the threads of a block wait for each
///   other.
/// - A [generic](#generic-kernels) kernel has `instances { .. }` after its parameters.
/// - `require`, [`bounds`](#bounds), `shared` and [`cpu`](#cpu) are optional. `grid` and `block`
///   have one to three extents.
/// - A declaration without a context and without a body describes an entry of PTX that was made
///   elsewhere. The name of the entry must be [as below](#what-it-makes).
/// - The root of the crate says once, with [`ptx!`](crate::ptx), where the PTX of its kernels is.
///
/// # Generic kernels
///
/// A kernel may be generic over types and constants. PTX has no generic entries, so the declaration
/// names its instances after the parameters, and makes a kernel of each of them:
///
/// ```
/// # thalweg_simt::ptx! {}
/// use thalweg_simt::Element;
///
/// thalweg_simt::kernel! {
///     /// Copies every `N`th element.
///     pub unsafe fn every<T: Element, const N: u32>(cx: impl Simt, n: u32, x: In<T>, y: Out<T>)
///     instances { every_second_f32 = <f32, 2>, every_third_u8 = <u8, 3> }
///     require { y.len() >= n, x.len() >= n * N }
///     grid(n.div_ceil(256)) block(256)
///     {
///         let i = cx.global_x();
///         if i < n {
///             y.set(cx, i, x.get(cx, i * N));
///         }
///     }
/// }
/// # fn main() {}
/// ```
///
/// - Each instance has an entry, a launcher and a name in messages of its own, as if it were
///   declared with its arguments in place of `T` and `N`. In the bodies these are an alias and a
///   constant, which items in the bodies can use too. The compiler checks the bounds and the bodies
///   for each instance.
/// - `every(&stream, n, &x, &mut y)` chooses the instance by the types of its arguments. What they
///   do not say stands before the stream and the launcher:
///   `every::<f32, 2, _, _>(&stream, n, &x, &mut y)`. If there is no such instance, this does not
///   compile.
/// - An argument is one name, number, array or block in braces.
///
/// # Kernels without `unsafe`
///
/// Without the keyword `unsafe`, the body is safe code, and the author promises nothing:
///
/// ```text
/// kernel! {
///     pub fn NAME(t: impl Simt, n: u32, x: In<f32>[n], y: Out<f32>[n] by [x])
///     require { PREDICATE, ... }
///     grid(X, Y, Z) block(X, Y, Z) bounds(THREADS, BLOCKS) shared(BYTES)
///     { BODY }
/// }
/// ```
///
/// - Each buffer states its extents. The launcher checks that their product is the buffer's length
///   and below 2^32. An extent is a parameter, a number, or a name with its value, as in
///   `[cells = h * w, 2]`. The body has such a name as a `u32`, and later clauses can use it.
/// - Each output says in `by` which coordinate of the launch owns which dimension: `x`, `y`, `z`
///   for one position for each thread, `x(4)` for four, `stride` for every nth, `block` and `rank`
///   for the block and the thread's index in it, and `all` for the whole dimension.
/// - `Atomic<u32>[n]` is a buffer for atomic operations.
/// - `t` is a [`&Thread`](crate::safe::Thread), or for `b: impl Cooperative` a
///   [`Block`](crate::safe::Block). The module [`safe`](crate::safe) describes what they can do.
///
/// Everything below holds for these kernels too, except what the author promises. The entry's name
/// has `a` for `Atomic`, and `e` for each extent that the launcher computes.
///
/// # Parameters
///
/// A kernel has at most 32 parameters, with at most 4096 bytes together. Each is one of these:
///
/// - a number: `u8` to `u64`, `usize`, `i8` to `i64`, `f16`, `bf16`, `f32` or `f64`;
/// - a `bool`;
/// - an array of numbers or `bool`s, such as `[f32; 4]`;
/// - a struct that [`by_value!`](crate::by_value) declares;
/// - a buffer of an [`Element`](crate::Element): [`In`](crate::In), [`Out`](crate::Out) or
///   [`InOut`](crate::InOut).
///
/// # `require`, `grid`, `block` and `shared`
///
/// The launcher evaluates these clauses on the host, at every launch.
///
/// - Unsigned parameters are widened to `u128` and signed ones to `i128`, so a product of four
///   `u32` or of two `u64` cannot overflow. For more factors use `checked_mul`, for a difference
///   `checked_sub`. Extents and `shared` are `u128`.
/// - Constants are widened in the same way, so `const BLOCK: u32 = 256;` can stand beside a
///   parameter: `grid(n.div_ceil(BLOCK)) block(BLOCK) shared(BLOCK * 4)`. A constant is a name or a
///   path in capital letters, such as `BLOCK` or `crate::layout::BLOCK`, also with a field, an
///   index or `.len()` after it. What a function returns and names in small letters are not
///   widened: write `size_of::<f64>() as u128`. Constants inside `{ }`, inside `[ ]` and in the
///   arguments of macros are not widened either.
/// - A struct has its fields and an array its elements, each widened like a parameter.
/// - A buffer `x` has `x.len()`, `x.is_empty()` and `x.is_aligned(bytes)`.
/// - If a predicate of `require` is false, the launcher returns
///   [`LaunchError::Requirement`](crate::host::LaunchError::Requirement), which names the first
///   such predicate and shows all arguments.
/// - If the grid, the block or the shared memory is outside the limits of a launch, it returns
///   [`LaunchError::Shape`](crate::host::LaunchError::Shape). A grid with an extent of 0 is
///   allowed, and its launch does nothing. A device that grants less shared memory than the launch
///   asks for returns [`LaunchError::SharedMemory`](crate::host::LaunchError::SharedMemory). Every
///   GPU grants 48 KiB, and an H200 and the CPU device grant 227 KiB. The launcher needs no option
///   for more than 48 KiB.
///
/// # `bounds`
///
/// `bounds(THREADS)` promises the compiler of the GPU's driver that no block has more than
/// `THREADS` threads, so it can give each of them more registers (`.maxntid`).
/// `bounds(THREADS, BLOCKS)` also asks for so few registers that `BLOCKS` blocks fit on a
/// multiprocessor at once (`.minnctapersm`). Both are literals or constants of type `u32`, and
/// `BLOCKS` is at most 32. The launcher refuses a larger block, on every device, with
/// [`LaunchError::Bounds`](crate::host::LaunchError::Bounds). CUDA C++ calls this
/// `__launch_bounds__`.
///
/// # `cpu`
///
/// With `cpu { CPU BODY }` an `unsafe fn` kernel has a second body, which computes the same in the
/// way that suits a CPU, for example with a library. On the ordinary CPU device, one call of it
/// does the work of all threads of a block. Its context is that of the block's first thread. It has
/// the positions, the accesses and the arithmetic of [`Simt`](crate::Simt), and no barriers. The
/// checked device and a GPU run the body of the kernel. A launch is the same on every device: its
/// place in the stream, its grid, its graph and what a timeline shows.
///
/// ```
/// # thalweg_simt::ptx! {}
/// thalweg_simt::kernel! {
///     /// Adds the 256 numbers of each row.
///     pub unsafe fn row_sums(cx: impl Cooperative, rows: u32, x: In<f32>, sums: Out<f32>)
///     require { x.len() >= rows * 256, sums.len() >= rows }
///     grid(rows) block(32)
///     cpu {
///         let row = cx.block_idx().x;
///         let mut sum = 0.0;
///         for i in 0..256 {
///             sum += x.get(cx, row * 256 + i);
///         }
///         sums.set(cx, row, sum);
///     }
///     {
///         let (row, lane) = (cx.block_idx().x, cx.lane());
///         let mut sum = 0.0;
///         for i in 0..8 {
///             sum += x.get(cx, row * 256 + i * 32 + lane);
///         }
///         let sum = cx.warp_sum(sum);
///         if lane == 0 {
///             sums.set(cx, row, sum);
///         }
///     }
/// }
/// # fn main() {}
/// ```
///
/// # What it makes
///
/// On the host, the declaration above makes this function:
///
/// ```text
/// pub fn NAME<S, L: Launch<S>>(
///     on: &L,
///     n: u32,
///     x: &DeviceSlice<S, f32>,
///     y: &mut DeviceSlice<S, f32>,
/// ) -> Result<(), L::Error>
/// ```
///
/// On `nvptx64` it makes the entry `NAME__u32_rf32_wf32`: the name, two underscores and the
/// parameters, separated by underscores. A buffer is written as `r` for `In`, `w` for `Out` or `x`
/// for `InOut`, and its element. A struct is written by its name, and an array as `f32x4`.
///
/// A launcher reaches only the entry that was made from its own declaration. It searches only the
/// PTX of its own crate, for an entry with its own name and signature. PTX that thalweg-ptx-builder
/// made also records the package, its version and the module of each declaration, and the layouts
/// of its structs, arrays and aliases. They must be the launcher's. So other crates can declare
/// kernels with the same name, and a type that is another one on a GPU is refused.
///
/// What a declaration names is what its name means around it, except the words of the grammar
/// above, such as `In` and `Simt`, which are looked up nowhere. Names that begin with `__thalweg`,
/// in any case, are the macro's own.
///
/// # What the author promises
///
/// The keyword `unsafe` is at the declaration and not at the call. With it, the author of the
/// kernel promises the following for **every** list of arguments that passes `require`:
///
/// - The body, and that of `cpu` if there is one, accesses only elements of its buffers and bytes
///   of its shared memory.
/// - If a thread stores to an element, no other thread accesses the same element, unless both use
///   atomic operations or a barrier separates the accesses.
/// - All threads of the block reach each barrier, and all threads of the warp reach each warp
///   operation.
/// - At a barrier or a warp operation, the body holds no value with a destructor and has lent no
///   part of its stack to others. If the threads diverge, the CPU device abandons the body there.
/// - The body of `cpu` stores only to elements to which a thread of the same block stores in the
///   body of the kernel, and loads no element to which a thread of another block stores.
///
/// # What `#![forbid(unsafe_code)]` does not see
///
/// The macro puts the body into an `unsafe` block, so the body may call unsafe functions.
/// **`#![forbid(unsafe_code)]` does not report it**, because rustc does not apply that lint inside
/// macros of other crates. To find the kernels of a crate, search its text for `unsafe fn`.
#[macro_export]
macro_rules! kernel {
    ($(#[$($meta:tt)*])* $vis:vis unsafe fn $name:ident < $($rest:tt)*) => {
        $crate::__instances! { [$crate] [$(#[$($meta)*])*] [$vis] [unsafe] $name < $($rest)* }
    };
    ($(#[$($meta:tt)*])* $vis:vis fn $name:ident < $($rest:tt)*) => {
        $crate::__instances! { [$crate] [$(#[$($meta)*])*] [$vis] [] $name < $($rest)* }
    };
    ($(#[$meta:meta])* $vis:vis fn $($rest:tt)*) => {
        $crate::__safe_kernel! { $(#[$meta])* $vis fn $($rest)* }
    };
    (
        $(#[$meta:meta])*
        $vis:vis unsafe fn $name:ident(
            $cx:ident: impl $context:ident
            $(, $arg:ident: $kind:tt $(<$element:tt>)?)* $(,)?
        )
        $(require { $($require:expr),* $(,)? })?
        grid($($grid:expr),+) block($($block:expr),+) $(bounds($($bound:expr),+))? $(shared($shared:expr))?
        $(cpu $host:block)?
        $body:block
    ) => {
        #[cfg(target_arch = "nvptx64")]
        #[unsafe(export_name = $crate::__entry_name!($name $($kind $(<$element>)?,)*))]
        #[allow(improper_ctypes_definitions)] // arrays: the ABI of entries passes them as it does structs
        $(#[$meta])*
        $vis unsafe extern "ptx-kernel" fn $name($($arg: $crate::__parameter!(raw $kind $(<$element>)?)),*) {
            #[inline(always)]
            #[allow(unused_variables, clippy::too_many_arguments)]
            unsafe fn __thalweg_body($cx: $crate::__context!($context), $($arg: $crate::__parameter!(body $kind $(<$element>)?)),*) {
                // SAFETY: The author of the declaration promises that the body is sound for every
                // list of arguments that passes `require` (see `kernel!`).
                unsafe { $body }
            }
            // SAFETY: This is the kernel's entry. Its launcher checked the arguments against
            // `require` and computed the shape, and the buffers' addresses come from device slices.
            unsafe { __thalweg_body($crate::Gpu::new(), $($crate::__parameter!(from $arg $kind $(<$element>)?)),*) }
        }

        // This says which declaration the entry was made from. thalweg-ptx-builder reads it and
        // removes it from the PTX.
        #[cfg(target_arch = "nvptx64")]
        const _: () = {
            #[unsafe(export_name = $crate::__core::concat!(
                $crate::__entry_name!($name $($kind $(<$element>)?,)*), "__thalweg_origin"
            ))]
            static __THALWEG_ORIGIN: [
                $crate::__core::primitive::u8;
                $crate::__origin_len($crate::__origin!(), &$crate::__layouts!($($kind $(<$element>)?,)*))
            ] = $crate::__origin_bytes($crate::__origin!(), &$crate::__layouts!($($kind $(<$element>)?,)*));
        };

        $crate::__bounds_static! {
            [$($($bound),+)?] [$crate::__entry_name!($name $($kind $(<$element>)?,)*)]
        }

        #[cfg(not(target_arch = "nvptx64"))]
        $crate::__launcher! {
            [
                {
                    #[inline(always)]
                    #[allow(unused_variables, clippy::too_many_arguments)]
                    unsafe fn __thalweg_body(
                        $cx: $crate::__context!($context), $($arg: $crate::__parameter!(body $kind $(<$element>)?)),*
                    ) {
                        // SAFETY: The author of the declaration promises that the body is sound for
                        // every list of arguments that passes `require` (see `kernel!`).
                        unsafe { $body }
                    }
                    #[allow(unused_variables)]
                    unsafe fn __thalweg_block<__ThalwegMonitor: $crate::cpu::Monitor>(
                        block: &$crate::cpu::CpuBlock<'_, __ThalwegMonitor>, slots: &[$crate::__core::primitive::u64],
                    ) {
                        let mut slots = slots;
                        // SAFETY: The launcher put the arguments into the slots in this order, with
                        // `Given::put`. The value of a buffer is its address and its length, and
                        // the CPU device exposed the memory's provenance when it allocated it.
                        $(let $arg = unsafe { $crate::__parameter!(take (&mut slots) $kind $(<$element>)?) };)*
                        // SAFETY: The author of the declaration promises that the body is sound for
                        // every list of arguments that passes `require`, and that it holds no value
                        // with a destructor and lends no part of its stack while it waits.
                        #[allow(unused_unsafe)]
                        unsafe {
                            $crate::__run!($context block, |cx| __thalweg_body(cx, $($arg),*))
                        };
                    }
                    $crate::__cpu_whole! { [$($host)?] $cx $($arg: $kind $(<$element>)?,)* }
                }
                {
                    $crate::__core::option::Option::Some($crate::host::CpuEntry {
                        block: $crate::__cpu_entry!([$($host)?]),
                        checked: $crate::__checked_entry!(),
                    })
                }
                { $crate::__cooperative!($context) }
                { $crate::__bounds!($($($bound),+)?) }
            ]
            $(#[$meta])*
            $vis unsafe fn $name($($arg: $kind $(<$element>)?),*)
            { $($($require),*)? }
            ($($grid),+) ($($block),+) ($($shared)?)
        }
    };
    (
        $(#[$meta:meta])*
        $vis:vis unsafe fn $name:ident($($arg:ident: $kind:tt $(<$element:tt>)?),* $(,)?)
        $(require { $($require:expr),* $(,)? })?
        grid($($grid:expr),+) block($($block:expr),+) $(bounds($($bound:expr),+))? $(shared($shared:expr))?
    ) => {
        $crate::__launcher! {
            [{} { $crate::__core::option::Option::None } { false } { $crate::__bounds!($($($bound),+)?) }]
            $(#[$meta])*
            $vis unsafe fn $name($($arg: $kind $(<$element>)?),*)
            { $($($require),*)? }
            ($($grid),+) ($($block),+) ($($shared)?)
        }
    };
}

/// Makes the host side of a declaration.
#[doc(hidden)]
#[expect(clippy::crate_in_macro_def, reason = "`crate::PTX` is the one of the crate that declares the kernel")]
#[macro_export]
macro_rules! __launcher {
    (
        [{ $($functions:tt)* } $cpu:tt $cooperative:tt $bounds:tt]
        $(#[$meta:meta])*
        $vis:vis unsafe fn $name:ident($($arg:ident: $kind:tt $(<$element:tt>)?),*)
        { $($require:expr),* }
        ($($grid:expr),+) ($($block:expr),+) ($($shared:expr)?)
    ) => {
        $(#[$meta])*
        #[track_caller]
        #[allow(clippy::too_many_arguments)]
        $vis fn $name<__S, __L: $crate::host::Launch<__S> + ?$crate::__core::marker::Sized>(
            on: &__L,
            $($arg: $crate::__parameter!(host __S $kind $(<$element>)?)),*
        ) -> $crate::__core::result::Result<(), __L::Error> {
            // The author's names mean what they mean around the declaration: bodies are items,
            // clauses stand beside the block with the launcher's items, and its generics are hidden
            // from them.
            $($functions)*
            const __THALWEG_BOUNDS: $crate::__core::option::Option<$crate::__Bounds> = $bounds;
            #[allow(unused_mut)]
            let (kernel, mut slots) = {
                const __THALWEG_PARAMETERS: &[$crate::host::Parameter] = &$crate::host::parameters([$(
                    $crate::host::Parameter::new::<$crate::__parameter!(raw $kind $(<$element>)?)>(
                        $crate::__core::stringify!($arg),
                        $crate::__parameter!(buffer $kind $(<$element>)?),
                    )
                ),*]);
                const __THALWEG_ORIGIN: &[$crate::__core::primitive::u8] = &$crate::__origin_bytes::<
                    { $crate::__origin_len($crate::__origin!(), &$crate::__layouts!($($kind $(<$element>)?,)*)) },
                >($crate::__origin!(), &$crate::__layouts!($($kind $(<$element>)?,)*));
                static __THALWEG_KERNEL: $crate::host::Kernel = $crate::host::Kernel::new(
                    &crate::PTX,
                    $crate::host::Declaration {
                        origin: $crate::host::utf8(__THALWEG_ORIGIN),
                        name: $crate::__core::stringify!($name),
                        entry: $crate::__entry_name!($name $($kind $(<$element>)?,)*),
                        parameters: __THALWEG_PARAMETERS,
                        cpu: $cpu,
                        cooperative: $cooperative,
                        bounds: __THALWEG_BOUNDS,
                    },
                );
                (&__THALWEG_KERNEL, $crate::host::Slots::<{ $crate::host::total(__THALWEG_PARAMETERS) }>::new())
            };
            #[allow(unused_imports)]
            use $crate::host::NotGiven as _;
            #[allow(unused_variables)]
            let shape = {
                $crate::__hide_generics! {}
                $(let $arg = $crate::host::Given($arg).put(&mut slots);)*
                $crate::__require! { kernel [$($arg)*] [$($require),*] }
                $crate::host::LaunchShape::new(
                    kernel,
                    &[$($crate::host::extent($crate::__clause!($crate::host::widened; $grid))),+],
                    &[$($crate::host::extent($crate::__clause!($crate::host::widened; $block))),+],
                    [$($crate::host::extent($crate::__clause!($crate::host::widened; $shared)),)? 0][0],
                )?
            };
            // SAFETY: The author of the declaration promises that the kernel is sound for arguments
            // that pass `require`, and they passed it above. The slots hold the parameters in the
            // order of the declaration. `on` launches on buffers that `__S` orders, and the
            // slices have this tag.
            unsafe { $crate::host::Launch::launch(on, kernel, shape, $crate::host::Slots::all_given(&slots)) }
        }
    };
}

/// Returns from a launcher with an error if a predicate of `require` is false.
#[doc(hidden)]
#[macro_export]
macro_rules! __require {
    ($kernel:ident [$($arg:ident)*] [$($require:expr),*]) => {
        #[allow(unused_labels)]
        let unmet: $crate::__core::option::Option<&'static $crate::__core::primitive::str> = 'unmet: {
            $(if !$crate::__clause!($crate::host::widened; $require) {
                break 'unmet $crate::__core::option::Option::Some($crate::__core::stringify!($require));
            })*
            $crate::__core::option::Option::None
        };
        // No pattern gives a name to the text: where a constant has that name, it would be a
        // comparison.
        if $crate::__core::option::Option::is_some(&unmet) {
            return $crate::__core::result::Result::Err($crate::__core::convert::From::from(
                $crate::host::LaunchError::requirement(
                    $kernel,
                    unmet,
                    &[$(($crate::__core::stringify!($arg), &$arg as &dyn $crate::__core::fmt::Debug)),*],
                ),
            ));
        }
    };
}

/// Makes the launcher's parameters of generics something that is no type, for clauses that name
/// types of the author that are called the same.
#[doc(hidden)]
#[macro_export]
macro_rules! __hide_generics {
    () => {
        #[allow(non_snake_case)]
        mod __S {}
        #[allow(non_snake_case)]
        mod __L {}
    };
}

/// Makes the type of a parameter as the host, the entry or the body sees it.
#[doc(hidden)]
#[macro_export]
macro_rules! __parameter {
    (host $s:ident In<$t:tt>) => { &$crate::host::DeviceSlice<$s, $t> };
    (host $s:ident Out<$t:tt>) => { &mut $crate::host::DeviceSlice<$s, $t> };
    (host $s:ident InOut<$t:tt>) => { &mut $crate::host::DeviceSlice<$s, $t> };
    (host $s:ident $t:tt) => { $t };
    (raw In<$t:tt>) => { *const $t };
    (raw Out<$t:tt>) => { *mut $t };
    (raw InOut<$t:tt>) => { *mut $t };
    (raw $t:tt) => { $t };
    (buffer In<$t:tt>) => { $crate::__parameter!(buffer $t, false) };
    (buffer $kind:ident<$t:tt>) => { $crate::__parameter!(buffer $t, true) };
    (buffer $t:tt) => { $crate::__core::option::Option::None };
    (buffer $t:tt, $written:literal) => {
        $crate::__core::option::Option::Some($crate::host::BufferKind {
            element: $crate::__core::mem::size_of::<$t>(),
            written: $written,
        })
    };
    (body $kind:ident<$t:tt>) => { $crate::$kind<$t> };
    (body $t:tt) => { $t };
    (take ($($slots:tt)*) $kind:ident<$t:tt>) => { $crate::$kind::<$t>::take($($slots)*) };
    (take ($($slots:tt)*) $t:tt) => { $crate::host::take::<$t>($($slots)*) };
    (from $arg:ident $kind:ident<$t:tt>) => { $crate::$kind::from_ptr($arg) };
    (from $arg:ident $t:tt) => { $arg };
}

/// Makes the name of an entry, such as `NAME__u32_rf32_wf32_xu8`. `r` stands for `In`, `w` for
/// `Out` and `x` for `InOut`. An array is written as `f32x4`.
#[doc(hidden)]
#[macro_export]
macro_rules! __entry_name {
    ($name:ident $($kind:tt $(<$t:tt>)?,)*) => {
        $crate::__core::concat!($crate::__core::stringify!($name), "_" $(, $crate::__entry_name!(@ $kind $(<$t>)?))*)
    };
    (@ In<$t:tt>) => { $crate::__core::concat!("_r", $crate::__entry_name!(# $t)) };
    (@ Out<$t:tt>) => { $crate::__core::concat!("_w", $crate::__entry_name!(# $t)) };
    (@ InOut<$t:tt>) => { $crate::__core::concat!("_x", $crate::__entry_name!(# $t)) };
    (@ $t:tt) => { $crate::__core::concat!("_", $crate::__entry_name!(# $t)) };
    (# [$t:tt; $n:tt]) => {
        $crate::__core::concat!($crate::__entry_name!(# $t), "x", $crate::__entry_name!(# $n))
    };
    (# $t:ident) => { $crate::__core::stringify!($t) };
    (# $n:literal) => { $crate::__core::stringify!($n) };
}

/// Makes an array of what an origin says of each parameter: its layout, unless its name in the
/// entry's name says all. Every value must be `ByValue` here, whatever its type is called.
#[doc(hidden)]
#[macro_export]
macro_rules! __layouts {
    ($($kind:tt $(<$element:tt>)?,)*) => { [$($crate::__layout!($kind $(<$element>)?)),*] };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __layout {
    ($kind:ident<$t:tt>) => {
        $crate::__Layout::beside($crate::__Layout::of_element::<$t>(), $crate::__core::stringify!($t))
    };
    ($t:tt) => {
        $crate::__Layout::beside(<$t as $crate::ByValue>::LAYOUT, $crate::__core::stringify!($t))
    };
}

/// Makes a text that says where a kernel is declared: package, version and module, such as
/// `saxpy-kernels 0.1.0 saxpy_kernels::blas`.
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

/// Makes the type of the context as a body sees it.
#[doc(hidden)]
#[macro_export]
macro_rules! __context {
    (Simt) => { impl $crate::Simt + $crate::__Independent };
    (Cooperative) => { impl $crate::Cooperative };
}

/// Says whether the threads of a block may wait for each other.
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

/// Names the function that runs a block on the ordinary CPU device: that of the clause `cpu`, if
/// there is one.
#[doc(hidden)]
#[macro_export]
macro_rules! __cpu_entry {
    ([]) => {
        __thalweg_block::<$crate::cpu::Unchecked>
    };
    ([$body:block]) => {
        __thalweg_whole
    };
}

/// The entry for the checked device. It is a second copy of the body, which costs as much time to
/// build as the first one, so builds without debug assertions have none.
#[doc(hidden)]
#[macro_export]
macro_rules! __checked_entry {
    () => {
        if $crate::__core::cfg!(debug_assertions) {
            $crate::__core::option::Option::Some(__thalweg_block::<$crate::cpu::Checked>)
        } else {
            $crate::__core::option::Option::None
        }
    };
}

/// Makes the function that runs a block by the clause `cpu`.
#[doc(hidden)]
#[macro_export]
macro_rules! __cpu_whole {
    ([] $($rest:tt)*) => {};
    ([$body:block] $cx:ident $($arg:ident: $kind:tt $(<$element:tt>)?,)*) => {
        #[inline(always)]
        #[allow(unused_variables, clippy::too_many_arguments)]
        unsafe fn __thalweg_whole_body(
            $cx: impl $crate::Simt, $($arg: $crate::__parameter!(body $kind $(<$element>)?)),*
        ) {
            // SAFETY: The author of the declaration promises that this body is sound for every list
            // of arguments that passes `require` (see `kernel!`).
            unsafe { $body }
        }
        #[allow(unused_variables)]
        unsafe fn __thalweg_whole(block: &$crate::cpu::CpuBlock<'_>, slots: &[$crate::__core::primitive::u64]) {
            let mut slots = slots;
            // SAFETY: The launcher put the arguments into the slots in this order, with
            // `Given::put`. The value of a buffer is its address and its length, and the CPU device
            // exposed the memory's provenance when it allocated it.
            $(let $arg = unsafe { $crate::__parameter!(take (&mut slots) $kind $(<$element>)?) };)*
            // SAFETY: The author of the declaration promises that this body is sound for every list
            // of arguments that passes `require`.
            $crate::cpu::CpuBlock::run_whole(block, |cx| unsafe { __thalweg_whole_body(cx, $($arg),*) });
        }
    };
}

/// Makes what the launcher knows of the clause `bounds`.
#[doc(hidden)]
#[macro_export]
macro_rules! __bounds {
    () => {
        $crate::__core::option::Option::None
    };
    ($threads:expr $(, $blocks:expr)?) => {
        $crate::__core::option::Option::Some(const { $crate::__Bounds::new($threads, [$($blocks,)? 0][0]) })
    };
}

/// Makes a variable with the clause `bounds` of an entry. thalweg-ptx-builder removes it from the
/// PTX and gives the entry directives in its place.
#[doc(hidden)]
#[macro_export]
macro_rules! __bounds_static {
    ([] $entry:tt) => {};
    ([$threads:expr $(, $blocks:expr)?] [$($entry:tt)*]) => {
        #[cfg(target_arch = "nvptx64")]
        const _: () = {
            #[unsafe(export_name = $crate::__core::concat!($($entry)*, "__thalweg_bounds"))]
            static __THALWEG_BOUNDS: [$crate::__core::primitive::u8; 8] = $crate::__Bounds::bytes($crate::__Bounds::new($threads, [$($blocks,)? 0][0]));
        };
    };
    ($($other:tt)*) => {
        $crate::__core::compile_error!("bounds are one or two numbers: `bounds(THREADS)` or `bounds(THREADS, BLOCKS)`");
    };
}

/// Runs a block on the CPU device.
#[doc(hidden)]
#[macro_export]
macro_rules! __run {
    (Simt $block:ident, $body:expr) => {
        $crate::cpu::CpuBlock::run_independent($block, $body)
    };
    (Cooperative $block:ident, $body:expr) => {
        $crate::cpu::CpuBlock::run_cooperative($block, $body)
    };
}
