//! The pipeline against the golden files, on every device, and the devices against each other.
//!
//! Two f32 runs may round a patch's relevance to different keys, so sides are not compared
//! between runs but with the reference allocation of the run's own relevance, bit for bit.
//! Tokens depend on sides: those of a golden file are compared with what the device makes of
//! the run's textures and the file's sides, those of two runs where a patch has the same side
//! in both.

use testkit::devices::{devices, report};
use testkit::files::{Tensors, read_png};
use testkit::oracle::{
    self, Image, PLANES, POSITION_ERROR, SCORE_ERROR, assert_close, assert_planes_close, relevance_error, wide,
};
use thalweg::Device;
use thalweg_vision::{Pipeline, PipelineOptions, TokenParams, TokenSet, kernels};

use crate::run::{check_run, given};

/// A golden file that needs no query, and how it was made.
struct Golden {
    file: &'static str,
    photo: &'static str,
    params: TokenParams,
}

fn goldens() -> [Golden; 5] {
    let default = TokenParams::default;
    [
        Golden { file: "eye", photo: "eye", params: default().with_budget(1024) },
        Golden { file: "chelsea", photo: "chelsea", params: default() },
        Golden {
            file: "coffee-budget10000-focus0.5",
            photo: "coffee",
            params: default().with_budget(10000).with_focus(0.5),
        },
        Golden {
            file: "eye-options",
            photo: "eye",
            params: default()
                .with_patch(24)
                .with_sides(4..=12)
                .with_budget(300)
                .with_fixation([0.2, 0.8])
                .with_foveal_bias(0.5),
        },
        Golden { file: "row", photo: "row", params: default().with_patch(16).with_budget(200) },
    ]
}

fn golden(file: &str) -> Golden {
    goldens().into_iter().find(|g| g.file == file).unwrap()
}

fn photo(golden: &Golden) -> Image {
    read_png(format!("assets/photos/{}.png", golden.photo))
}

fn run(device: Device, golden: &Golden) -> TokenSet {
    let options = PipelineOptions::default().with_textures(true);
    let pipeline = Pipeline::with_options(device, golden.params.clone(), options).unwrap();
    pipeline.run(&[given(&photo(golden))]).remove(0).unwrap()
}

/// What two runs of one image may differ by in relevance: max - min of the balance of its scores.
fn spread(entropy: &[f64], salience: &[f64]) -> f64 {
    oracle::relevance(&[entropy, salience], &[0.5, 0.5]).1
}

/// Checks a run against the reference and a golden file.
fn check(file: &str) {
    let golden = golden(file);
    let want = Tensors::read(format!("tests/golden/{file}.safetensors"));
    let float = |name: &str| wide(&want.f32(name).data);
    let bound = relevance_error(spread(&float("entropy"), &float("salience")));
    for &device in devices() {
        let what = format!("{file} on {device}");
        let got = run(device, &golden);
        check_run(&what, &photo(&golden), &golden.params, &got);
        for (name, values, bound) in [
            ("features", &got.features, SCORE_ERROR),
            ("entropy", &got.entropy, SCORE_ERROR),
            ("salience", &got.salience, SCORE_ERROR),
            ("relevance", &got.relevance, bound),
        ] {
            assert_close(&format!("{what}: {name}"), values, &float(name), bound);
        }
        let names = want.names();
        if names.contains(&"textures") {
            assert_planes_close(&what, got.textures.as_ref().unwrap(), &float("textures"));
        }
        // The file's sides are the allocation of the file's relevance, and its sequences
        // follow from them.
        let image = photo(&golden);
        let (h, w, patch) = (image.height, image.width, golden.params.patch as usize);
        let sides = &want.i32("sides").data;
        let (lo, hi) = (*golden.params.sides.start(), *golden.params.sides.end());
        let allocated =
            oracle::allocate(&want.f32("relevance").data, lo, hi, golden.params.budget, golden.params.focus);
        assert_eq!(allocated.iter().map(|&n| n as i32).collect::<Vec<_>>(), *sides, "{what}: sides of the file");
        let planes = got.textures.as_ref().unwrap();
        let packed = oracle::compress(&wide(planes), h, w, patch, &allocated);
        assert_eq!(packed.cu_seqlens, want.i32("cu_seqlens").data, "{what}: cu_seqlens of the file");
        assert_eq!(packed.patch_id, want.i32("patch_id").data, "{what}: patch_id of the file");
        println!("{what}: {} tokens, sides as in the file: {}", got.len(), got.sides == *sides);
        if names.contains(&"tokens") {
            let (tokens, position) = compress(device, [h, w, patch], planes, sides, &packed);
            assert_close(&format!("{what}: tokens"), &tokens, &float("tokens"), SCORE_ERROR);
            assert_close(&format!("{what}: position"), &position, &float("position"), POSITION_ERROR);
        }
    }
}

