//! Random safe programs on three streams, compared with a serial interpreter.
//!
//! A program is a list of small numbers. Each step does something that is possible at that point:
//! it moves buffers between their states, splits, joins, shares, drops and forgets them, and
//! enqueues copies, fills and kernels on them. The test keeps for each buffer the contents it would
//! have if every step ran to its end before the next. What the host reads must equal that, while
//! the program runs and for everything that is left at its end. `MUTATIONS.md` lists the waits that
//! were taken out of the library to see this test fail.
//!
//! `THALWEG_CASES` sets how many programs run on each device.

mod support;

use std::collections::VecDeque;
use std::fmt;
use std::io::Write;
use std::mem::replace;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestRunner};
use thalweg::simt::host::{LaunchError, RangeError};
use thalweg::{
    AnyStream, Device, DeviceBuffer, DeviceKind, Error, Event, On, PinnedBuffer, PinnedPool, Query, Reading, Resource,
    Returned, Ring, Shared, Stream, StreamTag, kernel,
};

thalweg::ptx! {}

kernel! {
    unsafe fn add(cx: impl Simt, n: u32, v: u32, x: InOut<u32>)
    require { x.len() == n }
    grid(n.div_ceil(64)) block(64)
    {
        let i = cx.global_x();
        if i < n {
            x.set(cx, i as usize, x.get(cx, i as usize).wrapping_add(v));
        }
    }
}

kernel! {
    unsafe fn mix(cx: impl Simt, n: u32, x: In<u32>, y: InOut<u32>)
    require { x.len() == n, y.len() == n }
    grid(n.div_ceil(64)) block(64)
    {
        let i = cx.global_x();
        if i < n {
            let i = i as usize;
            y.set(cx, i, y.get(cx, i).wrapping_mul(3).wrapping_add(x.get(cx, i)));
        }
    }
}

/// Lengths of buffers: none, one, few, and enough for a schedule to stop half way. All but the last
/// fit one block of page-locked memory, so buffers reuse each other's blocks.
const LENGTHS: [usize; 6] = [257, 64, 5, 1, 0, 1500];

/// One step: the operation, and numbers that choose its buffers and details.
type Op = (u8, u8, u8, u8);

/// Why a program failed: an unexpected error, or contents that differ.
#[derive(Debug)]
enum Failure {
    Error(Error),
    Wrong(String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}
impl<T> From<Returned<T>> for Failure {
    fn from(returned: Returned<T>) -> Self {
        Self::Error(returned.error)
    }
}
impl From<RangeError> for Failure {
    fn from(error: RangeError) -> Self {
        Self::Error(error.into())
    }
}
impl From<LaunchError> for Failure {
    fn from(error: LaunchError) -> Self {
        Self::Error(error.into())
    }
}
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Error(error) => error.fmt(f),
            Self::Wrong(what) => f.write_str(what),
        }
    }
}

type Outcome<T = ()> = Result<T, Failure>;

/// Checks that the contents are the expected ones.
fn equal(what: &str, got: &[u32], want: &[u32]) -> Outcome {
    if got == want {
        return Ok(());
    }
    let i = got.iter().zip(want).take_while(|(g, w)| g == w).count();
    let at = |v: &[u32]| v.get(i).map_or("nothing".into(), |v| format!("{v:#x}"));
    Err(Failure::Wrong(format!("{what}: element {i} of {} is {}, not {}", want.len(), at(got), at(want))))
}

fn claim(what: &str, holds: bool) -> Outcome {
    if holds { Ok(()) } else { Err(Failure::Wrong(what.into())) }
}

/// A value that belongs to one of the three streams.
enum Of<X, Y, Z> {
    A(X),
    B(Y),
    C(Z),
}

impl<X, Y, Z> Of<X, Y, Z> {
    fn stream(&self) -> usize {
        match self {
            Self::A(_) => 0,
            Self::B(_) => 1,
            Self::C(_) => 2,
        }
    }
}

type Ordered<A, B, C, R> = Of<<R as Resource>::On<A>, <R as Resource>::On<B>, <R as Resource>::On<C>>;
type Readings<A, B, C, R> = Of<Reading<A, R>, Reading<B, R>, Reading<C, R>>;

/// Does the same as [`on`]. `of` marks a value as that stream's.
macro_rules! with {
    ($streams:expr, $t:expr, |$s:ident, $of:ident| $body:expr) => {
        match $t % 3 {
            0 => {
                let ($s, $of) = ($streams.a, Of::A);
                $body
            }
            1 => {
                let ($s, $of) = ($streams.b, Of::B);
                $body
            }
            _ => {
                let ($s, $of) = ($streams.c, Of::C);
                $body
            }
        }
    };
}

/// Runs `body` with a value and the stream that orders it.
macro_rules! each {
    ($streams:expr, $value:expr, |$s:ident, $x:pat_param| $body:expr) => {
        match $value {
            Of::A($x) => {
                let $s = $streams.a;
                $body
            }
            Of::B($x) => {
                let $s = $streams.b;
                $body
            }
            Of::C($x) => {
                let $s = $streams.c;
                $body
            }
        }
    };
}

