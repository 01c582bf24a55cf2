//! The expansion of a declaration without `unsafe` by [`kernel!`](crate::kernel).
//!
//! The body, the extents and the clauses stand outside every `unsafe` block of the expansion, so
//! the macro lends them none. What the device believes comes from the launcher: numbers, addresses,
//! and extents that the declaration computes. The compiler for the GPU reads the declaration again,
//! where a `cfg` could make it another one. So the origin of the entry, which a launch compares,
//! contains the parameters as they stand there, and names of types and extents are not looked up in
//! the module of the declaration.

#[cfg(not(target_arch = "nvptx64"))]
use super::{Block, Thread};
#[cfg(not(target_arch = "nvptx64"))]
use crate::cpu::{CpuBlock, CpuThread, Monitor};

/// The parts of an entry of a kernel without `unsafe` that must be those of its launcher: the
/// origin, the declaration, and the extents of the block that are numbers.
#[doc(hidden)]
pub type __Declared = (&'static str, &'static str, &'static [u32]);

/// Makes the bytes of a text of these: the origin, a space, the declaration without white space,
/// because compilers write the same tokens with different spaces, and the extents with a comma
/// before each. It returns the length, too, which does not depend on `N`.
#[doc(hidden)]
#[must_use]
pub const fn __declared<const N: usize>((origin, declaration, block): __Declared) -> ([u8; N], usize) {
    const fn put<const N: usize>(text: &mut ([u8; N], usize), byte: u8) {
        if text.1 < N {
            text.0[text.1] = byte;
        }
        text.1 += 1;
    }
    let (origin, declaration) = (origin.as_bytes(), declaration.as_bytes());
    let (mut text, mut i) = (([0; N], 0), 0);
    while i < origin.len() {
        put(&mut text, origin[i]);
        i += 1;
    }
    put(&mut text, b' ');
    i = 0;
    while i < declaration.len() {
        if !declaration[i].is_ascii_whitespace() {
            put(&mut text, declaration[i]);
        }
        i += 1;
    }
    i = 0;
    while i < block.len() {
        put(&mut text, b',');
        let (mut unit, number) = (1_000_000_000, block[i]);
        while unit > 0 {
            if number >= unit || unit == 1 {
                put(&mut text, b'0' + (number / unit % 10) as u8);
            }
            unit /= 10;
        }
        i += 1;
    }
    text
}

/// Returns the number that `text` is, or 0 if it is something else.
#[doc(hidden)]
#[must_use]
pub const fn __decimal(text: &str) -> u32 {
    let (text, mut number, mut i) = (text.as_bytes(), 0u32, 0);
    while i < text.len() {
        if !text[i].is_ascii_digit() || number > 1 << 20 {
            return 0;
        }
        number = number * 10 + (text[i] - b'0') as u32;
        i += 1;
    }
    number
}

/// Returns the number of texts. (A method such as `len` could be another one where the declaration
/// stands.)
#[doc(hidden)]
#[must_use]
pub const fn __count(texts: &[&str]) -> usize {
    texts.len()
}

/// Runs a body over `Simt` in each thread of a block.
///
/// # Safety The caller is the entry of a kernel for the CPU device, which calls this once for its
/// block of the launch that `'k` names. `body` passes the witness to code of the thread only.
#[cfg(not(target_arch = "nvptx64"))]
#[doc(hidden)]
#[inline(always)]
pub unsafe fn __run_threads<'k, M: Monitor>(block: &CpuBlock<'_, M>, body: impl Fn(&Thread<'k, CpuThread<'_, M>>)) {
    block.run_independent(|cx| {
        // SAFETY: The CPU device runs this in the thread whose context it passes, and the witness
        // goes to the body by reference.
        body(&unsafe { Thread::new(cx) });
    });
}

