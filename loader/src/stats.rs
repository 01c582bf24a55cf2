//! Statistics of a loader.

use std::fmt;
use std::time::Duration;

/// Statistics of a loader over all epochs. Its [`Display`](fmt::Display) is a table of the stages.
///
/// ```
/// use thalweg_loader::{Loader, LoaderOptions, Sample, Source};
/// use thalweg::Device;
///
/// let source = Source::indexed(6, |index| {
///     Sample::new(format!("image {index}"), (), |sink| Ok(sink.rgb(2, 2)?.fill(0)))
/// });
/// let mut loader = Loader::new(Device::cpu()?, source, LoaderOptions::default().with_batch_size(2))?;
/// loader.by_ref().try_for_each(|batch| batch.map(drop))?;
/// let stats = loader.stats();
/// assert_eq!((stats.decoding.count, stats.uploading.count, stats.ready.count), (6, 3, 3));
/// assert!(stats.decoding.mean() <= stats.decoding.max);
/// println!("{stats}");
/// # Ok::<(), thalweg_loader::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Images decoded.
    pub images: u64,
    /// Bytes of these images.
    pub bytes: u64,
    /// Samples that failed, and the images of batches that were given up for want of device memory.
    pub failed: u64,
    /// Images for which no memory could be page-locked.
    pub pageable: u64,
    /// Attempts to upload a batch, or to decode images on the device, that found no device memory.
    /// Such an attempt is repeated with less, and the loader makes fewer batches ahead for a while.
    pub without_memory: u64,
    /// Batches that are made ahead at present: [`prefetch`](crate::LoaderOptions::prefetch), or
    /// fewer while the device has little memory.
    pub prefetch: usize,
    /// JPEG files that the device decoded.
    pub jpeg_on_device: u64,
    /// JPEG files that the host decoded. [`Loader::left_device`](crate::Loader::left_device) says
    /// why, if the device was to decode them.
    pub jpeg_on_host: u64,
    /// Time in decoders and in reads for [`ImageSink::rgb_in_file`](crate::ImageSink::rgb_in_file),
    /// summed over threads. It includes the time in which decoders wait for memory.
    pub decode: Duration,
    /// Time that the consumer spent in `next`, waiting for a batch.
    pub wait: Duration,
    /// Samples: the time in their decoders, without [`memory`](Self::memory). Samples that fail
    /// count too.
    pub decoding: StageStats,
    /// Calls of [`ImageSink::rgb`](crate::ImageSink::rgb): the time until there was page-locked
    /// memory.
    pub memory: StageStats,
    /// Pieces of pixels in files ([`ImageSink::rgb_in_file`](crate::ImageSink::rgb_in_file)): the
    /// time to read them.
    pub reading: StageStats,
    /// Batches with JPEG files that the device decodes: the time from when a thread begins to send
    /// their coded data until it knows what became of each file, and the bytes of their pixels.
    pub device_decoding: StageStats,
    /// Batches: the time from when a thread takes one until its copies are enqueued. Without
    /// [streams](crate::UploadPlan::streams) the copies are also complete by then. Otherwise they
    /// still run, and a [timeline](crate::LoaderOptions::timeline) says how long.
    pub uploading: StageStats,
    /// Batches: the time from when one is ready until the consumer takes it.
    pub ready: StageStats,
}

/// The count and the times of a stage of a loader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StageStats {
    /// The number of runs.
    pub count: u64,
    /// Bytes of pixels that went through it. A sum that does not fit stays at the largest number.
    pub bytes: u64,
    /// The time together, summed over threads.
    pub total: Duration,
    /// The longest time.
    pub max: Duration,
    times: Times,
}

/// The number of runs by their time: four classes for each doubling, from 16 ns on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Times([u32; 160]);

impl Default for Times {
    fn default() -> Self {
        Self([0; 160])
    }
}

impl Times {
    /// The class of a time.
    fn class(time: Duration) -> usize {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(16);
        let doublings = ns.ilog2();
        (4 * (doublings as usize - 4) + (ns >> (doublings - 2) & 3) as usize).min(159)
    }

    /// The first time that belongs to a later class.
    fn end(class: usize) -> Duration {
        Duration::from_nanos((5 + class as u64 % 4) << (2 + class / 4))
    }
}

impl StageStats {
    pub(crate) fn add(&mut self, bytes: usize, took: Duration) {
        self.count += 1;
        self.bytes = self.bytes.saturating_add(bytes as u64);
        self.total += took;
        self.max = self.max.max(took);
        let times = &mut self.times.0[Times::class(took)];
        *times = times.saturating_add(1);
    }

    pub(crate) fn merge(&mut self, other: Self) {
        self.count += other.count;
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.total += other.total;
        self.max = self.max.max(other.max);
        self.times.0.iter_mut().zip(other.times.0).for_each(|(own, other)| *own = own.saturating_add(other));
    }

    /// The mean time. Zero if the stage never ran.
    pub fn mean(&self) -> Duration {
        if self.count == 0 { Duration::ZERO } else { self.total.div_f64(self.count as f64) }
    }

