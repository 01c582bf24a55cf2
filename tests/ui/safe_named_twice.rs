//! Two parameters that a macro names alike. The compiler for the GPU could take the other one for
//! the extent.
use thalweg::{kernel, ptx};

ptx! {}

macro_rules! declare {
    ($n:ident) => {
        kernel! {
            fn k(t: impl Simt, $n: u32, n: u32, x: In<f32>[n]) // bug
            fn k(t: impl Simt, $n: u32, x: In<f32>[n]) // fix
            grid(1) block(32)
            {
                let _ = x.get(t, [0]);
            }
        }
    };
}
declare!(n);
//~ E0124 `already declared`
//~ E0062 `specified more than once`

fn main() {}
