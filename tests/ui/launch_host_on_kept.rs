//! Memory of a host function that is kept after it, when the stream may write it again.
use std::sync::{Arc, Mutex};

use thalweg::{Device, stream_tags};

stream_tags!(Work);

fn main() -> thalweg::Result<()> {
    let gpu = Device::cpu()?;
    let work = gpu.stream::<Work>()?;
    let mut host = work.bind(gpu.pinned::<u8>(16)?)?;
    let kept: Arc<Mutex<Vec<&'static mut [u8]>>> = Arc::default(); // bug
    let kept: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default(); // fix
    let keep = kept.clone();
    work.launch_host_on(&mut host, move |x| keep.lock().unwrap().push(x))?; // bug
    //~^ E0521 `borrowed data escapes`
    work.launch_host_on(&mut host, move |x| keep.lock().unwrap().push(x.to_vec()))?; // fix
    Ok(())
}
