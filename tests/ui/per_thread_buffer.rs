//! What a thread's own stream orders, moved to another thread.
use thalweg::Device;

fn main() -> thalweg::Result<()> {
    Device::cpu()?.per_thread(|s| {
        let x = s.alloc::<u8>(16)?;
        let x = s.record(x)?; // fix
        std::thread::scope(|threads| {
            threads.spawn(move || drop(x));
            //~^ E0277 `On<PerThread<'_>, DeviceBuffer<u8>>` `cannot be sent between threads safely`
        });
        Ok(())
    })?
}
