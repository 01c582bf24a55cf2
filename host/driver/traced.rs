//! The rows that calls leave in the log: see [`trace`].

use std::panic::Location;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use thalweg_simt::host::{Kernel, MatrixView, TensorMap};

use super::trace::{self, Access, Calling, Key, Kind, Row};
use super::{Driver, EventHandle, Fault, GraphHandle, Pitch, Rows, StreamHandle};
use crate::lock;

/// The words of a map of the copy engine, and the bytes that it shows.
type Map = (TensorMap, u64, u64);

/// The maps that drivers have made.
static MAPS: Mutex<Vec<Map>> = Mutex::new(Vec::new());

impl Driver {
    fn place(self) -> usize {
        match self {
            Self::Cuda(c) => ptr::from_ref(c).addr(),
            Self::Cpu(c) => ptr::from_ref(*c.facts()).addr(),
        }
    }

    /// Notes the name of the device, before its first stream is made.
    pub(crate) fn opened(self, name: &str) {
        if trace::on() {
            trace::opened(self.place(), name);
        }
    }
}

impl EventHandle {
    pub(super) fn id(&self) -> u64 {
        match self {
            Self::Cuda(_, e) => e.address(),
            Self::Cpu(e) => e.facts().address(),
        }
    }

    /// Notes that the event is complete, if it is.
    #[inline]
    pub(super) fn seen(&self, complete: bool) {
        if complete {
            note(|| Kind::Seen { event: self.id() });
        }
    }
}

impl GraphHandle {
    pub(super) fn id(&self) -> u64 {
        match self {
            Self::Cuda(_, graph) => graph.address(),
            Self::Cpu(recording) => recording.address(),
        }
    }
}

/// Writes a row that belongs to no stream, or to one that only this thread uses.
#[inline]
#[track_caller]
pub(super) fn note(kind: impl FnOnce() -> Kind) {
    if trace::on() {
        let row = Row::new(kind(), "");
        let caller = Some(Location::caller()).filter(|_| matches!(row.kind, Kind::Alloc { .. }));
        trace::put(&Row { at: trace::place(caller), ..row });
    }
}

/// Writes the row of a call that succeeded.
#[inline]
pub(super) fn done(calling: Option<Calling>) {
    if let Some(calling) = calling {
        calling.done();
    }
}

impl StreamHandle {
    fn key(self) -> Key {
        match self {
            // The value means the default stream of the thread.
            Self::Cuda(c, s) => Key {
                device: ptr::from_ref(c).addr(),
                handle: s.0.addr(),
                thread: s.is_per_thread().then(|| std::thread::current().id()),
            },
            Self::Cpu(q) => Key {
                device: ptr::from_ref(q.facts().cpu()).addr(),
                handle: ptr::from_ref(*q.facts()).addr(),
                thread: None,
            },
        }
    }

    /// The stream's number in the log.
    pub(super) fn number(self) -> u64 {
        trace::stream(self.key()).0
    }

    /// Notes what the stream is for.
    pub(crate) fn named(self, name: &str) {
        if trace::on() {
            trace::named(self.key(), name);
        }
    }

    /// Begins a call, if there is a log. The row, which `row` makes from the stream's number, is
    /// written when the stream has taken the call.
    #[inline]
    #[track_caller]
    pub(super) fn calling(self, row: impl FnOnce(u64) -> Row) -> Option<Calling> {
        if trace::on() { Some(self.begin(row, Location::caller())) } else { None }
    }

    #[cold]
    fn begin(self, row: impl FnOnce(u64) -> Row, caller: &'static Location<'static>) -> Calling {
        let (stream, order) = trace::stream(self.key());
        let row = row(stream);
        // A free comes from a destructor, whose line says nothing.
        let caller = Some(caller).filter(|_| !matches!(row.kind, Kind::Free { .. }));
        let row = Row { at: trace::place(caller), ..row };
        Calling::new(matches!(self, Self::Cuda(..)).then_some(order), row)
    }

    /// Begins a call that accesses memory.
    #[inline]
    #[track_caller]
    pub(super) fn working<const N: usize>(
        self,
        what: &'static str,
        accesses: impl FnOnce() -> [Access; N],
    ) -> Option<Calling> {
        self.calling(|stream| Row::new(Kind::Work { stream, accesses: accesses().into() }, what))
    }

    /// Notes work that other code gave to the stream.
    #[track_caller]
    pub(crate) fn worked(self, what: &'static str, accesses: Vec<Access>) {
        done(self.calling(|stream| Row::new(Kind::Work { stream, accesses }, what)));
    }

