//! An instance whose type does not have the bound of the declaration.
use thalweg::{kernel, ptx};

ptx! {}

trait Signed {}
impl Signed for i32 {}

kernel! {
    unsafe fn negate<T: Signed>(cx: impl Simt, n: u32, x: InOut<T>)
    instances {
        negate_u32 = <u32>, // bug
        //~^ E0277 `u32: Signed`
        negate_i32 = <i32>, // fix
    }
    require { x.len() == n }
    grid(n) block(1)
    {
        let i = cx.global_x();
        x.set(cx, i, !x.get(cx, i) + 1);
    }
}

fn main() {}
