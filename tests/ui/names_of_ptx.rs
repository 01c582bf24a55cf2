//! A variable in the place of the one that `ptx!` declares. Only `unsafe` makes one that has texts.
use thalweg_simt::host::Ptx;

pub(crate) static PTX: Ptx = Ptx::new(&["not the kernel's"]); // bug
//~^ E0133 `Ptx::new` `unsafe`
thalweg::ptx! {} // fix

thalweg::kernel! {
    unsafe fn k(cx: impl Simt) grid(1) block(1) {}
}

fn main() {
    let _: &Ptx = &crate::PTX;
}
