//! The options of a loader.

use std::ffi::OsString;
use std::thread;

use thalweg::{Error, Result, Timeline};

use crate::PhotoOptions;

/// The way in which batches come to the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UploadMode {
    /// Uploads on a stream of the loader's own where that pays: on a CUDA device, for batches of at
    /// least [`stream_bytes`](LoaderOptions::stream_bytes), if there is more than one image to
    /// move. Otherwise it works like `Sequential`.
    #[default]
    Auto,
    /// Uploads on a stream of the loader's own, ahead of the consumer.
    Streams,
    /// Uploads in `next`, on the calling thread's own stream, and waits until the upload is done.
    Sequential,
    /// Uploads nothing. The images stay in page-locked memory, for a consumer that uploads them
    /// itself.
    Off,
}

/// The place where JPEG files are decoded.
///
/// ```
/// use thalweg_loader::DecodeBackend;
///
/// assert_eq!("device".parse::<DecodeBackend>()?, DecodeBackend::Device);
/// # Ok::<(), thalweg::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DecodeBackend {
    /// On a GPU, the device decodes them. On the CPU device, the host's decoder does, which is
    /// faster there.
    #[default]
    Auto,
    /// The device decodes them, also the CPU device. This needs the feature `jpeg-device`.
    Device,
    /// The host's decoder decodes them.
    Host,
}

impl DecodeBackend {
    /// Whether a device of this kind decodes.
    #[must_use]
    pub fn on(self, kind: thalweg::DeviceKind) -> bool {
        self == Self::Device || (self == Self::Auto && kind == thalweg::DeviceKind::Cuda)
    }
}

impl std::str::FromStr for DecodeBackend {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        match text.trim() {
            "auto" => Ok(Self::Auto),
            "device" => Ok(Self::Device),
            "host" => Ok(Self::Host),
            other => Err(Error::Parameter {
                name: "decode",
                given: format!("`{other}`"),
                expected: "auto, device or host".into(),
            }),
        }
    }
}

/// The part of the samples that a rank loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// The number of this rank, from 0.
    pub rank: u64,
    /// The number of ranks.
    pub world_size: u64,
}

impl Shard {
    /// Makes the shard of a rank among as many as `world_size` says.
    #[must_use]
    pub const fn new(rank: u64, world_size: u64) -> Self {
        Self { rank, world_size }
    }
}

impl Default for Shard {
    fn default() -> Self {
        Self::new(0, 1)
    }
}

