//! The work of a batch: its records, the sums of its images, and the launches.

use std::sync::Arc;

use thalweg::simt::{Element, bf16};
use thalweg::{Brand, DeviceBuffer, DeviceSlice, LiveBrand, Resource, Result, Stream};

use super::{Augmentation, Erased, Normalization, Parameters, kernels, refuse};
use crate::MAX_EXTENT;

/// An image of a batch that is on the device, and what happens to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AugmentInput {
    /// The start of the image in the buffer of pixels, in bytes. It is interleaved RGB, [H, W, 3].
    pub start: usize,
    /// Its rows.
    pub height: u32,
    /// Its columns.
    pub width: u32,
    /// The changes to the image.
    pub parameters: Parameters,
}

/// Device memory for batches of augmented images. [`Augmentation::augmenter`] makes it.
///
/// On a stream it has the form [`AugmenterOn<S>`](AugmenterOn). It allocates when it is made, and
/// then no more.
#[derive(Debug, Resource)]
pub struct Augmenter {
    records: DeviceBuffer<u32>,
    sums: DeviceBuffer<f32>,
    /// The images between the two kernels, and what the second one does; empty without it.
    between: DeviceBuffer<f32>,
    steps: DeviceBuffer<u32>,
    #[resource(plain)]
    plan: Arc<Plan>,
    #[resource(plain)]
    prepared: Prepared,
}

/// The plan that all batches share.
#[derive(Debug)]
struct Plan {
    size: u32,
    most: usize,
    /// Whether an image may change its contrast.
    contrast: bool,
    /// The taps of a blur on each side of the middle one, or none if no image may be blurred.
    reach: Option<u32>,
    luma: [f32; 3],
    scale: [f32; 3],
    shift: [f32; 3],
    /// Whether images have more steps than those of the first kernel.
    finishes: bool,
    /// The color of what is erased.
    fill: [f32; 3],
}

/// The batch that was prepared last.
#[derive(Clone, Debug, Default)]
struct Prepared {
    images: usize,
    /// The bytes of pixels up to the end of the last image.
    bytes: usize,
    words: Vec<u32>,
    steps: Vec<u32>,
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for super::bf16 {}
}

/// A type of elements that augmented images can have: `f32` or
/// [`bf16`](thalweg::simt::bf16).
pub trait Output: Element + sealed::Sealed {
    #[doc(hidden)]
    #[expect(clippy::too_many_arguments, reason = "those of the kernel")]
    fn launch<S: Brand>(
        on: &Stream<S>,
        images: u32,
        size: u32,
        measured: bool,
        blurs: bool,
        numbers: [[f32; 3]; 3],
        records: &DeviceSlice<S, u32>,
        rgb: &DeviceSlice<S, u8>,
        sums: &DeviceSlice<S, f32>,
        out: &mut DeviceSlice<S, Self>,
    ) -> Result<()>
    where
        Self: Sized;
    #[doc(hidden)]
    fn finish<S: Brand>(
        on: &Stream<S>,
        images: u32,
        size: u32,
        steps: &DeviceSlice<S, u32>,
        between: &DeviceSlice<S, f32>,
        out: &mut DeviceSlice<S, Self>,
    ) -> Result<()>
    where
        Self: Sized;
}

macro_rules! output {
    ($($t:ident $kernel:ident $finish:ident;)*) => {$(
        impl Output for $t {
            fn launch<S: Brand>(
                on: &Stream<S>,
                images: u32,
                size: u32,
                measured: bool,
                blurs: bool,
                [luma, scale, shift]: [[f32; 3]; 3],
                records: &DeviceSlice<S, u32>,
                rgb: &DeviceSlice<S, u8>,
                sums: &DeviceSlice<S, f32>,
                out: &mut DeviceSlice<S, Self>,
            ) -> Result<()> {
                let bytes = rgb.len() as u64;
                kernels::$kernel(on, images, size, bytes, measured, blurs, luma, scale, shift, records, rgb, sums, out)
            }
            fn finish<S: Brand>(
                on: &Stream<S>,
                images: u32,
                size: u32,
                steps: &DeviceSlice<S, u32>,
                between: &DeviceSlice<S, f32>,
                out: &mut DeviceSlice<S, Self>,
            ) -> Result<()> {
                kernels::$finish(on, images, size, steps, between, out)
            }
        }
    )*};
}
output! {
    f32 augment_f32 finish_f32;
    bf16 augment_bf16 finish_bf16;
}