/// Runs a body over `Cooperative` for a block.
///
/// # Safety The caller is the entry of a kernel for the CPU device, which calls this once for its
/// block of the launch that `'k` names.
#[cfg(not(target_arch = "nvptx64"))]
#[doc(hidden)]
#[inline(always)]
pub unsafe fn __run_block<'k, 'b, M: Monitor>(
    block: &'b CpuBlock<'_, M>,
    body: impl FnOnce(Block<'k, &'b CpuBlock<'_, M>>),
) {
    // SAFETY: The CPU device runs this once for each block, as the caller promises.
    body(unsafe { Block::new(block, false) });
}

/// Makes a kernel of a declaration without `unsafe`.
#[doc(hidden)]
#[expect(clippy::crate_in_macro_def, reason = "`crate::PTX` is the one of the crate that declares the kernel")]
#[macro_export]
macro_rules! __safe_kernel {
    (
        $(#[$meta:meta])*
        $vis:vis fn $name:ident(
            $cx:ident: impl $context:ident
            $(, $arg:ident: $kind:ident $(
                <$element:tt> [$($extent:tt $(= $value:expr)?),+ $(,)?] $(by [$($axis:ident $(($of:tt))?),+ $(,)?])?
            )?)* $(,)?
        )
        $(require { $($require:expr),* $(,)? })?
        grid($($grid:expr),+ $(,)?) block($($block:expr),+ $(,)?) $(bounds($($bound:expr),+ $(,)?))?
        $(shared($shared:expr))?
        $body:block
    ) => {
        #[cfg(target_arch = "nvptx64")]
        #[unsafe(export_name = $crate::__safe_entry!($name $($kind $(<$element> $($($value)?)+)?,)*))]
        $(#[$meta])*
        $vis unsafe extern "ptx-kernel" fn $name(
            $($arg: $crate::__safe_parameter!(raw $kind $(<$element>)?),)*
            $($($($($extent: $crate::__safe_hidden!($value),)?)+)?)*
        ) {
            $crate::__safe_known! { [$($arg)*] [$($($($(($extent $value))?)+)?)*] ($) }
            $crate::__safe_body! {
                $cx $context
                [$($arg $kind $(<$element> [$($extent $(= $value)?),+] [$($($axis $(($of))?),+)?])?,)*]
                [$($grid),+] [$($block),+] $body
            }
            let known = $crate::__safe_values! {
                known [$($arg $kind $(<$element>)?,)*] [$($($($(($extent $value))?)+)?)*]
            };
            $($(
                // SAFETY: The launcher checked that the buffer holds as many elements as the
                // product of the extents says, and where it starts. It borrows each buffer, so no
                // other parameter overlaps one that is not `In`.
                let $arg = unsafe {
                    $crate::safe::$kind::new($arg.cast(), [$(__thalweg_known!($extent known) as $crate::__core::primitive::u32),+])
                };
            )?)*
            // SAFETY: This is the kernel's entry, and its launcher computed the shape. The numbers
            // are part of the origin, so they are those of the launcher.
            unsafe { $crate::safe::__shaped([$($crate::safe::__decimal($crate::__core::stringify!($block))),+]) };
            // SAFETY: This is the kernel's entry. The body gets the witness of this thread, or of
            // its block.
            let cx = unsafe { $crate::__safe_context!(gpu $context [$($block),+]) };
            __thalweg_body($crate::__safe_context!(pass $context cx), $($arg,)* $($($($($crate::__safe_first!($extent $value),)?)+)?)*);
        }

        // This says which declaration the entry was made from. thalweg-ptx-builder reads it and
        // removes it from the PTX.
        #[cfg(target_arch = "nvptx64")]
        const _: () = {
            #[unsafe(export_name = $crate::__core::concat!(
                $crate::__safe_entry!($name $($kind $(<$element> $($($value)?)+)?,)*), "__thalweg_origin"
            ))]
            static __THALWEG_ORIGIN: [$crate::__core::primitive::u8; $crate::safe::__declared::<0>(__THALWEG_DECLARED).1] =
                $crate::safe::__declared(__THALWEG_DECLARED).0;
            const __THALWEG_DECLARED: $crate::safe::__Declared = (
                $crate::__origin!(),
                $crate::__safe_text!(
                    $context [$($arg $kind $(<$element> [$($extent $(= $value)?),+])?,)*] [$($grid),+] [$($block),+]
                ),
                &[$($crate::safe::__decimal($crate::__core::stringify!($block))),+],
            );
        };

        $crate::__bounds_static! {
            [$($($bound),+)?] [$crate::__safe_entry!($name $($kind $(<$element> $($($value)?)+)?,)*)]
        }

        #[cfg(not(target_arch = "nvptx64"))]
        $(#[$meta])*
        #[track_caller]
        #[allow(clippy::too_many_arguments)]
        $vis fn $name<__S, __L: $crate::host::Launch<__S> + ?$crate::__core::marker::Sized>(
            on: &__L,
            $($arg: $crate::__safe_parameter!(host __S $kind $(<$element>)?)),*
        ) -> $crate::__core::result::Result<(), __L::Error> {
            // The author's names mean what they mean around the declaration: the body is an item,
            // clauses stand beside the block with the launcher's items, and its generics are hidden
            // from them.
            $crate::__safe_known! { [$($arg)*] [$($($($(($extent $value))?)+)?)*] ($) }
            $crate::__safe_body! {
                $cx $context
                [$($arg $kind $(<$element> [$($extent $(= $value)?),+] [$($($axis $(($of))?),+)?])?,)*]
                [$($grid),+] [$($block),+] $body
            }
            #[allow(unused_variables)]
            unsafe fn __thalweg_block<__ThalwegMonitor: $crate::cpu::Monitor>(
                block: &$crate::cpu::CpuBlock<'_, __ThalwegMonitor>, slots: &[$crate::__core::primitive::u64],
            ) {
                let mut slots = slots;
                // SAFETY: The launcher put the arguments into the slots in this order, with
                // `Given::put`. The value of a buffer is its address and its length, and the CPU
                // device exposed the memory's provenance when it allocated it.
                $(let $arg = unsafe { $crate::__safe_parameter!(take (&mut slots) $kind $(<$element>)?) };)*
                $($($($(
                    // SAFETY: After them, the launcher put each extent that it computes.
                    let $extent: $crate::__safe_hidden!($value) = unsafe { $crate::host::take(&mut slots) };
                )?)+)?)*
                let known = $crate::__safe_values! {
                    known [$($arg $kind $(<$element>)?,)*] [$($($($(($extent $value))?)+)?)*]
                };
                $($(
                    // SAFETY: The launcher checked that the buffer holds as many elements as the
                    // product of the extents says, and where it starts. It borrows each buffer, so
                    // no other parameter overlaps one that is not `In`.
                    let $arg = unsafe {
                        $crate::safe::$kind::new($arg.cast(), [$(__thalweg_known!($extent known) as $crate::__core::primitive::u32),+])
                    };
                )?)*
                // SAFETY: The CPU device runs this once for each block. The body gets the witness
                // of each thread, or of the block.
                unsafe {
                    $crate::__safe_context!(cpu $context block)(block, |cx| {
                        __thalweg_body(cx, $($arg,)* $($($($($crate::__safe_first!($extent $value),)?)+)?)*)
                    })
                };
            }
            const __THALWEG_BOUNDS: $crate::__core::option::Option<$crate::__Bounds> = $crate::__bounds!($($($bound),+)?);
            #[allow(unused_mut)]
            let (kernel, mut slots) = {
                const __THALWEG_DECLARED: $crate::safe::__Declared = (
                    $crate::__origin!(),
                    $crate::__safe_text!(
                        $context [$($arg $kind $(<$element> [$($extent $(= $value)?),+])?,)*] [$($grid),+] [$($block),+]
                    ),
                    &[$($crate::safe::__decimal($crate::__core::stringify!($block))),+],
                );
                const __THALWEG_ORIGIN: &[$crate::__core::primitive::u8] =
                    &$crate::safe::__declared::<{ $crate::safe::__declared::<0>(__THALWEG_DECLARED).1 }>(__THALWEG_DECLARED).0;
                const __THALWEG_PARAMETERS: &[$crate::host::Parameter] = &$crate::host::parameters([
                    $($crate::host::Parameter::new::<$crate::__safe_parameter!(raw $kind $(<$element>)?)>(
                        $crate::__core::stringify!($arg),
                        $crate::__safe_parameter!(buffer $kind $(<$element>)?),
                    ),)*
                    $($($($($crate::host::Parameter::new::<$crate::__safe_hidden!($value)>(
                        $crate::__core::stringify!($extent),
                        $crate::__core::option::Option::None,
                    ),)?)+)?)*
                ]);
                static __THALWEG_KERNEL: $crate::host::Kernel = $crate::host::Kernel::new(
                    &crate::PTX,
                    $crate::host::Declaration {
                        origin: $crate::host::utf8(__THALWEG_ORIGIN),
                        name: $crate::__core::stringify!($name),
                        entry: $crate::__safe_entry!($name $($kind $(<$element> $($($value)?)+)?,)*),
                        parameters: __THALWEG_PARAMETERS,
                        cpu: $crate::__core::option::Option::Some($crate::host::CpuEntry {
                            block: __thalweg_block::<$crate::cpu::Unchecked>,
                            checked: $crate::__checked_entry!(),
                        }),
                        cooperative: $crate::__cooperative!($context),
                        bounds: __THALWEG_BOUNDS,
                    },
                );
                (&__THALWEG_KERNEL, $crate::host::Slots::<{ $crate::host::total(__THALWEG_PARAMETERS) }>::new())
            };
            let shape = {
                $crate::__hide_generics! {}
                $(let $arg = $crate::host::Given($arg).put(&mut slots);)*
                $crate::__require! { kernel [$($arg)*] [$($($require),*)?] }
                // After `require`, which may rule out a division by zero.
                $($($($(
                    let $extent = $crate::host::extent($crate::__clause!($crate::host::widened; $value));
                )?)+)?)*
                let known = $crate::__safe_values! {
                    wide [$($arg $kind $(<$element>)?,)*] [$($($($(($extent $value))?)+)?)*]
                };
                $($(
                    $crate::host::extents::<$crate::__safe_item!($element)>(
                        kernel,
                        $crate::__core::stringify!($arg),
                        $arg,
                        &[$($crate::host::extent(__thalweg_known!($extent known launcher))),+],
                    )?;
                )?)*
                let shape = $crate::host::countable(kernel, $crate::host::LaunchShape::new(
                    kernel,
                    &[$($crate::host::extent($crate::__clause!($crate::host::widened; $grid))),+],
                    &[$($crate::host::extent($crate::__clause!($crate::host::widened; $block))),+],
                    [$($crate::host::extent($crate::__clause!($crate::host::widened; $shared)),)? 0][0],
                )?)?;
                $($($($(
                    let _ = $crate::host::Given($crate::host::hidden($crate::__safe_first!($extent $value))).put(&mut slots);
                )?)+)?)*
                shape
            };
            // SAFETY: The body is safe code. The launcher checked what its views rely on: the
            // extents of each buffer and the positions of the threads. The slots hold the
            // parameters of the entry, in its order. `on` launches on buffers that `__S` orders,
            // and the slices have this tag.
            unsafe { $crate::host::Launch::launch(on, kernel, shape, $crate::host::Slots::all_given(&slots)) }
        }
    };
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($parameters:tt)*) $($rest:tt)*) => {
        $crate::__safe_why!($name $($parameters)*);
    };
}

