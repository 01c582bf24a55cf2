//! Everything that a program works on: how it begins, which step a number means, and the checks at
//! the end.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use thalweg::{AnyStream, Device, DeviceBuffer, LiveBrand, PinnedBuffer, PinnedPool, Ring};

use super::failure::{Outcome, claim, equal};
use super::program::{FRAME, LENGTHS, MOST, Op};
use super::slots::{Slot, State};
use super::three::{Of, Streams, with};

pub(crate) type Pair = (PinnedBuffer<u32>, DeviceBuffer<u32>);

/// Everything that a program works on.
pub(crate) struct World<A: LiveBrand, B: LiveBrand, C: LiveBrand> {
    pub(crate) on: Streams<A, B, C>,
    pub(crate) device: Device,
    pub(crate) pool: PinnedPool,
    pub(crate) buffers: Vec<Slot<A, B, C, DeviceBuffer<u32>>>,
    pub(crate) pinned: Vec<Slot<A, B, C, PinnedBuffer<u32>>>,
    pub(crate) ring: Ring<Pair>,
    /// The contents that the ring's slots should have. The next slot to be taken comes first.
    pub(crate) frames: VecDeque<(Vec<u32>, Vec<u32>)>,
    /// The number of host functions of each stream, and the numbers that they left.
    pub(crate) calls: [(u32, Arc<Mutex<Vec<u32>>>); 3],
    /// The last number that was written to a buffer.
    number: u32,
    allocations: usize,
    /// Tells whether page-locked memory was forgotten.
    leaked: bool,
    pub(crate) trace: Vec<String>,
}

macro_rules! note {
    ($world:expr, $($what:tt)*) => {
        $world.trace.push(format!($($what)*))
    };
}

pub(crate) use note;

impl<A: LiveBrand, B: LiveBrand, C: LiveBrand> World<A, B, C> {
    pub(crate) fn new(device: Device, on: Streams<A, B, C>) -> Outcome<Self> {
        let other = AnyStream::new(device)?;
        let pool = PinnedPool::new(device, 1 << 20);
        let lender = pool.clone();
        let make = move || {
            let mut host = lender.take(FRAME)?;
            host.fill(0);
            Ok((host, other.enter(|s| s.alloc_zeroed(FRAME)?.synchronize())?))
        };
        let mut world = Self {
            on,
            device,
            pool,
            buffers: Vec::new(),
            pinned: Vec::new(),
            ring: Ring::new(2, make)?,
            frames: (0..2).map(|_| (vec![0; FRAME], vec![0; FRAME])).collect(),
            calls: Default::default(),
            number: 0,
            allocations: 0,
            leaked: false,
            trace: Vec::new(),
        };
        for t in 0..3 {
            world.new_buffer(t, LENGTHS[0])?;
        }
        world.new_pinned(LENGTHS[0])?;
        Ok(world)
    }

    /// Gives a number that was not written before.
    pub(crate) fn number(&mut self) -> u32 {
        self.number += 1;
        self.number.wrapping_mul(0x0100_1001)
    }

    fn new_buffer(&mut self, t: usize, len: usize) -> Outcome {
        note!(self, "new device buffer of {len} on {t}");
        let v = self.number();
        let x = with!(self.on, t, |s, of| {
            let mut x = s.alloc(len)?;
            s.fill(&mut x, v)?;
            of(x)
        });
        self.buffers.push(Slot::new(vec![v; len], State::On(x)));
        Ok(())
    }

    fn new_pinned(&mut self, len: usize) -> Outcome {
        note!(self, "new pinned buffer of {len}");
        let v = self.number();
        let mut x = self.pool.take(len)?;
        x.fill(v);
        self.pinned.push(Slot::new(vec![v; len], State::Idle(x)));
        Ok(())
    }