/// Runs `body` with the stream of number `t`.
macro_rules! on {
    ($streams:expr, $t:expr, |$s:ident| $body:expr) => {
        match $t % 3 {
            0 => {
                let $s = $streams.a;
                $body
            }
            1 => {
                let $s = $streams.b;
                $body
            }
            _ => {
                let $s = $streams.c;
                $body
            }
        }
    };
}

/// Runs `body` with two values that the same stream orders.
macro_rules! both {
    ($streams:expr, $first:expr, $second:expr, |$s:ident, $x:pat_param, $y:pat_param| $body:expr) => {
        match ($first, $second) {
            (Of::A($x), Of::A($y)) => {
                let $s = $streams.a;
                $body
            }
            (Of::B($x), Of::B($y)) => {
                let $s = $streams.b;
                $body
            }
            (Of::C($x), Of::C($y)) => {
                let $s = $streams.c;
                $body
            }
            _ => unreachable!("brought to one stream"),
        }
    };
}

/// A buffer of either kind.
trait Buffer: Resource {
    /// Gives what the host can read of an idle buffer.
    fn look(&self) -> Option<&[u32]>;
    fn split_idle(self, n: usize) -> Vec<Self>;
    fn split<S: StreamTag>(x: Self::On<S>, n: usize) -> Vec<Self::On<S>>;
    fn join_idle(pieces: Vec<Self>) -> Result<Self, Returned<Vec<Self>>>;
    #[allow(clippy::type_complexity)]
    fn join<S: StreamTag>(pieces: Vec<Self::On<S>>) -> Result<Self::On<S>, Returned<Vec<Self::On<S>>>>;
}

macro_rules! buffer {
    ($buffer:ident, |$x:ident| $look:expr) => {
        impl Buffer for $buffer<u32> {
            fn look(&self) -> Option<&[u32]> {
                let $x = self;
                $look
            }
            fn split_idle(self, n: usize) -> Vec<Self> {
                self.split(n)
            }
            fn split<S: StreamTag>(x: Self::On<S>, n: usize) -> Vec<Self::On<S>> {
                x.split(n)
            }
            fn join_idle(pieces: Vec<Self>) -> Result<Self, Returned<Vec<Self>>> {
                Self::join(pieces)
            }
            fn join<S: StreamTag>(pieces: Vec<Self::On<S>>) -> Result<Self::On<S>, Returned<Vec<Self::On<S>>>> {
                On::<S, Self>::join(pieces)
            }
        }
    };
}
buffer!(DeviceBuffer, |_x| None);
buffer!(PinnedBuffer, |x| Some(x));

/// A buffer in one of its states, and the contents it should have.
struct Slot<A: StreamTag, B: StreamTag, C: StreamTag, R: Resource> {
    want: Vec<u32>,
    piece: Option<Piece>,
    state: State<A, B, C, R>,
}

/// The allocation that a buffer is a piece of, and the piece's first element.
#[derive(Clone, Copy)]
struct Piece {
    of: usize,
    start: usize,
}

enum State<A: StreamTag, B: StreamTag, C: StreamTag, R: Resource> {
    Idle(R),
    On(Ordered<A, B, C, R>),
    Event(Event<R>),
    /// It always has a handle or a reading.
    Shared {
        handles: Vec<Shared<R>>,
        readings: Vec<Readings<A, B, C, R>>,
        /// The number of handles and readings that were forgotten.
        forgotten: usize,
    },
    /// The buffer is taken while a step uses it.
    Gone,
}

impl<A: StreamTag, B: StreamTag, C: StreamTag, R: Buffer> Slot<A, B, C, R> {
    fn new(want: Vec<u32>, state: State<A, B, C, R>) -> Self {
        Self { want, piece: None, state }
    }

    fn len(&self) -> usize {
        self.want.len()
    }

    fn take(&mut self) -> State<A, B, C, R> {
        replace(&mut self.state, State::Gone)
    }

    fn take_on(&mut self) -> Ordered<A, B, C, R> {
        match self.take() {
            State::On(x) => x,
            _ => unreachable!("brought to a stream"),
        }
    }

    fn take_idle(&mut self) -> R {
        match self.take() {
            State::Idle(r) => r,
            _ => unreachable!("brought to the host"),
        }
    }

    /// Checks an idle buffer on the host and gives it back.
    fn seen(&self, r: R) -> Outcome<R> {
        if let Some(got) = r.look() {
            equal("an idle buffer", got, &self.want)?;
        }
        Ok(r)
    }

    /// Gives what stream `t` can read, if it can read the buffer.
    #[allow(clippy::type_complexity)]
    fn source(&self, t: usize) -> Option<Of<&R::On<A>, &R::On<B>, &R::On<C>>> {
        match &self.state {
            State::On(Of::A(x)) if t == 0 => Some(Of::A(x)),
            State::On(Of::B(x)) if t == 1 => Some(Of::B(x)),
            State::On(Of::C(x)) if t == 2 => Some(Of::C(x)),
            State::Shared { readings, .. } => readings.iter().find(|r| r.stream() == t).map(|r| match r {
                Of::A(r) => Of::A(&**r),
                Of::B(r) => Of::B(&**r),
                Of::C(r) => Of::C(&**r),
            }),
            _ => None,
        }
    }

