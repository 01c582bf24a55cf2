//! An owner that lets every thread write every element.
use thalweg::simt::Simt;
use thalweg::simt::safe::Owner; // bug

struct Everyone;

impl Owner<1> for Everyone { // bug
    //~^ E0277 `Sealed` `Everyone`
    fn first(_: impl Simt, at: &mut [u32; 1], _: [u32; 1]) -> bool { at[0] = 0; true } // bug
    fn next(_: impl Simt, _: &mut [u32; 1], _: [u32; 1]) -> bool { false } // bug
    fn each(_: impl Simt, _: [u32; 1], mut f: impl FnMut([u32; 1])) { f([0]) } // bug
    fn owns(_: impl Simt, _: [u32; 1]) -> bool { true } // bug
    const ALL: u8 = 0; // bug
} // bug

fn main() {
    fn threads(cx: impl Simt) -> u32 { // fix
        cx.block_dim().x // fix
    } // fix
    let _ = Everyone;
}
