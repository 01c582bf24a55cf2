//! A trace as a picture.

use std::fmt::Write;
use std::time::Duration;

use super::activity::Activity;
use super::metrics::covered;
use super::trace::Trace;

const WIDTH: f64 = 900.0;
const TOP: f64 = 56.0;
/// The height of a row of bars.
const ROW: f64 = 22.0;
/// The space between tracks.
const GAP: f64 = 8.0;
/// The space to the right of the bars, for how busy the track is.
const RIGHT: f64 = 52.0;
/// The width of a character of the font, rather too wide than too narrow.
const CHARACTER: f64 = 6.4;
/// The width of the narrowest bar. A span that is no wider and begins within such a bar is not
/// drawn.
const HAIR: f64 = 1.0;

/// The colors of a bar and of its text. Color-blind readers can tell them apart too (Okabe and
/// Ito).
fn colors(activity: Activity) -> (&'static str, &'static str) {
    match activity {
        Activity::Upload => ("#0072b2", "#ffffff"),
        Activity::Compute => ("#f0a30a", "#000000"),
        Activity::Download => ("#009e73", "#ffffff"),
        Activity::Copy => ("#cc79a7", "#000000"),
        Activity::Host => ("#9aa5b1", "#000000"),
        Activity::Wait => ("#f7d4c4", "#7a2a00"),
    }
}

/// The text for XML. Characters that XML cannot hold become the replacement character.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\t' | '\n' => escaped.push(' '),
            c if c < ' ' || matches!(c, '\u{fffe}' | '\u{ffff}') => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

/// A step of 1, 2 or 5 times a power of ten, in seconds. At most eight steps fit into `wall`.
fn step(wall: f64) -> f64 {
    let rough = wall / 8.0;
    let power = 10f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0].map(|n| n * power).into_iter().find(|&step| step >= rough).unwrap_or(10.0 * power)
}

impl Trace {
    /// The trace as a picture, with a track for each stream and for each track of the host. Time
    /// runs to the right.
    pub fn to_svg(&self) -> String {
        draw(self)
    }
}

