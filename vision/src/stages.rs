//! The times of the stages of a batch.

use std::time::Duration;

use thalweg::{Result, TimedEvent};

/// The device time of each stage, summed over batches. Batches overlap, so the sum may exceed the
/// time on the clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StageTimings {
    /// Host to device. Zero if the pixels were on the device.
    pub upload: Duration,
    /// Features and entropy of every patch.
    pub analysis: Duration,
    /// Scores, and their balance.
    pub relevance: Duration,
    /// The allocation of tokens to patches.
    pub allocation: Duration,
    /// The tokens.
    pub compression: Duration,
    /// The texture array. Zero if the pipeline does not make it.
    pub textures: Duration,
    /// Device to host.
    pub download: Duration,
}

impl StageTimings {
    /// The stages in order, with their names.
    pub fn named(&self) -> [(&'static str, Duration); 7] {
        [
            ("upload", self.upload),
            ("analysis", self.analysis),
            ("relevance", self.relevance),
            ("allocation", self.allocation),
            ("compression", self.compression),
            ("textures", self.textures),
            ("download", self.download),
        ]
    }

    /// The times between marks. There is one mark before the first stage and one after each stage.
    pub(crate) fn between(marks: &[TimedEvent]) -> Result<Self> {
        let mut times = Self::default();
        for (stage, pair) in times.each_mut().into_iter().zip(marks.windows(2)) {
            *stage = pair[1].elapsed(&pair[0])?.unwrap_or_default();
        }
        Ok(times)
    }

    /// Adds the times of a batch.
    pub(crate) fn add(&mut self, mut times: Self) {
        for (sum, time) in self.each_mut().into_iter().zip(times.each_mut()) {
            *sum += *time;
        }
    }

    fn each_mut(&mut self) -> [&mut Duration; 7] {
        let Self { upload, analysis, relevance, allocation, compression, textures, download } = self;
        [upload, analysis, relevance, allocation, compression, textures, download]
    }
}
