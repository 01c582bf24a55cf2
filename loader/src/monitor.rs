//! Warnings when the use of memory is high.

use log::warn;
use thalweg::{Device, PinnedPool};

/// Looks at memory now and then, and logs a warning when its use passes a threshold. It never makes
/// a loader fail.
#[derive(Debug)]
pub(crate) struct Monitor {
    device_warning: f64,
    pinned_warning: usize,
    /// Whether use was above each threshold at the last look.
    high: [bool; 2],
    /// Batches so far.
    batches: u32,
}

impl Monitor {
    pub(crate) fn new(device_warning: f64, pinned_warning: usize) -> Self {
        Self { device_warning, pinned_warning, high: [false; 2], batches: 0 }
    }

    /// Looks at memory for every sixteenth batch, because the driver takes tens of microseconds to
    /// answer.
    pub(crate) fn look(&mut self, device: Device, pool: &PinnedPool) {
        self.batches = self.batches.wrapping_add(1);
        if self.batches % 16 != 1 {
            return;
        }
        let total = device.total_memory();
        let used = device.free_memory().map_or(0, |free| total.saturating_sub(free));
        for line in self.judge(device, used, total, pool.in_use() + pool.cached()).into_iter().flatten() {
            warn!("{line}");
        }
    }

    /// What to log. A line comes once when use passes its threshold, and again only after use was
    /// below the threshold.
    fn judge(&mut self, device: Device, used: u64, total: u64, pinned: usize) -> [Option<String>; 2] {
        let limit = (self.device_warning * total as f64) as u64;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_mentioned_when_a_threshold_is_passed() {
        let cpu = Device::cpu().unwrap();
        let mut monitor = Monitor::new(0.5, 1000);
        assert_eq!(monitor.judge(cpu, 50, 100, 1000), [None, None]);
        let [device, pinned] = monitor.judge(cpu, 51, 100, 1001);
        assert_eq!(device.unwrap(), "cpu has 51 of 100 bytes in use, more than 50");
        assert_eq!(pinned.unwrap(), "the loader holds 1001 bytes of pinned memory, more than 1000");
        assert_eq!(monitor.judge(cpu, 60, 100, 2000), [None, None], "said already");
        assert_eq!(monitor.judge(cpu, 10, 100, 2000), [None, None]);
        assert!(monitor.judge(cpu, 60, 100, 2000)[0].is_some(), "passed again");
    }
}
