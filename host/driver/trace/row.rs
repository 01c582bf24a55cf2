//! The rows of a log, and their text.
//!
//! ```text
//! device 1 cpu                     a device has this name
//! stream 3 1                       a stream is of this device
//! name 3 app::Upload               the stream is for this
//! event 7f80                       an event is new, or another one than before
//! record 3 7f80                    the stream records the event
//! wait 3 7f80                      the stream waits for the newest record of the event
//! seen 7f80                        the host has waited for that, or asked with success
//! await 5 3                        a wait of the host for a stream, or a question, begins
//! passed 5, missed 5               it ends, with success or without
//! alloc 3 7000 100                 device memory at 0x7000, 0x100 bytes
//! adopt 7000 100                   device memory that other code allocated
//! free 3 7000 100                  device memory ends
//! pin 9000 1000                    page-locked memory
//! unpin 9000                       page-locked memory ends
//! map 9000 d000                    kernels access it at another address
//! work 3 r:7000+100 w:8000+100     a copy, a fill, a launch, a host function
//! host r:9000+100                  the host may read or write from now on
//! capture 4, fork 4 5, join 4 5    a capture begins; a branch begins and ends
//! graph 4 6000                     the capture ends with this graph
//! replay 3 6000                    the stream runs the graph
//! ```
//!
//! Numbers are hexadecimal. An access is `r` or `w`, with an `h` before it if it is the host side
//! of a copy. `r:7000+10*8/40` is 8 rows of 0x10 bytes that begin 0x40 bytes apart, and
//! `r:7000+10*8/40*2/200` is two planes of them. A row may end with ` # ` and what called, and with
//! ` @ ` and where.

use std::borrow::Cow;
use std::fmt::{self, Write};
use std::ops::Range;
use std::panic::Location;

/// Bytes that a call reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) writes: bool,
    /// True for the host side of a copy, which may be pageable memory.
    pub(crate) host: bool,
    pub(crate) addr: u64,
    pub(crate) bytes: u64,
    /// The number and distance of rows and of planes.
    pub(crate) rows: [(u64, u64); 2],
}

impl Access {
    pub(crate) fn new(writes: bool, addr: u64, bytes: u64) -> Self {
        Self { writes, host: false, addr, bytes, rows: [(1, 0); 2] }
    }

    pub(crate) fn read(addr: u64, bytes: u64) -> Self {
        Self::new(false, addr, bytes)
    }

    pub(crate) fn write(addr: u64, bytes: u64) -> Self {
        Self::new(true, addr, bytes)
    }

    /// Makes it the host side of a copy.
    pub(crate) fn of_host(self, host: bool) -> Self {
        Self { host, ..self }
    }

    /// Makes it rows, and planes of them, each with its number and the distance between two. Rows
    /// without gaps are one.
    pub(crate) fn pitched(mut self, rows: [(u64, u64); 2]) -> Self {
        for (count, distance) in rows {
            if count == 1 || (distance == self.bytes && self.rows[0].0 == 1) {
                self.bytes *= count;
            } else if self.rows[0].0 == 1 {
                self.rows[0] = (count, distance);
            } else {
                self.rows[1] = (count, distance);
            }
        }
        self
    }

    /// The ranges of bytes.
    pub(super) fn ranges(self) -> impl Iterator<Item = Range<u64>> {
        let [(rows, row), (planes, plane)] = self.rows;
        let starts = (0..planes).flat_map(move |p| (0..rows).map(move |r| (p, r)));
        let starts = starts
            .map(move |(p, r)| self.addr.saturating_add(p.saturating_mul(plane).saturating_add(r.saturating_mul(row))));
        starts.filter(move |_| self.bytes > 0).map(move |start| start..start.saturating_add(self.bytes))
    }
}

/// The place of a call.
#[derive(Clone, Debug)]
pub(crate) enum At {
    Here(&'static Location<'static>),
    Text(String),
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Here(place) => place.fmt(f),
            Self::Text(text) => f.write_str(text),
        }
    }
}

