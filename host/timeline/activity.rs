//! The kinds of work that a span can show.

/// The kind of work that a span shows. It decides the span's color in a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Activity {
    /// A copy from the host to the device.
    Upload,
    /// A copy from the device to the host.
    Download,
    /// A copy within the device, or between devices.
    Copy,
    /// Kernels.
    Compute,
    /// Work of the host.
    Host,
    /// The host waits.
    Wait,
}

impl Activity {
    pub(super) const ALL: [Self; 6] = [Self::Upload, Self::Compute, Self::Download, Self::Copy, Self::Host, Self::Wait];

    /// The activity in one lower-case word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Upload => "upload",
            Self::Download => "download",
            Self::Copy => "copy",
            Self::Compute => "compute",
            Self::Host => "host",
            Self::Wait => "wait",
        }
    }
}
