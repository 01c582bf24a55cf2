//! Ranks as threads of one process, so that peer copies and NCCL reduce in turns in one run.
//!
//! Each step with a reduction follows one without, and the table has the median of what it takes
//! longer, with the quartiles. All ranks begin a step together, and the slowest one counts.

use std::fmt;
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use thalweg::simt::bf16;
use thalweg::{At, Device, DeviceKind, DeviceRank, stream_tags};
use thalweg_collective::{Backend, BucketSizes, Comm, CtaRange, Gradients, Mean, Sum, World, WorldOptions};
use thalweg_train::MatmulBackend;

use super::{Error, Model, Result, Shape, backend, drawn, listed, numbers};

stream_tags!(Compute, Reduce, Alone);

/// Who reduces: `peer`, `nccl` or `host`, then perhaps the KiB of a piece and the blocks, as in
/// `peer:4096:16`.
#[derive(Clone)]
struct Transport {
    name: String,
    options: WorldOptions,
}

impl FromStr for Transport {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        let mut words = text.split(':');
        let backend = match words.next() {
            Some("peer") => Backend::Peer,
            Some("nccl") => Backend::Nccl,
            Some("host") => Backend::Host,
            _ => return Err(format!("`{text}` is none of peer, nccl and host").into()),
        };
        let mut options = WorldOptions::from_env()?.with_backend(backend);
        if let Some(kib) = words.next().filter(|kib| !kib.is_empty()) {
            options.piece = kib.parse::<usize>()? << 10;
        }
        if let Some(blocks) = words.next() {
            let blocks = blocks.parse()?;
            options.ctas = Some(CtaRange { least: blocks, most: blocks });
        }
        Ok(Self { name: text.to_owned(), options })
    }
}

/// A line at which all threads begin, and where they compare their times. Threads spin there,
/// because one that sleeps begins late.
struct Line {
    came: AtomicUsize,
    times: Vec<AtomicU64>,
}

impl Line {
    fn meet(&self) {
        let size = self.times.len();
        let all = (self.came.fetch_add(1, Ordering::AcqRel) + 1).next_multiple_of(size);
        while self.came.load(Ordering::Acquire) < all {
            std::thread::yield_now();
        }
    }

    /// The longest of the times that the threads bring.
    fn longest(&self, rank: usize, time: f64) -> f64 {
        self.times[rank].store(time.to_bits(), Ordering::Release);
        self.meet();
        let all = self.times.iter().map(|time| f64::from_bits(time.load(Ordering::Acquire)));
        let longest = all.fold(0.0, f64::max);
        self.meet();
        longest
    }
}

/// The lower quartile, the median and the upper quartile.
struct Spread([f64; 3]);

impl Spread {
    fn of(mut numbers: Vec<f64>) -> Self {
        numbers.sort_by(f64::total_cmp);
        Self([1, 2, 3].map(|quarter| numbers[(numbers.len() - 1) * quarter / 4]))
    }
    fn map(self, f: impl Fn(f64) -> f64) -> Self {
        let mut all = self.0.map(f);
        all.sort_by(f64::total_cmp);
        Self(all)
    }
    fn median(&self) -> f64 {
        self.0[1]
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [low, median, high] = self.0;
        write!(f, "{median:.3} [{low:.3}, {high:.3}]")
    }
}

/// The means of a thread to measure.
struct Bench<'r, 'l> {
    rank: DeviceRank<'r>,
    line: &'l Line,
    comms: Vec<(String, Comm<At<'r, Reduce>>)>,
    pairs: usize,
}

impl Bench<'_, '_> {
    fn say(&self, text: &str) {
        if self.rank.index() == 0 {
            println!("{text}");
        }
    }

    /// The time of the slowest rank, in ms.
    fn timed(&self, wait: impl Fn() -> thalweg::Result<()>, f: impl FnOnce() -> Result<()>) -> Result<f64> {
        wait()?;
        self.line.meet();
        let start = Instant::now();
        f()?;
        wait()?;
        Ok(self.line.longest(self.rank.index(), start.elapsed().as_secs_f64() * 1e3))
    }

