//! Many texts at once: sequences join and leave between tokens, and their keys and values lie in
//! the pages of one cache.
//!
//! ```text
//! request a   join | token | token | token |
//! request b          wait  | join  | token | token | token |
//! rows of a token      a       a      a b      b       b
//! ```
//!
//! A request joins by itself: image and prompt go through the blocks as in a `TextDecoder`, and
//! their keys and values to its pages. A token is one pass over the newest rows of all texts. The
//! rows go up to the last slot that has a text, and their number is rounded up to a power of two,
//! [`LEAST`] at least, so that the same kernels multiply them whatever their number is. Idle rows
//! are left out by the kernels that differ between texts. So the bits of a text do not depend on
//! what else is written.

use std::collections::VecDeque;

use thalweg::{Brand, DeviceBuffer, DeviceSlice, Event, Graph, GraphCache, GraphWork, LiveBrand, PinnedBuffer};
use thalweg::{Resource, Stream};
use thalweg_kernels::train::{AppendRows, PAGE, PROGRESS, RULES, append_rows, sample};

use super::{Decoder, VisionLanguageConfig};
use crate::batch::upload;
use crate::error::{Error, Result};
use crate::layers::{
    ForwardPass, PagedRows, Sequences, TransformerActivations, TransformerActivationsOn, Weights, WeightsOn, WeightsRef,
};
use crate::layout::ParameterLayout;
use crate::matmul_backend::{Matmul, MatmulBackend, MatmulOn};
use crate::precision::Precision;
use crate::tensors::Tensors;

/// The fewest and the most rows of a token. Fewer rows, or more, would have other kernels for
/// products.
const LEAST: usize = 16;
const MOST: usize = 128;
/// The most ids that can be sampled: each of the 512 threads of a block looks at one of the ids
/// that the thread of a drawn id has.
const MOST_IDS: usize = (1 << 18) - 1;
/// The tokens that are enqueued before the host reads the oldest one.
const AHEAD: usize = 1;

/// The size of a [`TextServer`]. All device memory of the model and the cache is allocated when it
/// is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thalweg::__Setters)]
#[non_exhaustive]
pub struct TextServerOptions {
    /// The most texts that are written at once, 1 to 128.
    pub texts: usize,
    /// The pages of the cache. Each has room for the keys and values of 16 rows of image or text.
    pub pages: usize,
    /// The most rows of an image.
    pub image_rows: usize,
}

impl Default for TextServerOptions {
    /// 64 texts at once, 1280 pages, and images of up to 256 rows.
    fn default() -> Self {
        Self { texts: 64, pages: 1280, image_rows: 256 }
    }
}

impl TextServerOptions {
    /// Returns how many pages a sequence of so many rows of image and text has.
    #[must_use]
    pub fn pages_of(rows: usize) -> usize {
        rows.div_ceil(PAGE)
    }

    /// Returns the bytes of a page of a model.
    #[must_use]
    pub fn page_bytes<E: Precision>(config: &VisionLanguageConfig) -> usize {
        page_len::<E>(config).saturating_mul(2 * size_of::<E>())
    }
}

/// Returns the keys, or values, of a page.
fn page_len<E>(config: &VisionLanguageConfig) -> usize {
    let VisionLanguageConfig { text_embed_dim: width, text_num_heads: heads, text_depth: blocks, .. } = *config;
    let head = width.checked_div(heads).unwrap_or(0).div_ceil(16 / size_of::<E>());
    [blocks, heads, head].into_iter().fold(PAGE * 16 / size_of::<E>(), usize::saturating_mul)
}

/// A text that a [`TextServer`] is to write.
#[derive(Clone, Debug, PartialEq, thalweg::__Setters)]
#[non_exhaustive]
pub struct TextRequest {
    /// The rows of the image.
    pub rows: usize,
    /// The ids of the prompt: one at least.
    pub prompt: Vec<i32>,
    /// The most tokens of the text.
    pub count: usize,
    /// The temperature: logits are divided by it before an id is drawn. With 0, each token is the
    /// id with the largest logit, the lowest one among equals.
    pub temperature: f32,
    /// Only the most probable ids are drawn, as many as have this part of the probability together,
    /// 0 to 1.
    pub top_p: f32,
    /// The seed of the draws. The same request with the same seed has the same text.
    pub seed: u64,
    /// The ids that end the text. It has the id that ended it.
    pub stop: Vec<i32>,
}

