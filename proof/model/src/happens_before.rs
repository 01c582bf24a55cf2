//! Which access comes before which, from the calls alone. This file knows no typed state.
//!
//! A line does one thing after another: a stream, the stream that frees memory (`KEEPER`), or a
//! thread of the host. An access comes before what follows on its line. What a thread has done and
//! knows comes before each call that it makes later. A record comes before each wait for it, and a
//! free before the allocation that gets the memory (the driver's promise). A thread records what it
//! knows where it gives something away, and another one waits for that where it gets it.

pub const STREAMS: usize = 3;
pub const KEEPER: usize = 3;
/// The first thread of the host. The second one is the line after it.
pub const HOST: usize = 4;
pub const LINES: usize = 6;

/// For each line, how many of its accesses are ordered before.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
pub struct Clock(pub [u8; LINES]);

impl Clock {
    pub fn join(&mut self, other: &Clock) {
        (0..LINES).for_each(|l| self.0[l] = self.0[l].max(other.0[l]));
    }
}

/// The last write of a granule, and each line's last read since then; 0 for none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
pub struct Granule {
    pub write: Option<(u8, u8)>,
    pub reads: [u8; LINES],
}

/// Two accesses that nothing orders.
#[derive(Clone, Copy, Debug)]
pub struct Race {
    pub granule: usize,
    pub earlier: usize,
    pub later: usize,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct HappensBefore {
    /// The thread that makes the next call.
    pub host: usize,
    pub clocks: [Clock; LINES],
    pub memory: Vec<Granule>,
}

/// A call, for the device in `device.rs`, which executes it again in every order.
#[derive(Clone, Debug)]
pub enum Call {
    /// An access by a line. On the host it happens at once.
    Access {
        line: usize,
        reads: Vec<usize>,
        writes: Vec<usize>,
    },
    /// `record` is a number that no other record has.
    Record {
        line: usize,
        record: usize,
    },
    Wait {
        line: usize,
        record: usize,
    },
}

/// The calls of a program, each with the thread that made it.
#[derive(Default)]
pub struct Log(pub Option<Vec<(usize, Call)>>);

impl Log {
    fn add(&mut self, host: usize, call: impl FnOnce() -> Call) {
        if let Some(calls) = &mut self.0 {
            calls.push((host, call()));
        }
    }
}

/// A point on a line: what is ordered before it, and its number in the log.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Point {
    pub clock: Clock,
    pub record: usize,
}

impl HappensBefore {
    pub fn new(granules: usize) -> Self {
        Self { host: HOST, clocks: Default::default(), memory: vec![Granule::default(); granules] }
    }

    /// A thread makes a call on a line: what the thread has done and knows comes before it.
    fn call(&mut self, line: usize) {
        let host = self.clocks[self.host];
        self.clocks[line].join(&host);
    }

    pub fn access(&mut self, line: usize, reads: &[usize], writes: &[usize], log: &mut Log) -> Result<(), Race> {
        self.call(line);
        log.add(self.host, || Call::Access { line, reads: reads.to_vec(), writes: writes.to_vec() });
        let seen = self.clocks[line];
        let race = |granule, earlier| Err(Race { granule, earlier, later: line });
        for &g in reads.iter().chain(writes) {
            if let Some((l, at)) = self.memory[g].write
                && seen.0[l as usize] < at
            {
                return race(g, l as usize);
            }
        }
        for &g in writes {
            for l in 0..LINES {
                if seen.0[l] < self.memory[g].reads[l] {
                    return race(g, l);
                }
            }
        }
        self.clocks[line].0[line] += 1;
        let now = self.clocks[line].0[line];
        reads.iter().for_each(|&g| self.memory[g].reads[line] = now);
        writes.iter().for_each(|&g| self.memory[g] = Granule { write: Some((line as u8, now)), reads: [0; LINES] });
        Ok(())
    }

    pub fn record(&mut self, line: usize, log: &mut Log) -> Point {
        self.call(line);
        let record = log.0.as_ref().map_or(0, Vec::len);
        log.add(self.host, || Call::Record { line, record });
        Point { clock: self.clocks[line], record }
    }

    /// Orders the later accesses of the line after the record.
    pub fn wait(&mut self, line: usize, point: &Point, log: &mut Log) {
        self.call(line);
        log.add(self.host, || Call::Wait { line, record: point.record });
        self.clocks[line].join(&point.clock);
    }

    /// Renames the times of each line to 1, 2, 3 and so on, without those that no granule
    /// remembers. Only comparisons with those decide about races, so the states before and after
    /// are equivalent.
    pub fn compress(&mut self, others: Vec<&mut Clock>) {
        let mut times: [Vec<u8>; LINES] = Default::default();
        for g in &self.memory {
            if let Some((l, at)) = g.write {
                times[l as usize].push(at);
            }
            (0..LINES).filter(|&l| g.reads[l] > 0).for_each(|l| times[l].push(g.reads[l]));
        }
        times.iter_mut().for_each(|t| {
            t.sort_unstable();
            t.dedup();
        });
        let rank = |l: usize, at: u8| times[l].partition_point(|&t| t <= at) as u8;
        for g in &mut self.memory {
            if let Some((l, at)) = &mut g.write {
                *at = rank(*l as usize, *at);
            }
            (0..LINES).for_each(|l| g.reads[l] = rank(l, g.reads[l]));
        }
        for clock in self.clocks.iter_mut().chain(others.into_iter().map(|c| c as &mut Clock)) {
            (0..LINES).for_each(|l| clock.0[l] = rank(l, clock.0[l]));
        }
    }
}
