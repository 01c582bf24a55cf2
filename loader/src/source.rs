//! Sources of samples, and their order.

use std::fmt;
use std::path::{Path, PathBuf};

use thalweg::Result;

use crate::DecodeError;
use crate::image_sink::ImageSink;
use crate::options::Shard;

/// The function that decodes one sample.
pub(crate) type Decode = Box<dyn FnOnce(&mut ImageSink<'_>) -> Result<(), DecodeError> + Send>;

/// An image to decode, and what travels with it.
pub struct Sample<M> {
    pub(crate) name: String,
    pub(crate) meta: M,
    pub(crate) decode: Decode,
}

impl<M> Sample<M> {
    /// A sample with a name, which errors mention, and with metadata (a label, a path), which
    /// reaches the batch unchanged.
    ///
    /// `decode` runs once, on a decode thread. It finds out the size of the image, asks the
    /// [`ImageSink`] for memory of that size, and writes the pixels there. If it fails or panics,
    /// only this sample is lost.
    pub fn new(
        name: impl Into<String>,
        meta: M,
        decode: impl FnOnce(&mut ImageSink<'_>) -> Result<(), DecodeError> + Send + 'static,
    ) -> Self {
        Self { name: name.into(), meta, decode: Box::new(decode) }
    }
}

impl<M: fmt::Debug> fmt::Debug for Sample<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sample").field("name", &self.name).field("meta", &self.meta).finish_non_exhaustive()
    }
}

/// The function of a source. It gets the index of a sample.
pub(crate) type Samples<M> = Box<dyn FnMut(u64) -> Option<Sample<M>> + Send>;

/// A source of samples: files, a folder, or a function of your own.
pub struct Source<M> {
    pub(crate) len: Option<u64>,
    pub(crate) sample: Samples<M>,
}

impl<M> Source<M> {
    /// `len` samples, each made by `sample` from its index. They can be shuffled.
    pub fn indexed(len: u64, mut sample: impl FnMut(u64) -> Sample<M> + Send + 'static) -> Self {
        Self { len: Some(len), sample: Box::new(move |index| Some(sample(index))) }
    }

    /// Samples until `sample` returns `None`. The loader calls it with 0, 1, 2 and so on, from the
    /// beginning in each epoch. A [shard](crate::LoaderOptions::shard) leaves out the numbers of
    /// the other ranks. The samples have no known number, so they cannot be shuffled.
    ///
    /// `sample` may wait for what comes next, such as a request (the example `requests` of the
    /// repository). Meanwhile the loader yields the batches that are full, so with
    /// [`batch_size`](crate::LoaderOptions::batch_size) 1 each image as soon as it is decoded.
    /// Dropping the loader waits until `sample` returns.
    ///
    /// With several ranks and [`drop_last`](crate::LoaderOptions::drop_last), the loader also calls
    /// it with the number of the last rank's last sample of each batch, in order, to learn whether
    /// every rank has this batch. That sample is not decoded.
    pub fn from_fn(sample: impl FnMut(u64) -> Option<Sample<M>> + Send + 'static) -> Self {
        Self { len: None, sample: Box::new(sample) }
    }
}

impl Source<PathBuf> {
    /// Files that `read` decodes: [`read_ppm`](crate::read_ppm), `read_photo`, or a function of
    /// your own. The metadata of a sample is its path.
    pub fn files(
        paths: impl IntoIterator<Item = impl Into<PathBuf>>,
        read: impl Fn(&Path, &mut ImageSink<'_>) -> Result<(), DecodeError> + Clone + Send + 'static,
    ) -> Self {
        let paths: Vec<PathBuf> = paths.into_iter().map(Into::into).collect();
        Self::indexed(paths.len() as u64, move |index| {
            let (path, read) = (paths[index as usize].clone(), read.clone());
            Sample::new(path.display().to_string(), path.clone(), move |sink| read(&path, sink))
        })
    }
}

impl<M> fmt::Debug for Source<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("len", &self.len).finish_non_exhaustive()
    }
}

/// The order of one rank's samples in an epoch.
#[derive(Debug)]
pub(crate) struct Order {
    /// The number of samples of this rank, if it is known.
    pub(crate) len: Option<u64>,
    shuffled: Option<Vec<u64>>,
    rank: u64,
    world: u64,
}

impl Order {
    /// A rank takes positions `rank`, `rank + world`, and so on of all samples, which every rank
    /// shuffles alike. With `equal`, all ranks have the same number of samples, the largest
    /// possible.
    pub(crate) fn new(
        len: Option<u64>,
        shuffle: Option<u64>,
        epoch: u64,
        Shard { rank, world_size: world }: Shard,
        equal: bool,
    ) -> Self {
        let own = |len: u64| if equal { len / world } else { len.saturating_sub(rank).div_ceil(world) };
        let shuffled = len.zip(shuffle).map(|(len, seed)| permutation(len, seed, epoch));
        Self { len: len.map(own), shuffled, rank, world }
    }