/// The options of a loader.
///
/// ```
/// use thalweg_loader::{LoaderOptions, Shard};
///
/// let options = LoaderOptions::default().with_batch_size(32).with_shuffle(Some(42)).with_shard(Shard::new(0, 8));
/// ```
#[derive(Clone, Debug, thalweg::__Setters)]
#[non_exhaustive]
pub struct LoaderOptions {
    /// Images in a batch; at least 1. Default 16.
    pub batch_size: usize,
    /// Batches that are ready ahead of the consumer; at least 1. Default 2. While the device has
    /// too little memory for them, there are fewer ([`Stats::prefetch`](crate::Stats::prefetch)).
    pub prefetch: usize,
    /// Decode threads. The default, 0, means one for each core. There are never more threads than
    /// samples.
    pub decode_threads: usize,
    /// The seed of a new order in each epoch, which is the same on every machine. Default: the
    /// order of the source.
    pub shuffle: Option<u64>,
    /// Whether to leave out a last batch that is not full.
    ///
    /// Then all ranks of a [`shard`](LoaderOptions::shard) get the same number of batches. That
    /// number depends only on the number of samples, the number of ranks and the size of a batch,
    /// and not on what fails. A batch that has lost all its images is yielded empty
    /// ([`Batch::is_empty`](crate::Batch::is_empty)), and [`Batch::failed`](crate::Batch::failed)
    /// lists what is missing. So ranks that exchange gradients after each batch do not wait for one
    /// another forever. Without `drop_last`, a batch that has lost all its images is left out.
    ///
    /// If a device or a thread fails, the loader ends early with an error. If a source without a
    /// length panics, its epoch ends early with an error.
    pub drop_last: bool,
    /// The rank of this process among all. Each sample belongs to one rank. Batch k of all N ranks
    /// together has the samples of batch k of one rank with batches N times as large. Default: a
    /// single rank.
    pub shard: Shard,
    /// Whether samples that fail are logged and left out, instead of yielded as errors.
    /// [`Batch::failed`](crate::Batch::failed) and [`Stats::failed`](crate::Stats::failed) count
    /// them in both cases.
    pub skip_errors: bool,
    /// The way in which batches come to the device.
    pub upload: UploadMode,
    /// The decoder of JPEG files that [`read_photo`](crate::read_photo) reads. With
    /// [`UploadMode::Off`], or without the feature `jpeg-device`, that is the host.
    ///
    /// If the device decodes, a file is read straight into page-locked memory, and its coded data
    /// alone crosses the bus. [`Batch::pixels`](crate::Batch::pixels) of such an image is empty.
    /// The pixels equal those of libjpeg-turbo, on the host as on the device. Of files with several
    /// scans, such as progressive ones, the host decodes the scans, and the device makes the
    /// pixels. What it cannot decode (CMYK and a few others), the host's decoder does:
    /// [`Loader::left_device`](crate::Loader::left_device).
    pub decode: DecodeBackend,
    /// Streams that upload; each batch goes to the next of them in turn, and the order of the
    /// batches stays. There are never more than [`prefetch`](LoaderOptions::prefetch), and at
    /// most 64.
    ///
    /// The default is one. A device has one copy engine for each direction, so more streams do not
    /// copy faster: on an H200, two gained nothing. They help if the threads behind them take long:
    /// with JPEG files that the device decodes, take two or three.
    pub upload_streams: usize,
    /// The size of a batch, in bytes, from which [`UploadMode::Auto`] uses a stream. Default 1 MiB,
    /// which takes 20 to 40 us to copy.
    pub stream_bytes: usize,
    /// The most page-locked memory to hold, in bytes, with that for the coefficients of progressive
    /// JPEG files that the device decodes (if it is spent, the host decodes such a file). Decoders
    /// wait while it is spent. If waiting may never end, because the consumer waits for the batch
    /// in question, the sample fails with [`Error::PinnedBudget`]. Default: no limit.
    pub pinned_budget: usize,
    /// The most memory that decoders use beside that for pixels, in bytes: decoders wait while it
    /// is spent, and a photograph that needs more fails. Default 1 GiB.
    pub scratch_budget: usize,
    /// The most pixels of a photograph (`read_photo`): a small file may claim many. Default 178 956
    /// 970, from where on Pillow refuses an image, too.
    pub pixel_limit: u64,
    /// The rules for a photograph (`read_photo`) that is not upright, opaque and of 8 bits.
    pub photo: PhotoOptions,
    /// The fraction of device memory in use, by any process, above which the loader logs a warning.
    /// Default 0.9.
    pub device_warning: f64,
    /// Bytes of device memory in use, by any process, above which the loader logs a warning, even
    /// if [`device_warning`](LoaderOptions::device_warning) is not reached. Default: no such
    /// threshold.
    pub device_warning_bytes: u64,
    /// Bytes of page-locked memory above which the loader logs a warning. Default 4 GiB.
    pub pinned_warning: usize,
    /// Gets a span for each image, on the lane of its decode thread, and for each upload. Default:
    /// off.
    pub timeline: Timeline,
}

