//! Reads the rows of a log in their order, and looks for two accesses that nothing orders.
//!
//! Each line has a vector clock: a stream, or the host. So has the newest record of each event. A
//! record keeps what its stream knows, a wait adds it to what another stream knows, and a call on a
//! stream adds what the host knows, because the host makes the call after all that. An access must
//! know each access before it that it conflicts with. The order in which the allocator reuses freed
//! memory is left out: it differs from run to run.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;
use std::sync::Arc;

use super::clock::{Clock, Line};
use super::memory::{Freed, Live, Memory};
use super::race::{Call, Race, Wrong};
use super::ranges::{Mark, Ranges};
use super::row::{Access, Kind, Row};

/// The line of the host. All its threads are one line: what orders them is not in the log.
const HOST: Line = 0;

/// Bytes that are written, or only read.
type Bytes = (bool, Range<u64>);

/// A capture in progress. What it captures does not run, so it has an order of its own.
#[derive(Debug, Default)]
struct Capture {
    clocks: HashMap<u64, Clock>,
    lines: HashMap<u64, Line>,
    ranges: Ranges,
    captured: Vec<(Bytes, Arc<Call>)>,
}

/// The size of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// The number of rows.
    pub rows: u64,
    /// The number of ranges of bytes that calls accessed.
    pub accesses: u64,
    /// The number of streams.
    pub streams: usize,
}

#[derive(Debug)]
pub(crate) struct Checker {
    summary: Summary,
    clocks: Vec<Clock>,
    lines: HashMap<u64, Line>,
    devices: HashMap<u64, String>,
    /// The streams as reports name them.
    names: HashMap<u64, Arc<str>>,
    /// The clock of the newest record of each event.
    events: HashMap<u64, Clock>,
    /// The clocks that waits of the host for streams will give it.
    waits: HashMap<u64, Clock>,
    memory: Memory,
    ranges: Ranges,
    captures: HashMap<u64, Capture>,
    /// The stream whose capture a stream takes part in.
    member: HashMap<u64, u64>,
    /// The accesses of the work of each graph.
    graphs: HashMap<u64, Vec<(Bytes, Arc<Call>)>>,
}

impl Default for Checker {
    fn default() -> Self {
        Self {
            summary: Summary::default(),
            clocks: vec![Clock::default()],
            lines: HashMap::new(),
            devices: HashMap::new(),
            names: HashMap::new(),
            events: HashMap::new(),
            waits: HashMap::new(),
            memory: Memory::default(),
            ranges: Ranges::default(),
            captures: HashMap::new(),
            member: HashMap::new(),
            graphs: HashMap::new(),
        }
    }
}

impl Checker {
    pub(crate) fn summary(&self) -> Summary {
        Summary { streams: self.lines.len(), ..self.summary }
    }

    fn line(&mut self, stream: u64) -> Line {
        match self.lines.entry(stream) {
            Entry::Occupied(line) => *line.get(),
            Entry::Vacant(place) => {
                self.clocks.push(Clock::default());
                *place.insert(self.clocks.len() - 1)
            }
        }
    }

    /// The line of a stream that gets a call, which comes after what the host has done and knows.
    fn call(&mut self, stream: u64) -> Line {
        let line = self.line(stream);
        if let [host, streams @ ..] = &mut *self.clocks {
            streams[line - 1].join(host);
        }
        line
    }

    fn described(&self, row: &Row, by: Option<u64>) -> Arc<Call> {
        let what = if row.what.is_empty() { row.kind.verb().into() } else { row.what.clone() };
        let by = match by {
            None => "the host".into(),
            Some(stream) => self.names.get(&stream).cloned().unwrap_or_else(|| format!("stream {stream:x}").into()),
        };
        // The header is the first line of a file.
        let row_number = self.summary.rows + 1;
        Arc::new(Call { row: row_number, what, at: row.at.clone(), by, captured: None })
    }

    /// Adds the accesses of a call by a line, which knows what comes before the call.
    fn access<'b>(
        &mut self,
        line: Line,
        bytes: impl IntoIterator<Item = (&'b Bytes, Arc<Call>)>,
    ) -> Result<(), Box<Race>> {
        let (mut race, time) = (Ok(()), self.clocks[line].tick(line));
        for ((writes, bytes), call) in bytes {
            self.summary.accesses += 1;
            let mark = Mark { line, time, call };
            let conflict = self.ranges.access(bytes.clone(), *writes, &mark, &self.clocks[line]);
            race = race.and(conflict.map_or(Ok(()), |conflict| Err(conflict.race(*writes, mark.call))));
        }
        race
    }

