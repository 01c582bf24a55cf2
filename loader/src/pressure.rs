//! The amounts that a loader makes smaller while a device has little memory.
//!
//! A batch that finds no memory halves the number of batches that are made ahead, and a call of the
//! device's decoder that finds none halves the pixels that a call gets. After some batches in a row
//! that found memory, both double, up to what they were.

use std::fmt::Display;

use thalweg::Device;

/// Batches in a row that find memory until the amounts grow again.
const CALM: u32 = 8;

/// The most pixels that a call of the device's decoder gets. Its coefficients are counted in 32
/// bits.
const MOST_PIXELS: u64 = 1 << 29;

/// The amounts as they are now.
#[derive(Debug)]
pub(crate) struct Pressure {
    /// The batches that are made ahead now, and without pressure.
    prefetch: [usize; 2],
    /// The most pixels that a call of the device's decoder gets now, and without pressure.
    pixels: [u64; 2],
    /// The batches that found memory since the last one that did not.
    calm: u32,
    /// It was said that the amounts are smaller.
    said: bool,
}

impl Pressure {
    pub(crate) fn new(prefetch: usize) -> Self {
        Self { prefetch: [prefetch; 2], pixels: [MOST_PIXELS; 2], calm: 0, said: false }
    }

    /// The batches that are made ahead.
    pub(crate) fn prefetch(&self) -> usize {
        self.prefetch[0]
    }

    /// The most pixels that a call of the device's decoder gets.
    #[cfg(feature = "jpeg-device")]
    pub(crate) fn pixels(&self) -> u64 {
        self.pixels[0]
    }

    /// Notes that a batch found no memory. The line to log says so once, until the amounts are as
    /// they were.
    #[must_use]
    pub(crate) fn no_memory(&mut self, place: impl Display, device: Device) -> Option<String> {
        self.calm = 0;
        self.prefetch[0] = (self.prefetch[0] / 2).max(1);
        let line = format!("{place} waits for memory of {device}; until there is more, fewer batches are made ahead");
        (!std::mem::replace(&mut self.said, true)).then_some(line)
    }

    /// Notes that a call of the decoder with so many pixels found no memory.
    #[cfg(feature = "jpeg-device")]
    pub(crate) fn no_memory_to_decode(&mut self, pixels: u64) {
        self.calm = 0;
        self.pixels[0] = (pixels / 2).max(1);
    }

    /// Notes that a batch found memory.
    pub(crate) fn memory(&mut self) {
        self.calm += 1;
        if self.calm < CALM {
            return;
        }
        self.calm = 0;
        self.prefetch[0] = self.prefetch[0].saturating_mul(2).min(self.prefetch[1]);
        self.pixels[0] = self.pixels[0].saturating_mul(2).min(self.pixels[1]);
        self.said &= self.prefetch[0] < self.prefetch[1] || self.pixels[0] < self.pixels[1];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_smaller_and_then_as_before() {
        let cpu = Device::cpu().unwrap();
        let mut pressure = Pressure::new(5);
        let line = pressure.no_memory("batch 3", cpu).unwrap();
        assert_eq!(line, "batch 3 waits for memory of cpu; until there is more, fewer batches are made ahead");
        assert_eq!((pressure.prefetch(), pressure.no_memory("batch 3", cpu)), (2, None), "said once");
        assert_eq!((pressure.prefetch(), pressure.no_memory("batch 3", cpu), pressure.prefetch()), (1, None, 1));
        pressure.pixels[0] = MOST_PIXELS / 4;
        let mut seen = Vec::new();
        for _ in 0..4 * CALM {
            pressure.memory();
            seen.push((pressure.prefetch(), MOST_PIXELS / pressure.pixels[0]));
        }
        seen.dedup();
        assert_eq!(seen, [(1, 4), (2, 2), (4, 1), (5, 1)]);
        assert!(pressure.no_memory("batch 60", cpu).is_some(), "said again, because the amounts were back");
    }
}
