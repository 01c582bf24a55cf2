//! Images that one stream makes, processed on another.
use thalweg::{Device, stream_tags};
use thalweg_processor::{DeviceImage, DeviceProcessor, Processor};

stream_tags!(Decode, Process);

fn main() -> thalweg_processor::Result<()> {
    let gpu = Device::cpu()?;
    let (decode, process) = (gpu.stream::<Decode>()?, gpu.stream::<Process>()?);
    let rgb = decode.upload_blocking(&[128; 12])?;
    let rgb = decode.hand_off(rgb, &process)?; // fix
    let mut processor = DeviceProcessor::<f32>::new(Processor::siglip(8)?);
    processor.process(&process, &rgb, &[DeviceImage { start: 0, height: 2, width: 2 }])?;
    //~^ E0308 `DeviceSlice<Process,` `On<Decode, DeviceBuffer<`
    Ok(())
}