    /// The index of the sample at a position.
    pub(crate) fn index(&self, position: u64) -> Option<u64> {
        if self.len.is_some_and(|len| position >= len) {
            return None;
        }
        let place = position.checked_mul(self.world)?.checked_add(self.rank)?;
        Some(self.shuffled.as_ref().map_or(place, |order| order[place as usize]))
    }

    /// The index of the last rank's sample at a position. `None` if the number of samples is known
    /// or this is the last rank.
    pub(crate) fn of_last_rank(&self, position: u64) -> Option<u64> {
        let other = self.len.is_none() && self.rank < self.world - 1;
        other.then(|| position.checked_mul(self.world)?.checked_add(self.world - 1)).flatten()
    }
}

/// The numbers below `len` in an order that seed and epoch decide, the same on every machine.
///
/// Fisher and Yates's shuffle: for `i` from `len - 1` down to 1, swap elements `i` and `floor(r (i
/// + 1) / 2^64)`, where each `r` is the next number of SplitMix64 (Steele, Lea and Flood 2014)
/// started at `seed + epoch * 0xd1342543de82ef95`, modulo 2^64.
fn permutation(len: u64, seed: u64, epoch: u64) -> Vec<u64> {
    let mut order: Vec<u64> = (0..len).collect();
    let mut state = seed.wrapping_add(epoch.wrapping_mul(0xd134_2543_de82_ef95));
    for i in (1..order.len()).rev() {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut r = state;
        r = (r ^ (r >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        r = (r ^ (r >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        r ^= r >> 31;
        order.swap(i, ((u128::from(r) * (i as u128 + 1)) >> 64) as usize);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn indices(order: &Order) -> Vec<u64> {
        (0..).map_while(|position| order.index(position)).collect()
    }

    #[test]
    fn every_sample_is_one_ranks_once() {
        for len in [0, 1, 2, 7, 64, 101] {
            for world in [1, 2, 3, 8, 200] {
                for shuffle in [None, Some(0), Some(7)] {
                    let ranks =
                        (0..world).map(|rank| Order::new(Some(len), shuffle, 3, Shard::new(rank, world), false));
                    let mut all: Vec<u64> = ranks.flat_map(|order| indices(&order)).collect();
                    all.sort_unstable();
                    assert_eq!(all, (0..len).collect::<Vec<_>>(), "{len} samples, {world} ranks");

                    let equal: Vec<usize> = (0..world)
                        .map(|rank| indices(&Order::new(Some(len), shuffle, 3, Shard::new(rank, world), true)).len())
                        .collect();
                    assert!(equal.iter().all(|&n| n as u64 == len / world));
                }
            }
        }
    }

    /// Batch k of all ranks together has the samples of batch k of one rank with batches of all. So
    /// the number of ranks does not change what a model learns from in a step.
    #[test]
    fn the_ranks_divide_the_batches_of_one() {
        for (len, world, batch) in [(101, 2, 4), (64, 4, 2), (1003, 3, 5), (7, 8, 1)] {
            for shuffle in [None, Some(9)] {
                let of = |rank, world| Order::new(Some(len), shuffle, 2, Shard::new(rank, world), true);
                let ranks: Vec<Vec<u64>> = (0..world).map(|rank| indices(&of(rank, world))).collect();
                let one = indices(&of(0, 1));
                let batches = ranks[0].len() / batch;
                assert!(ranks.iter().all(|own| own.len() / batch == batches));
                for k in 0..batches {
                    let part = |own: &Vec<u64>| own[k * batch..(k + 1) * batch].to_vec();
                    let mut together: Vec<u64> = ranks.iter().flat_map(part).collect();
                    let all = batch * world as usize;
                    let mut expected = one[k * all..(k + 1) * all].to_vec();
                    together.sort_unstable();
                    expected.sort_unstable();
                    assert_eq!(together, expected, "batch {k} of {len} samples on {world} ranks");
                }
            }
        }
    }

    #[test]
    fn seed_and_epoch_decide_the_order() {
        let order = permutation(100, 1, 0);
        assert_eq!(order, permutation(100, 1, 0));
        assert_ne!(order, permutation(100, 2, 0));
        assert_ne!(order, permutation(100, 1, 1));
        assert_ne!(order, (0..100).collect::<Vec<_>>());
        // SplitMix64 from 0 begins 0xe220a8397b1dcdaf, 0x6e789e6aa1b965f4, 0x06c45d188009454f, so
        // elements 3, 1 and 0 are swapped in.
        assert_eq!(permutation(4, 0, 0), [2, 0, 1, 3]);
    }

    #[test]
    fn places_are_equally_likely() {
        // Three numbers have 3! orders, so 6000 seeds give each about 1000 times, with a standard
        // deviation below 30.
        let mut counts = std::collections::BTreeMap::new();
        for seed in 0..6000 {
            *counts.entry(permutation(3, seed, 0)).or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 6);
        assert!(counts.values().all(|n| (850..1150).contains(n)), "{counts:?}");
    }
}
