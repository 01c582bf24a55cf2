//! A buffer of an ordinary stream in an operation of the stream under capture.
use thalweg::{Device, stream_tags};

stream_tags!(Work);

fn main() -> thalweg::Result<()> {
    let work = Device::cpu()?.stream::<Work>()?;
    let image = work.alloc::<u8>(16)?;
    let mut copy = work.alloc::<u8>(16)?; // bug
    let copy = work.alloc::<u8>(16)?; // fix
    work.capture((image,), |s, (image,)| { // bug
        s.copy(image, &mut copy) // bug
        //~^ E0308 `DeviceSlice<Capture<'_>, u8>` `On<Work, DeviceBuffer<u8>>`
    })?; // bug
    work.capture((image, copy), |s, (image, copy)| s.copy(image, copy))?; // fix
    Ok(())
}
