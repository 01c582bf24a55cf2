//! Kernels in modules where the names that the macros use mean something else.
//!
//! `names!` lists the names. Each is declared in every namespace that is open to the module, as
//! something that would not compile, or not give the result, if a macro looked it up.
//! `simt/tests/kernel_vocabulary/tokens.txt` lists all names that the macros use, and a test
//! compares both lists with the macros.
#![allow(missing_docs)]

/// Declares each name as a type without values, as a macro that refuses everything and, before `;`,
/// as a constant or, after it, as a function. A constant would turn a variable of that name into a
/// comparison.
macro_rules! names {
    ($d:tt $($constant:ident)*; $($function:ident)*) => {
        $(const $constant: &::core::primitive::str = "shadowed";)*
        $(const fn $function() {})*
        names!(@ $d $($constant)* $($function)*);
    };
    (@ $d:tt $($name:ident)*) => {$(
        enum $name {}
        macro_rules! $name {
            ($d($d t:tt)*) => { compile_error!("shadowed") };
        }
    )*};
}

/// Declares methods of all types. They take their receiver by value, so they come before methods
/// that take it by reference.
macro_rules! methods {
    ($($name:ident)*) => {
        #[allow(dead_code, clippy::wrong_self_convention)]
        trait Methods: ::core::marker::Sized {
            $(fn $name(self) -> ! {
                panic!("shadowed")
            })*
        }
        impl<T> Methods for T {}
    };
}

macro_rules! shadows {
    ($d:tt $($number:ident)*) => {
        names! {
            $d $($number)*
            // matched by text
            In Out InOut Atomic Simt Cooperative by require grid bounds shared cpu instances x y z xz stride rank all
            // words by which the macros tell their helpers what to make
            body buffer field from gpu host launcher own pass raw take wide
            // what the module of a crate has without declaring it
            Some None Ok Err Option Result From Into Default Debug Clone Copy Send Sync Sized Fn FnMut FnOnce Iterator
            Vec String Box str drop
            // what the macros import, and the fields and items that they name
            Bits Math LAYOUT Wide widen written element entry name origin parameters cooperative checked requirement
            // items that the macros make
            __THALWEG_BLOCK __THALWEG_BOUNDS __THALWEG_DECLARED __THALWEG_GRID __THALWEG_KERNEL __THALWEG_ORIGIN
            __THALWEG_PARAMETERS __ThalwegKnown __ThalwegWide __thalweg_block __thalweg_body __thalweg_whole
            __thalweg_whole_body
            // arguments of attributes
            always C hidden message note not target_arch clippy nvptx64 dead_code debug_assertions
            improper_ctypes_definitions missing_docs non_camel_case_types non_snake_case unreachable_pub
            unused_braces unused_imports unused_labels unused_macros unused_mut unused_unsafe unused_variables
            // crates and macros of the standard library
            core std thalweg_simt macro_rules concat stringify env module_path include_str compile_error
            ;
            // variables of the macros, which a constant cannot have the name of:
            // `tests/ui/names_of_variables.rs`
            on slots shape kernel known unmet block cx value f
        }
        methods! {
            put cast launch len as_slice all_given widen value fmt clone into is_some is_empty unwrap bytes extent
            run_independent run_cooperative run_whole launch_shape origin name parameters iter as_ref
        }
    };
}

/// Kernels with `unsafe`, with every kind of parameter and clause.
#[allow(non_camel_case_types, non_upper_case_globals, non_snake_case, dead_code, unused_macros)]
#[allow(clippy::upper_case_acronyms)]
pub mod with_unsafe {
    use ::thalweg_simt::f16;

    // Not the numbers that its parameters have: the module of such a kernel says what they are.
    shadows! { $ u16 u64 usize i8 i16 i32 i64 bf16 f64 }

    ::thalweg_simt::by_value! {
        #[derive(::core::clone::Clone, ::core::marker::Copy)]
        pub struct Size {
            pub grid: ::core::primitive::u32,
            pub value: ::core::primitive::u32,
        }
    }

