//! The configuration files of transformers.
//!
//! A field that is not known is refused, as it may change numbers. A field that is null counts as
//! absent.

use serde_json::{Map, Value};
use thalweg::Size;

use crate::processor::{CLIP, ColorStatistics, HALF, IMAGENET};
use crate::{Error, InputFormat, Processor, ProcessorParams, ResampleFilter, Result};

/// The fields that change no number of what this crate computes.
const WITHOUT_EFFECT: [&str; 19] = [
    "_valid_processor_keys",
    "auto_map",
    "chat_template",
    "data_format",
    "default_to_square",
    "device",
    "disable_grouping",
    "feature_extractor_type",
    "image_seq_length",
    "image_token",
    "image_token_id",
    "input_data_format",
    "num_additional_image_tokens",
    "processor_class",
    "return_tensors",
    "video_processor",
    "video_processor_type",
    "video_token",
    "vision_feature_select_strategy",
];
/// The steps that every processor here has.
const ALWAYS: [&str; 4] = ["do_convert_rgb", "do_normalize", "do_rescale", "do_resize"];

impl Processor {
    /// Makes the processor that a configuration describes, as
    /// [`ProcessorParams::from_config`] reads it.
    ///
    /// # Errors
    /// The errors of [`ProcessorParams::from_config`] and of [`new`](Self::new).
    pub fn from_config(json: &str) -> Result<Self> {
        Self::new(ProcessorParams::from_config(json)?)
    }
}

impl ProcessorParams {
    /// Reads the text of a `preprocessor_config.json`, or of a `processor_config.json` that has the
    /// settings under `image_processor`. Its `image_processor_type` says which format it is; the
    /// resize and the rounding are those of the [default](crate::Resampler::Aten).
    ///
    /// ```
    /// use thalweg_processor::{InputFormat, ProcessorParams};
    ///
    /// let config = r#"{"image_processor_type": "Siglip2ImageProcessorFast", "max_num_patches": 1024, "resample": 2}"#;
    /// let format = InputFormat::NaFlex { patch: 16, max_patches: 1024, packed: false };
    /// assert_eq!(ProcessorParams::from_config(config)?.format, format);
    /// assert!(ProcessorParams::from_config(&config.replace("resample", "resampling")).is_err());
    /// # Ok::<(), thalweg_processor::Error>(())
    /// ```
    ///
    /// # Errors
    /// The text is no such file, has a field that is not known, or a value that is not supported
    /// ([`Error::Config`]).
    pub fn from_config(json: &str) -> Result<Self> {
        let all = serde_json::from_str(json).map_err(|e| refused("the file", "no JSON", e))?;
        let Value::Object(mut all) = all else { return Err(refused("the file", "no object", "expected fields")) };
        let class = all.get("processor_class").cloned();
        if let Some(Value::Object(inner)) = all.remove("image_processor") {
            all = inner;
        }
        if let Some(class) = class {
            all.insert("processor_class".into(), class);
        }
        all.retain(|_, value| !value.is_null());
        let mut fields = Fields(all);
        let params = fields.params()?;
        fields.finish()?;
        Ok(params)
    }
}

fn refused(field: &str, given: impl ToString, problem: impl ToString) -> Error {
    Error::Config { field: field.into(), given: given.to_string(), problem: problem.to_string() }
}

/// The fields that were not read yet.
struct Fields(Map<String, Value>);

