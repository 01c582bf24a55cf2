//! A host function that owns a reference to the stack.
use thalweg::{Device, stream_tags};

stream_tags!(Work);

fn main() -> thalweg::Result<()> {
    let work = Device::cpu()?.stream::<Work>()?;
    let name = String::from("frame 1");
    let text = name.as_str(); // bug
    //~^ E0597 `name`
    let text = name; // fix
    work.launch_host(move || println!("{text}"))?;
    work.synchronize()
}
