//! The values of a store, and the requests that wait for it.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::{Answer, StoreLimits};
use crate::codec;
use crate::error::StoreError;
use crate::lock;

/// Keys, values and meetings. Every method is one step: nobody sees half of it.
#[derive(Debug)]
pub(super) struct Table {
    state: Mutex<State>,
    changed: Condvar,
    limits: StoreLimits,
}

#[derive(Debug, Default)]
struct State {
    values: HashMap<String, Vec<u8>>,
    meetings: HashMap<String, Arc<Meeting>>,
    /// The bytes of all keys and values, those of meetings under way too.
    bytes: usize,
    closed: bool,
}

/// A call of `all_gather` under way. It leaves the table when the last rank comes, so the next one
/// of the same name is another one.
#[derive(Debug)]
struct Meeting {
    parts: Mutex<Vec<Option<Vec<u8>>>>,
    all: OnceLock<Vec<Vec<u8>>>,
}

impl Table {
    pub(super) fn new(limits: StoreLimits) -> Self {
        Self { state: Mutex::default(), changed: Condvar::new(), limits }
    }

    /// Ends every wait.
    pub(super) fn close(&self) {
        lock(&self.state).closed = true;
        self.changed.notify_all();
    }

    fn open(&self) -> Result<MutexGuard<'_, State>, StoreError> {
        let state = lock(&self.state);
        if state.closed {
            return Err(StoreError::Gone { reason: "it has ended".to_owned() });
        }
        Ok(state)
    }

    /// Waits until the table changes, at most until the deadline and at most for a second. Whether
    /// the caller is still there is asked without the lock, because that may take a millisecond.
    fn sleep<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        deadline: Instant,
        interrupted: &mut impl FnMut() -> bool,
    ) -> Result<MutexGuard<'a, State>, StoreError> {
        let left = deadline.saturating_duration_since(Instant::now()).min(Duration::from_secs(1));
        let (state, waited) = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
        if state.closed {
            return Err(StoreError::Gone { reason: "it has ended".to_owned() });
        }
        if !waited.timed_out() {
            return Ok(state);
        }
        drop(state);
        if interrupted() {
            return Err(StoreError::Gone { reason: "the caller has gone".to_owned() });
        }
        self.open()
    }

    /// Makes room for an entry instead of one of `old` bytes.
    fn admit(&self, state: &mut State, key: &str, value: usize, old: Option<usize>) -> Result<(), StoreError> {
        let limits = &self.limits;
        let bytes = state.bytes - old.map_or(0, |old| key.len() + old) + key.len() + value;
        let entries = state.values.len() + state.meetings.len();
        let refused = |reason: String| Err(StoreError::Refused { reason });
        if key.len() > limits.key {
            return refused(format!("a key of {} bytes: at most {} are allowed", key.len(), limits.key));
        }
        if value > limits.value {
            return refused(format!("a value of {value} bytes: at most {} are allowed", limits.value));
        }
        if bytes > limits.bytes || (old.is_none() && entries >= limits.entries) {
            return refused(format!("it is full, with {entries} entries of {} bytes", state.bytes));
        }
        state.bytes = bytes;
        Ok(())
    }

    pub(super) fn set(&self, key: &str, value: Vec<u8>) -> Result<(), StoreError> {
        let mut state = self.open()?;
        let old = state.values.get(key).map(Vec::len);
        self.admit(&mut state, key, value.len(), old)?;
        state.values.insert(key.to_owned(), value);
        self.changed.notify_all();
        Ok(())
    }

    /// Sets a value if there is none; returns the one that is there then.
    pub(super) fn set_if_absent(&self, key: &str, value: Vec<u8>) -> Result<Vec<u8>, StoreError> {
        let mut state = self.open()?;
        if let Some(first) = state.values.get(key) {
            return Ok(first.clone());
        }
        self.admit(&mut state, key, value.len(), None)?;
        state.values.insert(key.to_owned(), value.clone());
        self.changed.notify_all();
        Ok(value)
    }

    pub(super) fn get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.open()?.values.get(key).cloned())
    }

    /// Adds to the number that is the value, or to 0.
    pub(super) fn add(&self, key: &str, more: i64) -> Result<i64, StoreError> {
        let mut state = self.open()?;
        let old = state.values.get(key);
        let number = match old.map(|old| <[u8; 8]>::try_from(&old[..])) {
            None => 0,
            Some(Ok(bytes)) => i64::from_le_bytes(bytes),
            Some(Err(_)) => return Err(StoreError::Refused { reason: format!("`{key}` is no number") }),
        };
        let old = old.map(Vec::len);
        let sum = number.wrapping_add(more);
        self.admit(&mut state, key, 8, old)?;
        state.values.insert(key.to_owned(), sum.to_le_bytes().to_vec());
        self.changed.notify_all();
        Ok(sum)
    }

    pub(super) fn delete(&self, key: &str) -> Result<bool, StoreError> {
        let mut state = self.open()?;
        let old = state.values.remove(key);
        if let Some(old) = &old {
            state.bytes -= key.len() + old.len();
        }
        Ok(old.is_some())
    }

    /// Waits for a value. `None` if none came in time.
    pub(super) fn wait(
        &self,
        key: &str,
        deadline: Instant,
        mut interrupted: impl FnMut() -> bool,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let mut state = self.open()?;
        loop {
            if let Some(value) = state.values.get(key) {
                return Ok(Some(value.clone()));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            state = self.sleep(state, deadline, &mut interrupted)?;
        }
    }

    /// Brings the part of a rank. [`all_gather`](Self::all_gather) waits for the meeting that is
    /// returned.
    fn enter(&self, name: &str, rank: usize, size: usize, part: Vec<u8>) -> Result<Arc<Meeting>, StoreError> {
        let refused = |reason: String| Err(StoreError::Refused { reason });
        if size > self.limits.ranks || rank >= size {
            return refused(format!("rank {rank} of {size}: at most {} ranks can meet", self.limits.ranks));
        }
        let mut state = self.open()?;
        if !state.meetings.contains_key(name) {
            self.admit(&mut state, name, 0, None)?;
            let meeting = Meeting { parts: Mutex::new(vec![None; size]), all: OnceLock::new() };
            state.meetings.insert(name.to_owned(), Arc::new(meeting));
        }
        let meeting = state.meetings[name].clone();
        let mut parts = lock(&meeting.parts);
        if parts.len() != size {
            return refused(format!("{size} ranks at `{name}`, where {} meet", parts.len()));
        }
        // All ranks get all parts in one message.
        let (old, new) = (parts[rank].as_ref().map_or(0, Vec::len), part.len());
        let others: usize = parts.iter().flatten().map(Vec::len).sum::<usize>() - old;
        let admitted = if answer_len(size, others + new) > codec::LONGEST {
            let reason = format!("the parts at `{name}` do not fit in a message of {} bytes", codec::LONGEST);
            Err(StoreError::Refused { reason })
        } else {
            self.admit(&mut state, name, new, Some(old))
        };
        if let Err(why) = admitted {
            // A meeting to which nobody has come does not stay.
            if parts.iter().all(Option::is_none) {
                state.bytes -= name.len();
                state.meetings.remove(name);
            }
            return Err(why);
        }
        parts[rank] = Some(part);
        if parts.iter().all(Option::is_some) {
            let all: Vec<Vec<u8>> = parts.drain(..).flatten().collect();
            state.bytes -= name.len() + all.iter().map(Vec::len).sum::<usize>();
            state.meetings.remove(name);
            _ = meeting.all.set(all);
            self.changed.notify_all();
        }
        drop(parts);
        Ok(meeting)
    }

    /// Waits until all ranks have come, or says which have not.
    pub(super) fn all_gather(
        &self,
        name: &str,
        (rank, size): (usize, usize),
        part: Vec<u8>,
        deadline: Instant,
        mut interrupted: impl FnMut() -> bool,
    ) -> Result<Answer, StoreError> {
        let meeting = self.enter(name, rank, size, part)?;
        let mut state = self.open()?;
        loop {
            if let Some(all) = meeting.all.get() {
                return Ok(Answer::All(all.clone()));
            }
            if Instant::now() >= deadline {
                let parts = lock(&meeting.parts);
                let missing = parts.iter().enumerate().filter(|(_, part)| part.is_none()).map(|(rank, _)| rank);
                let missing = missing.collect();
                drop(parts);
                withdraw(&mut state, name, rank, &meeting);
                return Ok(Answer::Missing(missing));
            }
            match self.sleep(state, deadline, &mut interrupted) {
                Ok(awake) => state = awake,
                Err(why) => {
                    withdraw(&mut lock(&self.state), name, rank, &meeting);
                    return Err(why);
                }
            }
        }
    }

    /// The number of entries and their bytes, for tests of what is left.
    #[cfg(test)]
    pub(super) fn holds(&self) -> (usize, usize) {
        let state = lock(&self.state);
        (state.values.len() + state.meetings.len(), state.bytes)
    }
}

/// The bytes of the answer to a meeting: its kind, and each part with its length.
fn answer_len(size: usize, bytes: usize) -> usize {
    1 + 8 + 8 * size + bytes
}

/// Takes the part of a rank that does not wait any more out of a meeting, so that the others do not
/// take it for one that is there. The last one takes the meeting with it.
fn withdraw(state: &mut State, name: &str, rank: usize, meeting: &Arc<Meeting>) {
    let mut parts = lock(&meeting.parts);
    if let Some(part) = parts.get_mut(rank).and_then(Option::take) {
        state.bytes -= part.len();
        if parts.iter().all(Option::is_none) {
            state.bytes -= name.len();
            state.meetings.remove(name);
        }
    }
}