/// The numbers of a row.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Device { device: u64, name: String },
    Stream { stream: u64, device: u64 },
    Name { stream: u64, name: String },
    Event { event: u64 },
    Record { stream: u64, event: u64 },
    Wait { stream: u64, event: u64 },
    Seen { event: u64 },
    Await { wait: u64, stream: u64 },
    Passed { wait: u64 },
    Missed { wait: u64 },
    Alloc { stream: u64, addr: u64, bytes: u64 },
    Adopt { addr: u64, bytes: u64 },
    Free { stream: u64, addr: u64, bytes: u64 },
    Pin { addr: u64, bytes: u64 },
    Unpin { addr: u64 },
    Map { addr: u64, at: u64 },
    Work { stream: u64, accesses: Vec<Access> },
    Host { accesses: Vec<Access> },
    Capture { stream: u64 },
    Fork { stream: u64, branch: u64 },
    Join { stream: u64, branch: u64 },
    Graph { stream: u64, graph: u64 },
    Replay { stream: u64, graph: u64 },
}

/// A row of the log: a call.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) kind: Kind,
    /// The name of the operation or the kernel, if the kind does not say it.
    pub(crate) what: Cow<'static, str>,
    /// The line of the program.
    pub(crate) at: Option<At>,
}

impl Kind {
    /// The call of a row that does not name one.
    pub(super) fn verb(&self) -> &'static str {
        match self {
            Self::Alloc { .. } => "alloc",
            Self::Adopt { .. } => "from_raw",
            Self::Free { .. } => "free",
            Self::Pin { .. } | Self::Unpin { .. } => "page-locked memory",
            Self::Host { .. } => "access",
            Self::Replay { .. } => "replay",
            _ => "work",
        }
    }
}

impl Row {
    pub(crate) fn new(kind: Kind, what: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, what: what.into(), at: None }
    }

    /// The first word and the numbers.
    fn words(&self) -> (&'static str, Vec<u64>) {
        match self.kind {
            Kind::Device { device, .. } => ("device", vec![device]),
            Kind::Stream { stream, device } => ("stream", vec![stream, device]),
            Kind::Name { stream, .. } => ("name", vec![stream]),
            Kind::Event { event } => ("event", vec![event]),
            Kind::Record { stream, event } => ("record", vec![stream, event]),
            Kind::Wait { stream, event } => ("wait", vec![stream, event]),
            Kind::Seen { event } => ("seen", vec![event]),
            Kind::Await { wait, stream } => ("await", vec![wait, stream]),
            Kind::Passed { wait } => ("passed", vec![wait]),
            Kind::Missed { wait } => ("missed", vec![wait]),
            Kind::Alloc { stream, addr, bytes } => ("alloc", vec![stream, addr, bytes]),
            Kind::Adopt { addr, bytes } => ("adopt", vec![addr, bytes]),
            Kind::Free { stream, addr, bytes } => ("free", vec![stream, addr, bytes]),
            Kind::Pin { addr, bytes } => ("pin", vec![addr, bytes]),
            Kind::Unpin { addr } => ("unpin", vec![addr]),
            Kind::Map { addr, at } => ("map", vec![addr, at]),
            Kind::Work { stream, .. } => ("work", vec![stream]),
            Kind::Host { .. } => ("host", vec![]),
            Kind::Capture { stream } => ("capture", vec![stream]),
            Kind::Fork { stream, branch } => ("fork", vec![stream, branch]),
            Kind::Join { stream, branch } => ("join", vec![stream, branch]),
            Kind::Graph { stream, graph } => ("graph", vec![stream, graph]),
            Kind::Replay { stream, graph } => ("replay", vec![stream, graph]),
        }
    }

    /// Reads a row. Returns `None` if the text is not one.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (text, at) = match text.rsplit_once(" @ ") {
            Some((text, at)) => (text, Some(At::Text(at.to_owned()))),
            None => (text, None),
        };
        let (text, what) = text.split_once(" # ").unwrap_or((text, ""));
        let (first, rest) = text.split_once(' ').unwrap_or((text, ""));
        let kind = match first {
            "device" => {
                let (device, name) = rest.split_once(' ')?;
                Kind::Device { device: hex(device)?, name: name.to_owned() }
            }
            "name" => {
                let (stream, name) = rest.split_once(' ')?;
                Kind::Name { stream: hex(stream)?, name: name.to_owned() }
            }
            "work" => {
                let (stream, accesses) = rest.split_once(' ').unwrap_or((rest, ""));
                Kind::Work { stream: hex(stream)?, accesses: list(accesses)? }
            }
            "host" => Kind::Host { accesses: list(rest)? },
            _ => numbers(first, &rest.split_ascii_whitespace().map(hex).collect::<Option<Vec<_>>>()?)?,
        };
        Some(Self { kind, what: what.to_owned().into(), at })
    }
}

