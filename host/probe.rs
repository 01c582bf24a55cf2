//! A kernel that keeps one warp busy and does nothing else.
//!
//! ```text
//! in each of 32 threads:
//!     h = own number; repeat rounds times: h = (h xor h >> 15) * odd
//!     out[thread] = h
//! ```
//!
//! Launch: one block of 32 threads.
//! Memory: nothing is read, and 128 bytes are written. So its time depends on the clock of one
//! multiprocessor only, and two of them on two streams run at once on every device that runs
//! streams at once.

use thalweg_simt::kernel;

kernel! {
    /// Keeps one warp busy for `rounds` dependent steps, and leaves a hash of each thread's number
    /// in `out` \[32\].
    pub unsafe fn probe(cx: impl Simt, rounds: u32, out: Out<u32>)
    require { out.len() == 32 }
    grid(1) block(32)
    {
        let mut h = cx.global_x();
        let mut round = 0;
        while round < rounds {
            h = (h ^ h >> 15).wrapping_mul(0x2c1b_3c6d);
            round += 1;
        }
        out.set(cx, cx.global_x() as usize, h);
    }
}