impl Default for TextRequest {
    /// 16 tokens at most, without temperature, and id 0 ends the text. It has no image and no
    /// prompt yet.
    fn default() -> Self {
        Self { rows: 0, prompt: Vec::new(), count: 16, temperature: 0.0, top_p: 1.0, seed: 0, stop: vec![0] }
    }
}

/// The ticket of a request of a [`TextServer`]. Later requests have larger ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TextTicket(u64);

/// All memory of a server but the weights.
#[derive(Debug, Resource)]
struct Serving<E: Precision> {
    matmul: Matmul,
    /// The request that joins: its image and prompt, their rows, its state, and its first token.
    joining: TransformerActivations<E>,
    image: DeviceBuffer<f32>,
    prompt: DeviceBuffer<i32>,
    ends: DeviceBuffer<i32>,
    progress_of_one: DeviceBuffer<i32>,
    rules_of_one: DeviceBuffer<i32>,
    first: DeviceBuffer<i32>,
    /// The texts: their newest rows, their states, and their newest tokens.
    newest: TransformerActivations<E>,
    rows: DeviceBuffer<E>,
    logits: DeviceBuffer<f32>,
    progress: DeviceBuffer<i32>,
    rules: DeviceBuffer<i32>,
    next: DeviceBuffer<i32>,
    /// The pages of each text, who has each page, and the cache: keys and values of all blocks.
    table: DeviceBuffer<i32>,
    owners: DeviceBuffer<i32>,
    keys: DeviceBuffer<E>,
    values: DeviceBuffer<E>,
}

/// All memory of a server.
type Whole<E> = (Weights<E>, Serving<E>);

/// The work that is enqueued at once.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Work {
    /// Image rows and tokens of a prompt become keys and values, and the first token.
    Join { rows: usize, prompt: usize },
    /// A token of each of the first texts.
    Token { rows: usize },
}

/// The model and what is to be enqueued.
struct Enqueue<'a> {
    model: &'a Decoder,
    config: &'a VisionLanguageConfig,
    work: Work,
}

impl<E: Precision> GraphWork<Whole<E>> for Enqueue<'_> {
    fn enqueue<S: Brand>(
        &self,
        s: &Stream<S>,
        (weights, serving): &mut <Whole<E> as Resource>::On<S>,
    ) -> thalweg::Result<()> {
        match self.work {
            Work::Join { rows, prompt } => self.join(s, weights.view(), [rows, prompt], serving),
            Work::Token { rows } => self.token(s, weights.view(), rows, serving),
        }
    }
}

/// A text that is being written.
#[derive(Debug)]
struct Running {
    ticket: TextTicket,
    pages: Vec<i32>,
    text: Vec<i32>,
    count: usize,
    stop: Vec<i32>,
    /// The tokens that are not enqueued yet.
    left: usize,
}

/// Tokens on their way to the host. Those of a join are one.
#[derive(Debug)]
struct Pending {
    ids: Event<PinnedBuffer<i32>>,
    /// The place of a text among the ids, its slot, and its ticket.
    of: Vec<(usize, usize, TextTicket)>,
    joined: bool,
}