    ::thalweg_simt::kernel! {
        pub unsafe fn shadowed_affine(
            cx: impl Simt, byte: u8, size: Size, factors: [f32; 2], half: f16, yes: bool, input: In<f32>, to: Out<f32>,
            sums: InOut<u32>,
        )
        require { sums.len() == size.grid, 'unmet: { break 'unmet yes }, byte == 1 }
        grid(1) block(32) bounds(64) shared(16)
        {
            let at = cx.global_x();
            if at < size.grid {
                let _ = half;
                to.set(cx, at, input.get(cx, at) * factors[0] + factors[1]);
                sums.set(cx, at, sums.get(cx, at) + size.value);
            }
        }
    }

    ::thalweg_simt::kernel! {
        pub unsafe fn shadowed_every<T: ::thalweg_simt::Element, const N: ::core::primitive::u32>(
            cx: impl Simt, n: u32, input: In<T>, to: Out<T>,
        )
        instances { shadowed_second_u8 = <u8, 2>, shadowed_third_f32 = <f32, 3> }
        require { to.len() == n, input.len() == n * N }
        grid(1) block(32)
        {
            let i = cx.global_x();
            if i < n {
                to.set(cx, i, input.get(cx, i * N));
            }
        }
    }

    ::thalweg_simt::kernel! {
        pub unsafe fn shadowed_warp_sums(cx: impl Cooperative, to: Out<u32>)
        require { to.len() == 2 }
        grid(2) block(32)
        cpu { to.set(cx, cx.block_idx().x, 496) }
        {
            let sum = cx.warp_sum_u32(cx.lane());
            if cx.lane() == 0 {
                to.set(cx, cx.block_idx().x, sum);
            }
        }
    }
}

/// Kernels without `unsafe`.
#[allow(non_camel_case_types, non_upper_case_globals, non_snake_case, dead_code, unused_macros)]
#[allow(clippy::upper_case_acronyms, clippy::needless_lifetimes, clippy::never_loop)]
pub mod without_unsafe {
    shadows! { $ u8 u16 u32 u64 usize i8 i16 i32 i64 f16 bf16 f32 f64 bool }

    ::thalweg_simt::kernel! {
        pub fn shadowed_rows(
            t: impl Simt, n: u32, yes: bool, input: In<[f32; 2]>[h = n / 2, 2], to: InOut<f32>[h, 2] by [y, all],
            sums: Atomic<u32>[1],
        )
        require { 'unmet: { break 'unmet yes }, n.is_multiple_of(2) }
        grid(1, h) block(1, 1) bounds(64)
        {
            // A lifetime and a label that are called like the launch of the body.
            fn same<'k, V>(v: &'k V) -> &'k V {
                v
            }
            'k: loop {
                to.for_each(t, |cell| {
                    let [a, b] = input.get(t, cell.at());
                    cell.set(*same(&cell.get()) + a + b);
                });
                sums.add(t, [0], 1);
                break 'k;
            }
        }
    }

    ::thalweg_simt::kernel! {
        pub fn shadowed_block_sums(b: impl Cooperative, to: Out<u32>[2, 32] by [block, rank])
        grid(2) block(32)
        {
            let lane = b.each((), |t, ()| t.rank());
            let sum = b.warp_sum_u32(&lane);
            b.each(&sum, move |t, sum| to.mine(t).for_each(|cell| cell.set(sum.get(t))));
        }
    }
}

/// A type that is called like a parameter of generics of the functions that the macro makes.
#[allow(dead_code)]
pub mod generics {
    ::thalweg_simt::by_value! {
        #[derive(Clone, Copy)]
        pub struct M {
            pub m: u32,
        }
    }

    ::thalweg_simt::kernel! {
        pub unsafe fn shadowed_struct(cx: impl Simt, m: M, y: Out<u32>)
        require { y.len() == 1, m.m > 0 }
        grid(1) block(1)
        {
            y.set(cx, 0, m.m);
        }
    }
}
