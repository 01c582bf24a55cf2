//! Measures what it costs to wait: one stream for another, on the device, and the host for a
//! stream.
//!
//! ```text
//! cargo bench --bench waits
//! ```
//!
//! Runs on the first GPU, if there is one, and on the CPU device. A chain of short fills runs in
//! one stream, in two streams that hand the buffer to and fro, and in one stream while the host
//! waits after each fill. The results are compared first. The table shows the time of a link of the
//! chain, and how much of it the host was busy, as the median over chains.

mod support;

use std::time::{Duration, Instant};

use thalweg::{AnyStream, Device, Error, LiveBrand, Stream};

/// The number of fills in a chain.
const LINKS: u32 = 500;
/// The number of chains of each kind.
const CHAINS: usize = 41;
/// The number of elements of the buffer, so few that a fill takes as long as a launch.
const ELEMENTS: usize = 256;

/// The time until all is done, and the time until all was enqueued.
type Times = (Duration, Duration);

fn one_stream<S: LiveBrand>(a: Stream<S>, host_waits: bool) -> Result<(Vec<u32>, Times), Error> {
    let mut x = a.alloc_zeroed::<u32>(ELEMENTS)?;
    a.synchronize()?;
    let start = Instant::now();
    for i in 1..=LINKS {
        a.fill(&mut x, i)?;
        if host_waits {
            a.synchronize()?;
        }
    }
    let enqueued = start.elapsed();
    a.synchronize()?;
    let done = start.elapsed();
    Ok((a.read_blocking(&x)?, (done, enqueued)))
}

fn two_streams<S: LiveBrand, T: LiveBrand>(a: Stream<S>, b: Stream<T>) -> Result<(Vec<u32>, Times), Error> {
    let mut x = a.alloc_zeroed::<u32>(ELEMENTS)?;
    a.synchronize()?;
    let start = Instant::now();
    for i in (1..=LINKS).step_by(2) {
        a.fill(&mut x, i)?;
        let mut there = a.hand_off(x, &b)?;
        b.fill(&mut there, i + 1)?;
        x = b.hand_off(there, &a)?;
    }
    let enqueued = start.elapsed();
    a.synchronize()?;
    let done = start.elapsed();
    Ok((a.read_blocking(&x)?, (done, enqueued)))
}

/// Microseconds of a link.
fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64() * 1e6 / f64::from(LINKS)
}

fn measure(device: Device) -> Result<(), Error> {
    println!("{device}: {}", device.name());
    let (a, b) = (AnyStream::new(device)?, AnyStream::new(device)?);
    a.enter(|&a| {
        b.enter(|&b| {
            let mut times = [(); 3].map(|()| (Vec::new(), Vec::new()));
            for chain in 0..CHAINS + 3 {
                let runs = [one_stream(a, false)?, two_streams(a, b)?, one_stream(a, true)?];
                for ((last, (done, enqueued)), times) in runs.into_iter().zip(&mut times) {
                    assert_eq!(last, [LINKS; ELEMENTS]);
                    if chain >= 3 {
                        times.0.push(done);
                        times.1.push(enqueued);
                    }
                }
            }
            let [one, two, host] = times.map(|(done, enqueued)| (median(done), median(enqueued)));
            println!("  {:44} {:>10} {:>14}", "a chain of fills, for each fill", "us", "of the host, us");
            println!("  {:44} {:>10.2} {:>14.2}", "one stream, no waits", one.0, one.1);
            println!("  {:44} {:>10.2} {:>14.2}", "two streams, each waits for the other", two.0, two.1);
            println!("  {:44} {:>10.2} {:>14.2}", "one stream, the host waits", host.0, host.1);
            let (stream, waits) = (two.1 - one.1, host.1 - one.1);
            println!("  a wait of a stream costs the host {stream:.2} us and the chain {:.2} us", two.0 - one.0);
            println!("  a wait of the host costs the host {waits:.2} us and the chain {:.2} us", host.0 - one.0);
            println!("  of the host's time, a wait of the host takes {:.1} x that of a stream", waits / stream);
            Ok(())
        })
    })
}

fn main() -> Result<(), Error> {
    support::on_each_device(measure)
}
