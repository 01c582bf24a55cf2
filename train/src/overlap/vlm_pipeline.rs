//! Answers batches of requests by a vision-language model: the images of the next ones are prepared
//! and encoded while the texts about those before are written.
//!
//! ```text
//! prepare | images 0 | images 1  | images 2  |
//! encoder            | encode 0  | encode 1  | encode 2  |
//! server                         | texts 0 | texts 0, 1 | texts 1, 2 |
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use thalweg::overlap::stages::{Chain, Stages};
use thalweg::{Activity, Brand, DeviceBuffer, Event, LiveBrand, QueryResult, Resource, Timeline};

use crate::error::{Error, Result};
use crate::precision::Precision;
use crate::vision_language::{TextRequest, TextServer, TextTicket, VisionEncoder};

/// A slot of [`vlm_pipeline`](fn@vlm_pipeline): a batch of requests on its way, the image of each
/// behind that of the one before. On a stream it has the form [`RequestsOn<S>`](RequestsOn).
#[derive(Debug, Resource)]
pub struct Requests {
    /// The uploaded bytes, in the form that the caller chooses.
    pub rgb: DeviceBuffer<u8>,
    /// The values from which the tokens are made, in the form that the caller chooses.
    pub pixels: DeviceBuffer<f32>,
    /// The tokens of the images, [rows, inputs], and room for more; for an image encoder their
    /// pixels.
    pub tokens: DeviceBuffer<f32>,
    /// The position of each token, [rows, 2], and room for more; for an image encoder nothing.
    pub position: DeviceBuffer<f32>,
    image: DeviceBuffer<f32>,
    /// The requests. Each says how many rows of tokens its image has, or how many an image encoder
    /// makes of it.
    #[resource(plain)]
    pub requests: Vec<TextRequest>,
}

impl Requests {
    /// Makes a slot for batches whose images have up to `rows` tokens together, which are made from
    /// `rgb` bytes and `pixels` numbers. The host waits for nothing.
    ///
    /// # Errors
    /// There is no memory, or the device failed.
    pub fn new<S: LiveBrand, E: Precision>(
        encoder: &VisionEncoder<S, E>,
        rgb: usize,
        pixels: usize,
        rows: usize,
    ) -> Result<Event<Self>> {
        let (s, config) = (encoder.stream(), encoder.config());
        let [tokens, positions] = config.image_numbers(rows);
        let slot = RequestsOn {
            rgb: s.alloc(rgb)?,
            pixels: s.alloc(pixels)?,
            tokens: s.alloc(tokens)?,
            position: s.alloc(positions)?,
            image: s.alloc(rows.saturating_mul(config.text_embed_dim))?,
            requests: Vec::new(),
        };
        Ok(s.record(slot)?)
    }
}

impl<S: Brand> RequestsOn<S> {
    /// Returns the rows of the image of a request.
    fn rows(&self, place: usize) -> Range<usize> {
        let start = self.requests[..place].iter().map(|request| request.rows).sum();
        start..start + self.requests[place].rows
    }
}

