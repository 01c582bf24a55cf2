//! PyTorch: `benches/peers/torch_baseline.py` in a process of its own, a JSON object a line.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::Result;
use crate::bencher::{Bencher, compare};
use crate::images::{Content, Photo};
use crate::kernels::{CHECKED, FIXATION, checked};
use crate::limits::Limits;
use crate::record::{Limit, Row};

/// PyTorch's convolutions may use TF32, whose mantissa has 10 bits.
const BOUND: f64 = 5e-3;

/// Runs it and takes its rows over, or notes why there are none.
pub(crate) fn measure(bench: &mut Bencher, limits: &Limits, quick: bool, photo: &Photo, scratch: &Path) -> Result {
    if !bench.wants("textures") && !bench.wants("frames") {
        return Ok(());
    }
    let (script, image, planes) = (scratch.join("torch_baseline.py"), scratch.join("image"), scratch.join("planes"));
    std::fs::write(&script, include_str!("../peers/torch_baseline.py"))?;
    let picture = checked(Content::Photo, photo);
    std::fs::write(&image, &picture.rgb)?;
    let mut command = Command::new("python3");
    command.arg(&script).args(["--height", &CHECKED.height.to_string(), "--width", &CHECKED.width.to_string()]);
    command.arg("--check").args([&image, &planes]).stderr(Stdio::piped());
    if bench.is_gpu() {
        command.args(["--ordinal", &bench.device.ordinal().to_string()]);
    } else {
        command.args(["--cpu", "--threads", &bench.device.multiprocessors().to_string()]);
    }
    if quick {
        command.arg("--quick");
    }
    println!("\nPyTorch is measured; its compiler takes a while ...");
    let output = match command.output() {
        Ok(output) => output,
        Err(why) => {
            bench.record.absent(format!("PyTorch: python3: {why}"));
            return Ok(());
        }
    };
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if let Ok(bytes) = std::fs::read(&planes) {
        let got: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|v| f32::from_le_bytes(*v)).collect();
        let want = oracle::textures(&picture, [f64::from(FIXATION); 2]);
        if let Err(why) = compare("textures of PyTorch", &got, &want, BOUND) {
            bench.record.absent(why.to_string());
            return Ok(());
        }
    }
    for line in text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        if let Some(row) = Row::from_json(&line) {
            let limit = limit(bench, limits, &row)?;
            bench.record.push(Row { limit, ..row });
        } else if let Some(facts) = line.as_object() {
            bench.record.machine.extend(facts.clone());
        }
    }
    if !output.status.success() {
        let last = errors.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it says nothing");
        bench.record.absent(format!("PyTorch, or some of it: {last}"));
    }
    Ok(())
}

/// As our own rows: kernels against a copy, whole paths against the upload.
fn limit(bench: &mut Bencher, limits: &Limits, row: &Row) -> Result<Option<Limit>> {
    let Some(bytes) = row.bytes else { return Ok(None) };
    if row.section == "pipeline" {
        return Ok(Some(limits.upload(bytes as usize)));
    }
    let copy = bench.copy(bytes as usize)?;
    Ok(Some(Limit { name: "copy".into(), us: copy.one, us_in_a_row: None }))
}