    /// Takes one step, or none if there is no buffer for it.
    pub(crate) fn step(&mut self, (what, a, b, c): Op) -> Outcome {
        let (i, j, t, how) = (usize::from(a), usize::from(b), usize::from(c % 3), c / 3);
        let (n, m) = (self.buffers.len(), self.pinned.len());
        let pinned = n == 0 || i % (n + m) >= n;
        let kind = if pinned { "pinned" } else { "device" };
        macro_rules! either {
            ($method:ident(slot $(, $arg:expr)*)) => {{
                note!(self, "{} {kind} {i}: {j} {t} {how}", stringify!($method));
                match pinned {
                    false => self.on.$method(&mut self.buffers[i % n] $(, $arg)*),
                    true if m > 0 => self.on.$method(&mut self.pinned[i % m] $(, $arg)*),
                    true => Ok(()),
                }
            }};
            ($method:ident(slots $(, $arg:expr)*)) => {{
                note!(self, "{} {kind} {i}: {j} {t} {how}", stringify!($method));
                match pinned {
                    false => self.on.$method(&mut self.buffers, i % n $(, $arg)*),
                    true if m > 0 => self.on.$method(&mut self.pinned, i % m $(, $arg)*),
                    true => Ok(()),
                }
            }};
        }
        match what {
            0..4 if n > 0 => self.fill(i % n, t, how),
            4..9 if n > 0 => self.launch(i % n, j % n, t, how),
            9..17 if n > 0 => self.copy(i % n, j % n, t, how),
            17..23 if n > 0 && m > 0 => self.upload(i % m, j % n, t, how),
            23..29 if n > 0 && m > 0 => self.download(i % n, j % m, t, how),
            29..32 if m > 0 => self.host_write(i % m, how),
            32..33 if n > 0 => self.read_blocking(i % n, t, how),
            33..34 if n > 0 => self.write_blocking(i % n, t, how),
            34..38 => either!(move_one(slot, t, how)),
            38..41 => either!(record_one(slot)),
            41..42 => either!(land_one(slot, how)),
            42..43 => either!(query_one(slot)),
            43..48 => either!(share_one(slot, t)),
            48..51 => either!(read_one(slot, t, how)),
            51..53 => either!(unshare_one(slot, t)),
            53..54 if m > 0 => self.host_view(i % m),
            54..57 => either!(split_one(slots, t, how, &mut self.allocations)),
            57..60 => either!(join_two(slots, t, j, how)),
            60..66 => either!(discard(slots, j, false)),
            66..67 => {
                self.leaked |= pinned;
                either!(discard(slots, j, true))
            }
            67..71 if n < MOST => self.new_buffer(t, LENGTHS[j % LENGTHS.len()]),
            71..75 if m < MOST => self.new_pinned(LENGTHS[j % LENGTHS.len()]),
            75..78 => self.frame(i, t, how),
            78..79 => self.hand_all(t, j),
            79..81 => self.call(i, t, how),
            81..82 => {
                note!(self, "synchronize {t}");
                self.on.synchronize(t)
            }
            82..87 if n > 1 => self.fan_out(i % n, j, t, how),
            87.. => self.ask(t),
            _ => Ok(()),
        }
    }

    /// Checks everything that is left, and drops it.
    pub(crate) fn finish(mut self) -> Outcome {
        self.trace.push("the end".into());
        for i in 0..self.buffers.len() {
            for t in 0..3 {
                self.read_blocking(i, t, 0)?;
            }
        }
        for i in 0..self.pinned.len() {
            // It reads through a new buffer, because streams may still read the old one.
            let at = self.buffers.len();
            self.new_buffer(0, self.pinned[i].len())?;
            for t in 0..3 {
                self.upload(i, at, t, 0)?;
                self.read_blocking(at, t, 0)?;
            }
            self.host_view(i)?;
            self.on.land(&mut self.pinned[i], 0)?;
        }
        for (host_want, _) in std::mem::take(&mut self.frames) {
            let (host, _) = self.ring.acquire()?.synchronize()?;
            equal("a slot of the ring", &host, &host_want)?;
        }
        for (t, (calls, seen)) in self.calls.iter().enumerate() {
            self.on.synchronize(t)?;
            claim("host functions left out or out of order", seen.lock().unwrap().iter().copied().eq(0..*calls))?;
        }
        let (on, pool, leaked) = (self.on, self.pool.clone(), self.leaked);
        drop(self);
        let start = Instant::now();
        while !leaked && pool.in_use() > 0 {
            (0..3).try_for_each(|t| on.synchronize(t))?;
            pool.take::<u32>(1)?; // Collects the memory that was given back.
            claim("page-locked memory never came back", start.elapsed() < Duration::from_secs(10))?;
        }
        Ok(())
    }
}
