//! Answers request after request by a vision-language model: the image of one is prepared and
//! encoded while the text about another one is written.
//!
//! ```text
//! prepare | image 0 | image 1  | image 2  | image 3  |
//! encoder           | encode 0 | encode 1 | encode 2 |
//! decoder                      | text 0         | text 1         |
//! ```

use std::ops::Range;

use thalweg::overlap::stages::{Chain, Stages};
use thalweg::{Activity, DeviceBuffer, Event, LiveBrand, PinnedBuffer, Resource, Timeline};

use crate::error::{Error, Result};
use crate::precision::Precision;
use crate::vision_language::{TextDecoder, VisionEncoder};

/// A slot of [`vlm_pipeline`](fn@vlm_pipeline): a request on its way. On a stream it has the form
/// [`RequestOn<S>`](RequestOn).
#[derive(Debug, Resource)]
pub struct Request {
    /// The values from which the tokens are made, in the form that the caller chooses.
    pub pixels: DeviceBuffer<f32>,
    /// The tokens of the image, [`rows`](Self::rows) x inputs, and room for more; for an image
    /// encoder the pixels.
    pub tokens: DeviceBuffer<f32>,
    /// The position of each token, [`rows`](Self::rows) x 2, and room for more; for an image
    /// encoder nothing.
    pub position: DeviceBuffer<f32>,
    image: DeviceBuffer<f32>,
    ids: DeviceBuffer<i32>,
    /// The number of tokens of the image, or of the rows of the image encoder.
    #[resource(plain)]
    pub rows: usize,
    /// The ids of the prompt.
    #[resource(plain)]
    pub prompt: Vec<i32>,
    /// The number of tokens of text to write.
    #[resource(plain)]
    pub count: usize,
}

impl Request {
    /// Makes a slot for images of up to `rows` tokens, which are made from `pixels` numbers, and
    /// for texts of up to `count` tokens. The host waits for nothing.
    ///
    /// # Errors
    /// There is no memory, or the device failed.
    pub fn new<S: LiveBrand, E: Precision>(
        encoder: &VisionEncoder<S, E>,
        pixels: usize,
        rows: usize,
        count: usize,
    ) -> Result<Event<Self>> {
        let (s, config) = (encoder.stream(), encoder.config());
        let [tokens, positions] = config.image_numbers(rows);
        let slot = RequestOn {
            pixels: s.alloc(pixels)?,
            tokens: s.alloc(tokens)?,
            position: s.alloc(positions)?,
            image: s.alloc(rows * config.text_embed_dim)?,
            ids: s.alloc(count)?,
            rows,
            prompt: Vec::new(),
            count,
        };
        Ok(s.record(slot)?)
    }
}

/// The text of a request, which the device may still write. It can be dropped.
#[derive(Debug)]
pub struct Text(Event<PinnedBuffer<i32>>);

impl Text {
    /// Waits for the text and returns it: the ids until the first id 0, which is the last one then.
    ///
    /// # Errors
    /// The device has failed.
    pub fn get(self) -> Result<Vec<i32>> {
        let ids = self.0.synchronize()?;
        let end = ids.iter().position(|&id| id == 0).map_or(ids.len(), |end| end + 1);
        Ok(ids[..end].to_vec())
    }
}

