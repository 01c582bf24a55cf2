//! The input of a model, used on a stream that did not wait for the processor.
use thalweg::{Device, stream_tags};
use thalweg_processor::{DeviceImage, DeviceProcessor, Processor};

stream_tags!(Process, Model);

fn main() -> thalweg_processor::Result<()> {
    let gpu = Device::cpu()?;
    let (process, model) = (gpu.stream::<Process>()?, gpu.stream::<Model>()?);
    let rgb = process.upload_blocking(&[128; 12])?;
    let mut processor = DeviceProcessor::<f32>::new(Processor::siglip(8)?);
    let inputs = processor.process(&process, &rgb, &[DeviceImage { start: 0, height: 2, width: 2 }])?;
    let inputs = process.wait(inputs)?; // bug
    let inputs = model.wait(inputs)?; // fix
    let mut copy = model.alloc::<f32>(192)?;
    model.copy(&inputs.pixel_values, &mut copy)?;
    //~^ E0308 `DeviceSlice<Model,` `On<Process, DeviceBuffer<`
    Ok(())
}
