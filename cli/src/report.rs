//! Reports what a run did: to people as a table, to programs as a JSON document.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use thalweg::{Device, Size};

use crate::args::{Profile, TokensArgs};
use crate::output::say;

/// The version of the files' layout: their names, types and metadata.
pub(crate) const FORMAT_VERSION: &str = "1";

/// The parameters that are names of files.
const FILES: [&str; 2] = ["weights", "query"];

/// The most images that the table lists.
const ROWS: usize = 20;

/// An input that failed, and why.
pub(crate) struct Failure {
    pub(crate) path: PathBuf,
    pub(crate) error: String,
}

/// A file or folder that a run left out, and why.
pub(crate) struct Skipped {
    pub(crate) path: PathBuf,
    pub(crate) why: Why,
}

/// The reason why a run leaves out a file or a folder.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// Its results exist already.
    Exists,
    Subfolder,
    Hidden,
    Heatmap,
    /// Its name does not end as that of a photograph.
    Other,
}

impl Why {
    const ALL: [Self; 5] = [Self::Exists, Self::Subfolder, Self::Hidden, Self::Heatmap, Self::Other];

    /// Names one thing that was left out for this reason, and several.
    fn names(self) -> [&'static str; 2] {
        match self {
            Self::Exists => ["image whose result exists", "images whose results exist"],
            Self::Subfolder => ["subfolder (--recursive reads it)", "subfolders (--recursive reads them)"],
            Self::Hidden => ["hidden entry", "hidden entries"],
            Self::Heatmap => ["heatmap", "heatmaps"],
            Self::Other => ["file of another type", "files of other types"],
        }
    }
}

/// Returns a line that says how many things a run left out, and why, if there are any.
pub(crate) fn summary(skipped: &[Skipped]) -> Option<String> {
    let counts = Why::ALL.map(|why| (why, skipped.iter().filter(|one| one.why == why).count()));
    let parts: Vec<_> = counts
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .map(|(why, count)| format!("{count} {}", why.names()[usize::from(count > 1)]))
        .collect();
    (!parts.is_empty()).then(|| format!("skipped {}", parts.join(", ")))
}

/// The report's entry of an image that is done.
pub(crate) struct Done {
    pub(crate) device: Device,
    pub(crate) source: PathBuf,
    /// The path of the image below the folder that the command line names, or its name.
    pub(crate) name: PathBuf,
    pub(crate) output: PathBuf,
    pub(crate) heatmap: Option<PathBuf>,
    pub(crate) height: u32,
    pub(crate) width: u32,
    pub(crate) grid: Size,
    pub(crate) selected: usize,
    pub(crate) tokens: usize,
}

/// Counts of how photographs were decoded. Reports have the JPEG files as `jpeg`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Decoded {
    /// The time that all threads together spent on it.
    #[serde(skip)]
    pub(crate) time: Duration,
    /// JPEG files that the device decoded, and that the host did.
    #[serde(rename = "on_device")]
    pub(crate) jpeg_on_device: u64,
    #[serde(rename = "on_host")]
    pub(crate) jpeg_on_host: u64,
    /// The reasons why files that the device was to decode left it for the host, with their counts.
    pub(crate) left_device: BTreeMap<String, u64>,
}

impl Decoded {
    /// Adds the counts of other photographs.
    pub(crate) fn add(&mut self, other: Self) {
        self.time += other.time;
        self.jpeg_on_device += other.jpeg_on_device;
        self.jpeg_on_host += other.jpeg_on_host;
        for (why, count) in other.left_device {
            *self.left_device.entry(why).or_default() += count;
        }
    }
}

/// Says on standard error which of `total` inputs failed, and returns the exit code of the run.
/// `input` names one input.
pub(crate) fn say_failures(failures: &[Failure], total: usize, input: &str) -> ExitCode {
    if failures.is_empty() {
        return ExitCode::SUCCESS;
    }
    let plural = if total == 1 { "" } else { "s" };
    say(format_args!("thalweg: {} of {total} {input}{plural} failed:", failures.len()));
    for Failure { path, error } in failures {
        say(format_args!("  {}: {error}", path.display()));
    }
    ExitCode::FAILURE
}

/// Returns the entry of a report that names a device. `note` says why it is the CPU.
pub(crate) fn device(device: Device, note: Option<&str>) -> Value {
    json!({ "id": device.to_string(), "name": device.name(), "note": note })
}

/// Returns the entry of a report for an input that failed.
pub(crate) fn failure(path: &Path, error: &str) -> Value {
    json!({ "source": path.to_string_lossy(), "error": error })
}

