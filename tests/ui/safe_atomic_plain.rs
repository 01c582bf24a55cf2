//! An ordinary write to a buffer for atomic operations.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    fn k(t: impl Simt, n: u32, z: Atomic<u32>[n])
    grid(1) block(32)
    {
        z.set(t, [0], 1); // bug
        //~^ E0599 `set` `Atomic<`
        z.add(t, [0], 1); // fix
    }
}

fn main() {}