/// A server of texts on one stream: it writes many texts at once, each about its own image and
/// behind its own prompt.
///
/// [`submit`](Self::submit) queues a request, and [`step`](Self::step) lets those join that fit and
/// writes one token of each text. A request joins when the pages for its longest text are free, in
/// the order of submission, so a text that has begun never lacks memory, and every request has its
/// turn. A text has the same bits whatever else is written.
///
/// All device memory of the model and the cache is allocated when it is made. A token of as many
/// rows as before, and a request of a shape that came before, are one call of a graph. The rows of
/// a token go up to the last slot that has a text, rounded up to a power of two.
///
/// ```
/// use thalweg::{Device, stream_tags};
/// use thalweg_train::{TextRequest, TextServer, TextServerOptions, VisionLanguageConfig};
///
/// stream_tags!(Work);
/// let work = Device::cpu()?.stream::<Work>()?;
/// let config = VisionLanguageConfig::default().with_text_embed_dim(16).with_vocab_size(20).with_max_tokens(12);
/// let options = TextServerOptions::default().with_texts(8).with_pages(4);
/// let mut server = TextServer::<_, f32>::from_tensors(&work, &config.init(7)?, options)?;
///
/// let request = TextRequest::default().with_rows(2).with_count(5);
/// let first = server.submit(request.clone().with_prompt(vec![3, 1]))?;
/// let second = server.submit(request.with_prompt(vec![4]).with_temperature(0.8).with_top_p(0.9).with_seed(1))?;
/// assert!(server.submit(TextRequest::default()).is_err()); // without a prompt; the others go on
/// while !server.is_idle() {
///     // An encoder would write the rows of the image of this request.
///     server.step(|ticket, image| Ok(work.fill(image, if ticket == first { 0.5 } else { 0.1 })?))?;
/// }
/// while let Some((ticket, text)) = server.finished() {
///     assert!(ticket == first || ticket == second);
///     assert!(text?.len() <= 5);
/// }
/// # Ok::<(), thalweg_train::Error>(())
/// ```
pub struct TextServer<S: LiveBrand, E: Precision> {
    stream: Stream<S>,
    config: VisionLanguageConfig,
    options: TextServerOptions,
    model: Decoder,
    /// The memory. It is empty after a failure of the device that lost it.
    whole: Option<<Whole<E> as Resource>::On<S>>,
    joins: GraphCache<Work, Graph<Whole<E>>>,
    tokens: GraphCache<Work, Graph<Whole<E>>>,
    free: Vec<i32>,
    owners: Vec<i32>,
    waiting: VecDeque<(TextTicket, TextRequest)>,
    running: Vec<Option<Running>>,
    pending: VecDeque<Pending>,
    finished: VecDeque<(TextTicket, Result<Vec<i32>>)>,
    submitted: u64,
}

impl<S: LiveBrand, E: Precision> std::fmt::Debug for TextServer<S, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { config, options, .. } = self;
        f.debug_struct("TextServer").field("config", config).field("options", options).finish_non_exhaustive()
    }
}

impl<S: LiveBrand, E: Precision> TextServer<S, E> {
    /// Makes a server with the weights of a file (see [`VisionLanguageConfig::from_tensors`]).
    ///
    /// # Errors
    /// A tensor is missing or has another shape, the options make no sense, or there is no memory.
    pub fn from_tensors(s: &Stream<S>, file: &Tensors, options: TextServerOptions) -> Result<Self> {
        let config = VisionLanguageConfig::from_tensors(file)?;
        let TextServerOptions { texts, pages, image_rows } = options;
        if !(1..=MOST).contains(&texts) || pages == 0 || image_rows == 0 || pages > i32::MAX as usize / PAGE {
            let what =
                format!("{texts} texts at once, which are 1 to {MOST}, {pages} pages and {image_rows} image rows");
            return Err(Error::Config(what));
        }
        let VisionLanguageConfig { text_embed_dim: width, vocab_size, max_tokens, .. } = config;
        if vocab_size > MOST_IDS {
            return Err(Error::Config(format!("{vocab_size} ids, and a server has at most {MOST_IDS}")));
        }
        let Some(all) = image_rows.checked_add(max_tokens).filter(|&all| i32::try_from(all).is_ok()) else {
            let what = format!("{image_rows} image rows and {max_tokens} tokens, and a server numbers them by `i32`");
            return Err(Error::Config(what));
        };
        let decoder = config.decoder();
        // The kernels number what the blocks have together by 32 bits.
        let cache = pages.saturating_mul(page_len::<E>(&config));
        let rows = [3, all, width].into_iter().fold(config.text_depth, usize::saturating_mul);
        if u32::try_from(cache.max(rows)).is_err() {
            let what = format!(
                "{cache} numbers in {pages} pages of keys, and {rows} in the rows of a text that joins: kernels number \
                 them by 32 bits"
            );
            return Err(Error::Config(what));
        }
        let most = TextServerOptions::pages_of(all);
        let texts = texts.next_power_of_two().max(LEAST);
        let mut layout = ParameterLayout::default();
        let model = Decoder::new(&mut layout, config)?;
        let weights = WeightsOn::new(s, &layout.flatten(file, "")?)?;
        let mut ends = s.alloc(2 * (all + 1))?;
        upload(s, &(0..=all as i32).flat_map(|end| [0, end]).collect::<Vec<_>>(), &mut ends)?;
        let owners = vec![-1; 2 * pages];
        let serving = ServingOn {
            matmul: MatmulOn::new(s, MatmulBackend::default())?,
            joining: TransformerActivationsOn::cached(s, decoder, all, all)?,
            image: s.alloc(image_rows * width)?,
            prompt: s.alloc(max_tokens)?,
            ends,
            progress_of_one: s.alloc(PROGRESS)?,
            rules_of_one: s.alloc(RULES)?,
            first: s.alloc(1)?,
            newest: TransformerActivationsOn::cached(s, decoder, texts, texts)?,
            rows: s.alloc(texts * width * E::ROOM)?,
            logits: s.alloc(texts * vocab_size)?,
            progress: s.alloc_zeroed(texts * PROGRESS)?,
            rules: s.alloc_zeroed(texts * RULES)?,
            next: s.alloc(texts)?,
            table: s.alloc_zeroed(texts * most)?,
            owners: s.upload_blocking(&owners)?,
            keys: s.alloc(cache)?,
            values: s.alloc(cache)?,
        };
        Ok(Self {
            stream: *s,
            config,
            options,
            model,
            whole: Some((weights, serving)),
            joins: GraphCache::default(),
            tokens: GraphCache::default(),
            free: (0..pages as i32).rev().collect(),
            owners,
            waiting: VecDeque::new(),
            running: (0..options.texts).map(|_| None).collect(),
            pending: VecDeque::new(),
            finished: VecDeque::new(),
            submitted: 0,
        })
    }

