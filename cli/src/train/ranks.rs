//! The ranks of a run: one alone, threads of this process, or processes that a launcher started.
//!
//! All ranks have the same list of images, the same settings and the same history: those of rank 0. So
//! they take every decision alike, and only rank 0 prints and writes.

use std::process::ExitCode;

use thalweg::{Device, DeviceKind, LiveBrand};
use thalweg_collective::{Comm, Element, Place, Sum};

use crate::args::TrainArgs;

/// Elements that travel at once, so that the device needs little memory for what the ranks exchange.
const CHUNK: usize = 1 << 22;

/// Why a rank ends without a model.
#[derive(Debug)]
pub(crate) enum Problem {
    /// What this rank itself has found.
    Own(String),
    /// What the ranks have found: another one has failed, or they differ.
    Ranks(String),
}

pub(crate) type Result<T, E = Problem> = std::result::Result<T, E>;

impl From<String> for Problem {
    fn from(text: String) -> Self {
        Self::Own(text)
    }
}

impl From<thalweg::Error> for Problem {
    fn from(error: thalweg::Error) -> Self {
        match error {
            // The devices of the ranks fail with the ranks, and say why.
            thalweg::Error::Poisoned { .. } => Self::Ranks(error.to_string()),
            _ => Self::Own(error.to_string()),
        }
    }
}

impl From<thalweg_collective::Error> for Problem {
    fn from(error: thalweg_collective::Error) -> Self {
        match error {
            thalweg_collective::Error::Device(error) => error.into(),
            error => Self::Ranks(error.to_string()),
        }
    }
}

impl From<thalweg_train::Error> for Problem {
    fn from(error: thalweg_train::Error) -> Self {
        match error {
            thalweg_train::Error::Device(error) => error.into(),
            thalweg_train::Error::Ranks(error) => error.into(),
            error => Self::Own(error.to_string()),
        }
    }
}

impl Problem {
    pub(crate) fn text(self) -> String {
        let (Self::Own(text) | Self::Ranks(text)) = self;
        text
    }
}

/// Where the ranks of a run are.
#[derive(Debug)]
pub(super) enum Ranks {
    /// There is one.
    Alone(Device),
    /// Threads of this process, with a device each.
    Threads(Vec<Device>),
    /// Processes, of which this is one, with this device.
    Processes(Box<Place>, Device),
}

impl Ranks {
    /// Finds out who the ranks are and opens their devices. Also returns a line that says why a device is
    /// the CPU, if nobody asked for it.
    pub(super) fn of(args: &TrainArgs) -> Result<(Self, Option<String>), String> {
        let place = Place::from_env().map_err(|e| e.to_string())?.filter(|place| place.size > 1);
        let several = args.gpus.is_some_and(|n| n > 1);
        if let (Some(place), true) = (&place, several) {
            return Err(format!(
                "--gpus starts ranks in this process, but a launcher has started this one as rank {} of {}: leave \
                 --gpus out",
                place.rank, place.size
            ));
        }
        if !several && place.is_none() {
            let (device, note) = args.device.open()?;
            return Ok((Self::Alone(device), note));
        }
        // The device of one rank says of what kind all of them are.
        let (first, note) = args.device.open()?;
        if args.device.name.starts_with("cuda:") {
            return Err(format!(
                "--device {}: with several ranks each takes the GPU of its own number; use auto or cpu",
                args.device.name
            ));
        }
        let device = |rank: usize| match first.kind() {
            DeviceKind::Cpu => Device::new_cpu().map_err(|e| e.to_string()),
            _ => Device::cuda(rank).map_err(|e| format!("rank {rank} needs a GPU of its own: {e}")),
        };
        let ranks = match place {
            // A scheduler may show each process its own GPU only, as number 0.
            Some(place) if first.kind() == DeviceKind::Cpu || Device::cuda(1).is_err() => {
                Self::Processes(Box::new(place), first)
            }
            Some(place) => {
                let device = device(place.local_rank)?;
                Self::Processes(Box::new(place), device)
            }
            None => Self::Threads((0..args.gpus.unwrap_or(1)).map(device).collect::<Result<_, _>>()?),
        };
        Ok((ranks, note))
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
    pub(super) fn gather<T: Element>(&mut self, own: Vec<T>) -> Result<Vec<Vec<T>>> {
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

/// What a run of threads came to. What a rank itself has found says why the others ended.
pub(super) fn outcome(ended: Vec<Result<ExitCode>>) -> Result<ExitCode, String> {
    let (mut own, mut ranks) = (Vec::new(), Vec::new());
    let (size, mut code) = (ended.len(), ExitCode::SUCCESS);
    for (rank, ended) in ended.into_iter().enumerate() {
        match ended {
            Ok(done) => code = done,
            Err(Problem::Own(text)) => own.push((rank, text)),
            Err(Problem::Ranks(text)) => ranks.push(text),
        }
    }
    match (own.first(), ranks.into_iter().next()) {
        (None, None) => Ok(code),
        (Some((_, text)), _) if own.len() == size && own.iter().all(|(_, other)| other == text) => Err(text.clone()),
        (Some((rank, text)), _) => Err(format!("rank {rank}: {text}")),
        (None, Some(text)) => Err(text),
    }
}
