//! A group that is kept open, to add messages to it later.
use thalweg::Tag;
use thalweg_collective::{Comm, Result};

fn keep<S: Tag>(comm: &mut Comm<S>) -> Result<()> {
    let mut kept = None;
    comm.group(|group| {
        kept = Some(group); // bug
        //~^ E0521 `group`
        kept = Some(format!("{group:?}")); // fix
        Ok(())
    })
}

fn main() {}
