//! Measures the load of the upload streams, and chooses their number.

use std::time::{Duration, Instant};

/// The most upload streams that a loader chooses by itself.
const MOST: usize = 3;

/// Batches in a measurement.
const BATCHES: u32 = 24;

/// Complete batches that wait for a busy stream for more than this share of the time are worth
/// another stream.
const SHARE: f64 = 0.25;

/// A stream that is tried stays if it makes uploads at least this much faster.
const GAIN: f64 = 1.05;

/// Measures the share of time in which a complete batch waits because the thread of its stream is
/// busy with the batch before.
///
/// One stream is enough for copies: a device has one copy engine for each direction, and copies of
/// two streams take turns on it. More streams help where the threads behind them are what takes
/// long: while one waits for the last piece of a file, another reads the next batch. Whether they
/// do cannot be told beforehand, so another stream is tried, and rests if it does not help.
///
/// The best measurement with each number of streams counts, because what disturbs one makes it slower. So a stream that
/// seems not to help is measured once more: while it starts, its decoder gets memory, and other work may have
/// taken the processors. On an H200 one measurement said that a second stream made uploads 22 % slower, where others
/// said that it made them faster.
#[derive(Debug, Default)]
pub(crate) struct Load {
    /// The number of batches before the measurement. They fill the room ahead of the consumer, so
    /// they wait for the stream however slow the consumer is.
    skip: usize,
    begin: Option<Instant>,
    batches: u32,
    bytes: u64,
    /// The bytes of the largest batch so far.
    pub(crate) largest: usize,
    waited: Duration,
    /// Bytes in a second, with one stream less.
    before: f64,
    /// Bytes in a second in the best measurement so far with these streams, or 0.
    best: f64,
    /// The measurement is over.
    done: bool,
    verdict: Option<Verdict>,
    /// The time of an upload with so many streams, and the time that a complete batch waits for it,
    /// in place of measurements. So a test has the same measurements each time.
    #[cfg(test)]
    pub(crate) script: Option<fn(usize) -> [Duration; 2]>,
}

/// The result of a measurement.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Verdict {
    /// Another stream may help, so try it. Why.
    More(String),
    /// The stream that was tried does not help. Why.
    Fewer(String),
    /// The number of streams stays. Why.
    Enough(String),
}

impl Load {
    /// For a loader that prefetches so many batches.
    pub(crate) fn new(prefetch: usize) -> Self {
        Self { skip: prefetch.min(16), ..Self::default() }
    }

    /// Notes an upload of `bytes` from `begin` to `end`, for which a complete batch waited.
    pub(crate) fn note(&mut self, streams: usize, begin: Instant, end: Instant, bytes: usize, waited: Duration) {
        if self.skip > 0 || self.done {
            self.skip = self.skip.saturating_sub(1);
            return;
        }
        #[cfg(test)]
        let (begin, end, waited) = self.scripted(streams).unwrap_or((begin, end, waited));
        let start = *self.begin.get_or_insert(begin);
        self.batches += 1;
        self.bytes = self.bytes.saturating_add(bytes as u64);
        self.largest = self.largest.max(bytes);
        self.waited += waited;
        if self.batches < BATCHES {
            return;
        }
        let wall = end.saturating_duration_since(start).as_secs_f64().max(1e-9);
        let (share, rate) = (self.waited.as_secs_f64() / wall, self.bytes as f64 / wall);
        // Uploads get faster while a loader starts: files get into the cache, and buffers into the
        // pools. A stream that is tried meanwhile would look like a gain, so none is tried before
        // the rate is steady.
        let is_first = self.best == 0.0;
        let grows = streams == 1 && share > SHARE && rate >= GAIN * self.best;
        if grows || (is_first && rate < GAIN * self.before) {
            self.best = rate;
            self.restart(0);
            return;
        }
        let rate = rate.max(self.best);
        self.done = true;
        let text = format!("complete batches wait {:.0} % of the time for a busy stream", 100.0 * share);
        self.verdict = Some(if rate < GAIN * self.before {
            let gain = 100.0 * (rate / self.before - 1.0);
            Verdict::Fewer(format!("with {streams}, uploads were {gain:+.1} % faster, which is less than 5 %"))
        } else if share <= SHARE {
            Verdict::Enough(text)
        } else if streams >= MOST {
            Verdict::Enough(format!("{text}, and there are never more than {MOST} unless asked for"))
        } else {
            Verdict::More(text)
        });
        self.before = rate;
    }

    /// Takes what the last measurement said, once.
    pub(crate) fn verdict(&mut self) -> Option<Verdict> {
        self.verdict.take()
    }

    /// Measures anew, with another stream. Uploads that began without it do not count.
    pub(crate) fn again(&mut self, streams: usize) {
        self.best = 0.0;
        self.restart(streams);
    }

    /// Measures anew, after so many uploads.
    fn restart(&mut self, skip: usize) {
        (self.begin, self.batches, self.bytes, self.waited, self.done) = (None, 0, 0, Duration::ZERO, false);
        self.skip = skip;
    }

