//! The lane itself taken out of its closure.
use thalweg::{Device, StreamPool};

fn main() -> thalweg::Result<()> {
    let pool = StreamPool::new(Device::cpu()?, 2)?;
    let lane = pool.with_stream(|s| *s); // bug
    //~^ error `Stream<Scoped<`
    let lane = pool.with_stream(|s| s.unique_id()); // fix
    println!("{lane:?}");
    Ok(())
}
