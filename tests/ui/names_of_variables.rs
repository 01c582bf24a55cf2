//! Constants that are called like variables of `kernel!`. A pattern with such a name would be a
//! comparison, so none of them compiles. (Functions and types may be called so.)
#![allow(non_upper_case_globals)]
use thalweg::ptx;

ptx! {}

mod on {
    const on: &str = "shadowed"; // bug

    thalweg::kernel! {
        //~^ E0308 `mismatched types`
        //~^ E0277 `cannot launch on buffers`
        unsafe fn k(t: impl Simt, n: u32, y: Out<u32>) require { n > 0 } grid(1) block(1) {}
    }
    thalweg::kernel! {
        //~^ E0308 `mismatched types`
        //~^ E0277 `cannot launch on buffers`
        fn s(t: impl Simt, n: u32, y: Out<u32>[n] by [x]) grid(1) block(1) {}
    }
}
mod slots {
    const slots: &str = "shadowed"; // bug

    thalweg::kernel! {
        //~^ E0308 `mismatched types`
        //~^ E0530 `let bindings cannot shadow constants`
        unsafe fn k(t: impl Simt, n: u32, y: Out<u32>) require { n > 0 } grid(1) block(1) {}
    }
    thalweg::kernel! {
        //~^ E0308 `mismatched types`
        //~^ E0530 `let bindings cannot shadow constants`
        fn s(t: impl Simt, n: u32, y: Out<u32>[n] by [x]) grid(1) block(1) {}
    }
}
mod shape {
    const shape: &str = "shadowed"; // bug

    thalweg::kernel! {
        //~^ E0308 `mismatched types`
        unsafe fn k(t: impl Simt, n: u32, y: Out<u32>) require { n > 0 } grid(1) block(1) {}
    }
    thalweg::kernel! {
        //~^ E0308 `mismatched types`
        fn s(t: impl Simt, n: u32, y: Out<u32>[n] by [x]) grid(1) block(1) {}
    }
}
mod kernel {
    const kernel: &str = "shadowed"; // bug

    thalweg::kernel! {
        //~^ E0308 `mismatched types`
        unsafe fn k(t: impl Simt, n: u32, y: Out<u32>) require { n > 0 } grid(1) block(1) {}
    }
    thalweg::kernel! {
        //~^ E0308 `mismatched types`
        fn s(t: impl Simt, n: u32, y: Out<u32>[n] by [x]) grid(1) block(1) {}
    }
}
mod unmet {
    const unmet: &str = "shadowed"; // bug

    thalweg::kernel! {
        //~^ E0308 `mismatched types`
        unsafe fn k(t: impl Simt, n: u32, y: Out<u32>) require { n > 0 } grid(1) block(1) {}
    }
    thalweg::kernel! {
        //~^ E0308 `mismatched types`
        fn s(t: impl Simt, n: u32, y: Out<u32>[n] by [x]) grid(1) block(1) {}
    }
}
mod block {
    const block: &str = "shadowed"; // bug

    thalweg::kernel! {
        //~^ E0308 `mismatched types`
        unsafe fn k(t: impl Simt, n: u32, y: Out<u32>) require { n > 0 } grid(1) block(1) {}
    }
    thalweg::kernel! {
        //~^ E0308 `mismatched types`
        fn s(t: impl Simt, n: u32, y: Out<u32>[n] by [x]) grid(1) block(1) {}
    }
}
mod cx {
    const cx: &str = "shadowed"; // bug

    thalweg::kernel! {
        //~^ E0308 `mismatched types`
        //~^ E0277 `Simt` `is not satisfied`
        unsafe fn k(t: impl Simt, n: u32, y: Out<u32>) require { n > 0 } grid(1) block(1) {}
    }
    thalweg::kernel! {
        //~^ E0308 `mismatched types`
        fn s(t: impl Simt, n: u32, y: Out<u32>[n] by [x]) grid(1) block(1) {}
    }
}
mod known {
    const known: &str = "shadowed"; // bug

    thalweg::kernel! {
        unsafe fn k(t: impl Simt, n: u32, y: Out<u32>) require { n > 0 } grid(1) block(1) {}
    }
    thalweg::kernel! {
        //~^ E0308 `mismatched types`
        //~ E0609 `no field `
        fn s(t: impl Simt, n: u32, y: Out<u32>[n] by [x]) grid(1) block(1) {}
    }
}

fn main() {}
