//! The communicator of one rank on a buffer of another one.
use thalweg::{DeviceRank, stream_tags};
use thalweg_collective::{Result, Sum, World};

stream_tags!(Reduce);

fn program(a: DeviceRank<'_>, b: DeviceRank<'_>, world: World) -> Result<()> {
    let b = a; // fix
    let mut comm = world.comm(a.stream::<Reduce>()?)?;
    //~^ error `lifetime may not live long enough`
    let mut x = b.stream::<Reduce>()?.alloc_zeroed::<f32>(8)?;
    //~^ error `lifetime may not live long enough`
    comm.all_reduce_in_place(Sum, &mut x)
}

fn main() {}
