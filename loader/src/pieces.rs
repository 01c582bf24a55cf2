//! Pixels that lie in files, read piece by piece on their way to the device.

use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

use rayon::prelude::*;
use thalweg::{Activity, DeviceSlice, Error, Event, LiveBrand, Result, Returned, Stream};

use crate::assembly::Assembly;
use crate::batch::padded;
use crate::image_sink::Pixels;
use crate::lock;
use crate::queue::Queue;
use crate::staging::{InFile, PIECE, SLOT, read};
use crate::stats::StageStats;

/// A part of a file, and where it goes.
pub(crate) struct Piece<'p, S> {
    image: usize,
    file: &'p File,
    name: &'p str,
    at: u64,
    to: &'p mut DeviceSlice<S, u8>,
}

/// The reason why a piece is not on its way.
pub(crate) enum Trouble {
    Read(io::Error),
    Device(Error),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Device(error)
    }
}

impl<R> From<Returned<R>> for Trouble {
    fn from(returned: Returned<R>) -> Self {
        Self::Device(returned.error)
    }
}

/// Reads the pieces of a batch and enqueues their copies. Returns what became of each.
pub(crate) type ReadPieces<M, S> = fn(&Queue<M>, &Stream<S>, Vec<Piece<'_, S>>) -> Vec<Done>;

/// The image of a piece, its bytes, how long reading it took, and what went wrong.
pub(crate) type Done = (usize, usize, Duration, Result<(), Trouble>);

impl<M: Clone + Send + 'static> Queue<M> {
    /// Reads the pixels that lie in files, and enqueues their copies to where they belong in `rgb`.
    /// Returns the images that cannot be read, in order.
    pub(crate) fn upload_files<S: LiveBrand>(
        &self,
        stream: &Stream<S>,
        front: &Assembly<M>,
        rgb: &mut DeviceSlice<S, u8>,
        read: ReadPieces<M, S>,
    ) -> Result<Vec<(usize, io::Error)>> {
        let mut pieces = Vec::new();
        let mut rest = rgb;
        for (image, decoded) in front.images().enumerate() {
            let (mut own, others) = rest.split_at_mut(padded(decoded.pixels.len()))?;
            rest = others;
            let Pixels::File(InFile { file, at, bytes }) = &decoded.pixels else { continue };
            for start in (0..*bytes).step_by(PIECE) {
                let (to, after) = own.split_at_mut(PIECE.min(bytes - start))?;
                own = after;
                pieces.push(Piece { image, file, name: &decoded.name, at: at + start as u64, to });
            }
        }
        if pieces.is_empty() {
            return Ok(Vec::new());
        }
        let done = self
            .options
            .timeline
            .span(stream, Activity::Upload, "read and upload", || Ok(read(self, stream, pieces)))?;
        let mut unread: Vec<(usize, io::Error)> = Vec::new();
        let mut reading = StageStats::default();
        for (image, bytes, took, outcome) in done {
            reading.add(bytes, took);
            match outcome {
                Ok(()) => {}
                Err(Trouble::Read(_)) if unread.iter().any(|(known, _)| *known == image) => {}
                Err(Trouble::Read(error)) => unread.push((image, error)),
                Err(Trouble::Device(error)) => return Err(error),
            }
        }
        let mut state = lock(&self.state);
        state.stats().decode += reading.total;
        state.stats().reading.merge(reading);
        drop(state);
        unread.sort_by_key(|(image, _)| *image);
        Ok(unread)
    }

    /// Reads the pieces one after another, on the calling thread.
    pub(crate) fn read_in_turn<S: LiveBrand>(&self, stream: &Stream<S>, pieces: Vec<Piece<'_, S>>) -> Vec<Done> {
        pieces.into_iter().map(|piece| self.upload_piece(stream, piece)).collect()
    }

    /// Reads the pieces on the threads of the [staging](crate::staging), many at a time.
    pub(crate) fn read_at_once<S: LiveBrand + Send + Sync>(
        &self,
        stream: &Stream<S>,
        pieces: Vec<Piece<'_, S>>,
    ) -> Vec<Done> {
        match self.staging.readers() {
            Some(threads) => threads.install(|| {
                pieces.into_par_iter().with_max_len(1).map(|piece| self.upload_piece(stream, piece)).collect()
            }),
            None => self.read_in_turn(stream, pieces),
        }
    }

    /// Reads a piece into a slot and enqueues its copy. Without a slot, copies it from ordinary
    /// memory and waits.
    fn upload_piece<S: LiveBrand>(&self, stream: &Stream<S>, piece: Piece<'_, S>) -> Done {
        let Piece { image, file, name, at, to } = piece;
        let len = to.len();
        let mut spent = Duration::ZERO;
        let mut timed = |bytes: &mut [u8]| {
            let begin = Instant::now();
            let thread = std::thread::current();
            let lane = thread.name().unwrap_or("read");
            let read = self.options.timeline.host(lane, name, || read(file, at, len, bytes));
            spent = begin.elapsed();
            read.map_err(Trouble::Read)
        };
        let mut upload = || match self.staging.take(|| (self.pin)(&self.pool, SLOT))? {
            Some(mut slot) => {
                let range = match timed(&mut slot) {
                    Ok(start) => start..start + len,
                    Err(error) => {
                        self.staging.give(Event::ready(slot));
                        return Err(error);
                    }
                };
                let slot = stream.bind(slot)?;
                stream.copy_to_device(slot.slice(range).map_err(Error::from)?, to)?;
                self.staging.give(stream.record(slot)?);
                Ok(())
            }
            None => {
                let mut bytes = vec![0; SLOT];
                let start = timed(&mut bytes)?;
                Ok(stream.write_blocking(&bytes[start..start + len], to)?)
            }
        };
        let outcome = upload();
        (image, len, spent, outcome)
    }
}