    /// Sums by themselves, one after another on the communicator's stream and as buckets of a pass
    /// that computes nothing.
    fn alone(&mut self) -> Result<()> {
        let (compute, reduce) = (self.rank.stream::<Compute>()?, self.rank.stream::<Reduce>()?);
        let (size, gpu) = (self.rank.size(), self.rank.device().kind() == DeviceKind::Cuda);
        let wait = || compute.synchronize().and_then(|()| reduce.synchronize());
        self.say(
            "| sums of bf16 | MiB | each takes, ms | bus bandwidth, GB/s | of the last one's |\n|---|---|---|---|---|",
        );
        for kib in if gpu { vec![1 << 10, 25 << 10, 50 << 10, 100 << 10] } else { vec![64] } {
            let (bytes, mut comms) = (kib << 10, std::mem::take(&mut self.comms));
            let calls = ((400 << 20) / bytes).clamp(4, 32);
            let mut x = reduce.alloc_zeroed::<bf16>(bytes / 2)?;
            let sizes = BucketSizes::default().with_first(bytes).with_others(bytes);
            let mut pass = Some(Gradients::<_, bf16>::new(&compute, &vec![bytes / 2; calls], sizes)?);
            let mut times = vec![[Vec::new(), Vec::new()]; comms.len()];
            for round in 0..self.pairs + 2 {
                for ((_, comm), times) in comms.iter_mut().zip(&mut times) {
                    let row =
                        self.timed(wait, || (0..calls).try_for_each(|_| Ok(comm.all_reduce_in_place(Sum, &mut x)?)))?;
                    let buckets = self.timed(wait, || {
                        let (mut backward, grads) = comm.backward(Mean, pass.take().ok_or("no gradients")?)?;
                        grads.into_iter().rev().try_for_each(|grad| backward.mark_ready(grad))?;
                        pass = Some(backward.finish(|_, _| Ok::<_, thalweg_collective::Error>(()))?);
                        Ok(())
                    })?;
                    if round >= 2 {
                        times[0].push(row / calls as f64);
                        times[1].push(buckets / calls as f64);
                    }
                }
            }
            let spreads: Vec<[Spread; 2]> = times.into_iter().map(|times| times.map(Spread::of)).collect();
            for (k, way) in ["in a row", "buckets"].iter().enumerate() {
                for ((name, _), spread) in comms.iter().zip(&spreads) {
                    let bus = |ms: f64| 2.0 * (size - 1) as f64 / size as f64 * bytes as f64 / ms / 1e6;
                    let last = spreads.last().map_or(1.0, |last| last[k].median());
                    let (share, mib) = (100.0 * last / spread[k].median(), bytes as f64 / f64::from(1 << 20));
                    let rates = Spread(spread[k].0).map(bus);
                    self.say(&format!("| {name}, {way} | {mib} | {} | {rates} | {share:.0} % |", spread[k]));
                }
            }
            self.comms = comms;
        }
        Ok(())
    }