    /// Drops the reading that stream `t` used, most of the time.
    fn used(&mut self, t: usize, how: u8) {
        if let State::Shared { handles, readings, .. } = &mut self.state
            && !handles.is_empty()
            && !how.is_multiple_of(4)
            && let Some(i) = readings.iter().position(|r| r.stream() == t)
        {
            readings.swap_remove(i);
        }
    }
}

/// The three streams, with the transitions between states.
struct Streams<A: StreamTag, B: StreamTag, C: StreamTag> {
    a: Stream<A>,
    b: Stream<B>,
    c: Stream<C>,
}

impl<A: StreamTag, B: StreamTag, C: StreamTag> Clone for Streams<A, B, C> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<A: StreamTag, B: StreamTag, C: StreamTag> Copy for Streams<A, B, C> {}

impl<A: StreamTag, B: StreamTag, C: StreamTag> Streams<A, B, C> {
    fn bind<R: Resource>(self, t: usize, r: R) -> Outcome<Ordered<A, B, C, R>> {
        Ok(with!(self, t, |s, of| of(s.bind(r)?)))
    }

    fn record<R: Resource>(self, x: Ordered<A, B, C, R>) -> Outcome<Event<R>> {
        Ok(each!(self, x, |s, x| s.record(x)?))
    }

    fn wait<R: Resource>(self, t: usize, e: Event<R>) -> Outcome<Ordered<A, B, C, R>> {
        Ok(with!(self, t, |s, of| of(s.wait(e)?)))
    }

    fn hand<R: Resource>(self, x: Ordered<A, B, C, R>, t: usize) -> Outcome<Ordered<A, B, C, R>> {
        Ok(each!(self, x, |s, x| with!(self, t, |to, of| of(s.hand(x, &to)?))))
    }

    fn share<R: Resource>(self, x: Ordered<A, B, C, R>) -> Outcome<Shared<R>> {
        Ok(each!(self, x, |s, x| s.share(x)?))
    }

    fn read<R: Resource>(self, t: usize, shared: &Shared<R>) -> Outcome<Readings<A, B, C, R>> {
        Ok(with!(self, t, |s, of| of(s.reading(shared)?)))
    }

    fn unshare<R: Resource>(self, t: usize, shared: Shared<R>) -> Result<Ordered<A, B, C, R>, Returned<Shared<R>>> {
        Ok(with!(self, t, |s, of| of(s.unshare(shared)?)))
    }

    fn synchronize(self, t: usize) -> Outcome {
        on!(self, t, |s| s.synchronize()?);
        Ok(())
    }

    /// Waits for an event, or queries it until it is done.
    fn settle<R: Resource>(self, mut event: Event<R>, how: u8) -> Outcome<R> {
        if how.is_multiple_of(2) {
            return Ok(event.synchronize()?);
        }
        loop {
            match event.query()? {
                Query::Ready(r) => return Ok(r),
                Query::Pending(e) => event = e,
            }
            std::thread::yield_now();
        }
    }

    /// Brings a buffer to stream `t`, unless others read it.
    fn bring<R: Buffer>(self, slot: &mut Slot<A, B, C, R>, t: usize, how: u8) -> Outcome<bool> {
        let x = match slot.take() {
            State::Idle(r) => self.bind(t, slot.seen(r)?)?,
            State::On(x) if x.stream() == t => x,
            State::On(x) => match how % 8 {
                0..4 => self.hand::<R>(x, t)?,
                4..6 => self.wait(t, self.record::<R>(x)?)?,
                6 => self.unshare(t, self.share::<R>(x)?)?,
                _ => self.bind(t, slot.seen(self.settle(self.record::<R>(x)?, how / 8)?)?)?,
            },
            State::Event(e) if how % 4 < 3 => self.wait(t, e)?,
            State::Event(e) => self.bind(t, slot.seen(self.settle(e, how / 4)?)?)?,
            State::Shared { mut handles, readings, forgotten: 0 } if handles.len() == 1 && readings.is_empty() => {
                self.unshare(t, handles.remove(0))?
            }
            held => {
                slot.state = held;
                return Ok(false);
            }
        };
        slot.state = State::On(x);
        Ok(true)
    }

    /// Brings a buffer to the host, unless streams read it.
    fn land<R: Buffer>(self, slot: &mut Slot<A, B, C, R>, how: u8) -> Outcome<bool> {
        let event = match slot.take() {
            State::Idle(r) => Event::ready(r),
            State::Event(e) => e,
            State::On(x) => self.record(x)?,
            held => {
                slot.state = held;
                if !self.bring(slot, usize::from(how / 2 % 3), 0)? {
                    return Ok(false);
                }
                self.record(slot.take_on())?
            }
        };
        slot.state = State::Idle(slot.seen(self.settle(event, how)?)?);
        Ok(true)
    }