/// The report of a run.
pub(crate) struct Report {
    pub(crate) device: Device,
    pub(crate) note: Option<String>,
    pub(crate) done: Vec<Done>,
    pub(crate) failures: Vec<Failure>,
    pub(crate) skipped: Vec<Skipped>,
    pub(crate) stages: Vec<(&'static str, Duration)>,
    pub(crate) decoded: Decoded,
    pub(crate) wall: Duration,
}

/// Returns the parameters with the names and values of their flags, but without those that do not
/// affect this run.
pub(crate) fn parameters(args: &TokensArgs) -> Vec<(&'static str, String)> {
    let params = args.params();
    let mut named = match args.profile {
        Some(Profile::ArrCoc01) => vec![("profile", "arr-coc-0-1".to_owned())],
        None => vec![
            ("patch", params.patch.to_string()),
            ("budget", params.budget.to_string()),
            ("focus", params.focus.to_string()),
            ("sides", format!("{}..{}", params.sides.start(), params.sides.end())),
            ("foveal_bias", params.foveal_bias.to_string()),
            ("fixation", format!("{},{}", params.fixation[0], params.fixation[1])),
            ("precision", args.precision.dtype().to_string().to_lowercase()),
        ],
    };
    let name = |path: &Path| path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    named.extend(args.weights.as_deref().map(|path| ("weights", name(path))));
    named.extend(args.query.as_deref().map(|path| ("query", name(path))));
    named.extend(args.mix.as_ref().map(|mix| ("mix", mix.to_string())));
    named
}

impl Report {
    /// Returns the JSON document.
    pub(crate) fn json(&self, args: &TokensArgs) -> Value {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let images: Vec<Value> = self
            .done
            .iter()
            .map(|done| {
                json!({
                    "source": text(&done.source),
                    "device": done.device.to_string(),
                    "output": text(&done.output),
                    "heatmap": done.heatmap.as_deref().map(text),
                    "height": done.height,
                    "width": done.width,
                    "grid": done.grid.sides(),
                    "patches": done.patches(),
                    "selected": done.selected,
                    "tokens": done.tokens,
                })
            })
            .collect();
        let failed: Vec<Value> = self.failures.iter().map(|f| failure(&f.path, &f.error)).collect();
        let skipped: Vec<Value> =
            self.skipped.iter().map(|s| json!({ "source": text(&s.path), "why": s.why.names()[0] })).collect();
        // The files' metadata holds the same parameters as strings. Here, numbers are JSON numbers,
        // but the name of a file stays a string even if it is `7` or `null`.
        let value = |(name, text): (&str, String)| {
            let number = if FILES.contains(&name) { None } else { text.parse().ok().map(Value::Number) };
            (name.to_owned(), number.unwrap_or(Value::String(text)))
        };
        let parameters: Map<_, _> = parameters(args).into_iter().map(value).collect();
        let seconds: Map<_, _> =
            self.stages.iter().map(|(name, time)| ((*name).to_owned(), json!(time.as_secs_f64()))).collect();
        json!({
            "thalweg": env!("CARGO_PKG_VERSION"),
            "format_version": FORMAT_VERSION,
            "device": device(self.device, self.note.as_deref()),
            "parameters": parameters,
            "images": images,
            "failed": failed,
            "skipped": skipped,
            "patches": self.patches(),
            "tokens": self.tokens(),
            "jpeg": self.decoded,
            "seconds": seconds,
            "wall_seconds": self.wall.as_secs_f64(),
        })
    }

    /// Returns the table.
    pub(crate) fn table(&self, args: &TokensArgs) -> String {
        let mut text = String::new();
        let name = |done: &Done| done.name.to_string_lossy().into_owned();
        let shown = &self.done[..self.done.len().min(ROWS)];
        let wide = shown.iter().map(|done| name(done).chars().count()).max().unwrap_or(0).max(5);
        _ = writeln!(text, "{:wide$}  {:>13}  {:>8}  {:>8}  {:>8}", "image", "size", "patches", "selected", "tokens");
        for done in shown {
            let size = format!("{} x {}", done.width, done.height);
            _ = writeln!(
                text,
                "{:wide$}  {size:>13}  {:>8}  {:>8}  {:>8}",
                name(done),
                done.patches(),
                done.selected,
                done.tokens
            );
        }
        if self.done.len() > shown.len() {
            _ = writeln!(text, "... and {} more (--json lists all)", self.done.len() - shown.len());
        }

        let failed = if self.failures.is_empty() { String::new() } else { format!(", {} failed", self.failures.len()) };
        _ = writeln!(text);
        let mut line = |key: &str, value: String| _ = writeln!(text, "{key:<12}{value}");
        line("images", format!("{}{failed}", self.done.len()));
        line("patches", self.patches().to_string());
        line("tokens", self.tokens().to_string());
        line("device", format!("{} ({})", self.device, self.device.name()));
        line("written to", args.out.display().to_string());
        if let Some(jpeg) = self.jpeg() {
            line("JPEG files", jpeg);
        }
        // The run does not have a stage without time, such as textures without --textures.
        for (stage, time) in self.stages.iter().filter(|(_, time)| !time.is_zero()) {
            let note = if *stage == "decode" { "  (while the rest runs)" } else { "" };
            line(stage, format!("{:>9.2} ms{note}", time.as_secs_f64() * 1e3));
        }
        line("wall time", format!("{:>9.2} ms", self.wall.as_secs_f64() * 1e3));
        text
    }

    /// Says where JPEG files were decoded, and why some left the device, if there are any.
    fn jpeg(&self) -> Option<String> {
        let Decoded { jpeg_on_device, jpeg_on_host, left_device, .. } = &self.decoded;
        let left: Vec<_> = left_device.iter().map(|(why, count)| format!("{count} with {why}")).collect();
        let left = if left.is_empty() { String::new() } else { format!(" (left the device: {})", left.join(", ")) };
        let all = match (jpeg_on_device, jpeg_on_host) {
            (0, 0) => return None,
            (device, 0) => format!("{device} decoded on the device"),
            (0, host) => format!("{host} decoded on the host"),
            (device, host) => format!("{device} decoded on the device, {host} on the host"),
        };
        Some(all + &left)
    }

    fn patches(&self) -> u64 {
        self.done.iter().map(Done::patches).sum()
    }

    fn tokens(&self) -> usize {
        self.done.iter().map(|done| done.tokens).sum()
    }
}

impl Done {
    fn patches(&self) -> u64 {
        self.grid.area()
    }
}
