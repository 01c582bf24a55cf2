//! The accesses of others that a thread knows of, by releases and acquires.

use std::collections::HashMap;
use std::hash::Hash;

use super::record::{Record, WARP};

/// A set of accesses: those before a tick of a thread, a warp or a block. A thread that acquires it
/// is ordered after them.
#[derive(Clone, Debug, Default)]
pub(super) struct Clock {
    threads: HashMap<(u32, u32), u32>,
    warps: HashMap<(u32, u32), u32>,
    blocks: HashMap<u32, u32>,
}

/// The ticks before which the accesses of a thread's block, its warp and itself are ordered before
/// its next access.
#[derive(Clone, Copy, Debug)]
pub(super) struct Past {
    pub(super) block: u32,
    pub(super) rank: u32,
    pub(super) of_block: u32,
    pub(super) of_warp: u32,
    pub(super) own: u32,
}

impl Clock {
    /// Whether the access is in the set.
    pub(super) fn knows(&self, access: Record) -> bool {
        let (block, tick) = (access.block(), access.tick());
        self.blocks.get(&block).is_some_and(|t| tick < *t)
            || self.warps.get(&(block, access.warp())).is_some_and(|t| tick < *t)
            || self.threads.get(&(block, access.rank())).is_some_and(|t| tick < *t)
    }

    /// Adds the accesses of another set.
    pub(super) fn join(&mut self, other: &Self) {
        join(&mut self.threads, &other.threads);
        join(&mut self.warps, &other.warps);
        join(&mut self.blocks, &other.blocks);
    }

    /// Adds the past of a thread.
    pub(super) fn add(&mut self, past: Past) {
        let Past { block, rank, of_block, of_warp, own } = past;
        raise(&mut self.threads, (block, rank), own);
        raise(&mut self.warps, (block, rank / WARP), of_warp);
        raise(&mut self.blocks, block, of_block);
    }
}

fn join<K: Copy + Eq + Hash>(to: &mut HashMap<K, u32>, from: &HashMap<K, u32>) {
    from.iter().for_each(|(&key, &tick)| raise(to, key, tick));
}

fn raise<K: Eq + Hash>(map: &mut HashMap<K, u32>, key: K, tick: u32) {
    let known = map.entry(key).or_default();
    *known = tick.max(*known);
}
