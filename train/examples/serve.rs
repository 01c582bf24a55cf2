//! Writes many texts at once about photographs, and compares that with one text at a time. Each
//! request uploads a photograph, cuts out a part of its own, resizes and normalizes it, encodes it,
//! and writes behind a prompt of its own.
//!
//! ```text
//! request 0  upload, prepare, encode, join | token | token | token |
//! request 1  upload, prepare, encode, join | token | token | token |
//! request 2                                           upload .. join | token | token |
//! ```
//!
//! Eight photographs are encoded together if many texts are written at once. Each has the bits that
//! it has alone.
//!
//! ```text
//! cargo run --release -p thalweg-train --features vision --example serve -- --steps 64 --batch 128
//! ```
//!
//! `--files` takes the JPEG files of a folder. On a GPU the encoder is as large as ViT-B, and the
//! decoder has four blocks; with `--large` it has half a billion weights. The weights are random.
//! The texts are compared before anything is timed. `--timeline FILE.svg --all-work` also says
//! where the time of a token goes.

#[path = "support/answers.rs"]
mod answers;
mod support;

use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use answers::{Photographs, Work};
use thalweg::simt::bf16;
use thalweg::{DeviceBuffer, DeviceSlice, LiveBrand, On, Stream, stream_tags};
use thalweg_kernels::train::patches;
use thalweg_train::{Result, TextDecoder, TextServer, TextTicket, VisionEncoder, VisionLanguageConfig};
use thalweg_vision::augment::AugmenterOn;

stream_tags!(Serve);

/// The photographs that are encoded together when many texts are written at once.
const TOGETHER: usize = 8;

/// The way from a photograph to the rows that the decoder sees.
struct Front<'a, S: LiveBrand> {
    work: &'a Work,
    encoder: VisionEncoder<S, bf16>,
    photos: Photographs<S>,
    rgb: On<S, DeviceBuffer<u8>>,
    augmenter: AugmenterOn<S>,
    image: On<S, DeviceBuffer<f32>>,
    tokens: On<S, DeviceBuffer<f32>>,
    position: On<S, DeviceBuffer<f32>>,
    /// The rows of the photographs that were encoded together, and of which requests they are.
    encoded: On<S, DeviceBuffer<f32>>,
    of: Range<usize>,
    together: usize,
}

impl<'a, S: LiveBrand> Front<'a, S> {
    /// Makes room for so many photographs `together`.
    fn new(s: &Stream<S>, work: &'a Work, folder: Option<&Path>, together: usize) -> Result<Self> {
        let photos = Photographs::read(s, folder)?;
        Ok(Self {
            work,
            encoder: VisionEncoder::from_tensors(s, &work.weights)?,
            rgb: s.alloc(together * photos.most())?,
            augmenter: work.crops().augmenter(s, work.size as u32, together)?,
            photos,
            image: s.alloc(together * work.pixels())?,
            tokens: s.alloc(together * work.pixels())?,
            position: s.upload_blocking(&work.places(together))?,
            encoded: s.alloc(together * work.rows() * work.config.text_embed_dim)?,
            of: 0..0,
            together,
        })
    }

    /// Returns the rows of the photograph of request `n`.
    fn rows(&mut self, s: &Stream<S>, n: usize) -> Result<&DeviceSlice<S, f32>> {
        if !self.of.contains(&n) {
            self.encode(s, n..self.work.requests.min(n + self.together))?;
        }
        let len = self.work.rows() * self.work.config.text_embed_dim;
        Ok(self
            .encoded
            .slice((n - self.of.start) * len..(n - self.of.start + 1) * len)
            .map_err(thalweg::Error::from)?)
    }

    /// Uploads the photographs of these requests, prepares them, and encodes them together.
    fn encode(&mut self, s: &Stream<S>, of: Range<usize>) -> Result<()> {
        let Work { size, patch, .. } = *self.work;
        let (images, most, pixels) = (of.len(), self.photos.most(), self.work.pixels());
        let mut crops = Vec::new();
        for (start, n) in (0..).step_by(most).zip(of.clone()) {
            let (photo, extents) = self.photos.of(n);
            s.copy_to_device(photo, slice_mut(&mut self.rgb, start..start + photo.len())?)?;
            crops.push(self.work.crop(n, start, extents)?);
        }
        self.augmenter.prepare(s, &crops)?;
        let (image, tokens) =
            (slice_mut(&mut self.image, 0..images * pixels)?, slice_mut(&mut self.tokens, 0..images * pixels)?);
        self.augmenter.launch(s, &self.rgb, image)?;
        patches(s, [images, 3, size, patch].map(|extent| extent as u32), image, tokens)?;
        let rows = images * self.work.rows();
        let position = self.position.slice(..2 * rows).map_err(thalweg::Error::from)?;
        let encoded = slice_mut(&mut self.encoded, 0..rows * self.work.config.text_embed_dim)?;
        self.encoder.encode_batch(&vec![self.work.rows(); images], tokens, position, encoded)?;
        self.of = of;
        Ok(())
    }
}

fn slice_mut<S, T>(buffer: &mut DeviceSlice<S, T>, of: Range<usize>) -> thalweg::Result<&mut DeviceSlice<S, T>> {
    Ok(buffer.slice_mut(of)?)
}

