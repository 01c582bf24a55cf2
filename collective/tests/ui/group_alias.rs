//! A group that receives into what it sends.
use thalweg::{DeviceSlice, Tag};
use thalweg_collective::{Comm, Result};

fn swap<S: Tag>(comm: &mut Comm<S>, x: &mut DeviceSlice<S, f32>, y: &mut DeviceSlice<S, f32>) -> Result<()> {
    comm.group(|group| {
        group.send(1, x)?;
        group.recv(1, y)?; // fix
        group.recv(1, x)?; // bug
        //~^ E0502 `*x`
        Ok(())
    })
}

fn main() {}
