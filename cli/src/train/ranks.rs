//! The ranks of a run: one alone, or processes that a launcher or `--gpus` started.
//!
//! All ranks have the same list of images, the same settings and the same history: those of rank 0.
//! So they take every decision alike, and only rank 0 prints and writes.
//!
//! A rank is a process, also on one machine: what one rank asks CUDA for on the host, such as
//! page-locked memory, may wait for the work of all GPUs of its process, and with it for an
//! operation of NCCL that waits for this very rank.

use thalweg::{Device, LiveBrand};
use thalweg_collective::{CollectiveElement, Comm, RankEnv, Sum};

use super::args::TrainArgs;

/// Elements that travel at once, so that the device needs little memory for what the ranks
/// exchange.
const CHUNK: usize = 1 << 22;

/// The reason why a rank ends without a model.
#[derive(Debug)]
pub(crate) struct Problem(pub(crate) String);

pub(crate) type Result<T, E = Problem> = std::result::Result<T, E>;

impl From<String> for Problem {
    fn from(text: String) -> Self {
        Self(text)
    }
}

macro_rules! texts {
    ($($error:ty)*) => {$(
        impl From<$error> for Problem {
            fn from(error: $error) -> Self {
                Self(error.to_string())
            }
        }
    )*};
}
texts! { thalweg::Error thalweg_collective::Error thalweg_train::Error }

/// Finds out whether this process is one of several ranks.
pub(super) fn place(args: &TrainArgs) -> Result<Option<RankEnv>, String> {
    let place = RankEnv::from_env().map_err(|e| e.to_string())?.filter(|place| place.size > 1);
    match (&place, args.gpus) {
        (Some(place), Some(gpus)) if gpus != place.size => Err(format!(
            "--gpus {gpus}: a launcher has started this process as rank {} of {}; leave --gpus out",
            place.rank, place.size
        )),
        _ => Ok(place),
    }
}

/// Opens the device of this rank. Also returns a line that says why it is the CPU, if nobody asked
/// for that and the machine has no GPU.
pub(super) fn device(args: &TrainArgs, place: Option<&RankEnv>) -> Result<(Device, Option<String>), String> {
    let Some(place) = place else { return args.device.open() };
    if args.device.name.starts_with("cuda:") {
        return Err(format!(
            "--device {}: each of several ranks takes the GPU of its own number; use auto or cpu",
            args.device.name
        ));
    }
    if args.device.name == "cpu" {
        return args.device.open();
    }
    match place.gpu() {
        Ok(gpu) => Ok((gpu, None)),
        Err(none) if none.means_no_gpu() => {
            let note = (place.rank == 0).then(|| format!("running on the CPU device: {none}"));
            Ok((Device::cpu().map_err(|e| e.to_string())?, note))
        }
        // One rank on a CPU would hold up all others.
        Err(e) => Err(format!("rank {} needs a GPU of its own: {e}; or use --device cpu for all ranks", place.rank)),
    }
}

/// This rank among the others, as long as they prepare the images.
#[derive(Debug)]
pub(super) struct Team<C: LiveBrand> {
    pub(super) comm: Comm<C>,
}

impl<C: LiveBrand> Team<C> {
    pub(super) fn rank(&self) -> usize {
        self.comm.rank()
    }

    pub(super) fn size(&self) -> usize {
        self.comm.size()
    }

    /// Gives every rank what all of them bring, in the order of the ranks.
    pub(super) fn gather<T: CollectiveElement>(&mut self, own: Vec<T>) -> Result<Vec<Vec<T>>> {
        if self.size() == 1 {
            return Ok(vec![own]);
        }
        let (s, comm) = (self.comm.stream(), &mut self.comm);
        let mut lens = s.alloc::<u64>(comm.size())?;
        comm.all_gather(&s.upload_blocking(&[own.len() as u64])?, &mut lens)?;
        let lens = s.read_blocking(&lens)?;
        let mut all = Vec::with_capacity(lens.len());
        for (root, len) in lens.into_iter().map(|len| len as usize).enumerate() {
            let mut part = Vec::with_capacity(if root == comm.rank() { 0 } else { len });
            for at in (0..len).step_by(CHUNK) {
                let chunk = at..len.min(at + CHUNK);
                let mut x = match root == comm.rank() {
                    true => s.upload_blocking(&own[chunk])?,
                    false => s.alloc_zeroed(chunk.len())?,
                };
                comm.broadcast(root, &mut x)?;
                if root != comm.rank() {
                    part.extend(s.read_blocking(&x)?);
                }
            }
            all.push(part);
        }
        all[comm.rank()] = own;
        Ok(all)
    }

    /// Gives every rank what rank 0 makes.
    pub(super) fn first(&mut self, make: impl FnOnce() -> Result<Vec<u8>>) -> Result<Vec<u8>> {
        let own = if self.rank() == 0 { make()? } else { Vec::new() };
        Ok(self.gather(own)?.swap_remove(0))
    }
}

/// Makes each number the sum of those of all ranks. If all but one of them are 0, it is exact.
pub(super) fn sum<C: LiveBrand>(comm: &mut Comm<C>, numbers: &mut [f64]) -> Result<()> {
    if comm.size() > 1 && !numbers.is_empty() {
        let s = comm.stream();
        let mut x = s.upload_blocking(numbers)?;
        comm.all_reduce_in_place(Sum, &mut x)?;
        numbers.copy_from_slice(&s.read_blocking(&x)?);
    }
    Ok(())
}
