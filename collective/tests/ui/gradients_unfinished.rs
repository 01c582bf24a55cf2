//! The gradients of the last pass, read before they are back.
use thalweg::{Device, stream_tags};
use thalweg_collective::{BucketSizes, Error, Gradients, Mean, Result, World};

stream_tags!(Compute, Reduce);

fn main() -> Result<()> {
    let device = Device::cpu()?;
    let (compute, reduce) = (device.stream::<Compute>()?, device.stream::<Reduce>()?);
    let mut comm = World::single().comm(reduce)?;
    let gradients = Gradients::<_, f32>::new(&compute, &[8], BucketSizes::default())?;
    compute.read_blocking(&gradients)?; // fix
    let (mut pass, grads) = comm.backward(Mean, gradients)?;
    for grad in grads {
        pass.mark_ready(grad)?;
    }
    compute.read_blocking(&gradients)?; // bug
    //~^ E0382 `gradients`
    _ = pass.finish(|_, _| Ok::<_, Error>(()))?;
    Ok(())
}