    /// The bytes that a call accesses, and whether it writes pageable memory. Pageable memory
    /// itself is left out: the system gives it to others without a row.
    fn resolve(&self, accesses: &[Access], call: &Arc<Call>) -> Result<(Vec<Bytes>, bool), Box<Race>> {
        let (mut all, mut fills_pageable) = (Vec::new(), false);
        for access in accesses {
            for bytes in access.ranges() {
                let start = self.memory.on_host(bytes.start);
                let bytes = start..start.saturating_add(bytes.end - bytes.start);
                if access.host && !self.memory.is_page_locked(&bytes) {
                    fills_pageable |= access.writes;
                } else if let Some((bytes, freed)) = self.memory.find_freed(&bytes) {
                    let wrong = Wrong::Freed { free: freed.call.clone() };
                    return Err(Box::new(Race { wrong, bytes, later: call.clone() }));
                } else {
                    all.push((access.writes, bytes));
                }
            }
        }
        Ok((all, fills_pageable))
    }

    fn work(&mut self, stream: u64, accesses: &[Access], row: &Row) -> Result<(), Box<Race>> {
        let call = self.described(row, Some(stream));
        let (bytes, fills_pageable) = self.resolve(accesses, &call)?;
        if let Some(capture) = self.member.get(&stream).and_then(|owner| self.captures.get_mut(owner)) {
            return capture.add(stream, bytes, &call);
        }
        let line = self.call(stream);
        self.access(line, bytes.iter().map(|bytes| (bytes, call.clone())))?;
        if fills_pageable && let [host, streams @ ..] = &mut *self.clocks {
            host.join(&streams[line - 1]); // the driver's call returns when the copy is done
        }
        Ok(())
    }

    /// Adds memory that begins its life with an access of a line.
    fn begin(&mut self, line: Line, bytes: Range<u64>, kind: Live, call: Arc<Call>) {
        self.memory.add(bytes.clone(), kind);
        // Who had these addresses before does not matter.
        _ = self.access(line, [(&(true, bytes), call)]);
    }

    /// Ends the life of memory with an access of a line.
    fn end(&mut self, line: Line, start: u64, bytes: u64, kind: Live, call: Arc<Call>) -> Result<(), Box<Race>> {
        let Some(end) = self.memory.remove(start, kind) else {
            let bytes = start..start.saturating_add(bytes);
            let wrong = match self.memory.find_freed(&bytes) {
                Some((_, freed)) => Wrong::Freed { free: freed.call.clone() },
                None => Wrong::NotAllocated,
            };
            return Err(Box::new(Race { wrong, bytes, later: call }));
        };
        self.access(line, [(&(true, start..end), call.clone())])?;
        self.ranges.forget(start..end);
        if kind == Live::Device {
            self.memory.freed(start, Freed { end, call });
        }
        Ok(())
    }

