//! A step that is given something else than handles of its block.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    fn k(b: impl Cooperative)
    grid(1) block(32)
    {
        let rank = core::sync::atomic::AtomicU32::new(0);
        b.each(&rank, |t, rank| rank.store(t.rank(), core::sync::atomic::Ordering::Relaxed)); // bug
        //~^ E0277 `a thread step cannot take `
        b.each((), |t, ()| t.rank()); // fix
        if rank.into_inner() == 0 { b.sync(()) }
    }
}

fn main() {}
