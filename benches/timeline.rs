//! Measures what observation costs: a span of the timeline, and `SyncStats`.
//!
//! ```text
//! cargo bench --bench timeline
//! ```
//!
//! Runs on the first GPU, if there is one, and on the CPU device. Batches of spans with and without
//! the timeline alternate, so that clocks and caches are the same for both. The table shows the
//! host time per operation, as the median over batches.

mod support;

use std::time::{Duration, Instant};

use thalweg::{Activity, AnyStream, DeviceBuffer, Error, LiveBrand, On, Stream, Timeline};

/// The number of batches of each kind.
const BATCHES: usize = 201;
/// The number of operations in a batch, few enough that the driver's queue never fills.
const OPERATIONS: usize = 100;

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64() * 1e6 / OPERATIONS as f64
}

/// Returns the host time of an operation of each kind, in us. `settle` runs between batches and is
/// not timed.
fn compare<const N: usize>(settle: impl Fn(), mut kinds: [&mut dyn FnMut(); N]) -> [f64; N] {
    let mut times = [const { Vec::new() }; N];
    for batch in 0..BATCHES + 10 {
        for (kind, times) in kinds.iter_mut().zip(&mut times) {
            settle();
            let start = Instant::now();
            (0..OPERATIONS).for_each(|_| kind());
            let time = start.elapsed();
            // The first batches fill pools and caches.
            if batch >= 10 {
                times.push(time);
            }
        }
    }
    settle();
    times.map(median)
}

fn measure<S: LiveBrand>(stream: &Stream<S>) -> Result<(), Error> {
    let device = stream.device();
    println!("{device}: {}", device.name());
    let mut x: On<S, DeviceBuffer<u32>> = stream.alloc_zeroed(64)?;
    let (on, off) = (Timeline::new(device)?, Timeline::disabled());

    // Validate first: the trace holds all recorded spans, in order.
    for i in 0..10 {
        on.span(stream, Activity::Compute, "fill", || stream.fill(&mut x, i))?;
    }
    let trace = on.finish()?;
    assert_eq!(trace.spans().len(), 10);
    assert!(trace.spans().windows(2).all(|w| w[0].end <= w[1].start + Duration::from_micros(1)));
    println!("  host and device aligned to {:?}", trace.clock_uncertainty());

    let settle = || stream.synchronize().expect("the device works");
    // The spans are empty, so only the spans themselves are measured. On the CPU device, the
    // queue's thread runs at the same time as the host's.
    let [nothing, span, same, host] = compare(
        settle,
        [
            &mut || off.span(stream, Activity::Compute, "fill", || Ok(())).expect("the device works"),
            &mut || on.span(stream, Activity::Compute, "fill", || Ok(())).expect("the device works"),
            &mut || {
                let stamps = (stream.timestamp(), stream.timestamp());
                assert!(stamps.0.is_ok() && stamps.1.is_ok());
            },
            &mut || on.host("main", "work", || ()),
        ],
    );
    let start = Instant::now();
    let spans = on.finish()?.spans().len();
    let finish = start.elapsed();
    assert_eq!(spans, 2 * (BATCHES + 10) * OPERATIONS);
    println!("  span, timeline off            {nothing:8.3} us");
    println!("  span on a stream              {span:8.3} us");
    println!("  two new timed events          {same:8.3} us");
    println!("  span on the host              {host:8.3} us");
    println!("  finish, a span                {:8.3} us", finish.as_secs_f64() * 1e6 / spans as f64);

    let mut kernel =
        |timeline: &Timeline, i| timeline.span(stream, Activity::Compute, "fill", || stream.fill(&mut x, i));
    let mut plain = kernel_times(&settle, &mut |i| kernel(&off, i));
    let mut observed = kernel_times(&settle, &mut |i| kernel(&on, i));
    plain.sort();
    observed.sort();
    let per = |times: &[Duration]| times[times.len() / 2].as_secs_f64() * 1e6 / OPERATIONS as f64;
    println!("  {OPERATIONS} fills to completion, each   {:8.3} us, with spans {:.3} us", per(&plain), per(&observed));
    drop(on.finish()?);

    let synchronize = &mut || stream.synchronize().expect("the device works");
    let [quiet] = compare(settle, [synchronize]);
    device.sync_stats().enable();
    let [counted] = compare(settle, [synchronize]);
    device.sync_stats().disable();
    println!("  synchronize, tally off        {quiet:8.3} us, on {counted:.3} us");
    Ok(())
}

/// Returns the times of batches of operations, each until its last operation is complete.
fn kernel_times(settle: &impl Fn(), operation: &mut dyn FnMut(u32) -> Result<(), Error>) -> Vec<Duration> {
    let time = |_| {
        settle();
        let start = Instant::now();
        (0..OPERATIONS as u32).for_each(|i| operation(i).expect("the device works"));
        settle();
        start.elapsed()
    };
    (0..BATCHES).map(time).collect()
}

#[allow(clippy::redundant_closure, reason = "`measure` alone is not general enough over the lifetime of a lane")]
fn main() -> Result<(), Error> {
    support::on_each_device(|device| AnyStream::new(device)?.enter(|stream| measure(stream)))
}