    /// Brings a buffer where stream `t` can read it, if a handle is left to read it with.
    fn offer<R: Buffer>(self, slot: &mut Slot<A, B, C, R>, t: usize, how: u8) -> Outcome<bool> {
        if let State::Shared { handles, readings, .. } = &mut slot.state {
            if readings.iter().any(|r| r.stream() == t) {
                return Ok(true);
            }
            let Some(shared) = handles.last() else { return Ok(false) };
            readings.push(self.read(t, shared)?);
            return Ok(true);
        }
        self.bring(slot, t, how)
    }

    // --- steps of either kind of buffer ----------------------------------------------------------

    fn move_one<R: Buffer>(self, slot: &mut Slot<A, B, C, R>, t: usize, how: u8) -> Outcome {
        self.bring(slot, t, how).map(drop)
    }

    fn land_one<R: Buffer>(self, slot: &mut Slot<A, B, C, R>, how: u8) -> Outcome {
        self.land(slot, how).map(drop)
    }

    fn record_one<R: Buffer>(self, slot: &mut Slot<A, B, C, R>) -> Outcome {
        slot.state = match slot.take() {
            State::On(x) => State::Event(self.record(x)?),
            state => state,
        };
        Ok(())
    }

    fn query_one<R: Buffer>(self, slot: &mut Slot<A, B, C, R>) -> Outcome {
        slot.state = match slot.take() {
            State::Event(event) => match event.query()? {
                Query::Ready(r) => State::Idle(slot.seen(r)?),
                Query::Pending(event) => State::Event(event),
            },
            state => state,
        };
        Ok(())
    }

    fn share_one<R: Buffer>(self, slot: &mut Slot<A, B, C, R>, t: usize) -> Outcome {
        if let State::Shared { handles, .. } = &mut slot.state {
            handles.extend(handles.last().cloned());
        } else {
            self.bring(slot, t, 0)?;
            let handles = vec![self.share(slot.take_on())?];
            slot.state = State::Shared { handles, readings: Vec::new(), forgotten: 0 };
        }
        Ok(())
    }

    fn read_one<R: Buffer>(self, slot: &mut Slot<A, B, C, R>, t: usize) -> Outcome {
        if let State::Shared { handles, readings, .. } = &mut slot.state
            && let Some(shared) = handles.last()
        {
            readings.push(self.read(t, shared)?);
        }
        Ok(())
    }

    fn unshare_one<R: Buffer>(self, slot: &mut Slot<A, B, C, R>, t: usize) -> Outcome {
        slot.state = match slot.take() {
            State::Shared { mut handles, readings, forgotten } if !handles.is_empty() => {
                let shared = handles.remove(0);
                let others = handles.len() + readings.len() + forgotten;
                match self.unshare(t, shared) {
                    Ok(x) => {
                        claim("unshared, although others held it", others == 0)?;
                        State::On(x)
                    }
                    Err(Returned { error: Error::StillShared { holders }, value }) => {
                        claim("not unshared, although nobody held it", others > 0)?;
                        claim("another number of holders", holders == others)?;
                        handles.push(value);
                        State::Shared { handles, readings, forgotten }
                    }
                    Err(returned) => return Err(returned.into()),
                }
            }
            state => state,
        };
        Ok(())
    }

    /// Drops or forgets a handle or a reading. The buffer goes too if that leaves none.
    fn discard<R: Buffer>(self, slots: &mut Vec<Slot<A, B, C, R>>, i: usize, how: usize, forget: bool) -> Outcome {
        let discard = |value: State<A, B, C, R>| if forget { std::mem::forget(value) } else { drop(value) };
        if let State::Shared { handles, readings, forgotten } = &mut slots[i].state {
            let pick = how % (handles.len() + readings.len());
            let mut one = (Vec::new(), Vec::new());
            if pick < handles.len() {
                one.0.push(handles.swap_remove(pick));
            } else {
                one.1.push(readings.swap_remove(pick - handles.len()));
            }
            discard(State::Shared { handles: one.0, readings: one.1, forgotten: 0 });
            *forgotten += usize::from(forget);
            if !(handles.is_empty() && readings.is_empty()) {
                return Ok(());
            }
        }
        discard(slots.remove(i).state);
        Ok(())
    }

    fn split_one<R: Buffer>(
        self,
        slots: &mut Vec<Slot<A, B, C, R>>,
        i: usize,
        t: usize,
        how: u8,
        allocations: &mut usize,
    ) -> Outcome {
        let (idle, n) = (how.is_multiple_of(2), [2, 3, 4, 1, 2, 0][usize::from(how / 2 % 6)]);
        if slots.len() > MOST || !(if idle { self.land(&mut slots[i], how)? } else { self.bring(&mut slots[i], t, 0)? })
        {
            return Ok(());
        }
        let mut whole = slots.remove(i);
        // A buffer without elements owns no memory, so its pieces belong to no allocation.
        let piece = whole.piece.or_else(|| {
            *allocations += 1;
            (whole.len() > 0).then_some(Piece { of: *allocations, start: 0 })
        });
        let states: Vec<_> = if idle {
            R::split_idle(whole.take_idle(), n).into_iter().map(State::Idle).collect()
        } else {
            match whole.take_on() {
                Of::A(x) => R::split::<A>(x, n).into_iter().map(|x| State::On(Of::A(x))).collect(),
                Of::B(x) => R::split::<B>(x, n).into_iter().map(|x| State::On(Of::B(x))).collect(),
                Of::C(x) => R::split::<C>(x, n).into_iter().map(|x| State::On(Of::C(x))).collect(),
            }
        };
        claim("another number of pieces", states.len() == n)?;
        let mut start = 0;
        for (k, state) in states.into_iter().enumerate() {
            let end = start + whole.len() / n + usize::from(k < whole.len() % n);
            let piece = piece.map(|p| Piece { of: p.of, start: p.start + start });
            slots.push(Slot { want: whole.want[start..end].to_vec(), piece, state });
            start = end;
        }
        Ok(())
    }

