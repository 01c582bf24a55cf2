//! A thread's own stream used from another thread.
use thalweg::Device;

fn main() -> thalweg::Result<()> {
    let gpu = Device::cpu()?;
    gpu.per_thread(|s| {
        std::thread::scope(|threads| {
            threads.spawn(|| s.synchronize()); // bug
            //~^ E0277 `Stream<PerThread<'_>>` `cannot be shared between threads safely`
            threads.spawn(|| gpu.per_thread(|s| s.synchronize())); // fix
        });
        s.synchronize()
    })?
}
