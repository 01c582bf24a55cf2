//! Shared memory and warp operations of threads that are declared independent, and a function for
//! cooperating threads that gets such a thread.
use thalweg::simt::Cooperative;
use thalweg::{kernel, ptx};

ptx! {}

fn sum(cx: impl Cooperative, v: u32) -> u32 {
    cx.warp_sum_u32(v)
}

kernel! {
    unsafe fn meet(cx: impl Simt, out: Out<u32>) // bug
    unsafe fn meet(cx: impl Cooperative, out: Out<u32>) // fix
    require { out.len() == 32 }
    grid(1) block(32) shared(128)
    {
        let window = cx.shared::<u32>(0);
        //~^ E0277 `have no barriers, shared memory and warp operations` `cx: impl Cooperative`
        cx.shared_set(window, 0, cx.thread_idx().x);
        //~^ E0277 `have no barriers, shared memory and warp operations` `cx: impl Cooperative`
        let v = cx.shuffle_xor(1, 1);
        //~^ E0277 `have no barriers, shared memory and warp operations` `cx: impl Cooperative`
        out.set(cx, 0, sum(cx, v));
        //~^ E0277 `have no barriers, shared memory and warp operations` `cx: impl Cooperative`
    }
}

fn main() {}
