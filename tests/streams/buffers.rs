//! The steps that a buffer of either kind can take: moves, records, shares, splits, joins and
//! drops.

use thalweg::{Error, LiveBrand, QueryResult, Returned, Shared};

use super::failure::{Outcome, claim};
use super::program::MOST;
use super::slots::{Buffer, Piece, Slot, State};
use super::three::{Of, Streams};

impl<A: LiveBrand, B: LiveBrand, C: LiveBrand> Streams<A, B, C> {
    pub(crate) fn move_one<R: Buffer>(self, slot: &mut Slot<A, B, C, R>, t: usize, how: u8) -> Outcome {
        if let State::Shared { readings, .. } = &mut slot.state
            && !readings.is_empty()
        {
            // A reading moves to another stream as a buffer does.
            let reading = readings.swap_remove(usize::from(how) % readings.len());
            let moved = match how % 2 {
                0 => self.hand::<Shared<R>>(reading, t)?,
                _ => self.wait(t, self.record::<Shared<R>>(reading)?)?,
            };
            readings.push(moved);
            return Ok(());
        }
        self.bring(slot, t, how).map(drop)
    }

    pub(crate) fn land_one<R: Buffer>(self, slot: &mut Slot<A, B, C, R>, how: u8) -> Outcome {
        self.land(slot, how).map(drop)
    }

    pub(crate) fn record_one<R: Buffer>(self, slot: &mut Slot<A, B, C, R>) -> Outcome {
        slot.state = match slot.take() {
            State::On(x) => State::Event(self.record(x)?),
            state => state,
        };
        Ok(())
    }

    pub(crate) fn query_one<R: Buffer>(self, slot: &mut Slot<A, B, C, R>) -> Outcome {
        slot.state = match slot.take() {
            State::Event(event) => match event.query()? {
                QueryResult::Ready(r) => State::Idle(slot.seen(r)?),
                QueryResult::Pending(event) => State::Event(event),
            },
            state => state,
        };
        Ok(())
    }

    pub(crate) fn share_one<R: Buffer>(self, slot: &mut Slot<A, B, C, R>, t: usize) -> Outcome {
        if let State::Shared { handles, .. } = &mut slot.state {
            handles.extend(handles.last().cloned());
        } else {
            self.bring(slot, t, 0)?;
            let handles = vec![self.share(slot.take_on())?];
            slot.state = State::Shared { handles, readings: Vec::new(), forgotten: 0 };
        }
        Ok(())
    }

    pub(crate) fn read_one<R: Buffer>(self, slot: &mut Slot<A, B, C, R>, t: usize, how: u8) -> Outcome {
        if let State::Shared { handles, readings, .. } = &mut slot.state
            && let Some(shared) = handles.last()
        {
            readings.push(self.read(t, shared, how)?);
        }
        Ok(())
    }

    pub(crate) fn unshare_one<R: Buffer>(self, slot: &mut Slot<A, B, C, R>, t: usize) -> Outcome {
        slot.state = match slot.take() {
            State::Shared { mut handles, readings, forgotten } if !handles.is_empty() => {
                let shared = handles.remove(0);
                let others = handles.len() + readings.len() + forgotten;
                match self.unshare(t, shared) {
                    Ok(x) => {
                        claim("unshared, although others held it", others == 0)?;
                        State::On(x)
                    }
                    Err(Returned { error: Error::StillShared { ref_count: holders }, value }) => {
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
    pub(crate) fn discard<R: Buffer>(
        self,
        slots: &mut Vec<Slot<A, B, C, R>>,
        i: usize,
        how: usize,
        forget: bool,
    ) -> Outcome {
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

    pub(crate) fn split_one<R: Buffer>(
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

    pub(crate) fn join_two<R: Buffer>(
        self,
        slots: &mut Vec<Slot<A, B, C, R>>,
        i: usize,
        t: usize,
        j: usize,
        how: u8,
    ) -> Outcome {
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
