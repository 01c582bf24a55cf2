//! Types that are called like the parameters of generics of a launcher. A clause and a body meant
//! those: a requirement compared with the size of the stream's tag.
#![allow(non_camel_case_types)]
use thalweg::{by_value, kernel, ptx};

ptx! {}

type __S = [u64; 100]; // bug
type __L = [u64; 100]; // bug
type Mine = [u64; 100]; // fix

kernel! {
    unsafe fn tag(cx: impl Simt, y: Out<u64>)
    require { y.len() == size_of::<__S>() as u128 / 8 } // bug
    //~^ E0573 `expected type, found module `
    require { y.len() == size_of::<Mine>() as u128 / 8 } // fix
    grid(1) block(1)
    {}
}
kernel! {
    fn launcher(t: impl Simt, n: u32, y: Out<u64>[n] by [x])
    require { y.len() == size_of::<__L>() as u128 / 8 } // bug
    //~^ E0573 `expected type, found module `
    require { y.len() == size_of::<Mine>() as u128 / 8 } // fix
    grid(1) block(1)
    {}
}
kernel! {
    unsafe fn body(cx: impl Simt, y: Out<u64>)
    grid(1) block(1)
    {
        y.set(cx, 0, size_of::<__S>() as u64); // bug
        //~^ E0401 `outer item`
        y.set(cx, 0, size_of::<Mine>() as u64); // fix
    }
}
by_value! {
    #[derive(Clone, Copy)]
    struct __ThalwegMonitor { // bug
    struct Monitor { // fix
        n: u32,
    }
}
kernel! {
    //~^ E0308 `mismatched types`
    unsafe fn monitor(cx: impl Simt, m: __ThalwegMonitor) // bug
    unsafe fn monitor(cx: impl Simt, m: Monitor) // fix
    grid(1) block(1)
    {}
}

fn main() {}