/// Says what is wrong with a declaration without `unsafe`, or with the order of its clauses.
#[doc(hidden)]
#[macro_export]
macro_rules! __safe_why {
    ($name:ident $cx:ident: impl $context:ident $(, $arg:ident: $kind:ident $(<$element:tt> $([$($extent:tt)*])? $(by [$($by:tt)*])?)?)* $(,)?) => {
        $($($crate::__safe_why!(@ $arg $kind $([$($extent)*])? $(by [$($by)*])?);)?)*
        $crate::__core::compile_error!($crate::__core::concat!(
            "`", $crate::__core::stringify!($name), "` is not a kernel without `unsafe`. It has this form: \
            fn NAME(t: impl Simt, n: u32, x: In<f32>[n], y: Out<f32>[n] by [x]) \
            require { PREDICATE, .. } grid(X, Y, Z) block(X, Y, Z) shared(BYTES) { BODY }. \
            A kernel whose body is unsafe code is an `unsafe fn`: with `unsafe` you promise that it stays inside its buffers"
        ));
    };
    ($name:ident $($rest:tt)*) => {
        $crate::__core::compile_error!($crate::__core::concat!(
            "`", $crate::__core::stringify!($name), "` is not a kernel without `unsafe`. It has this form: \
            fn NAME(t: impl Simt, n: u32, x: In<f32>[n], y: Out<f32>[n] by [x]) \
            require { PREDICATE, .. } grid(X, Y, Z) block(X, Y, Z) shared(BYTES) { BODY }. \
            An extent is a parameter, a number, or a name with its value: `[cells = h * w]`. \
            A kernel whose body is unsafe code is an `unsafe fn`: with `unsafe` you promise that it stays inside its buffers"
        ));
    };
    (@ $arg:ident $kind:ident [$($extent:tt)*] $(by [$($by:tt)*])?) => {};
    (@ $arg:ident $kind:ident $(by [$($by:tt)*])?) => {
        $crate::__core::compile_error!($crate::__core::concat!(
            "a kernel without `unsafe` states the extents of each buffer: `",
            $crate::__core::stringify!($arg), ": ", $crate::__core::stringify!($kind), "<..>[n]`. \
            (If its body is unsafe code, declare it as `unsafe fn`: with `unsafe` you promise that it stays inside its buffers)"
        ));
    };
}

