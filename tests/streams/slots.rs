//! A buffer in each of its states beside the contents it should have, and what brings it to a
//! stream or to the host.

use std::mem::replace;

use thalweg::{DeviceBuffer, Event, LiveBrand, On, PinnedBuffer, Resource, Returned, Shared};

use super::failure::{Outcome, equal};
use super::three::{Of, Ordered, Readings, Streams};

/// A buffer of either kind.
pub(crate) trait Buffer: Resource + Sync {
    /// Gives what the host can read of an idle buffer.
    fn look(&self) -> Option<&[u32]>;
    fn split_idle(self, n: usize) -> Vec<Self>;
    fn split<S: LiveBrand>(x: Self::On<S>, n: usize) -> Vec<Self::On<S>>;
    fn join_idle(pieces: Vec<Self>) -> Result<Self, Returned<Vec<Self>>>;
    #[allow(clippy::type_complexity)]
    fn join<S: LiveBrand>(pieces: Vec<Self::On<S>>) -> Result<Self::On<S>, Returned<Vec<Self::On<S>>>>;
}

macro_rules! buffer {
    ($buffer:ident, |$x:ident| $look:expr) => {
        impl Buffer for $buffer<u32> {
            fn look(&self) -> Option<&[u32]> {
                let $x = self;
                $look
            }
            fn split_idle(self, n: usize) -> Vec<Self> {
                self.split_even(n).unwrap()
            }
            fn split<S: LiveBrand>(x: Self::On<S>, n: usize) -> Vec<Self::On<S>> {
                x.split_even(n).unwrap()
            }
            fn join_idle(pieces: Vec<Self>) -> Result<Self, Returned<Vec<Self>>> {
                Self::join(pieces)
            }
            fn join<S: LiveBrand>(pieces: Vec<Self::On<S>>) -> Result<Self::On<S>, Returned<Vec<Self::On<S>>>> {
                On::<S, Self>::join(pieces)
            }
        }
    };
}
buffer!(DeviceBuffer, |_x| None);
buffer!(PinnedBuffer, |x| Some(x));

/// A buffer in one of its states, and the contents it should have.
pub(crate) struct Slot<A: LiveBrand, B: LiveBrand, C: LiveBrand, R: Resource> {
    pub(crate) want: Vec<u32>,
    pub(crate) piece: Option<Piece>,
    pub(crate) state: State<A, B, C, R>,
}

/// The allocation that a buffer is a piece of, and the piece's first element.
#[derive(Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) of: usize,
    pub(crate) start: usize,
}

pub(crate) enum State<A: LiveBrand, B: LiveBrand, C: LiveBrand, R: Resource> {
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

impl<A: LiveBrand, B: LiveBrand, C: LiveBrand, R: Buffer> Slot<A, B, C, R> {
    pub(crate) fn new(want: Vec<u32>, state: State<A, B, C, R>) -> Self {
        Self { want, piece: None, state }
    }

    pub(crate) fn len(&self) -> usize {
        self.want.len()
    }

    pub(crate) fn take(&mut self) -> State<A, B, C, R> {
        replace(&mut self.state, State::Gone)
    }

    pub(crate) fn take_on(&mut self) -> Ordered<A, B, C, R> {
        match self.take() {
            State::On(x) => x,
            _ => unreachable!("brought to a stream"),
        }
    }

    pub(crate) fn take_idle(&mut self) -> R {
        match self.take() {
            State::Idle(r) => r,
            _ => unreachable!("brought to the host"),
        }
    }

    /// Checks an idle buffer on the host and gives it back.
    pub(crate) fn seen(&self, r: R) -> Outcome<R> {
        if let Some(got) = r.look() {
            equal("an idle buffer", got, &self.want)?;
        }
        Ok(r)
    }

    /// Gives what stream `t` can read, if it can read the buffer.
    #[allow(clippy::type_complexity)]
    pub(crate) fn source(&self, t: usize) -> Option<Of<&R::On<A>, &R::On<B>, &R::On<C>>> {
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
    pub(crate) fn used(&mut self, t: usize, how: u8) {
        if let State::Shared { handles, readings, .. } = &mut self.state
            && !handles.is_empty()
            && !how.is_multiple_of(4)
            && let Some(i) = readings.iter().position(|r| r.stream() == t)
        {
            readings.swap_remove(i);
        }
    }
}

impl<A: LiveBrand, B: LiveBrand, C: LiveBrand> Streams<A, B, C> {
    /// Brings a buffer to stream `t`, unless others read it.
    pub(crate) fn bring<R: Buffer>(self, slot: &mut Slot<A, B, C, R>, t: usize, how: u8) -> Outcome<bool> {
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
    pub(crate) fn land<R: Buffer>(self, slot: &mut Slot<A, B, C, R>, how: u8) -> Outcome<bool> {
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
    pub(crate) fn offer<R: Buffer>(self, slot: &mut Slot<A, B, C, R>, t: usize, how: u8) -> Outcome<bool> {
        if let State::Shared { handles, readings, .. } = &mut slot.state {
            if readings.iter().any(|r| r.stream() == t) {
                return Ok(true);
            }
            let Some(shared) = handles.last() else { return Ok(false) };
            readings.push(self.read(t, shared, how)?);
            return Ok(true);
        }
        self.bring(slot, t, how)
    }
}