impl Augmentation {
    /// Makes the device memory for batches of up to `images` images, which become `size` x `size`
    /// pixels.
    ///
    /// # Errors
    /// - [`Error::Parameter`](thalweg::Error::Parameter): an option is out of its range, `size` is
    ///   not within 1 to 16384 or smaller than the blur has taps, or `images` is not within 1
    ///   to 65535.
    /// - The device is out of memory or has failed.
    pub fn augmenter<S: LiveBrand>(&self, stream: &Stream<S>, size: u32, images: usize) -> Result<AugmenterOn<S>> {
        self.make(stream, size, images, self.finishes())
    }

    /// Makes the device memory as [`augmenter`](Self::augmenter) does, with the memory that
    /// [`launch_with`](AugmenterOn::launch_with) needs.
    ///
    /// # Errors
    /// As for [`augmenter`](Self::augmenter).
    pub fn augmenter_with_hook<S: LiveBrand>(
        &self,
        stream: &Stream<S>,
        size: u32,
        images: usize,
    ) -> Result<AugmenterOn<S>> {
        self.make(stream, size, images, true)
    }

    fn make<S: LiveBrand>(
        &self,
        stream: &Stream<S>,
        size: u32,
        images: usize,
        between: bool,
    ) -> Result<AugmenterOn<S>> {
        self.validate()?;
        if !(1..=kernels::MAX_SIZE).contains(&size) {
            return refuse("size", size, format!("1 to {} pixels", kernels::MAX_SIZE));
        }
        if !(1..=65535).contains(&images) {
            return refuse("images", images, "1 to 65535 for a batch");
        }
        let reach = match &self.blur {
            Some(blur) if blur.probability > 0.0 && size < blur.taps => {
                return refuse("size", size, format!("at least {} pixels, the taps of the blur", blur.taps));
            }
            Some(blur) if blur.probability > 0.0 => Some(blur.taps / 2),
            _ => None,
        };
        let Normalization { mean, std } =
            self.normalize.clone().unwrap_or(Normalization { mean: [0.0; 3], std: [1.0; 3] });
        let plan = Plan {
            size,
            most: images,
            contrast: self.contrast > 0.0,
            reach,
            luma: self.luma.map(|v| v as f32),
            scale: std.map(|std| (1.0 / std) as f32),
            shift: [0, 1, 2].map(|c| (-mean[c] / std[c]) as f32),
            finishes: self.finishes(),
            fill: self.erasing.as_ref().map_or([0.0; 3], |erasing| erasing.fill.map(|v| v as f32)),
        };
        let room = if between { images } else { 0 };
        let tiles = (size.div_ceil(kernels::SUM_COLUMNS) * size.div_ceil(kernels::ROWS)) as usize;
        let words = images * kernels::RECORD_WORDS as usize;
        Ok(AugmenterOn {
            records: stream.alloc_zeroed(words)?,
            sums: stream.alloc_zeroed(images * tiles)?,
            between: stream.alloc_zeroed(room * 3 * size as usize * size as usize)?,
            steps: stream.alloc_zeroed(room * kernels::STEP_WORDS as usize)?,
            plan: Arc::new(plan),
            prepared: Prepared { words: Vec::with_capacity(words), ..Prepared::default() },
        })
    }
}

