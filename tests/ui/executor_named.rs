//! The launchers' own tools, by the vocabulary of kernels.
use thalweg::simt::host::Slots; // bug
//~^ E0432 `host`
use thalweg::simt::Simt; // fix

fn main() {
    fn threads(cx: impl Simt) -> u32 { // fix
        cx.block_dim().x // fix
    } // fix
}
