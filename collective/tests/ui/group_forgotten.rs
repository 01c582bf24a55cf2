//! A group that is made and forgotten: there is none outside of the call that ends it.
use thalweg::Tag;
use thalweg_collective::{Comm, MessageGroup, Result};

fn forget<S: Tag>(comm: &mut Comm<S>) -> Result<()> {
    std::mem::forget(MessageGroup::<S> {}); // bug
    //~^ error `private fields`
    comm.group(|group| Ok(std::mem::forget(group)))
}

fn main() {}
