//! Draws the record as a picture for a page, in plain SVG that is 900 wide. Bars show the
//! percentage of the limit, for this crate and its peers.

use std::fmt::Write as _;
use std::path::Path;

use crate::Result;
use crate::record::{Record, Row};

const WIDTH: u32 = 900;
/// The x where bars begin, unless a label needs more room.
const LEFT: f64 = 330.0;
/// The x where the longest bars end.
const RIGHT: f64 = 690.0;
/// The percentage at `RIGHT`.
const FULL: f64 = 115.0;
/// The x of the values.
const VALUES: f64 = 706.0;
/// The room for a character of a label. Lower case letters of 13 pixels are 6.2 to 6.9 pixels wide
/// on average in the fonts named below, and up to 7.6 in the fonts of systems that have none of
/// these.
const CHARACTER: f64 = 7.6;
/// A label of more characters than this gets two lines, in smaller letters.
const LINE: usize = 38;
/// The space between a label and its bar.
const GAP: f64 = 10.0;
/// The height of a bar.
const BAR: u32 = 17;
/// The distance from one bar to the next.
const STEP: u32 = 24;

const OURS: &str = "#0f766e";
const THEIRS: &str = "#94a3b8";
const INK: &str = "#1e293b";
const FAINT: &str = "#64748b";

/// The rows under one heading.
struct Group<'a> {
    heading: String,
    /// The label of each bar, and its row.
    bars: Vec<(String, &'a Row)>,
}

pub(crate) fn save(record: &Record, path: &Path) -> Result {
    let groups = groups(record);
    if groups.is_empty() {
        return Err("there is nothing to draw: no row has a limit".into());
    }
    std::fs::write(path, draw(record, &groups)).map_err(|e| format!("{}: {e}", path.display()))?;
    println!("wrote {}", path.display());
    Ok(())
}

/// Groups the rows: textures by everyone, for each size; the other kernels at one size; the
/// pipeline.
fn groups(record: &Record) -> Vec<Group<'_>> {
    let kernels = || record.rows.iter().filter(|row| row.section == "kernels" && row.percent().is_some());
    let mut sizes: Vec<&str> = vec![];
    for row in kernels().filter(|row| row.name == "textures") {
        if !sizes.contains(&row.size.as_str()) {
            sizes.push(&row.size);
        }
    }
    let mut groups = vec![];
    for size in &sizes {
        let mut bars: Vec<(String, &Row)> = vec![];
        for row in kernels().filter(|row| row.name == "textures" && row.size == *size) {
            // Each gets one bar, for the content that comes first. If there are several, that is
            // noise.
            if !bars.iter().any(|(by, _)| *by == row.by) {
                bars.push((row.by.clone(), row));
            }
        }
        let megabytes = bars[0].1.bytes.unwrap_or_default() / 1e6;
        groups.push(Group { heading: format!("texture array, 13 planes in f32, {size}: {megabytes:.0} MB"), bars });
    }
    let largest = ["4K", "1080p"].into_iter().find(|size| sizes.contains(size));
    if let Some(size) = largest.or(sizes.first().copied()) {
        let others = ["features", "textures + features", "entropy", "analyze"];
        let mut bars: Vec<(String, &Row)> = vec![];
        for name in others {
            for row in kernels().filter(|row| row.name == name && row.size == size) {
                let ours = row.by == "thalweg";
                let label = if ours { name.to_owned() } else { format!("{name}, {}", row.by) };
                if !bars.iter().any(|(other, _)| *other == label) {
                    bars.push((label, row));
                }
            }
        }
        if !bars.is_empty() {
            groups.push(Group { heading: format!("other kernels, {size}"), bars });
        }
    }
    let mut bars: Vec<(String, &Row)> = vec![];
    for row in record.rows.iter().filter(|row| row.section == "pipeline" && row.percent().is_some()) {
        bars.push((format!("{}, {}", row.by, row.size), row));
    }
    if !bars.is_empty() {
        groups.push(Group { heading: "pinned image to tokens on the host, of the upload's rate".into(), bars });
    }
    groups
}