impl Fields {
    fn params(&mut self) -> Result<ProcessorParams> {
        let kind = self.0.remove("image_processor_type").unwrap_or_default();
        let name = kind.as_str().unwrap_or_default();
        let name = ["Fast", "Pil"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        let mut params = match name {
            "Qwen2VLImageProcessor" | "Qwen2_5_VLImageProcessor" | "Qwen3VLImageProcessor" => {
                ProcessorParams::qwen2_vl().with_format(self.qwen()?)
            }
            "Siglip2ImageProcessor" => {
                let [patch, max_patches] = [self.number("patch_size", 16)?, self.number("max_num_patches", 256)?];
                let format = InputFormat::NaFlex { patch, max_patches, packed: false };
                ProcessorParams::siglip2_naflex(256).with_format(format)
            }
            "GotOcr2ImageProcessor" | "InternVLImageProcessor" => {
                ProcessorParams::internvl().with_format(self.internvl()?).with_statistics(IMAGENET)
            }
            "LlavaOnevisionImageProcessor" => ProcessorParams::llava_onevision().with_format(self.llava_onevision()?),
            "CLIPImageProcessor" => ProcessorParams::clip(224).with_format(self.clip()?).with_statistics(CLIP),
            "SiglipImageProcessor" => {
                let format = InputFormat::Square { size: self.square("size", 224)? };
                ProcessorParams::siglip(224).with_format(format).with_statistics(HALF)
            }
            _ => {
                let problem = "expected the image processor of Qwen2-VL to Qwen3-VL, SigLIP, SigLIP2, CLIP, InternVL \
                               (GotOcr2ImageProcessor) or LLaVA-OneVision";
                return Err(refused("image_processor_type", kind, problem));
            }
        };
        params.filter = self.filter(params.filter)?;
        params.statistics = self.statistics(params.statistics)?;
        for name in ALWAYS {
            self.must(name, &Value::Bool(true))?;
        }
        self.must("rescale_factor", &(1.0 / 255.0).into())?;
        Ok(params)
    }

    /// Refuses what is left, but for fields without an effect.
    fn finish(self) -> Result<()> {
        match self.0.into_iter().find(|(name, _)| !WITHOUT_EFFECT.contains(&&**name)) {
            None => Ok(()),
            Some((name, value)) => Err(refused(&name, value, "a field that is not known and may change numbers")),
        }
    }

    fn qwen(&mut self) -> Result<InputFormat> {
        let mut size = match self.0.remove("size") {
            None => Fields(Map::new()),
            Some(Value::Object(size)) => Fields(size),
            Some(other) => return Err(refused("size", other, "expected shortest_edge and longest_edge")),
        };
        let edges = [size.number("shortest_edge", 3136)?, size.number("longest_edge", 1_003_520)?];
        size.finish()?;
        self.must("temporal_patch_size", &2.into())?;
        Ok(InputFormat::Qwen {
            patch: self.number("patch_size", 14)?,
            merge: self.number("merge_size", 2)?,
            min_pixels: self.number("min_pixels", edges[0])?.into(),
            max_pixels: self.number("max_pixels", edges[1])?.into(),
        })
    }

    fn internvl(&mut self) -> Result<InputFormat> {
        let tile = self.square("size", 448)?;
        let [min_tiles, max_tiles] = [self.number("min_patches", 1)?, self.number("max_patches", 12)?];
        for name in ["do_center_crop", "do_pad"] {
            self.must(name, &Value::Bool(false))?;
        }
        // InternVLProcessor asks for tiles, whatever the image processor's own file says.
        let tiles = self.0.remove("crop_to_patches") == Some(Value::Bool(true));
        match tiles || self.0.get("processor_class").is_some_and(|class| class == "InternVLProcessor") {
            true => Ok(InputFormat::Tiles { tile, min_tiles, max_tiles }),
            false => Ok(InputFormat::Square { size: tile }),
        }
    }

    fn llava_onevision(&mut self) -> Result<InputFormat> {
        let tile = self.square("size", 384)?;
        self.must("do_pad", &Value::Bool(true))?;
        self.must("do_center_crop", &Value::Bool(false))?;
        if let Some(setting) = self.0.remove("aspect_ratio_setting")
            && !setting.as_str().is_some_and(|setting| setting.starts_with("anyres"))
        {
            return Err(refused("aspect_ratio_setting", setting, "expected anyres"));
        }
        let canvases = match self.0.remove("image_grid_pinpoints") {
            None => (1..=6).flat_map(|a| (1..=6).map(move |b| Size::new(tile * a, tile * b))).collect(),
            Some(given) => serde_json::from_value::<Vec<[u32; 2]>>(given.clone())
                .map(|pairs| pairs.into_iter().map(Size::from).collect())
                .map_err(|e| {
                    refused("image_grid_pinpoints", given, format!("expected pairs of rows and columns: {e}"))
                })?,
        };
        Ok(InputFormat::AnyRes { tile, canvases })
    }

    fn clip(&mut self) -> Result<InputFormat> {
        self.must("do_center_crop", &Value::Bool(true))?;
        let edge = match self.0.remove("size") {
            Some(Value::Object(mut size)) => {
                let edge = size.remove("shortest_edge").unwrap_or_default();
                Fields(size).finish()?;
                Self::whole("size.shortest_edge", &edge)?
            }
            size => Self::whole("size", &size.unwrap_or_else(|| 224.into()))?,
        };
        Ok(InputFormat::Crop { edge, crop: self.square("crop_size", 224)? })
    }

    fn filter(&mut self, default: ResampleFilter) -> Result<ResampleFilter> {
        let Some(given) = self.0.remove("resample") else { return Ok(default) };
        Ok(match given.as_u64() {
            Some(1) => ResampleFilter::Lanczos,
            Some(2) => ResampleFilter::Bilinear,
            Some(3) => ResampleFilter::Bicubic,
            Some(4) => ResampleFilter::Box,
            Some(5) => ResampleFilter::Hamming,
            _ => return Err(refused("resample", given, "expected 1 to 5: Lanczos, bilinear, bicubic, box or Hamming")),
        })
    }

    fn statistics(&mut self, [mean, deviation]: ColorStatistics) -> Result<ColorStatistics> {
        let mut three = |name: &str, default| match self.0.remove(name) {
            None => Ok(default),
            Some(given) => {
                serde_json::from_value(given.clone()).map_err(|_| refused(name, given, "expected three numbers"))
            }
        };
        Ok([three("image_mean", mean)?, three("image_std", deviation)?])
    }

    /// Reads the side of a square: a number, or height and width that are equal.
    fn square(&mut self, name: &str, default: u32) -> Result<u32> {
        match self.0.remove(name) {
            None => Ok(default),
            Some(Value::Object(mut size)) => {
                let sides = ["height", "width"].map(|side| size.remove(side).unwrap_or_default());
                if sides[0] != sides[1] {
                    let given = format!("{} x {}", sides[0], sides[1]);
                    return Err(refused(name, given, "expected height and width that are equal"));
                }
                Fields(size).finish()?;
                Self::whole(name, &sides[0])
            }
            Some(side) => Self::whole(name, &side),
        }
    }

    fn number(&mut self, name: &str, default: u32) -> Result<u32> {
        self.0.remove(name).map_or(Ok(default), |given| Self::whole(name, &given))
    }

    fn whole(name: &str, given: &Value) -> Result<u32> {
        let number = given.as_u64().and_then(|n| u32::try_from(n).ok());
        number.ok_or_else(|| refused(name, given, "expected a whole number below 2^32"))
    }

    /// Refuses every value but one.
    fn must(&mut self, name: &str, value: &Value) -> Result<()> {
        match self.0.remove(name) {
            Some(given) if given != *value => Err(refused(name, given, format!("expected {value}"))),
            _ => Ok(()),
        }
    }
}