/// Answers batch after batch of requests, and returns when all texts are written.
///
/// `before` has the stages that fill [`tokens`](Requests::tokens), [`position`](Requests::position)
/// and [`requests`](Requests::requests) of a batch: one stage or any number, each on a stream of its
/// own, for example the upload of photographs and what cuts them into patches. Behind them, the
/// encoder works on its stream, and the server writes the texts on its own. The streams in front
/// are ahead as far as the slots reach: a slot is free again when all of its requests have joined
/// the texts that are being written. A batch joins when its images are encoded. While they are not,
/// the texts before go on, and only an idle server waits. Two slots are enough for the overlap,
/// and a third one if batches take unequal times.
///
/// `seen` gets the text of each request, with the item of its batch and its place in it, as soon as
/// it ends, or why the server refused it. The host waits for nothing but tokens, as in
/// [`TextServer::step`], and nothing is allocated after the first batches, or the first ones as
/// large as those that follow. The texts are the same, bit for bit, if all stages are on one stream
/// or there is one slot.
///
/// # Errors
/// The server has other texts to write, there are no slots, a batch does not fit its slot or the
/// encoder, there is no memory, the device failed, or a closure returned an error. After an error
/// of a stage, `seen` still has the texts of the batches before. After any other one, the server
/// has canceled the texts of this run. After a panic of a closure, if it is caught, the server
/// still has them, and refuses the next run until it has written them.
///
/// ```
/// use thalweg::overlap::stages;
/// use thalweg::{Activity, Device, Ring, Timeline, stream_tags};
/// use thalweg_train::overlap::{Requests, vlm_pipeline};
/// use thalweg_train::{Error, TextRequest, TextServer, TextServerOptions, VisionEncoder, VisionLanguageConfig};
///
/// stream_tags!(Prepare, Encode, Write);
/// let gpu = Device::best()?;
/// let (prepare, encode, write) = (gpu.stream::<Prepare>()?, gpu.stream::<Encode>()?, gpu.stream::<Write>()?);
/// let config = VisionLanguageConfig::default()
///     .with_input_dim(3)
///     .with_embed_dim(16)
///     .with_num_heads(2)
///     .with_depth(1)
///     .with_text_embed_dim(32)
///     .with_vocab_size(20)
///     .with_max_tokens(12);
/// let file = config.init(7)?; // or a file with trained weights
/// let mut encoder = VisionEncoder::<_, f32>::from_tensors(&encode, &file)?;
/// let options = TextServerOptions::default().with_texts(4).with_pages(4);
/// let mut server = TextServer::<_, f32>::from_tensors(&write, &file, options)?;
///
/// // Batches of two images of four tokens.
/// let mut slots = (0..2).map(|_| Requests::new(&encoder, 0, 0, 8)).collect::<Result<Ring<_>, _>>()?;
/// let mut texts = vec![[(); 2].map(|()| Vec::new()); 9];
/// vlm_pipeline(
///     stages::<_, Error>(&mut slots).step(&prepare, Activity::Upload, |s, n, batch| {
///         s.fill(&mut batch.tokens, n as f32)?; // here images would be uploaded
///         s.fill(&mut batch.position, 0.5)?;
///         let request = TextRequest::default().with_rows(4).with_count(6);
///         batch.requests.clear();
///         batch.requests.extend([3, 5].map(|id| request.clone().with_prompt(vec![id, 1])));
///         Ok(())
///     }),
///     &mut encoder,
///     &mut server,
///     0..9,
///     |n, place, text| Ok(texts[n][place] = text?),
///     &Timeline::disabled(),
/// )?;
/// assert!(texts.iter().flatten().all(|text| text.len() == 6 || text.ends_with(&[0])));
/// # Ok::<(), thalweg_train::Error>(())
/// ```
///
/// A stage that touches its slot by the stream of another stage does not compile:
///
/// ```compile_fail,E0308
/// use thalweg::overlap::stages;
/// use thalweg::{Activity, Device, stream_tags};
/// use thalweg_train::Error;
/// use thalweg_train::overlap::Requests;
///
/// stream_tags!(Prepare, Encode);
/// let gpu = Device::cpu()?;
/// let (prepare, encode) = (gpu.stream::<Prepare>()?, gpu.stream::<Encode>()?);
/// let mut slots = thalweg::Ring::<Requests>::default();
/// let _ = stages::<_, Error>(&mut slots).step(&prepare, Activity::Upload, |_, _, batch| {
///     encode.fill(&mut batch.tokens, 0.0)?; // `encode` would race with `prepare`
///     Ok(())
/// });
/// # Ok::<(), thalweg::Error>(())
/// ```
pub fn vlm_pipeline<A: LiveBrand, B: LiveBrand, E: Precision, D: Precision>(
    before: Stages<'_, Requests, Error, impl Chain<Requests, Error>>,
    encoder: &mut VisionEncoder<A, E>,
    server: &mut TextServer<B, D>,
    items: Range<usize>,
    seen: impl FnMut(usize, usize, Result<Vec<i32>>) -> Result<()>,
    timeline: &Timeline,
) -> Result<()> {
    if !server.is_idle() || server.has_results() {
        return Err(Error::Batch("the server has other texts to write, or to give back".into()));
    }
    let encode = encoder.stream();
    let config = *encoder.config();
    let (width, of_server) = (config.text_embed_dim, server.config().text_embed_dim);
    if width != of_server {
        return Err(Error::Batch(format!(
            "the encoder writes rows of {width}, and the server reads rows of {of_server}"
        )));
    }
    let front = before.step(&encode, Activity::Compute, |_, _, batch| {
        let (rows, room) = (batch.requests.iter().map(|request| request.rows), batch.image.len() / width);
        let rows = rows.fold(0, usize::saturating_add);
        if rows > room {
            return Err(Error::Batch(format!(
                "the images of a batch have {rows} rows, and its slot has room for {room}"
            )));
        }
        for place in 0..batch.requests.len() {
            let Range { start, end } = batch.rows(place);
            let ([tokens, position], [tokens_end, position_end]) =
                (config.image_numbers(start), config.image_numbers(end));
            let tokens = batch.tokens.slice(tokens..tokens_end)?;
            let position = batch.position.slice(position..position_end)?;
            encoder.encode(tokens, position, batch.image.slice_mut(start * width..end * width)?)?;
        }
        Ok(())
    });
    let mut run = Run { front, encoded: VecDeque::new(), joining: None, places: BTreeMap::new(), server };
    let written = run.write(items, seen, timeline);
    run.end(written)
}

