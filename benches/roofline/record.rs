//! The record says what was measured, on which machine and when. It is printed as a table during
//! the run, and saved as JSON.

use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

use serde_json::{Map, Value, json};
use thalweg::Device;

use crate::Result;

/// One measurement. `benches/record/README.md` explains the fields in JSON.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    /// `limits`, `kernels` or `pipeline`.
    pub(crate) section: String,
    pub(crate) name: String,
    pub(crate) by: String,
    pub(crate) content: String,
    pub(crate) size: String,
    pub(crate) us: f64,
    pub(crate) us_in_a_row: Option<f64>,
    pub(crate) bytes: Option<f64>,
    pub(crate) limit: Option<Limit>,
    /// The number of images that took `us`.
    pub(crate) images: Option<f64>,
}

/// The time of which a row is a percentage.
#[derive(Clone, Debug)]
pub(crate) struct Limit {
    pub(crate) name: String,
    pub(crate) us: f64,
    pub(crate) us_in_a_row: Option<f64>,
}

impl Row {
    pub(crate) fn gb_per_s(&self) -> Option<f64> {
        Some(self.bytes? / self.us / 1e3)
    }

    /// Returns the percentage of the limit.
    pub(crate) fn percent(&self) -> Option<f64> {
        Some(100.0 * self.limit.as_ref()?.us / self.us)
    }

    pub(crate) fn percent_in_a_row(&self) -> Option<f64> {
        Some(100.0 * self.limit.as_ref()?.us_in_a_row? / self.us_in_a_row?)
    }

    pub(crate) fn images_per_s(&self) -> Option<f64> {
        Some(self.images? / self.us * 1e6)
    }

    fn to_json(&self) -> Value {
        let mut fields = Map::new();
        let mut put = |name: &str, value: Value| {
            if !value.is_null() && value != "" {
                fields.insert(name.into(), value);
            }
        };
        let round =
            |v: Option<f64>, places: i32| json!(v.map(|v| (v * 10f64.powi(places)).round() / 10f64.powi(places)));
        put("section", json!(self.section));
        put("name", json!(self.name));
        put("by", json!(self.by));
        put("content", json!(self.content));
        put("size", json!(self.size));
        put("us", round(Some(self.us), 3));
        put("us in a row", round(self.us_in_a_row, 3));
        put("bytes", json!(self.bytes.map(|b| b as u64)));
        put("GB/s", round(self.gb_per_s(), 1));
        if let Some(limit) = &self.limit {
            put("limit", json!(limit.name));
            put("limit us", round(Some(limit.us), 3));
            put("limit us in a row", round(limit.us_in_a_row, 3));
        }
        put("percent", round(self.percent(), 1));
        put("percent in a row", round(self.percent_in_a_row(), 1));
        put("images", json!(self.images));
        put("images/s", round(self.images_per_s(), 1));
        Value::Object(fields)
    }

    /// Reads a row that [`to_json`](Self::to_json) or a peer wrote. Returns `None` if the name or
    /// the time is missing.
    pub(crate) fn from_json(value: &Value) -> Option<Self> {
        let text = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
        let number = |name: &str| value[name].as_f64();
        Some(Self {
            section: text("section"),
            name: value["name"].as_str()?.to_owned(),
            by: text("by"),
            content: text("content"),
            size: text("size"),
            us: number("us").filter(|us| *us > 0.0)?,
            us_in_a_row: number("us in a row"),
            bytes: number("bytes"),
            limit: number("limit us").map(|us| Limit {
                name: text("limit"),
                us,
                us_in_a_row: number("limit us in a row"),
            }),
            images: number("images"),
        })
    }

    fn print(&self) {
        let show = |v: Option<f64>, places: usize| v.map(|v| format!("{v:.places$}")).unwrap_or_default();
        let by = if self.by == "machine" { "" } else { &self.by };
        let line = format!(
            "{:<34} {by:<43} {:<9} {:<11} {:>11.2} {:>11} {:>7} {:>8} {:>8} {:>9}",
            self.name,
            self.content,
            self.size,
            self.us,
            show(self.us_in_a_row, 2),
            show(self.gb_per_s(), 0),
            show(self.percent(), 1),
            show(self.percent_in_a_row(), 1),
            show(self.images_per_s(), 0),
        );
        println!("{}", line.trim_end());
    }
}

pub(crate) struct Record {
    /// The device, the driver, the clocks, the date, the number of runs and more.
    pub(crate) machine: Map<String, Value>,
    /// Says what was not measured, and why.
    pub(crate) absent: Vec<String>,
    pub(crate) rows: Vec<Row>,
}

impl Record {
    pub(crate) fn new(device: Device, runs: usize) -> Self {
        let mut machine = Map::new();
        let mut put = |name: &str, value: Value| machine.insert(name.into(), value);
        put("device", json!(device.name()));
        if let Some(version) = device.driver_version() {
            put("driver for CUDA", json!(version.to_string()));
        }
        put("host threads", json!(std::thread::available_parallelism().map_or(1, usize::from)));
        put("date", json!(today()));
        put("version", json!(env!("CARGO_PKG_VERSION")));
        put("median of", json!(runs));
        Self { machine, absent: vec![], rows: vec![] }
    }