/// A row of numbers only.
fn numbers(first: &str, numbers: &[u64]) -> Option<Kind> {
    Some(match (first, numbers) {
        ("stream", &[stream, device]) => Kind::Stream { stream, device },
        ("event", &[event]) => Kind::Event { event },
        ("record", &[stream, event]) => Kind::Record { stream, event },
        ("wait", &[stream, event]) => Kind::Wait { stream, event },
        ("seen", &[event]) => Kind::Seen { event },
        ("await", &[wait, stream]) => Kind::Await { wait, stream },
        ("passed", &[wait]) => Kind::Passed { wait },
        ("missed", &[wait]) => Kind::Missed { wait },
        ("alloc", &[stream, addr, bytes]) => Kind::Alloc { stream, addr, bytes },
        ("adopt", &[addr, bytes]) => Kind::Adopt { addr, bytes },
        ("free", &[stream, addr, bytes]) => Kind::Free { stream, addr, bytes },
        ("pin", &[addr, bytes]) => Kind::Pin { addr, bytes },
        ("unpin", &[addr]) => Kind::Unpin { addr },
        ("map", &[addr, at]) => Kind::Map { addr, at },
        ("capture", &[stream]) => Kind::Capture { stream },
        ("fork", &[stream, branch]) => Kind::Fork { stream, branch },
        ("join", &[stream, branch]) => Kind::Join { stream, branch },
        ("graph", &[stream, graph]) => Kind::Graph { stream, graph },
        ("replay", &[stream, graph]) => Kind::Replay { stream, graph },
        _ => return None,
    })
}

fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}

fn list(text: &str) -> Option<Vec<Access>> {
    text.split_ascii_whitespace().map(access).collect()
}

fn access(text: &str) -> Option<Access> {
    let (mode, place) = text.split_once(':')?;
    let (host, writes) = match mode {
        "r" => (false, false),
        "w" => (false, true),
        "hr" => (true, false),
        "hw" => (true, true),
        _ => return None,
    };
    let (addr, bytes) = place.split_once('+')?;
    let mut parts = bytes.split('*');
    let mut access = Access { host, ..Access::new(writes, hex(addr)?, hex(parts.next()?)?) };
    for (row, part) in access.rows.iter_mut().zip(parts.by_ref()) {
        let (count, distance) = part.split_once('/')?;
        *row = (hex(count)?, hex(distance)?);
    }
    parts.next().is_none().then_some(access)
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (host, mode) = (if self.host { "h" } else { "" }, if self.writes { "w" } else { "r" });
        write!(f, "{host}{mode}:{:x}+{:x}", self.addr, self.bytes)?;
        let used = self.rows.iter().take(if self.rows[1].0 != 1 { 2 } else { usize::from(self.rows[0].0 != 1) });
        for (count, distance) in used {
            write!(f, "*{count:x}/{distance:x}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, numbers) = self.words();
        f.write_str(first)?;
        numbers.iter().try_for_each(|number| write!(f, " {number:x}"))?;
        match &self.kind {
            Kind::Device { name, .. } | Kind::Name { name, .. } => {
                f.write_char(' ')?;
                name.chars().map(|c| if c.is_control() { ' ' } else { c }).try_for_each(|c| f.write_char(c))?;
            }
            Kind::Work { accesses, .. } | Kind::Host { accesses } => {
                accesses.iter().try_for_each(|access| write!(f, " {access}"))?;
            }
            _ => {}
        }
        if !self.what.is_empty() {
            f.write_str(" # ")?;
            self.what.chars().map(|c| if c.is_control() { ' ' } else { c }).try_for_each(|c| f.write_char(c))?;
        }
        self.at.as_ref().map_or(Ok(()), |at| write!(f, " @ {at}"))
    }
}
