//! A step that writes an atomic variable of the block through a reference.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    fn k(b: impl Cooperative)
    grid(1) block(32)
    {
        let rank = core::sync::atomic::AtomicU32::new(0);
        let rank = &rank; // bug
        //~^ E0597 `rank` `'k`
        b.each((), move |t, ()| rank.store(t.rank(), core::sync::atomic::Ordering::Relaxed)); // bug
        b.each((), |t, ()| t.rank()); // fix
        if rank.load(core::sync::atomic::Ordering::Relaxed) == 0 { b.sync(()) }
    }
}

fn main() {}
