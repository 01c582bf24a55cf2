//! Measures PyTorch with `benches/peers/torch_baseline.py`, in a process of its own that prints a
//! JSON object on each line.
//!
//! It measures the same images, which are written to files for it. It also writes what the measured
//! functions computed. A row counts only if that is right.

use std::collections::HashMap;
use std::path::Path;
use std::process::{Command, Stdio};
use testkit::oracle;

use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};
use thalweg_vision::{Image, Pipeline, TokenParams, TokenSet, allocate_tokens_blocking};

use crate::Result;
use crate::bencher::{Bencher, compare};
use crate::images::{Content, Photo, Size};
use crate::kernels::{CHECKED, FIXATION, checked};
use crate::limits::Limits;
use crate::pipeline::NAME as FRAMES;
use crate::record::{Limit, Row};

/// `docs/spec.md` allows half of this to either side, on planes, features, scores and tokens.
const BOUND: f64 = 4e-5;
/// The bound for positions.
const POSITION_BOUND: f64 = 4e-6;

/// Runs PyTorch and takes over the rows of the functions that compute the right thing. If there are
/// none, notes why.
pub(crate) fn measure(
    bench: &mut Bencher,
    limits: &Limits,
    quick: bool,
    sizes: &[Size],
    photo: &Photo,
    scratch: &Path,
) -> Result {
    let textures = bench.wants("textures") || bench.wants("textures + features");
    let tokens = bench.wants("image to tokens") || bench.wants(FRAMES);
    let mut images = vec![];
    for &size in sizes.iter().filter(|size| size.images == 1) {
        images.extend(textures.then_some(("noise", size, Content::Noise)));
        images.extend(tokens.then_some(("photo", size, Content::Photo)));
    }
    if images.is_empty() {
        return Ok(());
    }
    if textures {
        images.insert(0, ("check", CHECKED, Content::Photo));
    }
    let mut command = command(bench, quick, scratch)?;
    for (i, (role, size, content)) in images.iter().enumerate() {
        let file = scratch.join(format!("{i}.rgb"));
        std::fs::write(&file, content.pixels(*size, photo))?;
        command.args(["--image", role, size.name, &size.height.to_string(), &size.width.to_string()]).arg(file);
    }
    println!("\nPyTorch is measured; its compiler takes a while ...");
    let output = match command.output() {
        Ok(output) => output,
        Err(why) => {
            bench.record.absent(format!("PyTorch: python3: {why}"));
            return Ok(());
        }
    };
    let mut checks = Checks { sizes, photo, ours: HashMap::new(), right: vec![], sides: serde_json::Map::new() };
    for line in String::from_utf8_lossy(&output.stdout).lines().filter_map(|line| serde_json::from_str(line).ok()) {
        let line: Value = line;
        if let Some(row) = Row::from_json(&line) {
            if bench.wants(&row.name) && checks.cover(&row) {
                let limit = limit(bench, limits, &row)?;
                bench.record.push(Row { limit, ..row });
            }
        } else if line["results"].is_string() {
            if let Err(why) = checks.check(bench, &line) {
                bench.record.absent(format!("{}, {}: {why}", text(&line, "by"), text(&line, "size")));
            }
        } else if let Some(facts) = line.as_object() {
            bench.record.machine.extend(facts.clone());
        }
    }
    if !checks.sides.is_empty() {
        bench.record.machine.insert("patches to which PyTorch gives another side".into(), json!(checks.sides));
    }
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        let last = errors.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it says nothing");
        bench.record.absent(format!("PyTorch, or some of it: {last}"));
    }
    Ok(())
}

/// The script, beside the module that it imports.
fn command(bench: &Bencher, quick: bool, scratch: &Path) -> Result<Command> {
    let script = scratch.join("torch_baseline.py");
    std::fs::write(&script, include_str!("../peers/torch_baseline.py"))?;
    std::fs::write(scratch.join("torch_tokens.py"), include_str!("../peers/torch_tokens.py"))?;
    let mut command = Command::new("python3");
    command.arg(&script).arg("--results").arg(scratch).stderr(Stdio::piped());
    if bench.is_gpu() {
        command.args(["--ordinal", &bench.device.ordinal().to_string()]);
    } else {
        command.args(["--cpu", "--threads", &bench.device.multiprocessors().to_string()]);
    }
    if quick {
        command.arg("--quick");
    }
    Ok(command)
}

fn text<'a>(line: &'a Value, name: &str) -> &'a str {
    line[name].as_str().unwrap_or_default()
}

/// The results of PyTorch, beside the expected ones.
struct Checks<'a> {
    sizes: &'a [Size],
    photo: &'a Photo,
    /// This crate's tokens of the photograph at a size.
    ours: HashMap<String, TokenSet>,
    /// The libraries that computed the right result, and the sizes.
    right: Vec<(String, String)>,
    /// The number of patches that have another side than in this crate's run, by function and size.
    sides: serde_json::Map<String, Value>,
}

