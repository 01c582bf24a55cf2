//! An operation between the buckets of a backward pass: other ranks would meet it elsewhere.
use thalweg::{Device, stream_tags};
use thalweg_collective::{BucketSizes, Error, Gradients, Mean, Result, World};

stream_tags!(Compute, Reduce);

fn main() -> Result<()> {
    let device = Device::cpu()?;
    let (compute, reduce) = (device.stream::<Compute>()?, device.stream::<Reduce>()?);
    let mut comm = World::single().comm(reduce)?;
    let gradients = Gradients::<_, f32>::new(&compute, &[8], BucketSizes::default())?;
    comm.barrier()?; // fix
    let (mut pass, grads) = comm.backward(Mean, gradients)?;
    comm.barrier()?; // bug
    //~^ E0499 `comm`
    for grad in grads {
        pass.mark_ready(grad)?;
    }
    _ = pass.finish(|_, _| Ok::<_, Error>(()))?;
    Ok(())
}
