//! Lets several streams read one image at once, without a copy for each stream.
//!
//! ```text
//! upload   | image |                                    | next image
//! stream 0           | entropy, patches of 16 |
//! stream 1           | entropy, patches of 32     |
//! stream 2           | entropy, patches of 64        |
//! stream 3           | entropy, patches of 128      |
//! ```
//!
//! ```text
//! cargo run --release --example shared_read -- --timeline shared_read.svg
//! ```
//!
//! The stream `upload` takes the buffer back for the next image. It waits on the device for all
//! readers, and no reader can be forgotten.

#[path = "support/mod.rs"]
mod support;

use thalweg::overlap::shared_read;
use thalweg::{
    Activity, DeviceSlice, Error, Event, LiveBrand, PinnedBuffer, Stream, StreamPool, Timeline, stream_tags,
};
use thalweg_vision::kernels;

stream_tags!(Upload);

/// The sides of the patches, one for each reader.
const PATCHES: [u32; 4] = [16, 32, 64, 128];

fn main() -> Result<(), Error> {
    let args =
        support::Arguments::parse("Lets four streams read one image at once, and compares time and copied bytes.");
    let device = args.device()?;
    let timeline = args.timeline(device)?;
    let side = support::sized(device, 2048, 256);
    let mut images = support::images(device, 2, side, side)?.split_even(2)?.into_iter();
    let (Some(image), Some(next)) = (images.next(), images.next()) else { unreachable!("two pieces") };
    let bytes = image.len();
    let (up, pool) = (device.stream::<Upload>()?, StreamPool::new(device, PATCHES.len())?);

    // Serial: one stream runs one reader after another.
    let rgb = up.upload_blocking(&image)?;
    let mut serial = Vec::new();
    let alone = support::least(3, || {
        let maps = PATCHES.map(|patch| entropies(&up, side, patch, &rgb, &Timeline::disabled()));
        serial = maps.into_iter().map(finish).collect::<Result<Vec<_>, _>>()?;
        Ok::<_, Error>(())
    })?;

    // Each reader gets a copy.
    let copied = support::least(3, || {
        let copies = PATCHES.map(|patch| {
            let mut own = up.alloc(bytes)?;
            up.copy(&rgb, &mut own)?;
            let own = up.record(own)?;
            pool.with_stream(|s| entropies(s, side, patch, &s.wait(own)?, &Timeline::disabled()))
        });
        let maps = copies.into_iter().map(finish).collect::<Result<Vec<_>, _>>()?;
        assert_eq!(maps, serial);
        Ok::<_, Error>(())
    })?;

    // All readers share one image.
    let shared = up.share(rgb)?;
    let read = || shared_read(&pool, &shared, PATCHES, |s, rgb, patch| entropies(s, side, patch, rgb, &timeline));
    let together = support::least(3, || {
        assert_eq!(read().into_iter().map(finish).collect::<Result<Vec<_>, _>>()?, serial);
        Ok::<_, Error>(())
    })?;
    // Enqueue the next image into the same buffer while the readers are under way. The copy runs
    // after them.
    let maps = read();
    let mut rgb = up.unshare(shared)?;
    timeline.span(&up, Activity::Upload, "next image", || up.copy_to_device(&up.bind(next)?, &mut rgb))?;
    assert_eq!(maps.into_iter().map(finish).collect::<Result<Vec<_>, _>>()?, serial);
    assert_ne!(finish(entropies(&up, side, PATCHES[0], &rgb, &timeline))?, serial[0]);

    let [alone, copied, together] = [alone, copied, together].map(|time| 1e6 * time.as_secs_f64());
    println!("one stream        {alone:7.0} us");
    println!("a copy for each   {copied:7.0} us, {:.1} MB copied", (PATCHES.len() * bytes) as f64 / 1e6);
    println!("shared            {together:7.0} us, 0 bytes copied");
    args.finish(&timeline)
}

/// Enqueues the entropies of the patches, and their download.
fn entropies<S: LiveBrand>(
    s: &Stream<S>,
    side: u32,
    patch: u32,
    rgb: &DeviceSlice<S, u8>,
    timeline: &Timeline,
) -> Result<Event<PinnedBuffer<f32>>, Error> {
    let patches = (side.div_ceil(patch) * side.div_ceil(patch)) as usize;
    let (mut map, mut host) = (s.alloc(patches)?, s.bind(s.device().pinned(patches)?)?);
    let label = format!("patches of {patch}");
    timeline.span(s, Activity::Compute, &label, || kernels::entropy(s, side, side, patch, rgb, &mut map))?;
    timeline.span(s, Activity::Download, &label, || s.copy_to_host(&map, &mut host))?;
    Ok(s.record(host)?)
}

fn finish(map: Result<Event<PinnedBuffer<f32>>, Error>) -> Result<Vec<f32>, Error> {
    Ok(map?.synchronize()?.to_vec())
}
