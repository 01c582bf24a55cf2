//! A gradient that is written after it was handed in, while it may be reduced.
use thalweg::{Device, stream_tags};
use thalweg_collective::{BucketSizes, Error, Gradients, Mean, Result, World};

stream_tags!(Compute, Reduce);

fn main() -> Result<()> {
    let device = Device::cpu()?;
    let (compute, reduce) = (device.stream::<Compute>()?, device.stream::<Reduce>()?);
    let mut comm = World::single().comm(reduce)?;
    let gradients = Gradients::<_, f32>::new(&compute, &[8], BucketSizes::default())?;
    let (mut pass, mut grads) = comm.backward(Mean, gradients)?;
    let mut grad = grads.pop().expect("there is one");
    compute.fill(&mut grad, 1.0)?; // fix
    pass.mark_ready(grad)?;
    compute.fill(&mut grad, 1.0)?; // bug
    //~^ E0382 `grad`
    _ = pass.finish(|_, _| Ok::<_, Error>(()))?;
    Ok(())
}