    /// Adds a row.
    ///
    /// # Errors
    /// The row accesses memory without an order, or memory that is not there.
    pub(crate) fn add(&mut self, row: &Row) -> Result<(), Box<Race>> {
        self.summary.rows += 1;
        match row.kind {
            Kind::Device { device, ref name } => _ = self.devices.insert(device, name.clone()),
            Kind::Stream { stream, device } => {
                let device = self.devices.get(&device).map_or("an unknown device", String::as_str);
                self.names.insert(stream, format!("stream {stream:x} of {device}").into());
            }
            Kind::Name { stream, ref name } => {
                let old = self.names.entry(stream).or_insert_with(|| format!("stream {stream:x}").into());
                *old = format!("{} ({name})", old.split(" (").next().unwrap_or_default()).into();
            }
            Kind::Event { event } => _ = self.events.remove(&event),
            Kind::Record { stream, event } => {
                let line = self.call(stream);
                self.events.insert(event, self.clocks[line].clone());
            }
            Kind::Wait { stream, event } => {
                let line = self.call(stream);
                if let Some(recorded) = self.events.get(&event) {
                    self.clocks[line].join(recorded);
                }
            }
            Kind::Seen { event } => {
                if let Some(recorded) = self.events.get(&event) {
                    self.clocks[HOST].join(recorded);
                }
            }
            Kind::Await { wait, stream } => {
                let line = self.call(stream);
                self.waits.insert(wait, self.clocks[line].clone());
            }
            Kind::Passed { wait } => {
                if let Some(known) = self.waits.remove(&wait) {
                    self.clocks[HOST].join(&known);
                }
            }
            Kind::Missed { wait } => _ = self.waits.remove(&wait),
            Kind::Alloc { stream, addr, bytes } => {
                let (line, call) = (self.call(stream), self.described(row, Some(stream)));
                self.begin(line, addr..addr.saturating_add(bytes), Live::Device, call);
            }
            Kind::Adopt { addr, bytes } => {
                let (bytes, call) = (addr..addr.saturating_add(bytes), self.described(row, None));
                self.memory.adopt(bytes.clone());
                return self.access(HOST, [(&(true, bytes), call)]);
            }
            Kind::Free { stream, addr, bytes } => {
                let (line, call) = (self.call(stream), self.described(row, Some(stream)));
                return self.end(line, addr, bytes, Live::Device, call);
            }
            Kind::Pin { addr, bytes } => {
                let call = self.described(row, None);
                self.begin(HOST, addr..addr.saturating_add(bytes), Live::PageLocked, call);
            }
            Kind::Unpin { addr } => {
                let call = self.described(row, None);
                return self.end(HOST, addr, 1, Live::PageLocked, call);
            }
            Kind::Map { addr, at } => self.memory.map(addr, at),
            Kind::Work { stream, ref accesses } => return self.work(stream, accesses, row),
            Kind::Host { ref accesses } => {
                let call = self.described(row, None);
                let (bytes, _) = self.resolve(accesses, &call)?;
                return self.access(HOST, bytes.iter().map(|bytes| (bytes, call.clone())));
            }
            Kind::Capture { stream } => {
                let capture = Capture { lines: HashMap::from([(stream, 0)]), ..Capture::default() };
                self.captures.insert(stream, capture);
                self.member.insert(stream, stream);
            }
            Kind::Fork { stream, branch } | Kind::Join { stream, branch } => {
                if let Some(&owner) = self.member.get(&stream)
                    && let Some(capture) = self.captures.get_mut(&owner)
                {
                    self.member.insert(branch, owner);
                    let forks = matches!(row.kind, Kind::Fork { .. });
                    capture.hand(if forks { [stream, branch] } else { [branch, stream] });
                }
            }
            Kind::Graph { stream, graph } => {
                self.member.retain(|_, owner| *owner != stream);
                let mut captured = self.captures.remove(&stream).unwrap_or_default().captured;
                captured.sort_by_key(|((writes, bytes), _)| (*writes, bytes.start, bytes.end));
                captured.dedup_by(|a, b| a.0 == b.0);
                self.graphs.insert(graph, captured);
            }
            Kind::Replay { stream, graph } => return self.replay(stream, graph, row),
        }
        Ok(())
    }

    /// Adds a replay, which is one piece of work of its stream.
    fn replay(&mut self, stream: u64, graph: u64, row: &Row) -> Result<(), Box<Race>> {
        let (line, call) = (self.call(stream), self.described(row, Some(stream)));
        let Some(captured) = self.graphs.remove(&graph) else { return Ok(()) };
        let mut done = Ok(());
        for ((_, bytes), part) in &captured {
            if let Some((bytes, freed)) = self.memory.find_freed(bytes) {
                let wrong = Wrong::Freed { free: freed.call.clone() };
                done = done.and(Err(Box::new(Race { wrong, bytes, later: call.running(part) })));
            }
        }
        let parts = captured.iter().map(|(bytes, part)| (bytes, call.running(part)));
        done = done.and(self.access(line, parts));
        self.graphs.insert(graph, captured);
        done
    }
}

impl Capture {
    fn line(&mut self, stream: u64) -> Line {
        let next = self.lines.len();
        *self.lines.entry(stream).or_insert(next)
    }

    /// Lets what the first stream has captured come before what the second one captures.
    fn hand(&mut self, [from, to]: [u64; 2]) {
        self.line(from);
        self.line(to);
        let known = self.clocks.entry(from).or_default().clone();
        self.clocks.entry(to).or_default().join(&known);
    }

    fn add(&mut self, stream: u64, bytes: Vec<Bytes>, call: &Arc<Call>) -> Result<(), Box<Race>> {
        let line = self.line(stream);
        let clock = self.clocks.entry(stream).or_default();
        let (mut race, time) = (Ok(()), clock.tick(line));
        for (writes, bytes) in bytes {
            let mark = Mark { line, time, call: call.clone() };
            let conflict = self.ranges.access(bytes.clone(), writes, &mark, clock);
            race = race.and(conflict.map_or(Ok(()), |conflict| Err(conflict.race(writes, call.clone()))));
            self.captured.push(((writes, bytes), call.clone()));
        }
        race
    }
}
