//! Shared parts of the examples that write texts about photographs: the model, the requests, and
//! the photographs with their crops.
#![allow(dead_code, unreachable_pub, reason = "each example uses only some parts")]

use std::path::{Path, PathBuf};

use thalweg::simt::bf16;
use thalweg::{Device, LiveBrand, On, PinnedBuffer, Stream};
use thalweg_train::{Error, Result, Tensors, TextRequest, TextServer, TextServerOptions, VisionLanguageConfig};
use thalweg_vision::augment::{AugmentInput, Augmentation};

use crate::support::{Arguments, Usage, sized};

pub const FILES: Usage = ("--files FOLDER", "take the JPEG files of this folder");

pub const LARGE: Usage = ("--large", "a decoder of 8 blocks of 2048, with half a billion weights");

/// The model, the requests, and the sizes of the photographs.
pub struct Work {
    pub config: VisionLanguageConfig,
    pub weights: Tensors,
    /// The sides of a prepared photograph and of a patch.
    pub size: usize,
    pub patch: usize,
    /// The tokens of a text, and the requests.
    pub count: usize,
    pub requests: usize,
    crops: Augmentation,
}

impl Work {
    /// Makes the model, with random weights. On a GPU the encoder is as large as ViT-B, and the
    /// decoder has four blocks. `of_gpu` and `of_cpu` are the tokens of a text and the requests, if
    /// the command line does not say them.
    pub fn new(args: &Arguments, device: Device, of_gpu: [usize; 2], of_cpu: [usize; 2]) -> Result<Self> {
        let ([size, patch, width, heads, depth, text_depth, vocabulary], [count, requests]) =
            sized(device, ([224, 16, 768, 12, 12, 4, 32_000], of_gpu), ([32, 8, 16, 2, 1, 1, 50], of_cpu));
        let (count, requests) = (args.batch(count), args.steps(requests));
        let [text_width, text_heads, text_depth] = match args.has(LARGE.0) {
            true => sized(device, [2048, 32, 8], [32, 4, 2]),
            false => [width, heads, text_depth],
        };
        let config = VisionLanguageConfig::default()
            .with_input_dim(3 * patch * patch)
            .with_embed_dim(width)
            .with_num_heads(heads)
            .with_depth(depth)
            .with_text_embed_dim(text_width)
            .with_text_num_heads(text_heads)
            .with_text_depth(text_depth)
            .with_vocab_size(vocabulary)
            .with_max_tokens(64.max(count + 2));
        // Only the crop differs from request to request.
        let crops = Augmentation::default().with_flip(0.0).with_brightness(0.0).with_contrast(0.0);
        let crops = crops.with_saturation(0.0).with_grayscale(0.0).with_blur(None);
        Ok(Self { config, weights: config.init(7)?, size, patch, count, requests, crops })
    }

    /// Returns the numbers of a prepared photograph.
    pub fn pixels(&self) -> usize {
        3 * self.size * self.size
    }

    /// Returns the rows of an image.
    pub fn rows(&self) -> usize {
        (self.size / self.patch).pow(2)
    }

    /// Returns the positions of the rows of so many images.
    pub fn places(&self, images: usize) -> Vec<f32> {
        let across = self.size / self.patch;
        let part = |n: usize| (n as f32 + 0.5) / across as f32;
        let image = (0..self.rows()).flat_map(|n| [part(n / across), part(n % across)]);
        image.collect::<Vec<_>>().repeat(images)
    }

    /// Returns a request. Every second text is drawn.
    pub fn request(&self, n: usize) -> TextRequest {
        let request = TextRequest::default()
            .with_rows(self.rows())
            .with_prompt(vec![1, 2 + n as i32 % 7])
            .with_count(self.count)
            .with_seed(n as u64)
            .with_stop(vec![]);
        if n.is_multiple_of(2) { request } else { request.with_temperature(0.8).with_top_p(0.95) }
    }

    /// Makes a server of so many texts at once.
    pub fn server<S: LiveBrand>(&self, s: &Stream<S>, texts: usize) -> Result<TextServer<S, bf16>> {
        let pages = texts * TextServerOptions::pages_of(self.rows() + 2 + self.count);
        let options = TextServerOptions::default().with_texts(texts).with_pages(pages).with_image_rows(self.rows());
        TextServer::from_tensors(s, &self.weights, options)
    }

    /// Returns how photographs are prepared.
    pub fn crops(&self) -> &Augmentation {
        &self.crops
    }

    /// Returns the part of the photograph of request `n`, which starts at a byte.
    pub fn crop(&self, n: usize, start: usize, [height, width]: [u32; 2]) -> Result<AugmentInput> {
        let parameters = self.crops.parameters(7, 0, n as u64, width, height)?;
        Ok(AugmentInput { start, height, width, parameters })
    }
}

/// Pixels in page-locked memory, with their height and width.
type Photo<S> = (On<S, PinnedBuffer<u8>>, [u32; 2]);

/// The photographs of the requests.
pub struct Photographs<S: LiveBrand>(Vec<Photo<S>>);

impl<S: LiveBrand> Photographs<S> {
    /// Decodes the JPEG files of a folder, or the photograph of this repository.
    pub fn read(s: &Stream<S>, folder: Option<&Path>) -> Result<Self> {
        let failed = |e: &dyn std::fmt::Display| Error::Source(e.to_string().into());
        let mut paths = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/readme/astronaut.jpg")];
        if let Some(folder) = folder {
            let files = folder.read_dir().map_err(|e| failed(&e))?;
            paths = files.map(|file| Ok(file.map_err(|e| failed(&e))?.path())).collect::<Result<Vec<_>>>()?;
            paths.retain(|path| path.extension().is_some_and(|end| end == "jpg" || end == "jpeg"));
            paths.sort();
        }
        let photo = |path: &PathBuf| {
            let pixels = image::open(path).map_err(|e| failed(&e))?.into_rgb8();
            let size = [pixels.height(), pixels.width()];
            Ok((s.bind(s.device().pinned_from(pixels.as_raw())?).map_err(thalweg::Error::from)?, size))
        };
        let photos = paths.iter().map(photo).collect::<Result<Vec<_>>>()?;
        if photos.is_empty() { Err(failed(&"the folder has no JPEG files")) } else { Ok(Self(photos)) }
    }

    /// Returns the pixels of request `n`, and their height and width.
    pub fn of(&self, n: usize) -> (&On<S, PinnedBuffer<u8>>, [u32; 2]) {
        let (pixels, size) = &self.0[n % self.0.len()];
        (pixels, *size)
    }

    /// Returns the bytes of the largest one.
    pub fn most(&self) -> usize {
        self.0.iter().map(|(pixels, _)| pixels.len()).max().unwrap_or(0)
    }
}
