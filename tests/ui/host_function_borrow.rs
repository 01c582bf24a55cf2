//! A host function that borrows the stack of the thread that enqueues it.
use thalweg::{Device, stream_tags};

stream_tags!(Work);

fn main() -> thalweg::Result<()> {
    let work = Device::cpu()?.stream::<Work>()?;
    let name = String::from("frame 1");
    work.launch_host(|| println!("{name}"))?; // bug
    //~^ E0373 `name`
    work.launch_host(move || println!("{name}"))?; // fix
    work.synchronize()
}