    fn join_two<R: Buffer>(self, slots: &mut Vec<Slot<A, B, C, R>>, i: usize, t: usize, j: usize, how: u8) -> Outcome {
        let end = slots[i].piece.map(|p| (p.of, p.start + slots[i].len()));
        let follows = |s: &Slot<A, B, C, R>| end.is_some() && s.piece.map(|p| (p.of, p.start)) == end;
        let next = (0..slots.len()).find(|&k| k != i && follows(&slots[k]));
        let j = next.filter(|_| !how.is_multiple_of(4)).unwrap_or(j % slots.len());
        let idle = how.is_multiple_of(3);
        for k in [i, j] {
            if !(if idle { self.land(&mut slots[k], how)? } else { self.bring(&mut slots[k], t, how)? }) {
                return Ok(());
            }
        }
        if i == j {
            return Ok(());
        }
        let fits = follows(&slots[j]);
        fn joined<T, U>(result: Result<T, Returned<Vec<T>>>, state: impl Fn(T) -> U) -> Result<U, (Error, Vec<U>)> {
            match result {
                Ok(whole) => Ok(state(whole)),
                Err(returned) => Err((returned.error, returned.value.into_iter().map(state).collect())),
            }
        }
        let joined = if idle {
            joined(R::join_idle(vec![slots[i].take_idle(), slots[j].take_idle()]), State::Idle)
        } else {
            match (slots[i].take_on(), slots[j].take_on()) {
                (Of::A(x), Of::A(y)) => joined(R::join::<A>(vec![x, y]), |x| State::On(Of::A(x))),
                (Of::B(x), Of::B(y)) => joined(R::join::<B>(vec![x, y]), |x| State::On(Of::B(x))),
                (Of::C(x), Of::C(y)) => joined(R::join::<C>(vec![x, y]), |x| State::On(Of::C(x))),
                _ => unreachable!("brought to one stream"),
            }
        };
        match joined {
            Ok(state) => {
                claim("joined, although they do not follow one another", fits)?;
                slots[i].state = state;
                let end = slots[j].want.clone();
                slots[i].want.extend(end);
                slots.remove(j);
            }
            Err((Error::NotAdjacent { .. }, mut pieces)) if pieces.len() == 2 => {
                claim("not joined, although they follow one another", !fits)?;
                (slots[j].state, slots[i].state) = (pieces.remove(1), pieces.remove(0));
            }
            Err((error, _)) => return Err(error.into()),
        }
        Ok(())
    }
}

/// The approximate limit of buffers of a kind. With few buffers, steps often use the same one.
const MOST: usize = 7;

/// The number of elements of the ring's buffers.
const FRAME: usize = 100;

/// Chooses ranges of equal length in two buffers of these lengths.
fn spans(from: usize, to: usize, how: u8) -> (Range<usize>, Range<usize>) {
    let n = from.min(to);
    match how % 4 {
        0 | 1 => (0..n, 0..n),
        2 => (from - n..from, to - n..to),
        _ => (n / 2..n, 0..n - n / 2),
    }
}

type Pair = (PinnedBuffer<u32>, DeviceBuffer<u32>);

/// Everything that a program works on.
struct World<A: StreamTag, B: StreamTag, C: StreamTag> {
    on: Streams<A, B, C>,
    device: Device,
    pool: PinnedPool,
    buffers: Vec<Slot<A, B, C, DeviceBuffer<u32>>>,
    pinned: Vec<Slot<A, B, C, PinnedBuffer<u32>>>,
    ring: Ring<Pair>,
    /// The contents that the ring's slots should have. The next slot to be taken comes first.
    frames: VecDeque<(Vec<u32>, Vec<u32>)>,
    /// The number of host functions of each stream, and the numbers that they left.
    calls: [(u32, Arc<Mutex<Vec<u32>>>); 3],
    /// The last number that was written to a buffer.
    number: u32,
    allocations: usize,
    /// Tells whether page-locked memory was forgotten.
    leaked: bool,
    trace: Vec<String>,
}

macro_rules! note {
    ($world:expr, $($what:tt)*) => {
        $world.trace.push(format!($($what)*))
    };
}