impl Checks<'_> {
    /// Whether the function of this row computed the right thing.
    fn cover(&self, row: &Row) -> bool {
        let by = row.by.trim_end_matches(", three streams");
        let size = if row.name.starts_with("textures") { CHECKED.name } else { &row.size };
        self.right.iter().any(|right| (right.0.as_str(), right.1.as_str()) == (by, size))
    }

    /// Checks a file of results, of which `line` says who computed them and at which size.
    fn check(&mut self, bench: &Bencher, line: &Value) -> Result {
        let (by, name) = (text(line, "by"), text(line, "size"));
        let bytes = std::fs::read(text(line, "results"))?;
        let file = SafeTensors::deserialize(&bytes)?;
        if name == CHECKED.name {
            let want = oracle::textures(&checked(Content::Photo, self.photo), [f64::from(FIXATION); 2]);
            compare("textures", &floats(&file, "textures")?, &want, BOUND)?;
        } else {
            if !self.ours.contains_key(name) {
                let size = self.sizes.iter().find(|size| size.name == name).ok_or("a size that was not asked for")?;
                let image = Image::new(size.height, size.width, Content::Photo.pixels(*size, self.photo))?;
                let tokens = Pipeline::new(bench.device, TokenParams::default())?.run(&[image]).remove(0)?;
                self.ours.insert(name.into(), tokens);
            }
            let ours = &self.ours[name];
            let differ = same_tokens(bench, &file, ours)?;
            println!("{by}, {name}: {differ} of {} patches have another side than thalweg's", ours.sides.len());
            self.sides.insert(format!("{by}, {name}"), json!(differ));
        }
        self.right.push((by.into(), name.into()));
        Ok(())
    }
}

/// Returns how many patches have another side than in `ours`, or an error if the results are wrong.
///
/// Two runs in f32 may round the relevance of a patch to different keys. So the sides must be
/// exactly those that this crate allocates for PyTorch's relevance. Tokens are compared for the
/// patches that have the same side in both.
fn same_tokens(bench: &Bencher, theirs: &SafeTensors<'_>, ours: &TokenSet) -> Result<usize> {
    for (name, ours) in [("features", &ours.features), ("entropy", &ours.entropy), ("salience", &ours.salience)] {
        compare(name, &floats(theirs, name)?, ours, BOUND)?;
    }
    let raw = || ours.entropy.iter().zip(&ours.salience).map(|(a, b)| (a + b) / 2.0);
    let spread = raw().fold(f32::MIN, f32::max) - raw().fold(f32::MAX, f32::min);
    let relevance = floats(theirs, "relevance")?;
    compare("relevance", &relevance, &ours.relevance, 4e-6 / f64::from(spread))?;

    let allocation = allocate_tokens_blocking(&bench.stream, &relevance, &TokenParams::default())?;
    let (sides, cu_seqlens) = (integers(theirs, "sides")?, integers(theirs, "cu_seqlens")?);
    let patch_id = integers(theirs, "patch_id")?;
    if [&sides, &cu_seqlens, &patch_id] != [&allocation.sides, &allocation.cu_seqlens, &allocation.patch_id] {
        return Err("sides, offsets or patches are not those of its relevance: nothing wrong is timed".into());
    }

    let (tokens, position) = (floats(theirs, "tokens")?, floats(theirs, "position")?);
    let mut same = 0;
    for (k, id) in patch_id.iter().enumerate() {
        let Ok(i) = ours.patch_id.binary_search(id) else { continue };
        if sides[*id as usize] == ours.sides[*id as usize] {
            let [a, b] = [&cu_seqlens[k..], &ours.cu_seqlens[i..]].map(|at| at[0] as usize..at[1] as usize);
            let part =
                |values: &[f32], at: &std::ops::Range<usize>, n: usize| values[n * at.start..n * at.end].to_vec();
            compare("tokens", &part(&tokens, &a, 13), &part(&ours.tokens, &b, 13), BOUND)?;
            compare("position", &part(&position, &a, 2), &part(&ours.position, &b, 2), POSITION_BOUND)?;
            same += 1;
        }
    }
    if 10 * same < 9 * patch_id.len() {
        let selected = patch_id.len();
        return Err(
            format!("only {same} of {selected} selected patches have this crate's side: too few to compare").into()
        );
    }
    Ok(sides.iter().zip(&ours.sides).filter(|(theirs, ours)| theirs != ours).count())
}

fn floats(file: &SafeTensors<'_>, name: &str) -> Result<Vec<f32>> {
    words(file, name, Dtype::F32, f32::from_le_bytes)
}

fn integers(file: &SafeTensors<'_>, name: &str) -> Result<Vec<i32>> {
    words(file, name, Dtype::I32, i32::from_le_bytes)
}

fn words<T>(file: &SafeTensors<'_>, name: &str, dtype: Dtype, from: fn([u8; 4]) -> T) -> Result<Vec<T>> {
    let tensor = file.tensor(name)?;
    if tensor.dtype() != dtype {
        return Err(format!("`{name}` holds {:?}, not {dtype:?}", tensor.dtype()).into());
    }
    Ok(tensor.data().as_chunks::<4>().0.iter().copied().map(from).collect())
}

/// Compares a row as our own rows are compared: a kernel with a copy, a whole path with the upload.
fn limit(bench: &mut Bencher, limits: &Limits, row: &Row) -> Result<Option<Limit>> {
    let Some(bytes) = row.bytes else { return Ok(None) };
    if row.section == "pipeline" {
        return Ok(Some(limits.upload(bytes as usize)));
    }
    let copy = bench.copy(bytes as usize)?;
    let us_in_a_row = row.us_in_a_row.map(|_| copy.row);
    Ok(Some(Limit { name: "copy".into(), us: copy.one, us_in_a_row }))
}