/// Tokens and positions that a device makes of textures `[13, H, W]` and sides.
fn compress(
    device: Device,
    [h, w, patch]: [usize; 3],
    planes: &[f32],
    sides: &[i32],
    packed: &oracle::Tokens,
) -> (Vec<f32>, Vec<f32>) {
    let count = packed.tokens.len() / PLANES;
    let [h, w, patch] = [h, w, patch].map(|n| n as u32);
    let compress = device.per_thread(|s| {
        let (planes, sides) = (s.upload_blocking(planes)?, s.upload_blocking(sides)?);
        let (cu_seqlens, patch_id) = (s.upload_blocking(&packed.cu_seqlens)?, s.upload_blocking(&packed.patch_id)?);
        let counts = s.upload_blocking(&[count as u32, packed.patch_id.len() as u32])?;
        let (mut tokens, mut position) = (s.alloc(PLANES * count)?, s.alloc(2 * count)?);
        let most = packed.patch_id.len() as u32;
        let selection =
            kernels::Selection { sides: &sides, cu_seqlens: &cu_seqlens, patch_id: &patch_id, counts: &counts, most };
        let out = kernels::TokensMut { tokens: &mut *tokens, position: &mut *position, capacity: count as u32 };
        kernels::compress(s, h, w, patch, &planes, &selection, out)?;
        Ok::<_, thalweg::Error>((s.read_blocking(&tokens)?, s.read_blocking(&position)?))
    });
    compress.unwrap().unwrap()
}

#[test]
fn eye() {
    check("eye");
}

#[test]
fn chelsea() {
    check("chelsea");
}

#[test]
fn coffee() {
    check("coffee-budget10000-focus0.5");
}

#[test]
fn eye_options() {
    check("eye-options");
}

#[test]
fn row() {
    check("row");
}

/// Every other device against the CPU device.
#[test]
fn devices_agree() {
    let cpu = Device::cpu().unwrap();
    let others: Vec<Device> = devices().iter().copied().filter(|&device| device != cpu).collect();
    if others.is_empty() {
        report("NOT COVERED: agreement between devices, because there is only the CPU device");
    }
    for golden in goldens() {
        let want = run(cpu, &golden);
        let bound = relevance_error(spread(&wide(&want.entropy), &wide(&want.salience)));
        for &device in &others {
            let what = format!("{} on {device} and on the CPU device", golden.file);
            let got = run(device, &golden);
            assert_planes_close(&what, got.textures.as_ref().unwrap(), &wide(want.textures.as_ref().unwrap()));
            for (name, got, want, bound) in [
                ("features", &got.features, &want.features, SCORE_ERROR),
                ("entropy", &got.entropy, &want.entropy, SCORE_ERROR),
                ("salience", &got.salience, &want.salience, SCORE_ERROR),
                ("relevance", &got.relevance, &want.relevance, bound),
            ] {
                assert_close(&format!("{what}: {name}"), got, &wide(want), bound);
            }
            // Patches that have the same side have the same tokens.
            let by_patch = |set: &TokenSet| -> Vec<(i32, Vec<f32>)> {
                let ends = set.cu_seqlens.windows(2);
                ends.zip(&set.patch_id)
                    .map(|(w, &id)| (id, set.tokens[w[0] as usize * PLANES..w[1] as usize * PLANES].to_vec()))
                    .collect()
            };
            let (ours, theirs) = (by_patch(&got), by_patch(&want));
            let mut compared = 0;
            for (id, tokens) in &ours {
                if let Some((_, other)) = theirs.iter().find(|(i, t)| i == id && t.len() == tokens.len()) {
                    assert_close(&format!("{what}: tokens of patch {id}"), tokens, &wide(other), SCORE_ERROR);
                    compared += 1;
                }
            }
            println!("{what}: {compared} of {} patches have the same side", ours.len());
            assert!(compared > 0, "{what}: rounding cannot move every side");
        }
    }
}