/// Makes the body as a function.
#[doc(hidden)]
#[macro_export]
macro_rules! __safe_body {
    (
        $cx:ident $context:ident
        [$($arg:ident $kind:ident $(
            <$element:tt> [$($extent:tt $(= $value:expr)?),+] [$($axis:ident $(($of:tt))?),*]
        )?,)*]
        [$($grid:expr),+] [$($block:expr),+] $body:block
    ) => {
        #[allow(dead_code)]
        const __THALWEG_GRID: $crate::__core::primitive::usize = $crate::safe::__count(&[$($crate::__core::stringify!($grid)),+]);
        #[allow(dead_code)]
        const __THALWEG_BLOCK: $crate::__core::primitive::usize = $crate::safe::__count(&[$($crate::__core::stringify!($block)),+]);
        #[inline(always)]
        #[allow(unused_variables, unused_mut, clippy::too_many_arguments)]
        fn __thalweg_body<'k>(
            mut $cx: $crate::__safe_context!(body 'k $context),
            $($arg: $crate::__safe_parameter!(
                body 'k $kind $(<$element> [$($extent),+] [$($axis $(($of))?),*] __THALWEG_GRID __THALWEG_BLOCK)?
            ),)*
            $($($($($extent: $crate::__safe_hidden!($value),)?)+)?)*
        ) {
            #[allow(unused_imports)]
            use $crate::{Bits as _, Math as _, Simt as _}; // for the positions and the arithmetic of a thread
            $body
        }
    };
}