    /// Sets whether work whose shape repeats becomes graphs. It does at first. The texts are the
    /// same.
    pub fn set_graphs(&mut self, graphs: bool) {
        (self.joins, self.tokens) =
            (GraphCache::default().with_graphs(graphs), GraphCache::default().with_graphs(graphs));
    }

    /// Returns the shape of the model.
    #[must_use]
    pub fn config(&self) -> &VisionLanguageConfig {
        &self.config
    }

    /// Returns the stream that orders the server.
    #[must_use]
    pub fn stream(&self) -> Stream<S> {
        self.stream
    }

    /// Returns the number of pages that no text has.
    #[must_use]
    pub fn free_pages(&self) -> usize {
        self.free.len()
    }

    /// Returns the number of texts that are being written.
    #[must_use]
    pub fn running(&self) -> usize {
        self.running.iter().flatten().count()
    }

    /// Returns the number of requests that wait for their turn.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns whether there is nothing to write.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running() == 0
    }

    /// Returns whether there are results that nobody has taken.
    pub(crate) fn has_results(&self) -> bool {
        !self.finished.is_empty()
    }

    /// Takes the result of a request that has ended, in the order of their ends: its text, or why
    /// its image failed. A text has the id that ended it, or as many tokens as were asked for.
    pub fn finished(&mut self) -> Option<(TextTicket, Result<Vec<i32>>)> {
        self.finished.pop_front()
    }

    /// Queues a request. It joins in a later [`step`](Self::step).
    ///
    /// # Errors
    /// The image has no rows or too many; the prompt is empty, has an id that is none, or is too
    /// long with the tokens to write; the cache has too few pages even without other texts; or
    /// temperature or `top_p` is out of range. Other requests do not notice.
    pub fn submit(&mut self, request: TextRequest) -> Result<TextTicket> {
        let TextRequest { rows, ref prompt, count, temperature, top_p, .. } = request;
        self.config.check_text(prompt, count)?;
        let TextServerOptions { pages, image_rows, .. } = self.options;
        let wrong = |what: String| Err(Error::Batch(what));
        if !(1..=image_rows).contains(&rows) {
            return wrong(format!("an image has 1 to {image_rows} rows, and not {rows}"));
        }
        if !(temperature >= 0.0 && temperature.is_finite() && (0.0..=1.0).contains(&top_p)) {
            return wrong(format!("the temperature {temperature}, or the part {top_p} of the probability, is none"));
        }
        if pages_of(&request) > pages {
            return wrong(format!("the text needs {} pages, and the cache has {pages}", pages_of(&request)));
        }
        let ticket = TextTicket(self.submitted);
        self.submitted += 1;
        if count == 0 {
            self.finished.push_back((ticket, Ok(Vec::new())));
        } else {
            self.waiting.push_back((ticket, request));
        }
        Ok(ticket)
    }

    /// Ends a request without a result, and returns whether it was waiting or being written.
    ///
    /// # Errors
    /// The device failed.
    pub fn cancel(&mut self, ticket: TextTicket) -> Result<bool> {
        let waiting = self.waiting.len();
        self.waiting.retain(|(of, _)| *of != ticket);
        let slot = self.running.iter().position(|running| running.as_ref().is_some_and(|of| of.ticket == ticket));
        if let Some(slot) = slot {
            self.leave(slot)?;
        }
        Ok(slot.is_some() || self.waiting.len() < waiting)
    }

    /// Lets requests join as far as there is room, enqueues a token of each text, and reads the
    /// tokens of the step before. `image` writes the rows of the image of a request that joins,
    /// [rows, `text_embed_dim`]; if it fails, the request ends with this error, and if it panics,
    /// the request stays the next one.
    ///
    /// # Errors
    /// The device failed, or has lost the memory in an earlier call; or there is no memory. Without
    /// memory, no request is lost: a later step goes on. A request that could not join stays the
    /// next one, and `image` is called for it again.
    pub fn step(&mut self, mut image: impl FnMut(TextTicket, &mut DeviceSlice<S, f32>) -> Result<()>) -> Result<()> {
        while self.admit(&mut image)? {}
        let wrote = self.write()?;
        if !wrote && let Some(oldest) = self.pending.pop_front() {
            self.read(oldest)?;
        }
        while self.pending.iter().filter(|tokens| !tokens.joined).count() > AHEAD {
            let Some(oldest) = self.pending.pop_front() else { break };
            self.read(oldest)?;
        }
        Ok(())
    }

    /// Lets the oldest request join if there is room. Returns whether it has left the queue.
    fn admit(&mut self, image: &mut impl FnMut(TextTicket, &mut DeviceSlice<S, f32>) -> Result<()>) -> Result<bool> {
        let slot = self.running.iter().position(Option::is_none);
        let (Some(slot), Some((ticket, request))) = (slot, self.waiting.front()) else { return Ok(false) };
        let needed = pages_of(request);
        let Some(kept) = self.free.len().checked_sub(needed) else { return Ok(false) };
        let Some((_, serving)) = &mut self.whole else { return Err(Error::Lost) };
        let rows =
            serving.image.slice_mut(..request.rows * self.config.text_embed_dim).map_err(thalweg::Error::from)?;
        // The request waits until its image is there, so that a panic does not lose it.
        let made = image(*ticket, rows);
        let Some((ticket, request)) = self.waiting.pop_front() else { return Ok(false) };
        if let Err(error) = made {
            self.finished.push_back((ticket, Err(error)));
            return Ok(true);
        }
        let pages = self.free.split_off(kept);
        for (ordinal, &page) in (0..).zip(&pages) {
            self.owners[2 * page as usize..][..2].copy_from_slice(&[slot as i32, ordinal]);
        }
        let ids = match self.join(slot, &request, &pages) {
            Ok(ids) => ids,
            Err(error) => {
                self.free.extend(pages);
                self.waiting.push_front((ticket, request));
                return Err(error);
            }
        };
        self.pending.push_back(Pending { ids, of: vec![(0, slot, ticket)], joined: true });
        let TextRequest { count, stop, .. } = request;
        self.running[slot] = Some(Running { ticket, pages, text: Vec::new(), count, stop, left: count - 1 });
        Ok(true)
    }

    /// Enqueues the way of a request, whose image is there, to its first token.
    fn join(&mut self, slot: usize, request: &TextRequest, pages: &[i32]) -> Result<Event<PinnedBuffer<i32>>> {
        let &TextRequest { rows, ref prompt, count, temperature, top_p, seed, .. } = request;
        let s = self.stream;
        let mut ids = s.bind(s.device().pinned::<i32>(1)?).map_err(thalweg::Error::from)?;
        let Some((_, serving)) = &mut self.whole else { return Err(Error::Lost) };
        upload(&s, prompt, &mut serving.prompt)?;
        // The state before the first token: the last row of the prompt is the newest one.
        let last = prompt.len() - 1;
        upload(&s, &[0, rows + last, last, count].map(|number| number as i32), &mut serving.progress_of_one)?;
        let words = [seed as u32, (seed >> 32) as u32, temperature.to_bits(), top_p.to_bits(), slot as u32];
        upload(&s, &words.map(u32::cast_signed), &mut serving.rules_of_one)?;
        let most = serving.table.len() / serving.next.len();
        upload(&s, pages, slice_mut(&mut serving.table, slot * most, pages.len())?)?;
        upload(&s, &self.owners, &mut serving.owners)?;
        self.enqueue(Work::Join { rows, prompt: prompt.len() })?;
        let Some((_, serving)) = &mut self.whole else { return Err(Error::Lost) };
        s.copy(&serving.progress_of_one, slice_mut(&mut serving.progress, slot * PROGRESS, PROGRESS)?)?;
        s.copy(&serving.rules_of_one, slice_mut(&mut serving.rules, slot * RULES, RULES)?)?;
        s.copy_to_host(&serving.first, &mut ids)?;
        Ok(s.record(ids).map_err(thalweg::Error::from)?)
    }

    /// Enqueues a token of each text, if there is one to write.
    fn write(&mut self) -> Result<bool> {
        let busy = self.running.iter().enumerate().filter_map(|(slot, running)| Some((slot, running.as_ref()?)));
        let busy = busy.filter(|(_, running)| running.left > 0);
        let of: Vec<_> = busy.map(|(slot, running)| (slot, slot, running.ticket)).collect();
        let Some(&(last, ..)) = of.last() else { return Ok(false) };
        let rows = (last + 1).next_power_of_two().max(LEAST);
        // The memory comes first: without it, nothing is enqueued, and a later step goes on.
        let s = self.stream;
        let mut ids = s.bind(s.device().pinned::<i32>(rows)?).map_err(thalweg::Error::from)?;
        self.enqueue(Work::Token { rows })?;
        let Some((_, serving)) = &self.whole else { return Err(Error::Lost) };
        s.copy_to_host(serving.next.slice(..rows).map_err(thalweg::Error::from)?, &mut ids)?;
        self.pending.push_back(Pending { ids: s.record(ids).map_err(thalweg::Error::from)?, of, joined: false });
        for running in self.running.iter_mut().flatten() {
            running.left = running.left.saturating_sub(1);
        }
        Ok(true)
    }

    /// Waits for tokens, and ends the texts that are complete.
    fn read(&mut self, oldest: Pending) -> Result<()> {
        let ids = oldest.ids.synchronize().map_err(thalweg::Error::from)?;
        for (place, slot, ticket) in oldest.of {
            // The request may have ended since, and its slot may have another one.
            let Some(running) = self.running[slot].as_mut().filter(|running| running.ticket == ticket) else {
                continue;
            };
            running.text.push(ids[place]);
            if running.text.len() == running.count || running.stop.contains(&ids[place]) {
                let text = self.leave(slot)?;
                self.finished.push_back((ticket, Ok(text)));
            }
        }
        Ok(())
    }

    /// Ends the text of a slot, and returns it. Its pages and its slot are free for the next one,
    /// whose work comes later on the stream.
    fn leave(&mut self, slot: usize) -> Result<Vec<i32>> {
        let Some(Running { pages, text, left, .. }) = self.running[slot].take() else { return Ok(Vec::new()) };
        // A free page keeps its owner until another text has it: nobody reads what is written
        // there.
        self.free.extend(pages);
        if left > 0 {
            let Some((_, serving)) = &mut self.whole else { return Err(Error::Lost) };
            // No token is left to write.
            self.stream.fill(slice_mut(&mut serving.progress, slot * PROGRESS, PROGRESS)?, 0)?;
        }
        Ok(text)
    }

    fn enqueue(&mut self, work: Work) -> Result<()> {
        let whole = self.whole.take().ok_or(Error::Lost)?;
        let graphs = if matches!(work, Work::Join { .. }) { &mut self.joins } else { &mut self.tokens };
        let by = Enqueue { model: &self.model, config: &self.config, work };
        let (whole, enqueued) = match graphs.enqueue(&self.stream, work, whole, &by) {
            Ok(whole) => (whole, Ok(())),
            Err(returned) => (returned.value, Err(returned.error.into())),
        };
        self.whole = Some(whole);
        enqueued
    }
}