    /// Adds the version of the driver and the clocks under the load before this call, as
    /// `nvidia-smi` reports them.
    pub(crate) fn ask_driver(&mut self, ordinal: usize) {
        let fields = ["driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "power.limit"];
        let output = Command::new("nvidia-smi")
            .args([
                format!("--query-gpu={}", fields.join(",")),
                "--format=csv,noheader".into(),
                format!("--id={ordinal}"),
            ])
            .output();
        match output {
            Ok(output) if output.status.success() => {
                let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
                for (field, value) in fields.iter().zip(text.split(", ")) {
                    self.machine.insert((*field).into(), json!(value));
                }
            }
            _ => self.absent("clocks and driver version: nvidia-smi is not here, or does not answer"),
        }
    }

    pub(crate) fn push(&mut self, row: Row) {
        if self.rows.last().is_none_or(|last| last.section != row.section) {
            heading(&row.section);
        }
        row.print();
        self.rows.push(row);
    }

    /// Notes what could not be measured.
    pub(crate) fn absent(&mut self, what: impl Into<String>) {
        let what = what.into();
        println!("not here: {what}");
        self.absent.push(what);
    }

    pub(crate) fn print_machine(&self) {
        let value = |v: &Value| v.as_str().map_or_else(|| v.to_string(), str::to_owned);
        let facts: Vec<String> = self.machine.iter().map(|(name, v)| format!("{name} {}", value(v))).collect();
        println!("{}", facts.join("; "));
    }

    /// Prints how many times longer than this crate each peer took for the same work.
    pub(crate) fn print_ratios(&self) {
        let (ours, theirs): (Vec<&Row>, Vec<&Row>) =
            self.rows.iter().filter(|row| row.section != "limits").partition(|row| row.by == "thalweg");
        for row in &theirs {
            // This crate's graphs have names of their own. Peers say in `by` how they launch.
            let graph = format!("{}, graph", row.name);
            let same = |other: &&&Row| other.size == row.size && (other.name == row.name || other.name == graph);
            let exact = ours.iter().filter(same).find(|other| other.content == row.content);
            if let Some(own) = exact.or(ours.iter().find(same)) {
                println!("{:<34} {:<11} {:>8.2} x  {}", row.name, row.size, row.us / own.us, row.by);
            }
        }
    }

    pub(crate) fn save(&self, path: &Path) -> Result {
        let rows: Vec<Value> = self.rows.iter().map(Row::to_json).collect();
        // Each row has its own line, so that records can be compared line by line.
        let rows: Vec<String> = rows.iter().map(|row| format!("    {row}")).collect();
        let machine = Value::Object(self.machine.clone());
        let text = format!(
            "{{\n  \"machine\": {machine},\n  \"absent\": {},\n  \"rows\": [\n{}\n  ]\n}}\n",
            json!(self.absent),
            rows.join(",\n"),
        );
        std::fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))?;
        println!("wrote {}", path.display());
        Ok(())
    }

    pub(crate) fn load(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        let value: Value = serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))?;
        let list = |name: &str| value[name].as_array().cloned().unwrap_or_default();
        let rows: Option<Vec<Row>> = list("rows").iter().map(Row::from_json).collect();
        let rows = rows.ok_or_else(|| format!("{}: a row without a name or a time", path.display()))?;
        let absent = list("absent").iter().filter_map(|v| Some(v.as_str()?.to_owned())).collect();
        Ok(Self { machine: value["machine"].as_object().cloned().unwrap_or_default(), absent, rows })
    }

    /// Prints the table of a record that was loaded.
    pub(crate) fn print(&self) {
        self.print_machine();
        let mut section = "";
        for row in &self.rows {
            if row.section != section {
                section = &row.section;
                heading(section);
            }
            row.print();
        }
        self.absent.iter().for_each(|what| println!("not here: {what}"));
    }
}

fn heading(section: &str) {
    println!(
        "\n{section:<34} {:<43} {:<9} {:<11} {:>11} {:>11} {:>7} {:>8} {:>8} {:>9}",
        "by", "content", "size", "us", "in a row", "GB/s", "% limit", "in a row", "images/s"
    );
}

/// Returns the date in UTC as year-month-day.
fn today() -> String {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let days = since.as_secs() / 86400;
    // Years start in March here, so that a leap day is the last day of its year. 400 years have
    // 146097 days, and 0000-03-01 is 719468 days before 1970-01-01.
    let (era, day) = ((days + 719_468) / 146_097, (days + 719_468) % 146_097);
    let year = (day - day / 1460 + day / 36524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    format!("{:04}-{month:02}-{day:02}", era * 400 + year + u64::from(month <= 2))
}