    /// Returns a time that a share of the runs, such as 0.99, did not exceed. It is up to a quarter
    /// too long, and never longer than [`max`](Self::max). Zero if the stage never ran.
    pub fn percentile(&self, share: f64) -> Duration {
        let runs: u64 = self.times.0.iter().map(|&runs| u64::from(runs)).sum();
        let wanted = ((share.clamp(0.0, 1.0) * runs as f64).ceil() as u64).max(1);
        let mut below = 0;
        let class = self.times.0.iter().position(|&runs| {
            below += u64::from(runs);
            below >= wanted
        });
        match class {
            None => Duration::ZERO,
            Some(159) => self.max, // of hours
            Some(class) => Times::end(class).min(self.max),
        }
    }

    /// Returns the number of runs in a second of the stage's own time: in a second of one thread,
    /// for a stage that runs on several. Zero if it took no time.
    pub fn rate(&self) -> f64 {
        self.each_second(self.count)
    }

    /// Returns the bytes of pixels that go through the stage in a second of its own time, as for
    /// [`rate`](Self::rate). Zero if it took no time.
    pub fn bytes_per_second(&self) -> f64 {
        self.each_second(self.bytes)
    }

    fn each_second(&self, amount: u64) -> f64 {
        if self.total.is_zero() { 0.0 } else { amount as f64 / self.total.as_secs_f64() }
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stages = [
            ("decode", "samples", self.decoding),
            ("wait for memory", "calls", self.memory),
            ("read", "pieces", self.reading),
            ("device decode", "batches", self.device_decoding),
            ("upload", "batches", self.uploading),
            ("ready to taken", "batches", self.ready),
        ];
        writeln!(
            f,
            "{:<15} {:>10} {:<8} {:>11} {:>11} {:>11} {:>11} {:>9} {:>11} {:>8}",
            "stage", "count", "", "mean ms", "p50 ms", "p99 ms", "max ms", "total s", "each s", "GB/s"
        )?;
        for (name, what, stage) in stages {
            let [mean, half, most, max] = [stage.mean(), stage.percentile(0.5), stage.percentile(0.99), stage.max]
                .map(|time| 1e3 * time.as_secs_f64());
            let (total, each, rate) = (stage.total.as_secs_f64(), stage.rate(), stage.bytes_per_second() / 1e9);
            writeln!(
                f,
                "{name:<15} {:>10} {what:<8} {mean:>11.3} {half:>11.3} {most:>11.3} {max:>11.3} {total:>9.3} {each:>11.1} {rate:>8.3}",
                stage.count
            )?;
        }
        let Self { images, failed, wait, jpeg_on_device, jpeg_on_host, .. } = self;
        writeln!(f, "JPEG files: {jpeg_on_device} decoded on the device, {jpeg_on_host} on the host")?;
        write!(f, "{images} images, {failed} failed; the consumer waited {:.3} s", wait.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_has_its_mean_its_most_and_its_rate() {
        let mut stage = StageStats::default();
        assert_eq!((stage.mean(), stage.rate(), stage.bytes_per_second()), (Duration::ZERO, 0.0, 0.0));
        stage.add(1000, Duration::from_millis(30));
        stage.add(3000, Duration::from_millis(10));
        assert_eq!((stage.count, stage.bytes, stage.max), (2, 4000, Duration::from_millis(30)));
        assert_eq!(
            (stage.mean(), stage.rate(), stage.bytes_per_second()),
            (Duration::from_millis(20), 50.0, 100_000.0)
        );
        assert_eq!(stage.percentile(1.0), Duration::from_millis(30));
        let table = Stats { uploading: stage, ..Stats::default() }.to_string();
        let line = table.lines().find(|line| line.starts_with("upload")).unwrap();
        let words: Vec<_> = line.split_whitespace().collect();
        assert_eq!(words, ["upload", "2", "batches", "20.000", "10.486", "30.000", "30.000", "0.040", "50.0", "0.000"]);
        // Of a thousand times, each percentile is at most a quarter above the true one.
        let mut stage = StageStats::default();
        assert_eq!(stage.percentile(0.5), Duration::ZERO);
        (1..=1000).for_each(|us| stage.add(0, Duration::from_micros(us * us)));
        for share in [0.001, 0.01, 0.25, 0.5, 0.9, 0.99, 0.999, 1.0] {
            let exact = Duration::from_micros(((1000.0 * share) as u64).pow(2));
            let found = stage.percentile(share);
            assert!(exact <= found && found <= exact.mul_f64(1.25), "{share}: {found:?}, and not {exact:?}");
        }
        let mut both = stage;
        both.merge(stage);
        assert_eq!((both.count, both.percentile(0.9)), (2000, stage.percentile(0.9)));
        let extremes = [Duration::ZERO, Duration::MAX].map(Times::class);
        assert_eq!(extremes, [0, 159]);
        let widths: Vec<_> = table.lines().take(7).map(|line| line.chars().count()).collect();
        assert!(widths.iter().all(|width| *width == widths[0]), "{table}");
    }
}
