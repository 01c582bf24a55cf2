//! Times operations: one between two events, and many in a row between two events.

use std::collections::HashMap;

use thalweg::{Device, DeviceBuffer, DeviceCopy, DeviceKind, On, Stream, stream_tags};

use crate::Result;
use crate::images::Content;
use crate::record::{Limit, Record, Row};

stream_tags!(pub Bench);

pub(crate) type Buffer<T> = On<Bench, DeviceBuffer<T>>;

/// The microseconds of an operation. Both are medians.
#[derive(Clone, Copy, Default)]
pub(crate) struct Time {
    /// Of one operation between two events.
    pub(crate) one: f64,
    /// Of one operation among many without events between them. There, one starts while the
    /// previous one ends.
    pub(crate) row: f64,
}

pub(crate) struct Bencher {
    pub(crate) device: Device,
    pub(crate) stream: Stream<Bench>,
    pub(crate) record: Record,
    /// The number of timed operations. Some more run before them and are not timed.
    runs: usize,
    warm: usize,
    /// Bytes that must pass through the cache between two uses of a buffer.
    cold: usize,
    only: Option<String>,
    /// Run operations a few times for a profiler, and measure nothing.
    profile: bool,
    /// Work to queue behind, so that no launch waits for the host.
    ballast: Buffer<u32>,
    copies: HashMap<usize, Time>,
}

impl Bencher {
    pub(crate) fn new(device: Device, quick: bool, only: Option<String>, profile: bool) -> Result<Self> {
        let stream = device.stream::<Bench>()?;
        let gpu = device.kind() == DeviceKind::Cuda;
        let (runs, warm, cold) = match (quick, gpu) {
            (true, _) => (3, 1, 0),
            (false, true) => (41, 4, 160 << 20),
            (false, false) => (9, 2, 160 << 20),
        };
        let ballast = stream.alloc(if gpu { 1 << 28 } else { 1 })?;
        let record = Record::new(device, runs);
        Ok(Self { device, stream, record, runs, warm, cold, only, profile, ballast, copies: HashMap::new() })
    }

    /// Whether rows of this name were asked for.
    pub(crate) fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| name.contains(only.as_str()))
    }

    pub(crate) fn is_gpu(&self) -> bool {
        self.device.kind() == DeviceKind::Cuda
    }

    /// Times `op`, which enqueues this many launches. It gets the number of the call, so that it
    /// can take buffers in turn.
    pub(crate) fn time(&mut self, launches: usize, mut op: impl FnMut(usize) -> Result) -> Result<Time> {
        let (stream, runs, warm) = (self.stream, self.runs, self.warm);
        stream.synchronize()?;
        if self.profile {
            (0..3).try_for_each(&mut op)?;
            stream.synchronize()?;
            return Ok(Time::default());
        }
        self.stall(launches)?;
        let mut marks = Vec::with_capacity(warm + runs + 1);
        for i in 0..warm + runs {
            marks.push(stream.timestamp()?);
            op(i)?;
        }
        marks.push(stream.timestamp()?);
        self.stall(launches)?;
        (0..warm).try_for_each(&mut op)?;
        let start = stream.timestamp()?;
        (warm..warm + runs).try_for_each(&mut op)?;
        let end = stream.timestamp()?;
        stream.synchronize()?;
        let mut times = Vec::with_capacity(warm + runs);
        for pair in marks.windows(2) {
            times.push(micros(pair[1].elapsed(&pair[0])?));
        }
        let row = micros(end.elapsed(&start)?) / runs as f64;
        Ok(Time { one: median(times.split_off(warm)), row })
    }

    fn stall(&mut self, launches: usize) -> Result {
        for _ in 0..launches {
            self.stream.zero(&mut self.ballast)?;
        }
        Ok(())
    }

    /// The time of a copy that reads and writes `bytes` in all, measured once.
    pub(crate) fn copy(&mut self, bytes: usize) -> Result<Time> {
        if let Some(time) = self.copies.get(&bytes) {
            return Ok(*time);
        }
        let half = (bytes / 2).max(1);
        let (from, mut to) = (self.sets::<u8>(half)?, self.sets::<u8>(half)?);
        let (sets, stream) = (from.len(), self.stream);
        let time = self.time(1, |i| Ok(stream.copy(&from[i % sets], &mut to[i % sets])?))?;
        self.copies.insert(bytes, time);
        Ok(time)
    }

    /// Makes so many buffers of `len` elements that none is still in the cache at its next turn.
    pub(crate) fn sets<T: DeviceCopy>(&self, len: usize) -> Result<Vec<Buffer<T>>> {
        let sets = (self.cold / (len * size_of::<T>())).clamp(1, 255) + 1;
        (0..sets).map(|_| Ok(self.stream.alloc(len)?)).collect()
    }

    /// Makes as many buffers, each a copy of `data`.
    pub(crate) fn copies_of(&self, data: &[u8]) -> Result<Vec<Buffer<u8>>> {
        let first = self.stream.upload_blocking(data)?;
        let mut all = self.sets(data.len())?;
        for other in &mut all {
            self.stream.copy(&first, other)?;
        }
        Ok(all)
    }

    /// Adds a row for this crate, compared with a copy of as many bytes. `bytes` is 0 if they would
    /// say little about the operation.
    pub(crate) fn row(&mut self, name: &str, content: Content, size: &str, time: Time, bytes: usize) -> Result {
        self.row_by("thalweg", name, content, size, time, bytes)
    }

    /// Adds a row for someone else.
    pub(crate) fn row_by(
        &mut self,
        by: &str,
        name: &str,
        content: Content,
        size: &str,
        time: Time,
        bytes: usize,
    ) -> Result {
        if self.profile {
            return Ok(());
        }
        let limit = match bytes {
            0 => None,
            _ => {
                let copy = self.copy(bytes)?;
                Some(Limit { name: "copy".into(), us: copy.one, us_in_a_row: Some(copy.row) })
            }
        };
        self.record.push(Row {
            section: "kernels".into(),
            name: name.into(),
            by: by.into(),
            content: content.name().into(),
            size: size.into(),
            us: time.one,
            us_in_a_row: Some(time.row),
            bytes: (bytes > 0).then_some(bytes as f64),
            limit,
            images: None,
        });
        Ok(())
    }
}

pub(crate) fn micros(time: Option<std::time::Duration>) -> f64 {
    time.unwrap_or_default().as_secs_f64() * 1e6
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Returns an error if two arrays differ by more than `bound` somewhere.
pub(crate) fn compare<T: Copy + Into<f64>>(what: &str, got: &[f32], want: &[T], bound: f64) -> Result {
    if got.len() != want.len() {
        return Err(format!("{what}: {} values instead of {}", got.len(), want.len()).into());
    }
    let close = |(g, w): (&f32, &T)| (f64::from(*g) - (*w).into()).abs() <= bound; // not so for NaN
    match got.iter().zip(want).position(|pair| !close(pair)) {
        Some(i) => {
            Err(format!("{what}[{i}] is {}, expected {}: nothing wrong is timed", got[i], want[i].into()).into())
        }
        None => Ok(()),
    }
}
