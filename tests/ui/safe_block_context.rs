//! Code of the block that asks for a thread's context, and so for what differs between the threads.
use thalweg::kernel;
use thalweg::simt::Simt;
use thalweg::simt::safe::Witness; // bug

thalweg::ptx! {}

kernel! {
    fn diverges(b: impl Cooperative)
    grid(1) block(32)
    {
        let first = b.context().thread_idx().x == 0; // bug
        //~^ E0133 `context` `unsafe`
        let first = b.idx().x == 0; // fix
        if first {
            b.sync(());
        }
    }
}

fn main() {
    fn _threads(cx: impl Simt) -> u32 {
        cx.block_dim().x
    }
}
