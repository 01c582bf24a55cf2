//! The settings of a run: defaults, then the file of `--config`, then flags.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use thalweg::Size;
use thalweg_vision::TokenParams;

/// The settings of a training run. The names are those of the flags, with `_` for `-`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Settings {
    pub(crate) epochs: u32,
    pub(crate) batch: usize,
    pub(crate) lr: f64,
    pub(crate) schedule: Schedule,
    pub(crate) weight_decay: f64,
    pub(crate) clip: f32,
    pub(crate) width: usize,
    pub(crate) heads: usize,
    pub(crate) depth: usize,
    pub(crate) precision: Precision,
    pub(crate) seed: u64,
    pub(crate) val_share: f64,
    pub(crate) patience: u32,
    /// These three are chosen from the sizes of the images if they are not set.
    pub(crate) patch: Option<u32>,
    pub(crate) sides: Option<[u32; 2]>,
    pub(crate) budget: Option<u64>,
}

/// The type of operands of matrix products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Precision {
    F32,
    Bf16,
}

/// The course of the learning rate after its rise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Schedule {
    /// Falls along half a cosine, to 0 at the last epoch
    Cosine,
    /// Stays the same: a run that is trained longer has the bits of one long run
    Constant,
}

impl Schedule {
    /// Returns the schedule of a run. The rise of a constant one depends on no number of epochs.
    pub(crate) fn of_run(self, steps_of_epoch: u64, epochs: u32) -> thalweg_train::Schedule {
        let steps = steps_of_epoch * u64::from(epochs);
        let (warmup_steps, end) = match self {
            Self::Cosine => ((steps / 20).clamp(1, steps_of_epoch), 0.0),
            Self::Constant => (steps_of_epoch, 1.0),
        };
        thalweg_train::Schedule::Cosine { warmup_steps, steps, end }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            epochs: 50,
            batch: 32,
            lr: 2e-3,
            schedule: Schedule::Cosine,
            weight_decay: 0.05,
            clip: 1.0,
            width: 64,
            heads: 4,
            depth: 2,
            precision: Precision::F32,
            seed: 0,
            val_share: 0.2,
            patience: 15,
            patch: None,
            sides: None,
            budget: None,
        }
    }
}

impl Settings {
    /// Reads a file of settings. What it leaves out is the default.
    pub(crate) fn read(path: &Path, defaults: &Self) -> Result<Self, String> {
        let wrong = |what: String| format!("--config {}: {what}", path.display());
        let text = fs::read_to_string(path).map_err(|e| wrong(format!("cannot read it: {e}")))?;
        let given: Self = serde_json::from_str(&text).map_err(|e| wrong(e.to_string()))?;
        let named: Value = serde_json::from_str(&text).map_err(|e| wrong(e.to_string()))?;
        // The one setting whose default depends on the data.
        let epochs = if named.get("epochs").is_some() { given.epochs } else { defaults.epochs };
        Ok(Self { epochs, ..given })
    }

    /// Says which flags differ from those of a run.
    pub(crate) fn differences(&self, run: &Self) -> String {
        let (here, there) = (json!(self), json!(run));
        let fields = here.as_object().into_iter().flatten().filter(|(name, value)| there[name.as_str()] != **value);
        let say = |(name, value): (&String, &Value)| {
            format!("--{} is {} there and {value} here", name.replace('_', "-"), there[name.as_str()])
        };
        fields.map(say).collect::<Vec<_>>().join(", ")
    }

    /// Checks what no other part checks.
    pub(crate) fn check(&self) -> Result<(), String> {
        let wrong = |name: &str, given: &dyn std::fmt::Display, expected: &str| {
            Err(format!("{name} {given}: expected {expected}"))
        };
        if self.epochs == 0 || self.epochs > 1_000_000 {
            return wrong("epochs", &self.epochs, "1 to 1000000");
        }
        if self.batch == 0 || self.batch > 65535 {
            return wrong("batch", &self.batch, "1 to 65535 images");
        }
        if !(self.lr > 0.0 && self.lr.is_finite()) {
            return wrong("lr", &self.lr, "a number above 0");
        }
        if !(0.0..=1.0).contains(&self.weight_decay) {
            return wrong("weight_decay", &self.weight_decay, "a number from 0 to 1");
        }
        if self.clip.is_nan() || self.clip <= 0.0 {
            return wrong("clip", &self.clip, "a number above 0");
        }
        if !(self.val_share > 0.0 && self.val_share < 1.0) {
            return wrong("val_share", &self.val_share, "a number between 0 and 1");
        }
        if self.width == 0 || self.width > 8192 || self.depth == 0 || self.depth > 100 {
            return wrong("width and depth", &format!("{}, {}", self.width, self.depth), "1 to 8192, and 1 to 100");
        }
        Ok(())
    }

    /// Chooses how images become tokens. What is not set follows from the median area of `images`:
    /// patches of a quarter of a side, and a token for 8 x 8 pixels on average, 64 to 256 for an
    /// image. An image of 64 x 64 pixels, or a smaller one, is covered by 2 x 2 tokens for each
    /// patch. In larger images, relevant patches get up to 4 x 4.
    pub(crate) fn params(&self, sizes: &[Size]) -> Result<TokenParams, String> {
        let mut areas: Vec<u64> = sizes.iter().map(|size| size.area()).collect();
        areas.sort_unstable();
        let area = areas.get(areas.len() / 2).copied().unwrap_or(1);
        let quarter = (area as f64).sqrt() / 4.0;
        let budget = self.budget.unwrap_or((area / 64).clamp(64, 256));
        let sides = self.sides.unwrap_or(if budget <= 64 { [2, 2] } else { [2, 4] });
        let params = TokenParams::default()
            .with_patch(self.patch.unwrap_or(((quarter / 4.0).round() as u32 * 4).clamp(4, 32)))
            .with_sides(sides[0]..=sides[1])
            .with_budget(budget);
        params.validate().map_err(|e| e.to_string())?;
        Ok(params)
    }
}
