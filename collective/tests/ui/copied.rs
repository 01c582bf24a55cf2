//! A second handle of a communicator.
use thalweg::Tag;
use thalweg_collective::{Comm, Result};

fn twice<S: Tag>(comm: &mut Comm<S>) -> Result<()> {
    let other = comm.clone(); // bug
    //~^ E0599 `clone`
    comm.barrier()?; // fix
    comm.barrier()
}

fn main() {}
