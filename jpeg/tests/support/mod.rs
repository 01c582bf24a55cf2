//! Decoding on every device, and reading the images back.

use std::path::Path;

use thalweg::{Device, DeviceBuffer, On, PerThread, Stream};
use thalweg_jpeg::{DecodedImage, Decoder, HostDecoder, JpegError, outline};

/// The folder of the golden files, from the folder of this crate or of a bundle of tests.
#[allow(dead_code, reason = "some tests read no files")]
pub(crate) fn golden_folder() -> &'static Path {
    let folders = ["../tests/golden/jpeg", "tests/golden/jpeg"].map(Path::new);
    folders.into_iter().find(|folder| folder.is_dir()).expect("the golden files are missing")
}

/// Decodes a batch and reads all images back.
#[allow(dead_code, reason = "some tests decode with decoders of their own")]
pub(crate) fn decode<'l>(
    stream: &Stream<PerThread<'l>>,
    files: &[&[u8]],
) -> Vec<Result<(DecodedImage, Vec<u8>), JpegError>> {
    let mut decoder = Decoder::new(stream.device());
    let batch = decoder.read(files).unwrap();
    let images = decoder.decode(stream, batch).unwrap().synchronize().unwrap();
    let found: Vec<_> = (0..images.len()).map(|i| images.image(i)).collect();
    let on: On<PerThread<'l>, DeviceBuffer<u8>> = stream.bind(images.rgb).unwrap();
    // Only the images: nobody has written what lies between them, and
    // `compute-sanitizer --tool initcheck` would report that copy.
    let read = |image: DecodedImage| (image.clone(), stream.read_blocking(on.slice(image.bytes).unwrap()).unwrap());
    found.into_iter().map(|image| image.map(read)).collect()
}

/// Runs `check` on each device of this machine, and says which they are.
#[allow(dead_code, reason = "some tests need a lock for each device")]
pub(crate) fn on_each_device(mut check: impl for<'l> FnMut(&Stream<PerThread<'l>>)) {
    for device in Device::all() {
        eprintln!("covered: {device} ({})", device.name());
        device.per_thread(&mut check).unwrap();
    }
}

/// Decodes a file on the host: height and width, and the pixels.
#[allow(dead_code, reason = "some tests only decode on devices")]
pub(crate) fn decode_on_host(decoder: &mut HostDecoder, file: &[u8]) -> Result<([u32; 2], Vec<u8>), JpegError> {
    let outline = outline(file)?;
    let mut rgb = vec![0; 3 * outline.height as usize * outline.width as usize];
    let before = decoder.memory();
    let decoded = decoder.decode(file, &mut rgb);
    assert!(decoder.memory() <= before + outline.scratch, "{before}, {} and {}", outline.scratch, decoder.memory());
    decoded?;
    Ok(([outline.height, outline.width], rgb))
}
