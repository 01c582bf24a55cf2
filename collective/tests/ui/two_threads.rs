//! Two threads on one communicator, whose operations would have no order.
use std::thread;

use thalweg::Tag;
use thalweg_collective::Comm;

fn both<S: Tag + Send>(comm: &mut Comm<S>) {
    thread::scope(|threads| {
        threads.spawn(|| comm.barrier());
        threads.spawn(|| comm.barrier()); // bug
        //~^ E0499 `*comm`
    });
    thread::scope(|threads| _ = threads.spawn(|| comm.barrier())); // fix
}

fn main() {}
