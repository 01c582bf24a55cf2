//! Compares all kernels and the pipeline with what the machine can do, and with the alternatives
//! that a user could choose.
//!
//! ```text
//! cargo bench --bench roofline                        prints a table
//! ... -- --json record.json --svg picture.svg         writes a record and a picture of it
//! ... -- --quick --device cpu                         takes seconds, shows that it works
//! ```
//!
//! One run measures all of these, so that ratios come from one machine in one state:
//!
//! 1. [`limits`]: copies of the bytes that kernels move, fills, transfers and launches;
//! 2. [`kernels`] and [`batch`]: each kernel and chains of kernels, on noise, tiled photographs and
//!    constant images;
//! 3. [`pipeline`]: the way from pinned images to tokens on the host;
//! 4. the peers [`cuda_cpp`] and [`torch`], if they are installed, and [`serial`].
//!
//! A kernel is measured in these steps. The module that measures it checks first what it computes,
//! and takes buffers in turn that together exceed the cache. [`bencher`] queues work ahead, so that
//! the device never waits for the host. It takes the median of many times between two events, and
//! the mean of many launches in a row without events between them. It gives both as a percentage of
//! a copy of the same number of bytes, where each byte counts once when it is read or written.
//! `benches/record/` holds results.

mod batch;
mod bencher;
mod cuda_cpp;
mod images;
mod kernels;
mod limits;
mod picture;
mod pipeline;
mod record;
mod serial;
mod torch;

use std::path::PathBuf;
use std::time::Instant;

use thalweg::Device;

use crate::bencher::{Bencher, Time, median, micros};
use crate::images::{Content, Photo, Size};
use crate::record::Record;

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

const HELP: &str = "\
How close kernels and pipeline come to the machine's limits and to other software.

Usage: cargo bench --bench roofline -- [options]

  --device NAME     auto, cpu or cuda:N; by default what THALWEG_DEVICE says, else the first GPU, else the CPU device
  --quick           small images and few runs: to see that it works
  --only NAME       only rows whose name contains NAME, and the limits
  --no-peers        without PyTorch, CUDA C++ and the serial version
  --json FILE       write the record
  --svg FILE        draw it
  --from FILE       measure nothing: take a record that was written before
  --profile NAME    run kernels whose name contains NAME three times each, on 4K noise, for a profiler:
                    ncu --kernel-name regex:^textures roofline --profile textures
  --help            this text
";

#[derive(Default)]
struct Options {
    device: Option<String>,
    quick: bool,
    only: Option<String>,
    no_peers: bool,
    json: Option<PathBuf>,
    svg: Option<PathBuf>,
    from: Option<PathBuf>,
    profile: bool,
}

impl Options {
    /// Reads the options from the command line. Returns `None` if there is nothing to measure.
    fn parse() -> Result<Option<Self>> {
        let mut options = Self::default();
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{argument} needs a value; see --help"));
            match argument.as_str() {
                "--device" => options.device = Some(value()?),
                "--quick" => options.quick = true,
                "--only" => options.only = Some(value()?),
                "--no-peers" => options.no_peers = true,
                "--json" => options.json = Some(value()?.into()),
                "--svg" => options.svg = Some(value()?.into()),
                "--from" => options.from = Some(value()?.into()),
                "--profile" => (options.profile, options.only) = (true, Some(value()?)),
                "--help" | "-h" => {
                    print!("{HELP}");
                    return Ok(None);
                }
                // A test runner passes one of the first two. `cargo bench` passes the third.
                "--list" | "--test" => return Ok(None),
                "--bench" => {}
                _ => return Err(format!("unknown option {argument}; see --help").into()),
            }
        }
        Ok(Some(options))
    }
}

fn main() -> std::process::ExitCode {
    match run() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("roofline: {why}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn run() -> Result {
    let Some(options) = Options::parse()? else { return Ok(()) };
    let record = match &options.from {
        Some(path) => {
            let record = Record::load(path)?;
            record.print();
            record
        }
        None => measure(&options)?,
    };
    println!();
    record.print_ratios();
    if let Some(path) = &options.json {
        record.save(path)?;
    }
    if let Some(path) = &options.svg {
        picture::save(&record, path)?;
    }
    Ok(())
}

fn measure(options: &Options) -> Result<Record> {
    let start = Instant::now();
    let thalweg::OpenedDevice { device, fallback, .. } = match &options.device {
        Some(name) => Device::open(name)?,
        None => Device::from_env()?,
    };
    let photo = Photo::new();
    let mut bench = Bencher::new(device, options.quick, options.only.clone(), options.profile)?;
    if let Some(why) = fallback {
        println!("{why}");
    }
    let (sizes, contents): (&[Size], &[Content]) = match (options.quick, bench.is_gpu()) {
        (true, _) => (&images::QUICK, &[Content::Photo]),
        (false, true) => (&images::GPU, &Content::ALL),
        (false, false) => (&images::CPU, &[Content::Photo]),
    };
    if options.profile {
        let size = sizes.iter().rfind(|size| size.images == 1 && size.height <= 2160);
        kernels::measure(&mut bench, *size.unwrap_or(&sizes[0]), Content::Noise, &photo, &[])?;
        return Ok(bench.record);
    }
    kernels::check(&bench, &photo)?;
    bench.record.print_machine();
    let limits = limits::measure(&mut bench, sizes)?;
    if bench.is_gpu() {
        bench.record.ask_driver(device.ordinal());
    }
    let scratch = std::env::temp_dir().join(format!("thalweg-roofline-{}", std::process::id()));
    std::fs::create_dir_all(&scratch)?;
    let mut cuda_cpp = vec![];
    if bench.is_gpu() && !options.no_peers {
        cuda_cpp = cuda_cpp::kernels(&mut bench, &photo, &scratch);
    }
    for &size in sizes {
        for &content in contents {
            kernels::measure(&mut bench, size, content, &photo, &cuda_cpp)?;
        }
    }
    if !options.no_peers {
        serial_version(&mut bench, sizes[0], &photo)?;
    }
    for &size in sizes.iter().filter(|size| size.images == 1) {
        pipeline::measure(&mut bench, &limits, size, Content::Photo, &photo)?;
    }
    if !options.no_peers {
        torch::measure(&mut bench, &limits, options.quick, sizes, &photo, &scratch)?;
    }
    std::fs::remove_dir_all(&scratch)?;
    bench.record.machine.insert("seconds in all".into(), start.elapsed().as_secs().into());
    Ok(bench.record)
}

/// Times the plain version on one thread of the host.
fn serial_version(bench: &mut Bencher, size: Size, photo: &Photo) -> Result {
    serial::check(photo)?;
    let (height, width) = (size.height as usize, size.width as usize);
    let data = Content::Photo.pixels(size, photo);
    for (name, bytes) in [("textures", 55), ("textures + features", 107)] {
        if bench.wants(name) {
            let once = || {
                let start = Instant::now();
                let planes = serial::textures(height, width, &data);
                if bytes == 107 {
                    std::hint::black_box(serial::features(height, width, kernels::PATCH as usize, &planes));
                }
                std::hint::black_box(planes);
                micros(Some(start.elapsed()))
            };
            let us = median((0..3).map(|_| once()).collect());
            bench.row_by(
                "serial, one thread",
                name,
                Content::Photo,
                size.name,
                Time { one: us, row: us },
                bytes * size.pixels(),
            )?;
        }
    }
    Ok(())
}