/// Makes `__thalweg_known!`, which takes an extent and gives its value: a number, or a field of
/// `known`, and nothing else. A constant could have another value on the GPU. So could a variable:
/// of two that a macro names alike, or of a variable and an item, the compiler may choose another
/// one there. Fields go by their text, as what an entry must have in common with its launcher does,
/// and a struct has no two that are named alike.
#[doc(hidden)]
#[macro_export]
macro_rules! __safe_known {
    ([$($arg:ident)*] [$(($named:tt $value:expr))*] ($d:tt)) => {
        #[allow(unused_macros)]
        macro_rules! __thalweg_known {
            $(($arg $d known:ident $d($d launcher:ident)?) => { $d known.$arg };)*
            $(($named $d known:ident $d($d launcher:ident)?) => { $d known.$named };)*
            ($d number:literal $d known:ident $d($d launcher:ident)?) => { $d number };
            // What makes the views reports it, once for both.
            ($d other:tt $d known:ident launcher) => { 0 };
            ($d other:tt $d known:ident) => {
                $crate::__core::compile_error!($crate::__core::concat!(
                    "`", $crate::__core::stringify!($d other), "` is not a parameter, and a constant could have another \
                    value on the GPU. Give the extent a name: `[n = ", $crate::__core::stringify!($d other), "]`"
                ))
            };
        }
    };
}

