//! The three streams of a program, their transitions, and values that belong to one of the three.

use thalweg::{Event, LiveBrand, QueryResult, Resource, Returned, Shared, SharedRead, Stream};

use super::failure::Outcome;

/// A value that belongs to one of the three streams.
pub(crate) enum Of<X, Y, Z> {
    A(X),
    B(Y),
    C(Z),
}

impl<X, Y, Z> Of<X, Y, Z> {
    pub(crate) fn stream(&self) -> usize {
        match self {
            Self::A(_) => 0,
            Self::B(_) => 1,
            Self::C(_) => 2,
        }
    }
}

pub(crate) type Ordered<A, B, C, R> = Of<<R as Resource>::On<A>, <R as Resource>::On<B>, <R as Resource>::On<C>>;
pub(crate) type Readings<A, B, C, R> = Of<SharedRead<A, R>, SharedRead<B, R>, SharedRead<C, R>>;

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

pub(crate) use {both, each, on, with};

/// The three streams, with the transitions between states.
pub(crate) struct Streams<A: LiveBrand, B: LiveBrand, C: LiveBrand> {
    pub(crate) a: Stream<A>,
    pub(crate) b: Stream<B>,
    pub(crate) c: Stream<C>,
}

impl<A: LiveBrand, B: LiveBrand, C: LiveBrand> Clone for Streams<A, B, C> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<A: LiveBrand, B: LiveBrand, C: LiveBrand> Copy for Streams<A, B, C> {}

impl<A: LiveBrand, B: LiveBrand, C: LiveBrand> Streams<A, B, C> {
    pub(crate) fn bind<R: Resource>(self, t: usize, r: R) -> Outcome<Ordered<A, B, C, R>> {
        Ok(with!(self, t, |s, of| of(s.bind(r)?)))
    }

    pub(crate) fn record<R: Resource>(self, x: Ordered<A, B, C, R>) -> Outcome<Event<R>> {
        Ok(each!(self, x, |s, x| s.record(x)?))
    }

    pub(crate) fn wait<R: Resource>(self, t: usize, e: Event<R>) -> Outcome<Ordered<A, B, C, R>> {
        Ok(with!(self, t, |s, of| of(s.wait(e)?)))
    }

    pub(crate) fn hand<R: Resource>(self, x: Ordered<A, B, C, R>, t: usize) -> Outcome<Ordered<A, B, C, R>> {
        Ok(each!(self, x, |s, x| with!(self, t, |to, of| of(s.hand_off(x, &to)?))))
    }

    pub(crate) fn share<R: Resource>(self, x: Ordered<A, B, C, R>) -> Outcome<Shared<R>> {
        Ok(each!(self, x, |s, x| s.share(x)?))
    }

    /// Starts a reading, from a reference or by a handle of its own that is bound.
    pub(crate) fn read<R: Resource + Sync>(
        self,
        t: usize,
        shared: &Shared<R>,
        how: u8,
    ) -> Outcome<Readings<A, B, C, R>> {
        match how % 3 {
            0 => self.bind(t, shared.clone()),
            _ => Ok(with!(self, t, |s, of| of(s.reading(shared)?))),
        }
    }

    pub(crate) fn unshare<R: Resource>(
        self,
        t: usize,
        shared: Shared<R>,
    ) -> Result<Ordered<A, B, C, R>, Returned<Shared<R>>> {
        Ok(with!(self, t, |s, of| of(s.unshare(shared)?)))
    }

    pub(crate) fn synchronize(self, t: usize) -> Outcome {
        on!(self, t, |s| s.synchronize()?);
        Ok(())
    }

    /// Waits for an event, or queries it until it is done.
    pub(crate) fn settle<R: Resource>(self, mut event: Event<R>, how: u8) -> Outcome<R> {
        if how.is_multiple_of(2) {
            return Ok(event.synchronize()?);
        }
        loop {
            match event.query()? {
                QueryResult::Ready(r) => return Ok(r),
                QueryResult::Pending(e) => event = e,
            }
            std::thread::yield_now();
        }
    }
}