impl Default for LoaderOptions {
    fn default() -> Self {
        Self {
            batch_size: 16,
            prefetch: 2,
            decode_threads: 0,
            shuffle: None,
            drop_last: false,
            shard: Shard::default(),
            skip_errors: false,
            upload: UploadMode::Auto,
            decode: DecodeBackend::Auto,
            upload_streams: 1,
            stream_bytes: 1 << 20,
            pinned_budget: usize::MAX,
            scratch_budget: 1 << 30,
            pixel_limit: 178_956_970,
            photo: PhotoOptions::default(),
            device_warning: 0.9,
            device_warning_bytes: u64::MAX,
            pinned_warning: 4 << 30,
            timeline: Timeline::disabled(),
        }
    }
}

impl LoaderOptions {
    /// Returns the default, changed by the environment: `THALWEG_LOADER_THREADS` for
    /// [`decode_threads`](Self::decode_threads), `THALWEG_LOADER_STREAM_BYTES` for
    /// [`stream_bytes`](Self::stream_bytes), and, with the feature `jpeg-device`, `THALWEG_DECODE`
    /// for [`decode`](Self::decode): `auto`, `device` or `host`. An empty `THALWEG_DECODE` counts
    /// as none. No other function of this crate reads the environment.
    ///
    /// # Errors
    /// A variable is no number, or too small, or no place to decode.
    pub fn from_env() -> Result<Self> {
        Self::of(|name| std::env::var_os(name))
    }

    /// Reads an environment.
    pub(crate) fn of(environment: impl Fn(&str) -> Option<OsString>) -> Result<Self> {
        let wrong = |name, text: &OsString, expected: &str| Error::Parameter {
            name,
            given: format!("`{}` in the environment", text.to_string_lossy()),
            expected: expected.to_owned(),
        };
        let number = |name, expected, least: usize| match environment(name) {
            None => Ok(None),
            Some(text) => {
                let number = text.to_str().and_then(|text| text.trim().parse().ok()).filter(|n| *n >= least);
                number.map(Some).ok_or_else(|| wrong(name, &text, expected))
            }
        };
        let mut options = Self::default();
        if let Some(threads) = number("THALWEG_LOADER_THREADS", "a number of threads, at least 1", 1)? {
            options.decode_threads = threads;
        }
        if let Some(bytes) = number("THALWEG_LOADER_STREAM_BYTES", "a number of bytes, at least 0", 0)? {
            options.stream_bytes = bytes;
        }
        let decode = environment("THALWEG_DECODE").filter(|text| cfg!(feature = "jpeg-device") && !text.is_empty());
        if let Some(text) = decode {
            let backend = text.to_string_lossy().parse();
            options.decode = backend.map_err(|_| wrong("THALWEG_DECODE", &text, "auto, device or host"))?;
        }
        Ok(options)
    }

    /// Fills in the number of threads, and checks the options.
    pub(crate) fn settle(mut self) -> Result<Self> {
        if self.decode_threads == 0 {
            self.decode_threads = thread::available_parallelism().map_or(1, usize::from);
        }
        let refuse =
            |name, given: String, expected: &str| Err(Error::Parameter { name, given, expected: expected.into() });
        let Shard { rank, world_size } = self.shard;
        match () {
            () if self.batch_size == 0 => refuse("batch_size", "0".into(), "at least 1"),
            () if self.prefetch == 0 => refuse("prefetch", "0".into(), "at least 1"),
            () if self.decode == DecodeBackend::Device && !cfg!(feature = "jpeg-device") => {
                refuse("decode", "DecodeBackend::Device".into(), "auto or host without the feature `jpeg-device`")
            }
            () if !(1..=64).contains(&self.upload_streams) => {
                refuse("upload_streams", self.upload_streams.to_string(), "from 1 to 64")
            }
            () if rank >= world_size => {
                refuse("shard", format!("rank {rank} of {world_size}"), "a rank below the number of ranks")
            }
            () if !(0.0..=1.0).contains(&self.device_warning) => {
                refuse("device_warning", self.device_warning.to_string(), "a fraction from 0 to 1")
            }
            () => Ok(self),
        }
    }
}