/// Returns the pages for the longest text of a request. Its last token is never read.
fn pages_of(request: &TextRequest) -> usize {
    TextServerOptions::pages_of((request.rows + request.prompt.len() + request.count).saturating_sub(1))
}

fn slice_mut<S, T>(
    buffer: &mut DeviceSlice<S, T>,
    start: usize,
    len: usize,
) -> thalweg::Result<&mut DeviceSlice<S, T>> {
    Ok(buffer.slice_mut(start..start + len)?)
}

impl Enqueue<'_> {
    /// Puts image and prompt through the blocks, and their keys and values into the pages.
    fn join<S: Brand, E: Precision>(
        &self,
        s: &Stream<S>,
        w: WeightsRef<'_, S, E>,
        [rows, prompt]: [usize; 2],
        v: &mut ServingOn<S, E>,
    ) -> thalweg::Result<()> {
        let &VisionLanguageConfig { text_embed_dim: width, vocab_size: ids, .. } = self.config;
        let all = rows + prompt;
        let (of_image, of_text) = v.joining.input(all)?.split_at_mut(rows * width)?;
        s.copy(v.image.slice(..rows * width)?, of_image)?;
        let mut f = ForwardPass::new(s, w, &mut v.matmul);
        self.model.embedding.forward(&f, 0, v.prompt.slice(..prompt)?, of_text)?;
        let batch = Sequences::new(all, v.ends.slice(2 * all..2 * all + 2)?).with_prefix(rows as u32);
        self.model.blocks.forward(&mut f, &batch, &mut v.joining)?;
        let state = [&*v.progress_of_one, &*v.rules_of_one, &*v.owners];
        self.append(s, [1, all], &v.joining, state, [&mut v.keys, &mut v.values])?;
        let features = v.joining.features(all)?.slice((all - 1) * width..)?;
        let features = E::rounded(s, features, &mut v.rows)?;
        let logits = v.logits.slice_mut(..ids)?;
        self.model.embedding.logits(&mut f, 1, features, logits)?;
        sample(s, 1, ids as u32, logits, &v.rules_of_one, &mut v.progress_of_one, &mut v.first)
    }

    /// Writes keys and values of the newest rows of texts, which all blocks have computed, to their
    /// pages: the texts and the rows of each, and their state, rules and who has each page.
    fn append<S: Brand, E: Precision>(
        &self,
        s: &Stream<S>,
        rows: [usize; 2],
        of: &TransformerActivationsOn<S, E>,
        [progress, rules, owners]: [&DeviceSlice<S, i32>; 3],
        [keys, values]: [&mut DeviceSlice<S, E>; 2],
    ) -> thalweg::Result<()> {
        let &VisionLanguageConfig { text_embed_dim: width, text_num_heads: heads, .. } = self.config;
        let (qkv, blocks) = of.qkv();
        if blocks[0] == 0 {
            return Ok(()); // a model without blocks has no keys
        }
        let [rows, blocks, heads] = [rows, blocks, [heads, width / heads]].map(|pair| pair.map(|n| n as u32));
        append_rows(s, AppendRows { rows, blocks, heads, progress, rules, owners, qkv, keys, values })
    }

    /// Writes a token of each of the first `rows` texts.
    fn token<S: Brand, E: Precision>(
        &self,
        s: &Stream<S>,
        w: WeightsRef<'_, S, E>,
        rows: usize,
        v: &mut ServingOn<S, E>,
    ) -> thalweg::Result<()> {
        let ids = self.config.vocab_size;
        let table = v.table.slice(..rows * (v.table.len() / v.next.len()))?;
        let (progress, rules) = (v.progress.slice_mut(..rows * PROGRESS)?, v.rules.slice(..rows * RULES)?);
        let mut f = ForwardPass::new(s, w, &mut v.matmul);
        self.model.embedding.newest(&f, rows, progress, v.newest.input(rows)?)?;
        let (keys, values, of) = (&*v.keys, &*v.values, &*progress);
        self.model.blocks.forward_by(&mut f, [rows, 0], &mut v.newest, |pass, k, attn, x, kept, residual, y| {
            let block = [k, self.config.text_depth];
            attn.forward_paged(pass, PagedRows { rows, progress: of, table, block, keys, values }, x, kept, residual, y)
        })?;
        self.append(s, [rows, 1], &v.newest, [of, rules, &v.owners], [&mut v.keys, &mut v.values])?;
        let features = E::rounded(s, v.newest.features(rows)?, &mut v.rows)?;
        let logits = v.logits.slice_mut(..rows * ids)?;
        self.model.embedding.logits(&mut f, rows, features, logits)?;
        sample(s, rows as u32, ids as u32, logits, rules, progress, v.next.slice_mut(..rows)?)
    }
}