/// Makes the value whose fields `__thalweg_known!` takes: the numbers among the parameters, and the
/// extents that the launcher computes. In the launcher they are `wide`.
#[doc(hidden)]
#[macro_export]
macro_rules! __safe_values {
    ($width:ident [$($arg:ident $kind:ident $(<$element:tt>)?,)*] [$(($extent:tt $value:expr))*]) => {{
        #[allow(dead_code, non_snake_case)]
        struct __ThalwegKnown {
            $($arg: $crate::__safe_parameter!($width $kind $(<$element>)?),)*
            $($extent: $crate::__safe_extent!($width $value),)*
        }
        __ThalwegKnown {
            $($arg: $crate::__safe_parameter!(field $arg $kind $(<$element>)?),)*
            $($extent: $crate::__safe_first!($extent $value),)*
        }
    }};
}

/// Makes the type of a parameter as the host, the entry or the body sees it, or reads it from a
/// slot.
#[doc(hidden)]
#[macro_export]
macro_rules! __safe_parameter {
    (host $s:ident In<$t:tt>) => { &$crate::host::DeviceSlice<$s, $crate::__safe_base!($t)> };
    (host $s:ident $kind:ident<$t:tt>) => { &mut $crate::host::DeviceSlice<$s, $crate::__safe_base!($t)> };
    (host $s:ident $t:ident) => { $crate::__safe_number!($t) };
    (raw $kind:ident<$t:tt>) => { *mut $crate::__safe_base!($t) };
    (raw $t:ident) => { $crate::__safe_number!($t) };
    (buffer $kind:ident<$t:tt>) => {
        $crate::__core::option::Option::Some($crate::host::BufferKind {
            element: $crate::__core::mem::size_of::<$crate::__safe_base!($t)>(),
            written: $crate::__safe_written!($kind),
        })
    };
    (buffer $t:ident) => { $crate::__core::option::Option::None };
    (known $kind:ident<$t:tt>) => { () };
    (known $t:ident) => { $crate::__safe_number!($t) };
    (wide $kind:ident<$t:tt>) => { () };
    (wide $t:ident) => { <$crate::__safe_number!($t) as $crate::ByValue>::Wide };
    (field $arg:ident $kind:ident<$t:tt>) => { () };
    (field $arg:ident $t:ident) => { $arg };
    (take ($($slots:tt)*) $kind:ident<$t:tt>) => {
        $crate::host::take_address::<$crate::__safe_base!($t)>($($slots)*)
    };
    (take ($($slots:tt)*) $t:ident) => { $crate::host::take::<$crate::__safe_number!($t)>($($slots)*) };
    (body $k:lifetime Out $($rest:tt)*) => { $crate::__safe_parameter!(own $k Out $($rest)*) };
    (body $k:lifetime InOut $($rest:tt)*) => { $crate::__safe_parameter!(own $k InOut $($rest)*) };
    (body $k:lifetime $kind:ident<$t:tt> [$($extent:tt),+] [] $grid:ident $block:ident) => {
        $crate::safe::$kind<$k, $crate::__safe_item!($t), { $crate::safe::__count(&[$($crate::__core::stringify!($extent)),+]) }>
    };
    (body $k:lifetime $kind:ident<$t:tt> $($rest:tt)*) => {
        $crate::__core::compile_error!("only outputs, `Out` and `InOut`, have owners: leave `by` out")
    };
    (body $k:lifetime $t:ident) => { $crate::__safe_number!($t) };
    (own $k:lifetime $kind:ident<$t:tt> $extents:tt [] $grid:ident $block:ident) => {
        $crate::__core::compile_error!($crate::__core::concat!(
            "an output says which coordinate of the launch owns which of its dimensions: `",
            $crate::__core::stringify!($kind), "<", $crate::__core::stringify!($t), ">[h, w] by [y, x]`"
        ))
    };
    (own $k:lifetime $kind:ident<$t:tt> [$($extent:tt),+] [$($axis:ident $(($of:tt))?),+] $grid:ident $block:ident) => {
        $crate::safe::$kind<
            $k,
            $crate::__safe_item!($t),
            { $crate::safe::__count(&[$($crate::__core::stringify!($extent)),+]) },
            $crate::safe::By<($($crate::__safe_axis!($axis $(($of))?),)+), { $grid }, { $block }>,
        >
    };
}

