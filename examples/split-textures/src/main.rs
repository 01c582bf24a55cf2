//! Computes the planes of images by three kernels on three streams, and compares the planes and the
//! time with those of the fused kernel on one stream.
//!
//! ```text
//! Colors | colors 0       | colors 1       | ...
//! Lab     | lab 0   | lab 1   | lab 2 ...
//! Edges   | edges 0    | edges 1    | ...
//! ```
//!
//! ```text
//! cargo run --release -- --timeline split.svg
//! ```
//!
//! All three kernels wait for memory, so they share its rate, and each of them reads the image
//! again. The fused kernel reads it once. On an H200, a 4K image took 120.5 us by the fused kernel,
//! 131.5 us by three streams that join after each image, and 128.0 us if they join at the end. A
//! small image does not fill the device by one kernel, so more of them at once help: 33.0, 31.4 and
//! 29.2 us for 1080 x 1920.

#[path = "../../support/mod.rs"]
mod support;

use std::time::Duration;

use split_textures::{colors, edges, lab};
use support::{Arguments, least, sized};
use thalweg::{Activity, Device, DeviceBuffer, Error, On, Shared, Stream, Timeline, stream_tags};
use thalweg_vision::kernels::textures;

stream_tags!(Colors, Lab, Edges);

const FIXATION: [f32; 2] = [0.5, 0.5];

fn main() -> Result<(), Error> {
    let args = Arguments::parse("Compares three kernels on three streams with one fused kernel on one.");
    let device = args.device()?;
    let timeline = args.timeline(device)?;
    println!("{:>11} {:>10} {:>20} {:>18}", "image", "fused", "split, joined after", "split, joined at");
    println!("{:>11} {:>10} {:>20} {:>18}", "", "", "each image", "the end");
    let sizes: &[[u32; 2]] = sized(device, &[[2160, 3840], [1080, 1920]], &[[96, 256], [97, 4]]);
    for (i, &[height, width]) in sizes.iter().enumerate() {
        let mut job = Job::new(device, height, width)?;
        let [fused, each, end] = [
            job.time(|job| job.fused())?,
            job.time(|job| job.split(Join::EachImage, &Timeline::disabled()))?,
            job.time(|job| job.split(Join::End, &Timeline::disabled()))?,
        ];
        job.compare()?;
        println!("{:>11} {fused:>7.1} us {each:>17.1} us {end:>15.1} us", format!("{height} x {width}"));
        if i == 0 {
            job.split(Join::EachImage, &timeline)?;
        }
    }
    println!("The planes of both agree.");
    args.finish(&timeline)
}

/// The time at which the stream `Colors` waits for the other two.
#[derive(Clone, Copy, PartialEq)]
enum Join {
    EachImage,
    End,
}

/// The images of one size, on the device, and the planes of one image.
struct Job {
    height: u32,
    width: u32,
    streams: (Stream<Colors>, Stream<Lab>, Stream<Edges>),
    images: Vec<Shared<DeviceBuffer<u8>>>,
    linear: On<Lab, DeviceBuffer<f32>>,
    fused: On<Colors, DeviceBuffer<f32>>,
    colors: On<Colors, DeviceBuffer<f32>>,
    lab: On<Lab, DeviceBuffer<f32>>,
    edges: On<Edges, DeviceBuffer<f32>>,
}

impl Job {
    fn new(device: Device, height: u32, width: u32) -> Result<Self, Error> {
        let (a, b, c) = (device.stream::<Colors>()?, device.stream::<Lab>()?, device.stream::<Edges>()?);
        let count = sized(device, 20, 3);
        let host = support::images(device, count, height, width)?.split_even(count)?;
        let images = host.iter().map(|image| Ok(a.share(a.upload_blocking(image)?)?));
        let images = images.collect::<Result<Vec<_>, Error>>()?;
        // Linear light of each sRGB byte (IEC 61966-2-1).
        let linear: Vec<f32> = (0..256)
            .map(|v| f64::from(v) / 255.0)
            .map(|v| (if v <= 0.04045 { v / 12.92 } else { ((v + 0.055) / 1.055).powf(2.4) }) as f32)
            .collect();
        let area = (height * width) as usize;
        Ok(Self {
            height,
            width,
            streams: (a, b, c),
            images,
            linear: b.upload_blocking(&linear)?,
            fused: a.alloc(13 * area)?,
            colors: a.alloc(6 * area)?,
            lab: b.alloc(3 * area)?,
            edges: c.alloc(4 * area)?,
        })
    }

    /// The least time of an image, in microseconds.
    fn time(&mut self, mut run: impl FnMut(&mut Self) -> Result<(), Error>) -> Result<f64, Error> {
        let time: Duration = least(10, || run(self))?;
        Ok(1e6 * time.as_secs_f64() / self.images.len() as f64)
    }

    fn fused(&mut self) -> Result<(), Error> {
        let (a, ..) = self.streams;
        let [y, x] = FIXATION;
        for image in &self.images {
            textures(&a, self.height, self.width, y, x, &a.reading(image)?, &mut self.fused)?;
        }
        a.synchronize()
    }

    fn split(&mut self, join: Join, timeline: &Timeline) -> Result<(), Error> {
        let (a, b, c) = self.streams;
        let (height, width, [y, x]) = (self.height, self.width, FIXATION);
        let compute = Activity::Compute;
        for i in 0..self.images.len() {
            let image = &self.images[i].clone();
            timeline.span(&a, compute, "colors", || {
                colors(&a, height, width, y, x, &a.reading(image)?, &mut self.colors)
            })?;
            timeline
                .span(&b, compute, "lab", || lab(&b, height, width, &self.linear, &b.reading(image)?, &mut self.lab))?;
            timeline.span(&c, compute, "edges", || edges(&c, height, width, &c.reading(image)?, &mut self.edges))?;
            if join == Join::EachImage {
                self.join()?;
            }
        }
        self.join()?;
        a.synchronize()
    }

    /// Makes each stream wait for the others, on the device: now all planes of an image are there.
    fn join(&mut self) -> Result<(), Error> {
        let (a, b, c) = self.streams;
        let (lab, edges) = (b.alloc(0)?, c.alloc(0)?);
        let lab = b.hand_off(std::mem::replace(&mut self.lab, lab), &a)?;
        let edges = c.hand_off(std::mem::replace(&mut self.edges, edges), &a)?;
        // A consumer of all 13 planes would use them on `Colors` here.
        self.lab = a.hand_off(lab, &b)?;
        self.edges = a.hand_off(edges, &c)?;
        Ok(())
    }

    /// Compares the planes of the last image with those of the fused kernel.
    fn compare(&self) -> Result<(), Error> {
        let (a, b, c) = self.streams;
        let area = (self.height * self.width) as usize;
        let fused = a.read_blocking(&self.fused)?;
        let (colors, lab, edges) =
            (a.read_blocking(&self.colors)?, b.read_blocking(&self.lab)?, c.read_blocking(&self.edges)?);
        let own = [&colors[..3 * area], &lab, &edges[..3 * area], &colors[3 * area..], &edges[3 * area..]].concat();
        assert_eq!(own.len(), fused.len());
        for (plane, (own, fused)) in own.chunks(area).zip(fused.chunks(area)).enumerate() {
            // The largest errors that the fused kernel's tests allow.
            let most = if (3..6).contains(&plane) { 5e-6 } else { 2e-6 };
            let difference = own.iter().zip(fused).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(difference <= most, "plane {plane} differs by {difference}");
        }
        Ok(())
    }
}
