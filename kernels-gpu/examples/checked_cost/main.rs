//! Times each kernel of this crate on one CPU core, as the ordinary CPU device and as the checked
//! one run it, and prints a table. It fails if a kernel of the PTX files is missing. Results are in
//! `benches/record`.
//!
//! `cargo run --release -p thalweg-kernels --features augment,collective,jpeg,linear,train,vision
//! --example checked_cost [height width]`
//!
//! The extents are those of the images of `vision`. The other families have small batches.

mod device;
mod jpeg;
mod rest;
mod train;
mod vision;

use std::collections::BTreeMap;

use thalweg_simt::{bf16, f16};

use device::{Timed, number};

/// The families that the CPU device runs: all but what exists for one GPU only.
const FAMILIES: [&str; 6] = ["augment", "collective", "jpeg", "linear", "train", "vision"];

/// Returns the family of each kernel, by the entries of the PTX files.
fn families() -> BTreeMap<String, &'static str> {
    let mut families = BTreeMap::new();
    for family in FAMILIES {
        let path = format!("{}/ptx/{family}.ptx", env!("CARGO_MANIFEST_DIR"));
        let ptx = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        for entry in ptx.lines().filter_map(|line| line.strip_prefix("// entry: ")) {
            let name = entry.split("__").next().unwrap_or(entry);
            families.insert(name.to_owned(), family);
        }
    }
    families
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut extents = std::env::args().skip(1).filter_map(|n| n.parse().ok());
    let (height, width) = (extents.next().unwrap_or(384_u32), extents.next().unwrap_or(512_u32));
    let on = Timed::default();
    vision::launch(&on, height, width)?;
    jpeg::launch(&on)?;
    rest::launch(&on)?;
    train::launch::<f32>(&on, number)?;
    train::launch::<bf16>(&on, |i| bf16::from_f32(number(i)))?;
    rest::products::<f32>(&on, number)?;
    rest::products::<f16>(&on, |i| f16::from_f32(number(i)))?;
    rest::products::<bf16>(&on, |i| bf16::from_f32(number(i)))?;

    let (times, families) = (on.times(), families());
    println!("images of {height} x {width} for vision; milliseconds on one core");
    println!("{:<12} {:<32} {:>10} {:>10} {:>8}", "family", "kernel", "ordinary", "checked", "times");
    let mut ratios = Vec::new();
    let mut missing = Vec::new();
    for family in FAMILIES {
        let mut own = Vec::new();
        for (kernel, _) in families.iter().filter(|(_, of)| **of == family) {
            let Some(both) = times.get(kernel.as_str()) else {
                missing.push(kernel.as_str());
                continue;
            };
            let [ordinary, checked] = both.map(|t| t.as_secs_f64() * 1e3);
            own.push(checked / ordinary);
            println!("{family:<12} {kernel:<32} {ordinary:>10.4} {checked:>10.4} {:>8.1}", checked / ordinary);
        }
        println!("{family:<12} median of {}: {:.1} times", own.len(), median(&own));
        ratios.extend(own);
    }
    println!("median of {}: {:.1} times", ratios.len(), median(&ratios));
    if missing.is_empty() { Ok(()) } else { Err(format!("not measured: {}", missing.join(", ")).into()) }
}

fn median(ratios: &[f64]) -> f64 {
    let mut ratios = ratios.to_vec();
    ratios.sort_by(f64::total_cmp);
    ratios.get(ratios.len() / 2).copied().unwrap_or(f64::NAN)
}