/// Makes the type of a number, which the module of the declaration cannot replace.
#[doc(hidden)]
#[macro_export]
macro_rules! __safe_number {
    (u8) => {
        $crate::__core::primitive::u8
    };
    (u16) => {
        $crate::__core::primitive::u16
    };
    (u32) => {
        $crate::__core::primitive::u32
    };
    (u64) => {
        $crate::__core::primitive::u64
    };
    (usize) => {
        $crate::__core::primitive::usize
    };
    (i8) => {
        $crate::__core::primitive::i8
    };
    (i16) => {
        $crate::__core::primitive::i16
    };
    (i32) => {
        $crate::__core::primitive::i32
    };
    (i64) => {
        $crate::__core::primitive::i64
    };
    (f16) => {
        $crate::f16
    };
    (bf16) => {
        $crate::bf16
    };
    (f32) => {
        $crate::__core::primitive::f32
    };
    (f64) => {
        $crate::__core::primitive::f64
    };
    (bool) => {
        $crate::__core::primitive::bool
    };
    ($other:tt) => {
        $crate::__core::compile_error!($crate::__core::concat!(
            "a kernel without `unsafe` cannot have a parameter of type `",
            $crate::__core::stringify!($other),
            "`: it has numbers (`u8` to `u64`, `usize`, `i8` to `i64`, `f16`, `bf16`, `f32`, `f64`), `bool`, and buffers of \
            numbers (`In<f32>[n]`, `Out<f32>[n] by [x]`, `InOut<f32>[n] by [x]`, `Atomic<u32>[n]`) or of arrays whose length \
            is a number (`In<[f32; 4]>[n]`)"
        ))
    };
}

/// Makes the type of an element of a buffer, as the body sees it.
#[doc(hidden)]
#[macro_export]
macro_rules! __safe_item {
    ([$t:tt; $n:literal]) => {
        [$crate::__safe_item!($t); $n]
    };
    ($t:tt) => {
        $crate::__safe_number!($t)
    };
}

/// Makes the type of an element of a buffer, as the launcher takes it: a number.
#[doc(hidden)]
#[macro_export]
macro_rules! __safe_base {
    ([$t:tt; $n:literal]) => {
        $crate::__safe_base!($t)
    };
    ($t:tt) => {
        $crate::__safe_number!($t)
    };
}

/// Makes whether the kernel may write a buffer.
#[doc(hidden)]
#[macro_export]
macro_rules! __safe_written {
    (In) => {
        false
    };
    ($kind:ident) => {
        true
    };
}

/// Makes the type of an owner.
#[doc(hidden)]
#[macro_export]
macro_rules! __safe_axis {
    (x) => { $crate::safe::Global<0, 1> };
    (y) => { $crate::safe::Global<1, 1> };
    (z) => { $crate::safe::Global<2, 1> };
    (x($k:tt)) => { $crate::safe::Global<0, $k> };
    (y($k:tt)) => { $crate::safe::Global<1, $k> };
    (z($k:tt)) => { $crate::safe::Global<2, $k> };
    (xz) => { $crate::safe::Across<1> };
    (xz($k:tt)) => { $crate::safe::Across<$k> };
    (stride) => { $crate::safe::Stride<0> };
    (stride(x)) => { $crate::safe::Stride<0> };
    (stride(y)) => { $crate::safe::Stride<1> };
    (stride(z)) => { $crate::safe::Stride<2> };
    (block) => { $crate::safe::Group<0> };
    (block(x)) => { $crate::safe::Group<0> };
    (block(y)) => { $crate::safe::Group<1> };
    (block(z)) => { $crate::safe::Group<2> };
    (rank) => { $crate::safe::Rank };
    (all) => { $crate::safe::All };
    ($other:ident $(($of:tt))?) => {
        $crate::__core::compile_error!($crate::__core::concat!(
            "`", $crate::__core::stringify!($other $(($of))?), "` owns nothing: an owner is `x`, `y` or `z`, chunks as in \
            `x(4)`, `stride`, `block`, `rank` or `all`"
        ))
    };
}