    /// Steps without other ranks and with them, in turns.
    fn steps(&mut self, backend: MatmulBackend, shape: Shape, buckets: &[usize]) -> Result<()> {
        let Shape { width, layers, tokens } = shape;
        let compute = self.rank.stream::<Compute>()?;
        let wait = || compute.synchronize();
        let mut single = World::single().comm(self.rank.stream::<Alone>()?)?;
        let (weights, input) = (drawn(shape), numbers(tokens * width, 2 + self.rank.index() as u64));
        let mut model = Model::new(compute, backend, shape, &weights, &input)?;
        let mib = (2 * shape.all()) as f64 / f64::from(1 << 20);
        self.say(&format!("width {width}, {layers} layers, {tokens} tokens, {mib:.0} MiB of gradients"));
        self.say("| reduced by | buckets, MiB | alone, ms | with ranks, ms | longer by, % |\n|---|---|---|---|---|");
        for &mib in buckets {
            let count = model.buckets(BucketSizes::default().with_first(1 << 20).with_others(mib << 20))?;
            let mut times = vec![[Vec::new(), Vec::new(), Vec::new()]; self.comms.len()];
            for pair in 0..self.pairs + 3 {
                let mut comms = std::mem::take(&mut self.comms);
                for ((_, comm), times) in comms.iter_mut().zip(&mut times) {
                    let alone = self.timed(wait, || model.step(&mut single))?;
                    let with = self.timed(wait, || model.step(comm))?;
                    if pair >= 3 {
                        times[0].push(alone);
                        times[1].push(with);
                        times[2].push(100.0 * (with / alone - 1.0));
                    }
                }
                self.comms = comms;
            }
            for ((name, _), times) in self.comms.iter().zip(times) {
                let [alone, with, longer] = times.map(Spread::of);
                self.say(&format!("| {name} | {mib} ({count}) | {alone} | {with} | {longer} |"));
            }
        }
        // The steps alone took the models apart. From the same weights on, all ranks keep the same
        // bits, in every run.
        drop(model);
        let mut comms = std::mem::take(&mut self.comms);
        for (name, comm) in &mut comms {
            let mut hashes = Vec::new();
            for _ in 0..2 {
                let mut model = Model::new(compute, backend, shape, &weights, &input)?;
                model.buckets(BucketSizes::default().with_first(1 << 20).with_others(25 << 20))?;
                (0..3).try_for_each(|_| model.step(comm))?;
                let rounded = compute.read_blocking(&model.rounded)?;
                let mixed =
                    |hash: u64, v: &bf16| hash.rotate_left(5) ^ u64::from(v.to_bits()).wrapping_mul(0x9e37_79b9);
                hashes.push(rounded.iter().fold(0, mixed));
                comm.verify_equal("the weights", hashes[hashes.len() - 1])?;
            }
            let again = if hashes[0] == hashes[1] { "the same" } else { "OTHER" };
            self.say(&format!("{name}: three steps give the same bits on all ranks, and {again} bits in a second run"));
        }
        self.comms = comms;
        Ok(())
    }
}

/// Measures on two GPUs, or on CPU devices if there are none.
pub(super) fn run(transports: &str, given: &[usize]) -> Result<()> {
    let transports: Vec<Transport> = transports.split(',').map(str::parse).collect::<Result<_>>()?;
    let gpus: Vec<Device> = (0..2).map_while(|ordinal| Device::cuda(ordinal).ok()).collect();
    let devices = match gpus.len() {
        2 => gpus,
        0 => vec![Device::new_cpu()?, Device::new_cpu()?],
        _ => return Err("MLP_TRANSPORT needs two GPUs, or none".into()),
    };
    let gpu = devices[0].kind() == DeviceKind::Cuda;
    let shapes: Vec<[usize; 3]> = match *given {
        [width, layers, tokens] => vec![[width, layers, tokens]],
        _ if gpu => vec![[1024, 12, 4096], [1024, 12, 16384], [2048, 12, 8192]],
        _ => vec![[16, 2, 8]],
    };
    let buckets = listed("MLP_BUCKETS")?.unwrap_or(vec![1, 25, 50, 100]);
    let only = std::env::var("MLP_ONLY").unwrap_or_default();
    let pairs = listed("MLP_PAIRS")?.map_or(if gpu { 20 } else { 3 }, |pairs: Vec<usize>| pairs[0]);
    let size = devices.len();
    let line = Line { came: AtomicUsize::new(0), times: (0..size).map(|_| AtomicU64::new(0)).collect() };
    let worlds = |transport: &Transport| {
        Mutex::new(World::local(size, transport.options).into_iter().map(Some).collect::<Vec<_>>())
    };
    let worlds: Vec<Mutex<Vec<Option<World>>>> = transports.iter().map(worlds).collect();
    let measure = |rank: DeviceRank<'_>| -> Result<()> {
        let mut comms = Vec::new();
        for (transport, worlds) in transports.iter().zip(&worlds) {
            let world = worlds.lock().map_err(|why| why.to_string())?[rank.index()].take().ok_or("taken twice")?;
            comms.push((transport.name.clone(), world.comm(rank.stream::<Reduce>()?)?));
        }
        let mut bench = Bench { rank, line: &line, comms, pairs };
        let backend = backend(rank.device())?;
        bench.say(&format!(
            "{size} threads, {}, products by {backend:?}, {pairs} pairs, median [quartiles]",
            rank.device()
        ));
        if only != "steps" {
            bench.alone()?;
        }
        if only != "sums" {
            for &[width, layers, tokens] in &shapes {
                bench.steps(backend, Shape { width, layers, tokens }, &buckets)?;
            }
        }
        // No rank leaves while another one measures.
        line.meet();
        Ok(())
    };
    thalweg::for_each_device(&devices, |rank| {
        if let Err(why) = measure(rank) {
            // The other threads spin at the line.
            eprintln!("rank {}: {why}", rank.index());
            std::process::exit(1);
        }
    });
    Ok(())
}
