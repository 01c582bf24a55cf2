//! The memory that the decoders of a loader share: memory of their own, and the limit of an image's
//! pixels.

use std::sync::{Condvar, Mutex, PoisonError};

use crate::LoaderOptions;
use crate::error::SampleError;
use crate::lock;

/// The memory that a decoder may keep for the next file.
#[cfg(feature = "image")]
const KEPT: usize = 8 << 20;

/// The memory of decoders beside that for pixels.
#[derive(Debug)]
pub(crate) struct Scratch {
    budget: usize,
    pixel_limit: u64,
    /// The rules for photographs that are not upright, opaque and of 8 bits.
    #[cfg(feature = "image")]
    pub(crate) photo: crate::PhotoOptions,
    used: Mutex<usize>,
    freed: Condvar,
    /// Decoders that no thread uses.
    #[cfg(feature = "image")]
    decoders: Mutex<Vec<thalweg_jpeg::HostDecoder>>,
}

/// A part of the budget, until it is dropped.
#[derive(Debug)]
pub(crate) struct Share<'s> {
    scratch: &'s Scratch,
    bytes: usize,
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        *lock(&self.scratch.used) -= self.bytes;
        self.scratch.freed.notify_all();
    }
}

impl Scratch {
    pub(crate) fn new(options: &LoaderOptions) -> Self {
        Self {
            budget: options.scratch_budget,
            pixel_limit: options.pixel_limit,
            #[cfg(feature = "image")]
            photo: options.photo,
            used: Mutex::default(),
            freed: Condvar::new(),
            #[cfg(feature = "image")]
            decoders: Mutex::default(),
        }
    }

    /// Takes a part of the budget, and waits while others have it. Whoever has a part waits for
    /// nothing, so this ends: call it after the pixels have their memory.
    pub(crate) fn take(&self, bytes: usize) -> Result<Share<'_>, SampleError> {
        if bytes > self.budget {
            return Err(SampleError::ScratchBudget { needed: bytes, budget: self.budget });
        }
        let mut used = lock(&self.used);
        while *used > self.budget - bytes {
            used = self.freed.wait(used).unwrap_or_else(PoisonError::into_inner);
        }
        *used += bytes;
        Ok(Share { scratch: self, bytes })
    }

    /// Checks the number of pixels of an image.
    pub(crate) fn allow(&self, height: u32, width: u32) -> Result<(), SampleError> {
        let limit = self.pixel_limit;
        let allowed = u64::from(height) * u64::from(width) <= limit;
        if allowed { Ok(()) } else { Err(SampleError::PixelLimit { height, width, limit }) }
    }

    /// Lends a decoder.
    #[cfg(feature = "image")]
    pub(crate) fn jpeg<R>(&self, run: impl FnOnce(&mut thalweg_jpeg::HostDecoder) -> R) -> R {
        let decoder = lock(&self.decoders).pop();
        let mut decoder = decoder.unwrap_or_default();
        let result = run(&mut decoder);
        if decoder.memory() <= KEPT {
            lock(&self.decoders).push(decoder);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::{LoaderOptions, Scratch};

    /// Many threads want more than there is. They never have more than that together, and all get
    /// their turn.
    #[test]
    fn shares_stay_within_the_budget() {
        let (scratch, most, turns) = (
            Scratch::new(&LoaderOptions::default().with_scratch_budget(100)),
            AtomicUsize::new(0),
            AtomicUsize::new(0),
        );
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (scratch, most, turns) = (&scratch, &most, &turns);
                scope.spawn(move || {
                    for turn in 0..200 {
                        let share = scratch.take((thread * 31 + turn * 7) % 101).unwrap();
                        most.fetch_max(*crate::lock(&scratch.used), Ordering::Relaxed);
                        std::thread::yield_now();
                        drop(share);
                        turns.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert!((60..=100).contains(&most.into_inner()));
        assert_eq!((turns.into_inner(), *crate::lock(&scratch.used)), (1600, 0));
        assert!(scratch.take(101).unwrap_err().to_string().contains("`scratch_budget` is 0.0 MB"));
    }
}