/// Serves all requests, and returns their texts.
fn serve<S: LiveBrand>(server: &mut TextServer<S, bf16>, front: &mut Front<'_, S>) -> Result<Vec<Vec<i32>>> {
    let (s, work) = (server.stream(), front.work);
    let submitted = (0..work.requests).map(|n| server.submit(work.request(n)));
    let tickets = submitted.collect::<Result<Vec<TextTicket>>>()?;
    let number = |ticket: TextTicket| tickets.binary_search(&ticket).expect("the ticket of a request");
    let mut texts = vec![vec![]; work.requests];
    front.of = 0..0; // nothing is encoded yet
    while !server.is_idle() {
        server.step(|ticket, rows| Ok(s.copy(front.rows(&s, number(ticket))?, rows)?))?;
        while let Some((ticket, text)) = server.finished() {
            texts[number(ticket)] = text?;
        }
    }
    Ok(texts)
}

/// Writes all texts by the decoder for one text, without temperature.
fn decode<S: LiveBrand>(s: &Stream<S>, decoder: &mut TextDecoder<S, bf16>, front: &mut Front<'_, S>) -> Result<()> {
    let work = front.work;
    let mut ids = s.alloc(work.count)?;
    front.of = 0..0;
    for n in 0..work.requests {
        decoder.generate(front.rows(s, n)?, &work.request(n).prompt, &mut ids)?;
        s.read_blocking(&ids)?;
    }
    Ok(())
}

/// Returns the time of a token of `texts` texts, without those that join.
fn token<S: LiveBrand>(work: &Work, server: &mut TextServer<S, bf16>, texts: usize) -> Result<Duration> {
    let s = server.stream();
    for n in 0..texts {
        server.submit(work.request(n))?;
    }
    let image = |_, rows: &mut DeviceSlice<S, f32>| Ok(s.fill(rows, 0.1)?);
    server.step(image)?; // all join
    s.synchronize()?;
    let (time, ()) = support::timed(|| {
        while !server.is_idle() {
            server.step(image)?;
        }
        Ok(())
    })?;
    while server.finished().is_some() {}
    Ok(time / work.count.saturating_sub(2).max(1) as u32)
}

/// Returns the time of reading weights and cache once, as fast as a copy reads and writes.
fn floor<S: LiveBrand>(s: &Stream<S>, work: &Work, texts: usize) -> Result<f64> {
    let VisionLanguageConfig { text_embed_dim: width, text_depth: depth, vocab_size, .. } = work.config;
    let rows = work.rows() + 2 + work.count / 2;
    let bytes = 2 * (12 * width * width * depth + vocab_size * width + texts * rows * 2 * width * depth);
    let len = support::sized(s.device(), 1 << 28, 1 << 20);
    let (from, mut to) = (s.alloc_zeroed::<u8>(len)?, s.alloc::<u8>(len)?);
    let mut copy = |times| {
        let mut copies = || (0..times).try_for_each(|_| s.copy(&from, &mut to)).and_then(|()| s.synchronize());
        support::timed(|| Ok(copies()?))
    };
    copy(3)?;
    Ok(bytes as f64 * copy(20)?.0.as_secs_f64() / (20 * 2 * len) as f64)
}

fn main() -> Result<()> {
    let options = [
        ("--steps N", "the requests"),
        ("--batch N", "the tokens of a text"),
        ("--slots N", "the texts that are written at once"),
        support::RUNS,
        answers::FILES,
        answers::LARGE,
        support::TIMELINE,
        support::ALL_WORK,
    ];
    let args = support::Arguments::parse("Writes many texts at once about photographs.", &options);
    let gpu = support::device()?;
    let work = Work::new(&args, gpu, [128, 64], [5, 6])?;
    let texts = args.slots(support::sized(gpu, 64, 4));
    let Work { count, requests, .. } = work;
    let s = gpu.stream::<Serve>()?;
    let (mut front, mut fronts) =
        (Front::new(&s, &work, args.files(), 1)?, Front::new(&s, &work, args.files(), TOGETHER)?);
    let (mut single, mut many) = (work.server(&s, 1)?, work.server(&s, texts)?);
    let mut decoder = TextDecoder::<_, bf16>::from_tensors(&s, &work.weights)?;
    assert!(serve(&mut single, &mut front)? == serve(&mut many, &mut fronts)?, "the texts depend on those beside them");
    decode(&s, &mut decoder, &mut front)?;

    let off = thalweg::Timeline::disabled();
    let (one, _) = args.timed(&off, |_| serve(&mut single, &mut front))?;
    let (by_decoder, ()) = args.timed(&off, |_| decode(&s, &mut decoder, &mut front))?;
    let (all, _) = args.timed(&off, |_| serve(&mut many, &mut fronts))?;
    let rate = |time: Duration| requests as f64 / time.as_secs_f64();
    println!(
        "{requests} photographs, {count} tokens each: one text at a time {:.1} texts/s, by the decoder for one text {:.1}, \
         {texts} at once {:.1}{}; the texts are the same",
        rate(one),
        rate(by_decoder),
        rate(all),
        support::gain(gpu, one.min(by_decoder), all)
    );
    token(&work, &mut many, texts)?;
    let (time, floor) = (token(&work, &mut many, texts)?, floor(&s, &work, texts)?);
    let share = support::sized(
        gpu,
        format!(", {:.1} % of which reads weights and cache once", 100.0 * floor / time.as_secs_f64()),
        String::new(),
    );
    println!("a token of {texts} texts takes {:.1} us{share}", time.as_secs_f64() * 1e6);
    let timeline = args.timeline(gpu)?;
    if timeline.is_enabled() {
        token(&work, &mut many, texts)?;
        let trace = timeline.finish()?;
        args.save(&trace)?;
        println!("{}", trace.by_label());
    }
    Ok(())
}
