//! A host function that owns what belongs to one thread.
use std::rc::Rc; // bug
use std::sync::Arc; // fix

use thalweg::{Device, stream_tags};

stream_tags!(Work);

fn main() -> thalweg::Result<()> {
    let work = Device::cpu()?.stream::<Work>()?;
    let name = Rc::new("frame 1"); // bug
    let name = Arc::new("frame 1"); // fix
    work.launch_host(move || println!("{name}"))?;
    //~^ E0277 `Rc<&str>` `cannot be sent between threads safely`
    work.synchronize()
}