fn draw(trace: &Trace) -> String {
    let tracks = trace.tracks();
    let (start, end) = trace.extent();
    let wall = (end - start).as_secs_f64();
    let longest = tracks.iter().map(|track| track.name.chars().count()).max().unwrap_or(0).clamp(6, 28);
    let left = longest as f64 * CHARACTER + 20.0;
    let scale = (WIDTH - RIGHT - left) / wall.max(1e-12);
    let bottom = TOP + tracks.iter().map(|track| track.rows as f64 * ROW + GAP).sum::<f64>();
    let height = bottom + 64.0;
    let metrics = trace.metrics();

    let mut svg = String::new();
    let mut put = |line: std::fmt::Arguments<'_>| {
        let _ = svg.write_fmt(line);
        svg.push('\n');
    };
    put(format_args!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" font-family="system-ui, Segoe UI, Helvetica, Arial, sans-serif" font-size="11" fill="#1f2933">"##
    ));
    put(format_args!(r##"<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>"##));
    let title = if trace.device().is_empty() { "timeline" } else { trace.device() };
    put(format_args!(r#"<text x="12" y="20" font-size="13" font-weight="600">{}</text>"#, escaped(title)));
    put(format_args!(r#"<text x="{}" y="20" text-anchor="end">{:.3?}</text>"#, WIDTH - 12.0, end - start));

    let mut x = left;
    for activity in Activity::ALL {
        if trace.spans().iter().any(|span| span.activity == activity) {
            let (fill, _) = colors(activity);
            put(format_args!(r#"<rect x="{x:.1}" y="34" width="12" height="12" rx="2" fill="{fill}"/>"#));
            put(format_args!(r#"<text x="{:.1}" y="44">{}</text>"#, x + 17.0, activity.name()));
            x += 17.0 + activity.name().len() as f64 * CHARACTER + 18.0;
        }
    }

    let step = step(wall.max(1e-9));
    let unit = if step >= 1.0 {
        ("s", 1.0)
    } else if step >= 1e-3 {
        ("ms", 1e3)
    } else {
        ("us", 1e6)
    };
    let mut ticks = Vec::new();
    for tick in 0..=(wall / step + 1e-9) as usize {
        let (x, value) = (left + tick as f64 * step * scale, tick as f64 * step * unit.1);
        ticks.push(format!(
            r##"<path d="M{x:.1} {}V{:.1}" stroke="#d5dbe1"/><text x="{x:.1}" y="{:.1}" text-anchor="middle" fill="#52606d">{}</text>"##,
            TOP - 4.0,
            bottom,
            bottom + 14.0,
            // In a trace longer than 4 ns, a step has at most three digits after the point.
            // Rounding to three digits removes floating-point noise.
            (value * 1e3).round() / 1e3,
        ));
    }
    let lane_width = WIDTH - RIGHT - left;

    let mut y = TOP;
    for track in &tracks {
        let tall = track.rows as f64 * ROW;
        let name: String = track.name.chars().take(28).collect();
        put(format_args!(
            r##"<rect x="{left:.1}" y="{y:.1}" width="{lane_width:.1}" height="{tall:.1}" fill="#f1f4f7"/>"##
        ));
        put(format_args!(
            r#"<text x="{:.1}" y="{:.1}" text-anchor="end">{}</text>"#,
            left - 8.0,
            y + tall / 2.0 + 4.0,
            escaped(&name)
        ));
        y += tall + GAP;
    }
    put(format_args!("{}", ticks.join("\n")));
    put(format_args!(
        r##"<text x="{:.1}" y="{:.1}" fill="#52606d">{}</text>"##,
        WIDTH - RIGHT + 8.0,
        bottom + 14.0,
        unit.0
    ));

    let mut y = TOP;
    for track in &tracks {
        let mut drawn = vec![f64::NEG_INFINITY; track.rows];
        for (row, span) in &track.spans {
            let from = left + (span.start - start).as_secs_f64() * scale;
            let width = (span.duration().as_secs_f64() * scale).max(HAIR);
            if width <= HAIR && from < drawn[*row] {
                continue;
            }
            drawn[*row] = from + width;
            let (fill, ink) = colors(span.activity);
            let top = y + *row as f64 * ROW + 2.0;
            // Leave a seam between bars that touch.
            let shown = if width > 3.0 { width - 0.6 } else { width };
            put(format_args!(
                r#"<rect x="{from:.2}" y="{top:.1}" width="{shown:.2}" height="{}" rx="1.5" fill="{fill}"><title>{}: {}, {} long, from {}{}</title></rect>"#,
                ROW - 4.0,
                escaped(&span.label),
                span.activity.name(),
                short(span.duration()),
                short(span.start - start),
                span.line.map(|line| format!(", {}", escaped(&line.to_string()))).unwrap_or_default(),
            ));
            // If the label does not fit, its last word may, which is often a number.
            let words = [&*span.label, span.label.rsplit(' ').next().unwrap_or_default()];
            let fits = |text: &&str| !text.is_empty() && text.chars().count() as f64 * CHARACTER + 6.0 <= width;
            if let Some(text) = words.into_iter().find(fits) {
                put(format_args!(
                    r#"<text x="{:.1}" y="{:.1}" text-anchor="middle" fill="{ink}" pointer-events="none">{}</text>"#,
                    from + width / 2.0,
                    top + 13.0,
                    escaped(text)
                ));
            }
        }
        let busy = covered(track.spans.iter().map(|(_, span)| *span)).as_secs_f64() / wall.max(1e-12);
        put(format_args!(
            r##"<text x="{:.1}" y="{:.1}" fill="#52606d">{:.0} %</text>"##,
            WIDTH - RIGHT + 8.0,
            y + track.rows as f64 * ROW / 2.0 + 4.0,
            100.0 * busy
        ));
        y += track.rows as f64 * ROW + GAP;
    }

    let share = |part: Duration| 100.0 * part.as_secs_f64() / wall.max(1e-12);
    put(format_args!(
        r#"<text x="12" y="{:.1}">copies hidden by kernels {:.0} %, device idle {:.0} %, host waits {:.0} %, {:.2} tracks busy on average</text>"#,
        bottom + 36.0,
        100.0 * metrics.overlap,
        share(metrics.gpu_idle),
        share(metrics.host_wait),
        metrics.concurrency
    ));
    put(format_args!(r#"<text x="12" y="{:.1}">{}</text>"#, bottom + 53.0, escaped(&metrics.advice)));
    svg.push_str("</svg>\n");
    svg
}

/// The time with one digit after the point, in a unit that suits it.
fn short(time: Duration) -> String {
    format!("{time:.1?}")
}