    /// Begins a launch.
    #[inline]
    #[track_caller]
    pub(super) fn launching(self, kernel: &'static Kernel, slots: &[u64]) -> Option<Calling> {
        self.calling(|stream| Row::new(Kind::Work { stream, accesses: arguments(kernel, slots) }, kernel.name()))
    }

    /// Waits for the stream, or asks whether it is done, as `call` does. The host then knows what
    /// the stream had been given before the call.
    #[inline]
    pub(super) fn waiting(self, call: impl FnOnce() -> Result<bool, Fault>) -> Result<bool, Fault> {
        if !trace::on() {
            return call();
        }
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let (wait, stream) = (NUMBER.fetch_add(1, Ordering::Relaxed), self.number());
        note(|| Kind::Await { wait, stream });
        let complete = call()?;
        note(|| if complete { Kind::Passed { wait } } else { Kind::Missed { wait } });
        Ok(complete)
    }
}

/// The accesses of a launch with these slots.
fn arguments(kernel: &Kernel, mut slots: &[u64]) -> Vec<Access> {
    let mut accesses = Vec::new();
    for parameter in kernel.parameters() {
        let (own, rest) = slots.split_at(parameter.slots().min(slots.len()));
        slots = rest;
        if let (Some(buffer), [addr, len]) = (parameter.buffer(), own) {
            accesses.push(Access::new(buffer.written, *addr, len * buffer.element as u64));
        } else if let Ok(map) = TensorMap::try_from(own) {
            // The kernel reads by a map what it gets no buffer for.
            let maps = lock(&MAPS);
            accesses.extend(maps.iter().rev().find(|known| known.0 == map).map(|&(_, addr, n)| Access::read(addr, n)));
        }
    }
    accesses
}

/// Notes which bytes a map shows.
pub(super) fn mapped(map: &TensorMap, tiles: &MatrixView) {
    if trace::on() {
        keep_map(map, tiles);
    }
}

#[cold]
fn keep_map(map: &TensorMap, tiles: &MatrixView) {
    let ([columns, rows, matrices], [row, matrix]) = (tiles.extents(), tiles.strides());
    let bytes = (matrices - 1) * matrix + (rows - 1) * row + columns * 2;
    let mut maps = lock(&MAPS);
    maps.retain(|known| known.0 != *map);
    maps.push((*map, tiles.address(), bytes));
}

/// The accesses of a copy of planes of rows. `host` says which side is host memory: the source and
/// the target.
pub(super) fn rows(copy: &Rows, host: [bool; 2]) -> [Access; 2] {
    let side = |writes, pitch: Pitch, host| {
        let (row, plane) = (pitch.row as u64, (pitch.plane * pitch.row) as u64);
        let access = Access::new(writes, pitch.addr, copy.bytes as u64).of_host(host);
        access.pitched([(copy.rows as u64, row), (copy.planes as u64, plane)])
    };
    [side(false, copy.from, host[0]), side(true, copy.to, host[1])]
}

#[cfg(test)]
mod tests {
    use thalweg_simt::host::{BufferKind, Declaration, DeviceSlice, Parameter, Ptx};

    use super::*;

    #[test]
    fn a_launch_accesses_its_buffers_and_what_its_maps_show() {
        static PARAMETERS: &[Parameter] = &[
            Parameter::new::<u32>("n", None),
            Parameter::new::<TensorMap>("tiles", None),
            Parameter::new::<u64>("x", Some(BufferKind { element: 4, written: false })),
            Parameter::new::<u64>("y", Some(BufferKind { element: 8, written: true })),
            Parameter::new::<TensorMap>("other", None),
        ];
        static KERNEL: Kernel = Kernel::new(
            &Ptx::NONE,
            Declaration {
                origin: "test",
                name: "test",
                entry: "test",
                parameters: PARAMETERS,
                cpu: None,
                cooperative: false,
                bounds: None,
            },
        );
        // SAFETY: [order] Nothing accesses the elements.
        let memory = unsafe { DeviceSlice::<(), u16>::from_raw(0x10000, 1000) };
        let tiles = MatrixView::new(memory, [2, 4, 16], 200, 24).unwrap();
        let map: TensorMap = std::array::from_fn(|i| 77 + i as u64);
        keep_map(&map, &tiles);
        let mut slots = vec![5];
        slots.extend(map);
        slots.extend([0x2000, 10, 0x3000, 20]);
        slots.extend([1; 16]); // a struct of 128 bytes that is no map
        let bytes = 2 * (200 + 3 * 24 + 16);
        let expected = [Access::read(0x10000, bytes), Access::read(0x2000, 40), Access::write(0x3000, 160)];
        assert_eq!(arguments(&KERNEL, &slots), expected);
    }
}