/// Answers requests one after another, and returns when all work is enqueued.
///
/// `before` has the stages that fill [`tokens`](Request::tokens), [`position`](Request::position)
/// and the plain fields of a request: one stage or any number, each on a stream of its own, for
/// example the upload of a photograph and what cuts it into patches. Behind them, the encoder and
/// the decoder work on their own streams. `seen` gets the text of each request. Read it some
/// requests later: reading makes the host wait, and with `n` slots `n` requests are on their way.
///
/// If all stages are on the same stream, or there is one slot, the texts are the same, bit for bit.
/// The host waits for nothing except in the closures, and nothing is allocated after the first
/// requests, or the first ones as large as those that follow. The decoder writes
/// [`count`](Request::count) tokens of each text, also behind its end, because the host does not
/// wait for them.
///
/// # Errors
/// There are no slots, a request does not fit the model or its slot, there is no memory, the device
/// failed, or a closure returned an error. Requests before that one go on, and `seen` has their
/// texts.
///
/// ```
/// use thalweg::overlap::stages;
/// use thalweg::{Activity, Device, Ring, Timeline, stream_tags};
/// use thalweg_train::overlap::{Request, vlm_pipeline};
/// use thalweg_train::{Error, TextDecoder, VisionEncoder, VisionLanguageConfig};
///
/// stream_tags!(Prepare, Encode, Decode);
/// let gpu = Device::best()?;
/// let (prepare, encode, decode) = (gpu.stream::<Prepare>()?, gpu.stream::<Encode>()?, gpu.stream::<Decode>()?);
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
/// let mut decoder = TextDecoder::<_, f32>::from_tensors(&decode, &file)?;
///
/// let mut slots = (0..3).map(|_| Request::new(&encoder, 0, 4, 6)).collect::<Result<Ring<_>, _>>()?;
/// let mut texts = Vec::new();
/// vlm_pipeline(
///     stages::<_, Error>(&mut slots).step(&prepare, Activity::Upload, |s, n, request| {
///         s.fill(&mut request.tokens, n as f32)?; // here an image would be uploaded
///         s.fill(&mut request.position, 0.5)?;
///         (request.rows, request.count) = (4, 6);
///         request.prompt.splice(.., [3, 1]);
///         Ok(())
///     }),
///     &mut encoder,
///     &mut decoder,
///     0..9,
///     |_, text| Ok(texts.push(text)),
///     &Timeline::disabled(),
/// )?; // returns at once
/// let texts = texts.into_iter().map(|text| text.get()).collect::<Result<Vec<_>, _>>()?;
/// assert!(texts.len() == 9 && texts.iter().all(|text| text.len() == 6 || text.ends_with(&[0])));
/// # Ok::<(), thalweg_train::Error>(())
/// ```
///
/// A stage that touches its slot by the stream of another stage does not compile:
///
/// ```compile_fail,E0308
/// use thalweg::overlap::stages;
/// use thalweg::{Activity, Device, stream_tags};
/// use thalweg_train::Error;
/// use thalweg_train::overlap::Request;
///
/// stream_tags!(Prepare, Encode);
/// let gpu = Device::cpu()?;
/// let (prepare, encode) = (gpu.stream::<Prepare>()?, gpu.stream::<Encode>()?);
/// let mut slots = thalweg::Ring::<Request>::default();
/// let _ = stages::<_, Error>(&mut slots).step(&prepare, Activity::Upload, |_, _, request| {
///     encode.fill(&mut request.tokens, 0.0)?; // `encode` would race with `prepare`
///     Ok(())
/// });
/// # Ok::<(), thalweg::Error>(())
/// ```
pub fn vlm_pipeline<A: LiveBrand, B: LiveBrand, E: Precision, D: Precision>(
    before: Stages<'_, Request, Error, impl Chain<Request, Error>>,
    encoder: &mut VisionEncoder<A, E>,
    decoder: &mut TextDecoder<B, D>,
    items: Range<usize>,
    mut seen: impl FnMut(usize, Text) -> Result<()>,
    timeline: &Timeline,
) -> Result<()> {
    let (encode, decode) = (encoder.stream(), decoder.stream());
    let config = *encoder.config();
    let width = config.text_embed_dim;
    before
        .step(&encode, Activity::Compute, |_, _, request| {
            let rows = request.rows;
            let [tokens, positions] = config.image_numbers(rows);
            let (tokens, position) = (request.tokens.slice(..tokens)?, request.position.slice(..positions)?);
            encoder.encode(tokens, position, request.image.slice_mut(..rows * width)?)
        })
        .step(&decode, Activity::Compute, |s, n, request| {
            let image = request.image.slice(..request.rows * width)?;
            let ids = request.ids.slice_mut(..request.count)?;
            let mut text = s.bind(s.device().pinned::<i32>(ids.len())?)?;
            decoder.generate(image, &request.prompt, ids)?;
            s.copy_to_host(ids, &mut text)?;
            seen(n, Text(s.record(text)?))
        })
        .run(items, timeline)
}

#[cfg(test)]
mod tests {
    use thalweg::{Device, Event};

    use super::Text;

    #[test]
    fn a_text_ends_with_its_first_id_0() {
        let device = Device::cpu().unwrap();
        let text = |ids: &[i32]| Text(Event::ready(device.pinned_from(ids).unwrap())).get().unwrap();
        assert_eq!([text(&[5, 0, 7, 0]), text(&[5, 7]), text(&[0])], [vec![5, 0], vec![5, 7], vec![0]]);
    }
}
