//! This crate tries to reach the kernels of another crate, although every promise of its `unsafe`
//! code holds. It takes the other crate's name and module path, replaces the macros and names that
//! `kernel!` might use, and declares kernels with the same names and signatures.

use thalweg_simt::ptx;

/// PTX of a kernel `scale__u32_xf32` that multiplies by three.
const TIMES_THREE: &str = "
.version 6.3
.target sm_75
.address_size 64
.visible .entry scale__u32_xf32(.param .u32 n, .param .u64 x)
{
    .reg .pred %p;
    .reg .b32 %r<5>;
    .reg .f32 %f<2>;
    .reg .b64 %rd<3>;
    ld.param.u32 %r1, [n];
    ld.param.u64 %rd1, [x];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.u32 %r2, %r2, %r3, %r4;
    setp.ge.u32 %p, %r2, %r1;
    @%p ret;
    cvta.to.global.u64 %rd1, %rd1;
    mul.wide.u32 %rd2, %r2, 4;
    add.u64 %rd1, %rd1, %rd2;
    ld.global.f32 %f1, [%rd1];
    mul.f32 %f1, %f1, 0f40400000;
    st.global.f32 [%rd1], %f1;
    ret;
}
";

ptx! { unsafe = TIMES_THREE }

#[allow(unused_macros)]
macro_rules! module_path {
    () => {
        "thalweg_kernels::vision::entropy"
    };
}
#[allow(unused_macros)]
macro_rules! stringify {
    ($($t:tt)*) => {
        "entropy"
    };
}
#[allow(unused_macros)]
macro_rules! concat {
    ($($t:tt)*) => {
        "entropy__u32_u32_u32_ru8_wf32"
    };
}
#[allow(unused_macros)]
macro_rules! env {
    ($($t:tt)*) => {
        "thalweg-kernels"
    };
}

/// Modules with the names of those in which `thalweg-kernels` declares `entropy`.
pub mod vision {
    pub mod entropy {
        use thalweg_simt::kernel;

        kernel! {
            /// This body does nothing, so it is sound for every argument. The kernel of the same
            /// signature in `thalweg-kernels` reads `height * width * 3` bytes.
            pub unsafe fn entropy(cx: impl Simt, height: u32, width: u32, patch: u32, rgb: In<u8>, entropy: Out<f32>)
            grid(1024) block(32)
            {}
        }
    }
}

/// Declares a kernel with the name and signature of one in the test.
pub mod scale {
    use thalweg_simt::kernel;

    kernel! {
        /// Computes `x = 3 x`.
        pub unsafe fn scale(cx: impl Simt, n: u32, x: InOut<f32>)
        require { x.len() >= n }
        grid(n.div_ceil(256)) block(256)
        {
            let i = cx.global_x();
            if i < n {
                x.set(cx, i as usize, 3.0 * x.get(cx, i as usize));
            }
        }
    }
}

/// Gives other meanings to names that `kernel!` uses.
pub mod shadowed {
    use thalweg_simt::kernel;

    /// Always returns `None`.
    #[allow(non_snake_case, dead_code)]
    fn Some<T>(_: T) -> Option<T> {
        Option::None
    }

    kernel! {
        /// Computes `x = 3 x`, if `kernel!` does not use the names declared above.
        pub unsafe fn scale(cx: impl Simt, n: u32, x: InOut<f32>)
        require { x.len() >= n }
        grid(n.div_ceil(256)) block(256)
        {
            let i = cx.global_x();
            if i < n {
                x.set(cx, i as usize, 3.0 * x.get(cx, i as usize));
            }
        }
    }
}