/// Makes the type of the context, and passes it to the body.
#[doc(hidden)]
#[macro_export]
macro_rules! __safe_context {
    (body $k:lifetime Simt) => { &$crate::safe::Thread<$k, impl $crate::Simt> };
    (body $k:lifetime Cooperative) => { $crate::safe::Block<$k, impl $crate::safe::Team> };
    (gpu Simt $block:tt) => { $crate::safe::Thread::new($crate::Gpu::new()) };
    (gpu Cooperative [$($block:expr),+]) => {
        $crate::safe::Block::new($crate::Gpu::new(), true $(&& $crate::safe::__decimal($crate::__core::stringify!($block)) != 0)+)
    };
    (pass Simt $cx:ident) => { &$cx };
    (pass Cooperative $cx:ident) => { $cx };
    (cpu Simt $block:ident) => { $crate::safe::__run_threads };
    (cpu Cooperative $block:ident) => { $crate::safe::__run_block };
}

/// Makes the name of an entry, as for other kernels. `a` stands for `Atomic`, and `e` for an extent
/// that the launcher computes.
#[doc(hidden)]
#[macro_export]
macro_rules! __safe_entry {
    ($name:ident $($kind:ident $(<$t:tt> $($value:expr)*)?,)*) => {
        $crate::__core::concat!(
            $crate::__core::stringify!($name), "_"
            $(, $crate::__safe_entry!(@ $kind $(<$t>)?) $($(, $crate::__safe_mark!("e" $value))*)?)*
        )
    };
    (@ $kind:ident<[$t:tt; $n:literal]>) => {
        $crate::__core::concat!($crate::__safe_entry!(@ $kind<$t>), "x", $n)
    };
    (@ Atomic<$t:tt>) => { $crate::__core::concat!("_a", $crate::__core::stringify!($t)) };
    (@ $($parameter:tt)*) => { $crate::__entry_name!(@ $($parameter)*) };
}

/// Makes the text that an origin has of a declaration: what the launcher checks for the device.
#[doc(hidden)]
#[macro_export]
macro_rules! __safe_text {
    (
        $context:ident [$($arg:ident $kind:ident $(<$t:tt> [$($extent:tt $(= $value:expr)?),+])?,)*]
        [$($grid:expr),+] [$($block:expr),+]
    ) => {
        $crate::__core::concat!(
            $crate::__core::stringify!($context), "(",
            $(
                $crate::__core::stringify!($arg), ":", $crate::__core::stringify!($kind),
                $(
                    "<", $crate::__core::stringify!($t), ">[",
                    $($crate::__core::stringify!($extent), $($crate::__safe_mark!("=" $value),)? ",",)+ "]",
                )? ";",
            )*
            ")", $($crate::__safe_mark!("g" $grid),)+ $($crate::__safe_mark!("b" $block),)+
        )
    };
}

/// Makes the first of two token trees, for as many of them as there are of the second.
#[doc(hidden)]
#[macro_export]
macro_rules! __safe_first {
    ($first:tt $second:expr) => {
        $first
    };
}

/// Makes a text, as often as there is an expression.
#[doc(hidden)]
#[macro_export]
macro_rules! __safe_mark {
    ($mark:literal $value:expr) => {
        $mark
    };
}

/// Makes the type of an extent that the launcher computes.
#[doc(hidden)]
#[macro_export]
macro_rules! __safe_hidden {
    ($value:expr) => {
        $crate::__core::primitive::u32
    };
}

/// Makes the type of such an extent as a field of the values that are known.
#[doc(hidden)]
#[macro_export]
macro_rules! __safe_extent {
    (known $value:expr) => {
        $crate::__safe_hidden!($value)
    };
    (wide $value:expr) => {
        $crate::__core::primitive::u128
    };
}
