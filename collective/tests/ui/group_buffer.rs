//! A buffer of a group that is gone before the group is enqueued.
use thalweg::Tag;
use thalweg_collective::{Comm, Result};

fn send<S: Tag>(comm: &mut Comm<S>) -> Result<()> {
    let stream = comm.stream();
    let x = stream.alloc_zeroed::<f32>(8)?; // fix
    comm.group(|group| {
        let x = stream.alloc_zeroed::<f32>(8)?; // bug
        group.send(1, &x)
        //~^ E0597 `x`
    })
}

fn main() {}