impl<S: Brand> AugmenterOn<S> {
    /// Says what the next batch is: copies the samples' numbers to the device, in stream order.
    ///
    /// # Errors
    /// - [`Error::Parameter`](thalweg::Error::Parameter): there are no samples or more than the
    ///   augmenter was made for, an image has a side that is not within 1 to 16384, its crop has no
    ///   area or is not inside it, a number is not in its range, or a sample changes its contrast,
    ///   is blurred, or is flipped from top to bottom, rotated, shifted in hue, erased or mixed
    ///   although the augmentation does not.
    /// - The device is out of memory or has failed.
    pub fn prepare(&mut self, stream: &Stream<S>, samples: &[AugmentInput]) -> Result<()>
    where
        S: LiveBrand,
    {
        let Self { records, steps, plan, prepared, .. } = self;
        prepared.images = 0; // Until the copy is under way.
        prepared.bytes = 0;
        if !(1..=plan.most).contains(&samples.len()) {
            return refuse("samples", samples.len(), format!("1 to {}, for which the augmenter was made", plan.most));
        }
        prepared.words.clear();
        for sample in samples {
            plan.check(sample)?;
            prepared.bytes = prepared.bytes.max(sample.start + 3 * (sample.height * sample.width) as usize);
            prepared.words.extend(plan.record(sample));
        }
        let host = stream.bind(stream.device().pinned_from(&prepared.words)?)?;
        stream.copy_to_device(&host, records.slice_mut(..prepared.words.len())?)?;
        if !steps.is_empty() {
            prepared.steps.clear();
            for (i, sample) in samples.iter().enumerate() {
                let next = if i + 1 < samples.len() { i + 1 } else { 0 };
                prepared.steps.extend(plan.step(&sample.parameters, next as u32));
            }
            let host = stream.bind(stream.device().pinned_from(&prepared.steps)?)?;
            stream.copy_to_device(&host, steps.slice_mut(..prepared.steps.len())?)?;
        }
        prepared.images = samples.len();
        Ok(())
    }

    /// Enqueues the work that augments the images in `rgb`: `out` [B, 3, S, S], for the B samples
    /// that were [prepared](Self::prepare) last. The host waits for nothing.
    ///
    /// A captured graph can contain it. Each replay then augments the samples that were prepared
    /// before it, which must be as many as at the capture. An image that is not inside `rgb` leaves
    /// its part of `out` as it was, or has any colors there if there is more than one kernel.
    ///
    /// # Errors
    /// - [`Error::Parameter`](thalweg::Error::Parameter): no samples were prepared, or `rgb` is too
    ///   short for them.
    /// - `out` has another length, or the device has failed.
    pub fn launch<T: Output>(
        &mut self,
        stream: &Stream<S>,
        rgb: &DeviceSlice<S, u8>,
        out: &mut DeviceSlice<S, T>,
    ) -> Result<()> {
        if self.plan.finishes {
            return self.launch_with(stream, rgb, out, |_, _| Ok(()));
        }
        let Self { records, sums, plan, prepared, .. } = self;
        plan.launch(stream, prepared, [plan.scale, plan.shift], records, rgb, sums, out)
    }

    /// Enqueues the same work as [`launch`](Self::launch), with work of one's own before the
    /// normalization: `hook` enqueues it on the stream, and gets the images [B, 3, S, S], with
    /// colors from 0 to 1, to change them. The vertical flip, the rotation, the hue, the erasing
    /// and the mixture come after it.
    ///
    /// ```
    /// use thalweg::{Device, kernel, ptx, stream_tags};
    /// use thalweg_vision::augment::{AugmentInput, Augmentation, Parameters};
    ///
    /// ptx! {}
    /// kernel! {
    ///     /// Makes a negative.
    ///     pub fn negative(t: impl Simt, n: u32, x: InOut<f32>[n] by [x])
    ///     grid(n.div_ceil(256)) block(256)
    ///     {
    ///         if let Some(x) = x.cell(t) {
    ///             x.set(1.0 - x.get());
    ///         }
    ///     }
    /// }
    ///
    /// # fn main() -> thalweg::Result<()> {
    /// stream_tags!(Work);
    /// let work = Device::cpu()?.stream::<Work>()?;
    /// let augmentation = Augmentation::none().with_normalize(None);
    /// let mut augmenter = augmentation.augmenter_with_hook(&work, 8, 1)?;
    /// let parameters = Parameters::identity(8, 8);
    /// augmenter.prepare(&work, &[AugmentInput { start: 0, height: 8, width: 8, parameters }])?;
    /// let rgb = work.upload_blocking(&[255; 3 * 8 * 8])?; // white
    /// let mut batch = work.alloc::<f32>(3 * 8 * 8)?;
    /// augmenter.launch_with(&work, &rgb, &mut batch, |s, images| negative(s, images.len() as u32, images))?;
    /// assert!(work.read_blocking(&batch)?.iter().all(|v| v.abs() < 1e-6)); // black
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// - [`Error::Parameter`](thalweg::Error::Parameter): as for [`launch`](Self::launch), or
    ///   [`augmenter_with_hook`](Augmentation::augmenter_with_hook) did not make the augmenter.
    /// - `out` has another length, `hook` returned an error, or the device has failed.
    pub fn launch_with<T: Output>(
        &mut self,
        stream: &Stream<S>,
        rgb: &DeviceSlice<S, u8>,
        out: &mut DeviceSlice<S, T>,
        hook: impl FnOnce(&Stream<S>, &mut DeviceSlice<S, f32>) -> Result<()>,
    ) -> Result<()> {
        let Self { records, sums, between, steps, plan, prepared } = self;
        if between.is_empty() {
            return refuse("hook", "an augmenter without one", "an augmenter that `augmenter_with_hook` made");
        }
        let (images, size) = (prepared.images, plan.size);
        let between = between.slice_mut(..images * 3 * size as usize * size as usize)?;
        plan.launch(stream, prepared, [[1.0; 3], [0.0; 3]], records, rgb, sums, between)?;
        hook(stream, between)?;
        let steps = steps.slice(..images * kernels::STEP_WORDS as usize)?;
        T::finish(stream, images as u32, size, steps, between, out)
    }
}

