//! A thread's own stream taken out of its closure.
use thalweg::Device;

fn main() -> thalweg::Result<()> {
    let gpu = Device::cpu()?;
    let stream = gpu.per_thread(|s| *s)?; // bug
    //~^ error `Stream<PerThread<`
    let stream = gpu.per_thread(|s| s.unique_id())?; // fix
    println!("{stream:?}");
    Ok(())
}
