//! The plan of a loader's uploads.

use log::info;
use thalweg::{Device, DeviceKind, Error};

use crate::options::UploadMode;

/// The plan of a loader's uploads, with the reason. The loader makes it when it has the first batch
/// with images.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UploadPlan {
    /// Whether threads with streams of their own upload ahead of the consumer. Otherwise `next`
    /// uploads, and waits.
    pub streams: bool,
    /// The number of these streams, and so of these threads. 0 without `streams`.
    pub upload_streams: usize,
    /// The reason.
    pub reason: String,
}

impl UploadPlan {
    /// Uses streams where they pay: on a device that copies beside other work, for batches that
    /// take longer to copy than to hand over, if there is a next copy to overlap with.
    pub(crate) fn new(
        asked: UploadMode,
        kind: DeviceKind,
        images: usize,
        bytes: usize,
        threshold: usize,
        more: bool,
    ) -> Self {
        let (streams, reason) = match asked {
            UploadMode::Streams => (true, "asked for".to_owned()),
            UploadMode::Sequential => (false, "asked for".to_owned()),
            UploadMode::Off => (false, "nothing is uploaded".to_owned()),
            UploadMode::Auto if kind != DeviceKind::Cuda => {
                (false, "the CPU device shares the host's memory".to_owned())
            }
            UploadMode::Auto if bytes < threshold => (false, format!("{bytes} bytes a batch are below {threshold}")),
            UploadMode::Auto if images < 2 && !more => (false, "there is one image to move".to_owned()),
            UploadMode::Auto => (true, format!("{images} images and {bytes} bytes a batch, at least {threshold}")),
        };
        Self { streams, upload_streams: usize::from(streams), reason }
    }

    /// Falls back to the sequential path because no stream or no thread could be created.
    pub(crate) fn without_streams(error: &Error) -> Self {
        Self { streams: false, upload_streams: 0, reason: format!("streams cannot be used: {error}") }
    }

    pub(crate) fn log(&self, device: Device) {
        let how = match self.upload_streams {
            0 => "one after another, in `next`".to_owned(),
            1 => "ahead, on a stream of their own".to_owned(),
            streams => format!("ahead, on {streams} streams of their own"),
        };
        info!("batches for {device} {how}: {}", self.reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_used_where_they_pay() {
        let decide =
            |asked, kind, images, bytes, more| UploadPlan::new(asked, kind, images, bytes, 1 << 20, more).streams;
        use DeviceKind::{Cpu, Cuda};
        assert!(decide(UploadMode::Auto, Cuda, 16, 1 << 20, false));
        assert!(decide(UploadMode::Auto, Cuda, 1, 1 << 20, true));
        assert!(!decide(UploadMode::Auto, Cuda, 1, 1 << 20, false));
        assert!(!decide(UploadMode::Auto, Cuda, 16, (1 << 20) - 1, true));
        assert!(!decide(UploadMode::Auto, Cpu, 16, 1 << 30, true));
        assert!(decide(UploadMode::Streams, Cpu, 1, 3, false));
        assert!(!decide(UploadMode::Sequential, Cuda, 16, 1 << 30, true));
        let plan = UploadPlan::new(UploadMode::Auto, Cuda, 16, 1000, 2000, true);
        assert_eq!(plan.reason, "1000 bytes a batch are below 2000");
    }
}