impl<A: StreamTag, B: StreamTag, C: StreamTag> World<A, B, C> {
    fn new(device: Device, on: Streams<A, B, C>) -> Outcome<Self> {
        let other = AnyStream::new(device)?;
        let pool = PinnedPool::new(device, 1 << 20);
        let lender = pool.clone();
        let make = move || {
            let mut host = lender.take(FRAME)?;
            host.fill(0);
            Ok((host, other.enter(|s| s.alloc_zeroed(FRAME)?.idle())?))
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
    fn number(&mut self) -> u32 {
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
    fn step(&mut self, (what, a, b, c): Op) -> Outcome {
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
            48..51 => either!(read_one(slot, t)),
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

    fn fill(&mut self, i: usize, t: usize, how: u8) -> Outcome {
        note!(self, "fill device {i} on {t}: {how}");
        let slot = &mut self.buffers[i];
        if !self.on.bring(slot, t, how / 4)? {
            return Ok(());
        }
        let (_, to) = spans(slot.len() / usize::from(1 + how % 2), slot.len(), how);
        let mut x = slot.take_on();
        let v = self.number();
        each!(self.on, &mut x, |s, x| s.fill(x.slice_mut(to.clone())?, v)?);
        let slot = &mut self.buffers[i];
        slot.want[to].fill(v);
        slot.state = State::On(x);
        Ok(())
    }

    /// Launches a kernel with one buffer or two. These kernels have no PTX for a GPU, so a copy
    /// replaces them there.
    fn launch(&mut self, i: usize, j: usize, t: usize, how: u8) -> Outcome {
        note!(self, "launch on device {i}, {j} on {t}: {how}");
        if self.device.kind() == DeviceKind::Cuda {
            return self.copy(i, j, t, how);
        }
        if !self.on.bring(&mut self.buffers[j], t, how / 4)? {
            return Ok(());
        }
        if i == j {
            let v = self.number();
            let slot = &mut self.buffers[i];
            let mut x = slot.take_on();
            each!(self.on, &mut x, |s, x| add(&s, x.len() as u32, v, x)?);
            slot.want.iter_mut().for_each(|x| *x = x.wrapping_add(v));
            slot.state = State::On(x);
            return Ok(());
        }
        if !self.on.offer(&mut self.buffers[i], t, how / 4)? {
            return Ok(());
        }
        let (from, to) = spans(self.buffers[i].len(), self.buffers[j].len(), how);
        let mut y = self.buffers[j].take_on();
        if let Some(x) = self.buffers[i].source(t) {
            both!(self.on, x, &mut y, |s, x, y| {
                let (x, y) = (x.slice(from.clone())?, y.slice_mut(to.clone())?);
                mix(&s, x.len() as u32, x, y)?;
            });
        }
        self.buffers[j].state = State::On(y);
        self.buffers[i].used(t, how);
        let x = self.buffers[i].want[from].to_vec();
        self.buffers[j].want[to].iter_mut().zip(x).for_each(|(y, x)| *y = y.wrapping_mul(3).wrapping_add(x));
        Ok(())
    }

    fn copy(&mut self, i: usize, j: usize, t: usize, how: u8) -> Outcome {
        note!(self, "copy device {i} to {j} on {t}: {how}");
        if i == j {
            return self.copy_within(i, t, how);
        }
        if !(self.on.bring(&mut self.buffers[j], t, how / 4)? && self.on.offer(&mut self.buffers[i], t, how / 4)?) {
            return Ok(());
        }
        let (from, to) = spans(self.buffers[i].len(), self.buffers[j].len(), how);
        let mut y = self.buffers[j].take_on();
        if let Some(x) = self.buffers[i].source(t) {
            both!(self.on, x, &mut y, |s, x, y| s.copy(x.slice(from.clone())?, y.slice_mut(to.clone())?)?);
        }
        self.buffers[j].state = State::On(y);
        self.buffers[i].used(t, how);
        let data = self.buffers[i].want[from].to_vec();
        self.buffers[j].want[to].copy_from_slice(&data);
        Ok(())
    }

    /// Has the two other streams read a buffer that `t` shares, and then writes or drops it.
    fn fan_out(&mut self, i: usize, j: usize, t: usize, how: u8) -> Outcome {
        note!(self, "fan out device {i} of {t} to {j}: {how}");
        if matches!(self.buffers[i].state, State::Shared { .. }) {
            return Ok(());
        }
        self.on.share_one(&mut self.buffers[i], t)?;
        for u in 1..3 {
            let n = self.buffers.len();
            self.copy(i, (i + 1 + (j + u) % (n - 1)) % n, (t + u) % 3, how)?;
        }
        match how / 4 % 4 {
            0 => Ok(()),
            1 => self.on.discard(&mut self.buffers, i, j, false),
            _ => self.fill(i, t, how / 16),
        }
    }

    fn copy_within(&mut self, i: usize, t: usize, how: u8) -> Outcome {
        let slot = &mut self.buffers[i];
        if !self.on.bring(slot, t, how)? {
            return Ok(());
        }
        let half = slot.len() / 2;
        let mut x = slot.take_on();
        each!(self.on, &mut x, |s, x| {
            let (low, high) = x.split_at_mut(half)?;
            s.copy(low, high.slice_mut(..half)?)?;
        });
        slot.want.copy_within(..half, half);
        slot.state = State::On(x);
        Ok(())
    }

    fn upload(&mut self, i: usize, j: usize, t: usize, how: u8) -> Outcome {
        note!(self, "copy pinned {i} to device {j} on {t}: {how}");
        if !(self.on.bring(&mut self.buffers[j], t, how / 4)? && self.on.offer(&mut self.pinned[i], t, how / 4)?) {
            return Ok(());
        }
        let (from, to) = spans(self.pinned[i].len(), self.buffers[j].len(), how);
        let mut y = self.buffers[j].take_on();
        if let Some(x) = self.pinned[i].source(t) {
            both!(self.on, x, &mut y, |s, x, y| s.copy_to_device(x.slice(from.clone())?, y.slice_mut(to.clone())?)?);
        }
        self.buffers[j].state = State::On(y);
        self.pinned[i].used(t, how);
        self.buffers[j].want[to].copy_from_slice(&self.pinned[i].want[from]);
        Ok(())
    }

    fn download(&mut self, i: usize, j: usize, t: usize, how: u8) -> Outcome {
        note!(self, "copy device {i} to pinned {j} on {t}: {how}");
        if !(self.on.bring(&mut self.pinned[j], t, how / 4)? && self.on.offer(&mut self.buffers[i], t, how / 4)?) {
            return Ok(());
        }
        let (from, to) = spans(self.buffers[i].len(), self.pinned[j].len(), how);
        let mut y = self.pinned[j].take_on();
        if let Some(x) = self.buffers[i].source(t) {
            both!(self.on, x, &mut y, |s, x, y| s.copy_to_host(x.slice(from.clone())?, y.slice_mut(to.clone())?)?);
        }
        self.pinned[j].state = State::On(y);
        self.buffers[i].used(t, how);
        self.pinned[j].want[to].copy_from_slice(&self.buffers[i].want[from]);
        Ok(())
    }

    fn host_write(&mut self, i: usize, how: u8) -> Outcome {
        note!(self, "the host writes pinned {i}: {how}");
        let v = self.number();
        let slot = &mut self.pinned[i];
        if self.on.land(slot, how)? {
            let mut x = slot.take_idle();
            for (k, (x, want)) in x.iter_mut().zip(&mut slot.want).enumerate() {
                *want = v.wrapping_add(k as u32);
                *x = *want;
            }
            slot.state = State::Idle(x);
        }
        Ok(())
    }

    /// Has the host read a buffer that streams read too.
    fn host_view(&mut self, i: usize) -> Outcome {
        note!(self, "the host reads pinned {i}, shared or not");
        if let State::Shared { handles, .. } = &self.pinned[i].state
            && let Some(shared) = handles.first()
            && let Some(got) = shared.host()?
        {
            equal("a shared pinned buffer", got, &self.pinned[i].want)?;
        }
        Ok(())
    }

    fn read_blocking(&mut self, i: usize, t: usize, how: u8) -> Outcome {
        note!(self, "read device {i} on {t}: {how}");
        let slot = &mut self.buffers[i];
        if self.on.offer(slot, t, how)?
            && let Some(x) = slot.source(t)
        {
            equal("a device buffer", &each!(self.on, x, |s, x| s.read_blocking(x)?), &slot.want)?;
            slot.used(t, how);
        }
        Ok(())
    }

    fn write_blocking(&mut self, i: usize, t: usize, how: u8) -> Outcome {
        note!(self, "write device {i} on {t}: {how}");
        let v = self.number();
        let slot = &mut self.buffers[i];
        if self.on.bring(slot, t, how)? {
            let mut x = slot.take_on();
            slot.want.iter_mut().zip(v..).for_each(|(want, v)| *want = v);
            each!(self.on, &mut x, |s, x| s.write_blocking(&slot.want, x)?);
            slot.state = State::On(x);
        }
        Ok(())
    }

    /// Takes a pipeline step through the ring: the host or the device fills a slot, which is then
    /// copied to a buffer.
    fn frame(&mut self, i: usize, t: usize, how: u8) -> Outcome {
        note!(self, "a frame of the ring to device {i} on {t}: {how}");
        let event = self.ring.take()?;
        let (mut host_want, mut want) = self.frames.pop_front().unwrap_or_else(|| (vec![0; FRAME], vec![0; FRAME]));
        let v = self.number();
        let mut pair = if how.is_multiple_of(2) {
            let (mut host, device) = self.on.settle(event, how / 2)?;
            equal("a slot of the ring", &host, &host_want)?;
            host.fill(v);
            host_want.fill(v);
            self.on.bind(t, (host, device))?
        } else {
            self.on.wait(t, event)?
        };
        each!(self.on, &mut pair, |s, (host, device)| {
            if how.is_multiple_of(3) {
                s.fill(device, v ^ 1)?;
                s.copy_to_host(device, host)?;
                want.fill(v ^ 1);
                host_want.fill(v ^ 1);
            } else {
                s.copy_to_device(host, device)?;
                want.copy_from_slice(&host_want);
            }
        });
        if !self.buffers.is_empty() {
            let i = i % self.buffers.len();
            let slot = &mut self.buffers[i];
            if self.on.bring(slot, t, how)? {
                let n = FRAME.min(slot.len());
                let mut x = slot.take_on();
                both!(self.on, &pair, &mut x, |s, (_, device), x| s.copy(device.slice(..n)?, x.slice_mut(..n)?)?);
                slot.want[..n].copy_from_slice(&want[..n]);
                slot.state = State::On(x);
            }
        }
        match how / 2 % 8 {
            0 => drop(pair),
            1 => drop(self.on.record::<Pair>(pair)?),
            _ => {
                self.ring.give(self.on.record::<Pair>(pair)?);
                self.frames.push_back((host_want, want));
            }
        }
        Ok(())
    }

    /// Moves all device buffers of one stream to another with one event.
    fn hand_all(&mut self, from: usize, to: usize) -> Outcome {
        note!(self, "all of {from} to {to}");
        macro_rules! all {
            ($of:ident, $s:ident) => {{
                let (mut slots, mut all) = (Vec::new(), Vec::new());
                for slot in &mut self.buffers {
                    match slot.take() {
                        State::On(Of::$of(x)) => {
                            all.push(x);
                            slots.push(slot);
                        }
                        state => slot.state = state,
                    }
                }
                let event = self.on.$s.record(all)?;
                with!(self.on, to, |s, of| {
                    for (slot, x) in slots.into_iter().zip(s.wait(event)?) {
                        slot.state = State::On(of(x));
                    }
                });
            }};
        }
        match from {
            0 => all!(A, a),
            1 => all!(B, b),
            _ => all!(C, c),
        }
        Ok(())
    }

    /// Enqueues a host function, which may own a buffer.
    fn call(&mut self, i: usize, t: usize, how: u8) -> Outcome {
        note!(self, "a host function on {t}, pinned {i}: {how}");
        let last = match self.pinned.len() {
            0 => None,
            m => Some(i % m).filter(|&i| how.is_multiple_of(4) && matches!(self.pinned[i].state, State::Idle(_))),
        };
        let buffer = last.map(|i| self.pinned.remove(i).take_idle());
        let (calls, seen) = &mut self.calls[t];
        let (number, seen) = (*calls, seen.clone());
        *calls += 1;
        let call = move || {
            seen.lock().unwrap().push(number);
            drop(buffer);
        };
        on!(self.on, t, |s| s.launch_host(call)?);
        Ok(())
    }

    fn ask(&mut self, t: usize) -> Outcome {
        note!(self, "ask {t}");
        self.device.check()?;
        on!(self.on, t, |s| {
            let start = s.timestamp()?;
            s.is_done()?;
            s.timestamp()?.elapsed(&start)?;
        });
        self.pool.trim();
        Ok(())
    }

    /// Checks everything that is left, and drops it.
    fn finish(mut self) -> Outcome {
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
            let (host, _) = self.ring.take()?.synchronize()?;
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

/// Runs a program.
fn run<A: StreamTag, B: StreamTag, C: StreamTag>(
    device: Device,
    on: Streams<A, B, C>,
    program: &[Op],
) -> Result<(), TestCaseError> {
    let fail = |failure: Failure, trace: &[String]| {
        TestCaseError::fail(format!("{device}: {failure}, after these steps:\n{}", trace.join("\n")))
    };
    let mut world = World::new(device, on).map_err(|f| fail(f, &[]))?;
    for &op in program {
        world.step(op).map_err(|f| fail(f, &world.trace))?;
    }
    let trace = world.trace.clone();
    world.finish().map_err(|f| fail(f, &trace))
}

/// Runs random programs on a device, each under `schedules` schedules.
fn explore(device: Device, programs: u32, schedules: u64) {
    let streams = [(); 3].map(|()| AnyStream::new(device).unwrap());
    let config = support::cases(programs);
    let programs = config.cases;
    let op = (0..89u8, any::<u8>(), any::<u8>(), any::<u8>());
    let input = (any::<u64>().no_shrink(), vec(op, 0..120));
    let result = TestRunner::new(config).run(&input, |(seed, program)| {
        let [a, b, c] = &streams;
        (0..schedules).try_for_each(|schedule| {
            device.reseed(seed.wrapping_add(schedule));
            a.enter(|&a| b.enter(|&b| c.enter(|&c| run(device, Streams { a, b, c }, &program))))
        })
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    // The harness hides what a passing test prints with `print!`.
    let report = format!("covered: {programs} programs on {device}, {schedules} schedule(s) each\n");
    let _ = std::io::stderr().write_all(report.as_bytes());
}

#[test]
fn under_seeded_schedules() {
    explore(Device::seeded_cpu(0).unwrap(), 4000, 6);
}

#[test]
fn on_every_device() {
    for &device in support::devices::devices() {
        // A GPU's driver page-locks new memory for each program.
        explore(device, if device.kind() == DeviceKind::Cpu { 2000 } else { 300 }, 1);
    }
}