impl Plan {
    /// Launches the kernels that need the images' bytes.
    #[expect(clippy::too_many_arguments, reason = "those of the kernel")]
    fn launch<S: Brand, T: Output>(
        &self,
        stream: &Stream<S>,
        prepared: &Prepared,
        [scale, shift]: [[f32; 3]; 2],
        records: &DeviceSlice<S, u32>,
        rgb: &DeviceSlice<S, u8>,
        sums: &mut DeviceSlice<S, f32>,
        out: &mut DeviceSlice<S, T>,
    ) -> Result<()> {
        let &Self { size, contrast, reach, luma, .. } = self;
        let &Prepared { images, bytes, .. } = prepared;
        if images == 0 {
            return refuse("samples", 0, "samples that `prepare` was given");
        }
        if rgb.len() < bytes {
            return refuse(
                "rgb",
                format!("{} bytes", rgb.len()),
                format!("{bytes} bytes, up to the end of the last image"),
            );
        }
        let tiles = size.div_ceil(kernels::SUM_COLUMNS) as usize * size.div_ceil(kernels::ROWS) as usize;
        let records = records.slice(..images * kernels::RECORD_WORDS as usize)?;
        let sums = sums.slice_mut(..images * tiles)?;
        let images = images as u32;
        if contrast {
            kernels::measure(stream, images, size, rgb.len() as u64, luma, records, rgb, sums)?;
        }
        T::launch(stream, images, size, contrast, reach.is_some(), [luma, scale, shift], records, rgb, sums, out)
    }