    /// Begin, end and wait of the next upload of the script: each begins when the last one ends.
    #[cfg(test)]
    fn scripted(&self, streams: usize) -> Option<(Instant, Instant, Duration)> {
        let [upload, waited] = self.script?(streams);
        let start = self.begin.unwrap_or_else(Instant::now);
        Some((start + self.batches * upload, start + (self.batches + 1) * upload, waited))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Notes uploads of 1000 bytes, each of `upload` ms, and a complete batch that waits for `wait`
    /// of them.
    fn measure(load: &mut Load, streams: usize, upload: u64, wait: u64) -> Option<Verdict> {
        let (start, ms) = (Instant::now(), Duration::from_millis);
        for n in 0..u64::from(BATCHES) {
            assert_eq!(load.verdict(), None, "after {n} batches");
            load.note(streams, start + ms(n * upload), start + ms((n + 1) * upload), 1000, ms(wait));
        }
        load.verdict()
    }

    /// Measures one stream twice: its rate counts when it is steady.
    fn measure_one(load: &mut Load, upload: u64, wait: u64) -> Option<Verdict> {
        assert_eq!(measure(load, 1, upload, wait), None);
        measure(load, 1, upload, wait)
    }

    /// Measures a tried stream twice, since it does not seem to help.
    fn measure_again(load: &mut Load, streams: usize, uploads: [u64; 2], wait: u64) -> Option<Verdict> {
        load.again(0);
        assert_eq!(measure(load, streams, uploads[0], wait), None);
        measure(load, streams, uploads[1], wait)
    }

    #[test]
    fn no_stream_gets_the_credit_for_a_loader_that_starts() {
        let mut load = Load::default();
        for upload in [100, 90, 80] {
            assert_eq!(measure(&mut load, 1, upload, upload), None, "{upload} ms");
        }
        assert!(matches!(measure(&mut load, 1, 79, 79), Some(Verdict::More(_))));
        let Some(Verdict::Fewer(reason)) = measure_again(&mut load, 2, [90, 78], 0) else {
            panic!("the second did not help")
        };
        assert_eq!(reason, "with 2, uploads were +1.3 % faster, which is less than 5 %");

        // What counts is the best rate with one stream, not the last one.
        let mut load = Load::default();
        assert_eq!(measure(&mut load, 1, 80, 80), None);
        assert!(matches!(measure(&mut load, 1, 100, 100), Some(Verdict::More(_))));
        assert!(matches!(measure_again(&mut load, 2, [80, 80], 0), Some(Verdict::Fewer(_))));
    }

    #[test]
    fn one_slow_measurement_does_not_cost_a_stream_its_place() {
        let start = || {
            let mut load = Load::default();
            assert!(matches!(measure_one(&mut load, 100, 90), Some(Verdict::More(_))));
            load
        };
        // Slow while it starts, and faster than one stream then.
        assert!(matches!(measure_again(&mut start(), 2, [128, 80], 10), Some(Verdict::Enough(_))));
        assert!(matches!(measure_again(&mut start(), 2, [128, 80], 70), Some(Verdict::More(_))));
        // Two slow measurements are enough, and the better one of them counts.
        for uploads in [[128, 99], [99, 128]] {
            let Some(Verdict::Fewer(reason)) = measure_again(&mut start(), 2, uploads, 10) else {
                panic!("{uploads:?}")
            };
            assert_eq!(reason, "with 2, uploads were +1.0 % faster, which is less than 5 %");
        }
    }

    #[test]
    fn streams_are_added_while_batches_wait_and_it_helps() {
        // The first batches do not count.
        let mut load = Load::new(2);
        let start = Instant::now();
        for n in 0..2 {
            load.note(1, start, start, n, Duration::from_secs(60));
        }
        assert!(matches!(measure(&mut load, 1, 10, 1), Some(Verdict::Enough(_))));

        let is_more = |verdict| matches!(verdict, Some(Verdict::More(_)));
        let mut load = Load::default();
        assert!(is_more(measure_one(&mut load, 10, 5)));
        load.again(0);
        assert!(is_more(measure(&mut load, 2, 7, 5)), "it is faster, and they still wait");
        load.again(0);
        let Some(Verdict::Enough(reason)) = measure(&mut load, 3, 5, 4) else { panic!("three are enough") };
        assert!(reason.contains("never more than 3"), "{reason}");

        let mut load = Load::default();
        let Some(Verdict::Enough(reason)) = measure(&mut load, 1, 100, 25) else { panic!("one is enough") };
        assert_eq!(reason, "complete batches wait 25 % of the time for a busy stream");

        let mut load = Load::default();
        assert!(is_more(measure_one(&mut load, 100, 90)));
        // Batches no longer wait, but that alone is no gain.
        let Some(Verdict::Fewer(reason)) = measure_again(&mut load, 2, [96, 96], 0) else {
            panic!("the second did not help")
        };
        assert_eq!(reason, "with 2, uploads were +4.2 % faster, which is less than 5 %");

        let mut load = Load::default();
        assert!(is_more(measure_one(&mut load, 100, 90)));
        load.again(0);
        assert!(matches!(measure(&mut load, 2, 95, 0), Some(Verdict::Enough(_))));
        assert_eq!(load.largest, 1000);
    }
}
