//! The options of a pipeline, whatever it computes.

use thalweg::{Error, Result};

use crate::workspace::TokenPrecision;

/// The options of a [`Pipeline`](crate::Pipeline).
///
/// ```
/// use thalweg::Device;
/// use thalweg_vision::{Image, PipelineOptions, TokenParams, Pipeline, TokenPrecision};
///
/// let options = PipelineOptions::default().with_precision(TokenPrecision::F16).with_stages(true);
/// let pipeline = Pipeline::with_options(Device::best()?, TokenParams::default(), options)?;
/// let tokens = pipeline.run(&[Image::new(40, 30, vec![9; 3 * 40 * 30])?]).remove(0)?;
/// assert!(tokens.halves.is_some());
/// assert!(!pipeline.stages().compression.is_zero());
/// # Ok::<(), thalweg::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thalweg::__Setters)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default, deny_unknown_fields))]
#[non_exhaustive]
pub struct PipelineOptions {
    /// The most batches that may be under way or in use at once; at least 1. Default 4, which is
    /// enough to keep both copy engines and the kernels busy beside the work of the host.
    ///
    /// A batch whose event, or a future of it, is dropped under way counts until its work is done.
    /// One that `wait` or `unzip` took over gives its place back as soon as it is dropped.
    pub depth: usize,
    /// The format of stored tokens. Default [`TokenPrecision::F32`].
    pub precision: TokenPrecision,
    /// Whether the texture array comes back too (52 bytes for each pixel). Default no.
    pub textures: bool,
    /// Whether to measure the device time of each [stage](crate::Pipeline::stages). A pipeline that
    /// measures records events and replays no graph. Default no.
    pub stages: bool,
}

impl Default for PipelineOptions {
    fn default() -> Self {
        Self { depth: 4, precision: TokenPrecision::F32, textures: false, stages: false }
    }
}

impl PipelineOptions {
    /// Checks every option.
    ///
    /// # Errors
    /// [`Error::Parameter`] if the depth is 0.
    pub fn validate(&self) -> Result<()> {
        if self.depth == 0 {
            return Err(Error::Parameter { name: "depth", given: "0".into(), expected: "at least 1".into() });
        }
        Ok(())
    }
}

#[cfg(all(test, feature = "serde"))]
mod tests {
    use serde_json::{from_str, json, to_value};

    use super::PipelineOptions;
    use crate::{TokenParams, TokenPrecision};

    #[test]
    fn settings_as_json() {
        let params =
            TokenParams::default().with_sides(4..=9).with_fixation([0.25, 1.0]).with_mix(Some([1.0, 0.5, 0.0]));
        let value = to_value(&params).unwrap();
        assert_eq!(value["sides"], json!({ "start": 4, "end": 9 }));
        assert_eq!((&value["budget"], &value["mix"]), (&json!(4096), &json!([1.0, 0.5, 0.0])));
        assert_eq!(from_str::<TokenParams>(&value.to_string()).unwrap(), params);

        let options = PipelineOptions::default()
            .with_depth(7)
            .with_precision(TokenPrecision::Bf16)
            .with_textures(true)
            .with_stages(true);
        let value = to_value(&options).unwrap();
        assert_eq!(value, json!({ "depth": 7, "precision": "bf16", "textures": true, "stages": true }));
        assert_eq!(from_str::<PipelineOptions>(&value.to_string()).unwrap(), options);
    }

    /// Settings that a file leaves out are the defaults. A name that does not exist is an error.
    #[test]
    fn settings_of_a_file() {
        assert_eq!(from_str::<TokenParams>("{}").unwrap(), TokenParams::default());
        let params = from_str::<TokenParams>(r#"{ "patch": 16, "focus": 0.5 }"#).unwrap();
        assert_eq!(params, TokenParams::default().with_patch(16).with_focus(0.5));
        assert_eq!(from_str::<PipelineOptions>("{}").unwrap(), PipelineOptions::default());
        for precision in [TokenPrecision::F32, TokenPrecision::F16, TokenPrecision::Bf16] {
            let name = format!("{precision:?}").to_lowercase();
            let options = from_str::<PipelineOptions>(&format!(r#"{{ "precision": "{name}" }}"#)).unwrap();
            assert_eq!(options, PipelineOptions::default().with_precision(precision));
        }
        let error = from_str::<TokenParams>(r#"{ "pach": 16 }"#).unwrap_err().to_string();
        assert!(error.contains("unknown field `pach`"), "{error}");
        let error = from_str::<PipelineOptions>(r#"{ "deep": 3 }"#).unwrap_err().to_string();
        assert!(error.contains("unknown field `deep`"), "{error}");
    }
}
