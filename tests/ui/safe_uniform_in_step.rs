//! Shared memory that a step reads for the block.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    fn k(b: impl Cooperative)
    grid(1) block(32) shared(32 * 4)
    {
        let filled = b.shared::<u32>(32);
        let filled = b.fill(filled, (), |_, (), i| i);
        let filled = b.sync(filled.read());
        b.each(&filled, |t, filled| filled.uniform(t, 3)); // bug
        //~^ E0308 `Block<`
        let three = filled.uniform(&b, 3); // fix
        if three == 3 { // fix
            b.sync(()); // fix
        } // fix
    }
}

fn main() {}
