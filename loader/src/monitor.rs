//! Warnings when the use of memory is high.

use std::fmt;

use log::warn;
use thalweg::{Device, PinnedPool};

use crate::options::LoaderOptions;

/// Looks at memory now and then, and logs a warning when its use passes a threshold. It never makes
/// a loader fail.
#[derive(Debug)]
pub(crate) struct MemoryMonitor {
    device_warning: f64,
    device_warning_bytes: u64,
    pinned_warning: usize,
    /// Whether use was above each threshold at the last look.
    high: [bool; 2],
    /// Batches so far.
    batches: u32,
}

impl MemoryMonitor {
    pub(crate) fn new(options: &LoaderOptions) -> Self {
        let &LoaderOptions { device_warning, device_warning_bytes, pinned_warning, .. } = options;
        Self { device_warning, device_warning_bytes, pinned_warning, high: [false; 2], batches: 0 }
    }

    /// Looks at memory for every sixteenth batch, because the driver takes tens of microseconds to
    /// answer.
    pub(crate) fn look(&mut self, device: Device, pool: &PinnedPool, place: UploadSite) {
        self.batches = self.batches.wrapping_add(1);
        if self.batches % 16 != 1 {
            return;
        }
        let total = device.total_memory();
        let used = device.free_memory().map_or(0, |free| total.saturating_sub(free));
        for line in self.judge(device, used, total, pool.in_use() + pool.cached()).into_iter().flatten() {
            warn!("{line} ({place})");
        }
    }

    /// The bytes of device memory above which it logs a warning.
    pub(crate) fn limit(&self, total: u64) -> u64 {
        ((self.device_warning * total as f64) as u64).min(self.device_warning_bytes)
    }

    /// Returns the lines to log. A line comes once when use passes its threshold, and again only
    /// after use was below the threshold.
    fn judge(&mut self, device: Device, used: u64, total: u64, pinned: usize) -> [Option<String>; 2] {
        let limit = self.limit(total);
        let now = [used > limit, pinned > self.pinned_warning];
        let lines = [
            format!("{device} has {used} of {total} bytes in use, more than {limit}"),
            format!("the loader holds {pinned} bytes of pinned memory, more than {}", self.pinned_warning),
        ];
        let mut place = 0;
        let judged = lines.map(|line| {
            let passed = now[place] && !self.high[place];
            place += 1;
            passed.then_some(line)
        });
        self.high = now;
        judged
    }
}

/// The batch of a warning, and its uploader.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UploadSite {
    pub(crate) epoch: u64,
    pub(crate) number: u64,
    /// The number of the upload stream, or `None` in `next`.
    pub(crate) stream: Option<usize>,
}

impl fmt::Display for UploadSite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { epoch, number, stream } = self;
        write!(f, "batch {number} of epoch {epoch}, ")?;
        match stream {
            Some(stream) => write!(f, "upload stream {stream}"),
            None => f.write_str("uploaded in `next`"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_mentioned_when_a_threshold_is_passed() {
        let cpu = Device::cpu().unwrap();
        let options = LoaderOptions::default().with_device_warning(0.5).with_pinned_warning(1000);
        let mut monitor = MemoryMonitor::new(&options);
        assert_eq!(monitor.judge(cpu, 50, 100, 1000), [None, None]);
        let [device, pinned] = monitor.judge(cpu, 51, 100, 1001);
        assert_eq!(device.unwrap(), "cpu has 51 of 100 bytes in use, more than 50");
        assert_eq!(pinned.unwrap(), "the loader holds 1001 bytes of pinned memory, more than 1000");
        assert_eq!(monitor.judge(cpu, 60, 100, 2000), [None, None], "said already");
        assert_eq!(monitor.judge(cpu, 10, 100, 2000), [None, None]);
        assert!(monitor.judge(cpu, 60, 100, 2000)[0].is_some(), "passed again");

        // The lower one of the two thresholds counts.
        for (device_warning, device_warning_bytes) in [(0.5, 90), (0.9, 50)] {
            let mut monitor = MemoryMonitor::new(
                &options.clone().with_device_warning(device_warning).with_device_warning_bytes(device_warning_bytes),
            );
            assert_eq!(monitor.judge(cpu, 50, 100, 0), [None, None]);
            assert_eq!(
                monitor.judge(cpu, 51, 100, 0)[0].as_deref(),
                Some("cpu has 51 of 100 bytes in use, more than 50")
            );
        }
    }
}
