//! A picture of the loss and the accuracy over the epochs, as SVG.

use std::fmt::Write as _;

use super::Epoch;

const WIDTH: f64 = 720.0;
const PANEL: f64 = 220.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 34.0;

/// Draws the epochs.
pub(super) fn svg(history: &[Epoch]) -> String {
    let height = 2.0 * (PANEL + TOP) + 40.0;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let loss = |pick: fn(&Epoch) -> f64| history.iter().map(pick).collect::<Vec<_>>();
    let (train, val) = (loss(|e| e.loss), loss(|e| e.val_loss));
    let finite = train.iter().chain(&val).copied().filter(|v| v.is_finite());
    let most = finite.fold(0.0, f64::max).max(1e-6) * 1.05;
    panel(&mut text, 0.0, "loss", [0.0, most], &[("training", "#1f77b4", &train), ("validation", "#d62728", &val)]);
    let accuracy = loss(|e| 100.0 * e.val_accuracy);
    let least = accuracy.iter().copied().fold(100.0, f64::min);
    let floor = ((least / 10.0).floor() * 10.0).clamp(0.0, 90.0);
    panel(&mut text, PANEL + TOP, "accuracy, %", [floor, 100.0], &[("validation", "#d62728", &accuracy)]);
    _ = writeln!(
        text,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">epoch (of {})</text>\n</svg>",
        LEFT + (WIDTH - LEFT - RIGHT) / 2.0,
        height - 10.0,
        history.len()
    );
    text
}

fn panel(text: &mut String, top: f64, name: &str, [lo, hi]: [f64; 2], lines: &[(&str, &str, &[f64])]) {
    let (top, bottom) = (top + TOP, top + PANEL);
    let y = |v: f64| bottom - (v.clamp(lo, hi) - lo) / (hi - lo) * (bottom - top);
    _ = writeln!(text, "<text x=\"{LEFT}\" y=\"{}\" font-weight=\"bold\">{name}</text>", top - 10.0);
    for i in 0..=4 {
        let v = lo + (hi - lo) * f64::from(i) / 4.0;
        let digits = usize::from(hi - lo < 20.0) * 2;
        _ = writeln!(
            text,
            "<line x1=\"{LEFT}\" x2=\"{0}\" y1=\"{1:.1}\" y2=\"{1:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{2}\" y=\"{3:.1}\" text-anchor=\"end\">{v:.digits$}</text>",
            WIDTH - RIGHT,
            y(v),
            LEFT - 6.0,
            y(v) + 4.0
        );
    }
    for (i, (label, color, values)) in (0..).zip(lines) {
        let step = (WIDTH - LEFT - RIGHT) / (values.len().max(2) - 1) as f64;
        let points: Vec<String> =
            values.iter().enumerate().map(|(i, v)| format!("{:.1},{:.1}", LEFT + i as f64 * step, y(*v))).collect();
        _ = writeln!(
            text,
            "<polyline fill=\"none\" stroke=\"{color}\" stroke-width=\"2\" points=\"{}\"/>",
            points.join(" ")
        );
        let x = WIDTH - RIGHT - 90.0 * f64::from(lines.len() as u32 - i);
        _ = writeln!(text, "<text x=\"{x}\" y=\"{}\" fill=\"{color}\">{label}</text>", top - 10.0);
    }
}