/// The batches that are under way.
struct Run<'a, 's, B: LiveBrand, D: Precision, C> {
    front: Stages<'s, Requests, Error, C>,
    /// The batches whose images the streams in front make.
    encoded: VecDeque<(usize, Event<Requests>)>,
    /// The batch whose requests join.
    joining: Option<RequestsOn<B>>,
    /// The item and the place in its batch of each request that has no text yet.
    places: BTreeMap<TextTicket, [usize; 2]>,
    server: &'a mut TextServer<B, D>,
}

impl<B: LiveBrand, D: Precision, C: Chain<Requests, Error>> Run<'_, '_, B, D, C> {
    fn write(
        &mut self,
        mut items: Range<usize>,
        mut seen: impl FnMut(usize, usize, Result<Vec<i32>>) -> Result<()>,
        timeline: &Timeline,
    ) -> Result<()> {
        let (s, width) = (self.server.stream(), self.server.config().text_embed_dim);
        let mut failed = None;
        loop {
            // Without any slot, `send` says so.
            while !items.is_empty() && (self.front.free() > 0 || self.encoded.is_empty() && self.joining.is_none()) {
                match self.front.send(items.start, timeline) {
                    Ok(slot) => self.encoded.push_back((items.start, slot)),
                    Err(error) => (failed, items.end) = (Some(error), items.start),
                }
                items.start = items.end.min(items.start + 1);
            }
            if self.joining.is_none()
                && let Some((item, slot)) = self.encoded.pop_front()
            {
                if let Some(batch) = self.ready(item, slot)? {
                    let requests = batch.requests.clone();
                    self.joining = Some(batch);
                    for (place, request) in requests.into_iter().enumerate() {
                        match self.server.submit(request) {
                            Ok(ticket) => drop(self.places.insert(ticket, [item, place])),
                            Err(error) => seen(item, place, Err(error))?,
                        }
                    }
                }
            } else if self.joining.is_none() && self.server.is_idle() {
                return failed.map_or(Ok(()), Err);
            }
            let Self { joining, places, server, .. } = self;
            timeline.span(&s, Activity::Compute, "texts", || {
                Ok(server.step(|ticket, image| {
                    // Nothing but this batch waits to join.
                    let (Some(batch), Some(&[_, place])) = (&*joining, places.get(&ticket)) else {
                        return Err(Error::Lost);
                    };
                    let Range { start, end } = batch.rows(place);
                    Ok(s.copy(batch.image.slice(start * width..end * width)?, image)?)
                }))
            })??;
            if self.server.waiting() == 0
                && let Some(batch) = self.joining.take()
            {
                self.front.recycle(s.record(batch)?);
            }
            while let Some((ticket, text)) = self.server.finished() {
                if let Some([item, place]) = self.places.remove(&ticket) {
                    seen(item, place, text)?;
                }
            }
        }
    }

    /// Returns a batch whose images are there. Only an idle server waits for one.
    fn ready(&mut self, item: usize, slot: Event<Requests>) -> Result<Option<RequestsOn<B>>> {
        let s = self.server.stream();
        if self.server.is_idle() {
            return Ok(Some(s.wait(slot)?));
        }
        match slot.query()? {
            QueryResult::Ready(batch) => Ok(Some(s.bind(batch)?)),
            QueryResult::Pending(slot) => {
                self.encoded.push_front((item, slot));
                Ok(None)
            }
        }
    }

    /// Gives the slots back, and leaves an idle server, also after an error.
    fn end(&mut self, mut written: Result<()>) -> Result<()> {
        for &ticket in self.places.keys() {
            written = written.and(self.server.cancel(ticket).map(drop));
        }
        if let Some(batch) = self.joining.take() {
            match self.server.stream().record(batch) {
                Ok(slot) => self.front.recycle(slot),
                Err(error) => written = written.and(Err(error.into())),
            }
        }
        while written.is_err() && self.server.finished().is_some() {}
        for (_, slot) in self.encoded.drain(..) {
            self.front.recycle(slot);
        }
        written
    }
}
