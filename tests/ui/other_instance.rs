//! The same stream of two instances of one object.
use thalweg::{Device, Stream, Tag, Within, stream_tags};

stream_tags!(Upload, Left, Right);

struct Pipeline<I: Tag> {
    up: Stream<Within<I, Upload>>,
}

fn main() -> thalweg::Result<()> {
    let gpu = Device::cpu()?;
    let left = Pipeline::<Left> { up: gpu.stream()? };
    let right = Pipeline::<Right> { up: gpu.stream()? };
    let mut image = left.up.alloc::<u8>(16)?;
    right.up.zero(&mut image)?; // bug
    //~^ E0308 `DeviceSlice<Within<Right, Upload>` `On<Within<Left, Upload>`
    left.up.zero(&mut image)?; // fix
    Ok(())
}