    fn check(&self, sample: &AugmentInput) -> Result<()> {
        let &AugmentInput { start, height, width, parameters } = sample;
        let Parameters { crop, brightness, contrast, saturation, sigma, .. } = parameters;
        if [height, width].iter().any(|side| !(1..=MAX_EXTENT).contains(side)) {
            return refuse("image size", format!("{height} x {width}"), format!("1 to {MAX_EXTENT} pixels a side"));
        }
        if start > isize::MAX as usize / 2 {
            return refuse("start", start, "the first byte of an image in memory");
        }
        let inside = |start: u32, len: u32, all: u32| len >= 1 && len <= all && start <= all - len;
        if !inside(crop.top, crop.height, height) || !inside(crop.left, crop.width, width) {
            return refuse("crop", format!("{crop:?}"), format!("at least one pixel, inside {height} x {width}"));
        }
        for (name, factor) in [("brightness", brightness), ("contrast", contrast), ("saturation", saturation)] {
            if !(factor >= 0.0 && factor <= f64::from(f32::MAX)) {
                return refuse(name, factor, "a finite factor, not negative");
            }
        }
        if contrast != 1.0 && !self.contrast {
            return refuse("contrast", contrast, "1, since the augmentation changes no contrast");
        }
        if !(sigma >= 0.0 && sigma.is_finite()) || (sigma > 0.0 && self.reach.is_none()) {
            let expected =
                if self.reach.is_some() { "a number, not negative" } else { "0, since the augmentation does not blur" };
            return refuse("sigma", sigma, expected);
        }
        let Parameters { flip_vertical, angle, hue, erased, mix, .. } = parameters;
        if !(angle.is_finite() && angle.abs() <= 360.0) {
            return refuse("angle", angle, "degrees from -360 to 360");
        }
        if !(hue.is_finite() && hue.abs() <= 1.0) {
            return refuse("hue", hue, "turns from -1 to 1");
        }
        if let Some(Erased { top, left, height, width }) = erased
            && [top, left, height, width].iter().any(|v| !(0.0..=1.0).contains(v))
        {
            return refuse("erased", format!("{erased:?}"), "shares from 0 to 1");
        }
        if !(0.0..=1.0).contains(&mix) {
            return refuse("mix", mix, "a weight from 0 to 1");
        }
        let finished = flip_vertical || angle != 0.0 || hue != 0.0 || erased.is_some() || mix != 1.0;
        if finished && !self.finishes {
            return refuse("sample", format!("{parameters:?}"), "steps that the augmentation has");
        }
        Ok(())
    }

    /// Returns the words of a sample for the second kernel.
    fn step(&self, parameters: &Parameters, next: u32) -> [u32; kernels::STEP_WORDS as usize] {
        let &Parameters { flip_vertical, angle, hue, erased, mix, .. } = parameters;
        let (sin, cos) = angle.to_radians().sin_cos();
        let [cos, sin] = [cos, sin].map(|v| ((v * f64::from(1 << 30)).round() as i32).cast_unsigned());
        // A pixel is erased if its center is in the rectangle.
        let pixel = |share: f64| (share * f64::from(self.size) - 0.5).ceil().clamp(0.0, f64::from(self.size)) as u32;
        let [top, left, bottom, right] = erased
            .map_or([0; 4], |Erased { top, left, height, width }| [top, left, top + height, left + width].map(pixel));
        let bits = |v: [f32; 3]| v.map(f32::to_bits);
        let ([r, g, b], [i, j, k], [x, y, z]) = (bits(self.fill), bits(self.scale), bits(self.shift));
        let (mix, hue) = ((mix as f32).to_bits(), ((6.0 * hue + 0.0) as f32).to_bits());
        #[rustfmt::skip]
        let words = [
            next, mix, u32::from(flip_vertical), hue,
            cos, sin, 0, 0,
            top, left, bottom, right,
            r, g, b, 0,
            i, j, k, 0,
            x, y, z, 0,
        ];
        words
    }

    fn record(&self, sample: &AugmentInput) -> [u32; kernels::RECORD_WORDS as usize] {
        let &AugmentInput { start, width, parameters, .. } = sample;
        let Parameters { crop, flip, brightness, contrast, saturation, grayscale, sigma, .. } = parameters;
        let mut taps = [0.0; 4];
        let blurs = sigma > 0.0;
        if let (true, Some(reach)) = (blurs, self.reach) {
            for (k, tap) in taps.iter_mut().enumerate().take(reach as usize + 1) {
                *tap = (-((k * k) as f64) / (2.0 * sigma * sigma)).exp();
            }
            let total = taps[0] + 2.0 * taps[1..].iter().sum::<f64>();
            taps = taps.map(|tap| tap / total);
        }
        let flag = |set: bool, flag: u32| if set { flag } else { 0 };
        let flags = flag(flip, kernels::FLIP) | flag(grayscale, kernels::GRAYSCALE) | flag(blurs, kernels::BLUR);
        let [a, b, c, d] = taps.map(|tap| (tap as f32).to_bits());
        let [brightness, contrast, saturation] = [brightness, contrast, saturation].map(|v| (v as f32).to_bits());
        let start = start as u64;
        [
            start as u32,
            (start >> 32) as u32,
            width,
            crop.top,
            crop.left,
            crop.height,
            crop.width,
            flags,
            brightness,
            contrast,
            saturation,
            a,
            b,
            c,
            d,
            0,
        ]
    }
}