fn draw(record: &Record, groups: &[Group<'_>]) -> String {
    let fact = |name: &str| record.machine.get(name).and_then(|v| v.as_str()).unwrap_or_default();
    let labels = groups.iter().flat_map(|group| &group.bars).flat_map(|(label, _)| lines(label));
    let longest = labels.map(|line| line.chars().count()).max().unwrap_or(0);
    let left = LEFT.max((24.0 + CHARACTER * longest as f64 + GAP).round());
    let x = |percent: f64| left + (RIGHT - left) * percent.min(FULL) / FULL;
    let (mut body, mut y) = (String::new(), 84);
    let text = |body: &mut String, x: f64, y: u32, class: &str, words: &str| {
        // Writing to a string cannot fail.
        let _ = writeln!(body, r#"<text x="{x:.0}" y="{y}" class="{class}">{}</text>"#, escape(words));
    };
    text(&mut body, 24.0, 34, "title", "Percent of the rate of a copy of as many bytes");
    let machine = [fact("device"), fact("date"), "the line is 100 %, measured in the same run"];
    let machine: Vec<&str> = machine.into_iter().filter(|fact| !fact.is_empty()).collect();
    text(&mut body, 24.0, 56, "faint", &machine.join(" · "));
    for group in groups {
        text(&mut body, 24.0, y + 8, "heading", &group.heading);
        y += 20;
        let top = y;
        for (label, row) in &group.bars {
            let Some(percent) = row.percent() else { continue };
            let ours = row.by == "thalweg";
            let (end, color) = (x(percent).max(left + 1.5), if ours { OURS } else { THEIRS });
            let class = if ours { "label ours" } else { "label" };
            match lines(label)[..] {
                [first, second] => {
                    text(&mut body, left - GAP, y + 7, &format!("{class} small"), first);
                    text(&mut body, left - GAP, y + 18, &format!("{class} small"), second);
                }
                _ => text(&mut body, left - GAP, y + 13, class, label),
            }
            let _ = writeln!(
                body,
                r#"<rect x="{left}" y="{y}" width="{:.1}" height="{BAR}" rx="2" fill="{color}"/>"#,
                end - left,
            );
            text(&mut body, VALUES, y + 13, "value", &value(row, percent));
            y += STEP;
        }
        let line = x(100.0);
        let _ = writeln!(body, r#"<path d="M{line:.1} {}V{}" stroke="{INK}"/>"#, top - 4, y - STEP + BAR + 4);
        y += 18;
    }
    let height = y + 4;
    format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" role="img">
<title>Kernels and pipeline as percent of the measured limit</title>
<style>
text {{ font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: {INK}; }}
.title {{ font-size: 18px; font-weight: 600; }}
.heading {{ font-weight: 600; }}
.faint, .value {{ fill: {FAINT}; }}
.label {{ text-anchor: end; }}
.small {{ font-size: 11px; }}
.ours {{ font-weight: 600; fill: {OURS}; }}
</style>
<rect width="{WIDTH}" height="{height}" fill="white"/>
{body}</svg>
"#
    )
}

/// Splits a label that is too long for one line after one of its commas, so that the longer part is
/// as short as possible.
fn lines(label: &str) -> Vec<&str> {
    if label.chars().count() <= LINE {
        return vec![label];
    }
    let split = |at: usize| (&label[..=at], label[at + 1..].trim_start());
    let parts = label.match_indices(", ").map(|(at, _)| split(at));
    match parts.min_by_key(|(first, second)| first.chars().count().max(second.chars().count())) {
        Some((first, second)) => vec![first, second],
        None => vec![label],
    }
}

fn value(row: &Row, percent: f64) -> String {
    let time = match row.us {
        us if us < 100.0 => format!("{us:.1} µs"),
        us if us < 10_000.0 => format!("{us:.0} µs"),
        us => format!("{:.0} ms", us / 1e3),
    };
    let percent = if percent < 10.0 { format!("{percent:.1} %") } else { format!("{percent:.0} %") };
    match row.images_per_s() {
        Some(images) => format!("{percent} · {images:.0} images/s"),
        None => format!("{percent} · {time}"),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
