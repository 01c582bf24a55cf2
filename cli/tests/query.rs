//! The flags for weights, a query, the mix and the reference profile.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::support::{Bench, Tokens, pattern, photo, png, repository};

fn golden(name: &str) -> PathBuf {
    repository("tests/golden").join(format!("{name}.safetensors"))
}

/// Returns `--weights` and `--query` with the golden files.
fn query() -> Vec<OsString> {
    vec!["--weights".into(), golden("head-weights").into(), "--query".into(), golden("query").into()]
}

fn with(mut flags: Vec<OsString>, more: &[&str]) -> Vec<OsString> {
    flags.extend(more.iter().map(OsString::from));
    flags
}

#[track_caller]
fn difference(name: &str, ours: &Tokens, theirs: &Tokens) -> f64 {
    let ((shape, a), (expected, b)) = (ours.f32(name), theirs.f32(name));
    assert_eq!(shape, expected, "{name}");
    a.iter().zip(&b).map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max)
}

#[test]
fn chelsea_with_a_query() {
    let bench = Bench::new();
    bench.tokens(query().into_iter().chain([photo("chelsea.png").into()])).expect(0, &[]);
    let (ours, theirs) = (bench.read("chelsea"), Tokens::read(&golden("chelsea-query")));
    let names = [
        "cu_seqlens",
        "entropy",
        "features",
        "mix",
        "participatory",
        "patch_id",
        "position",
        "relevance",
        "salience",
        "sides",
        "tokens",
    ];
    assert_eq!(ours.names(), names);
    for (name, bound) in [("participatory", 2e-5), ("mix", 2e-5), ("relevance", 2e-5), ("entropy", 2e-5)] {
        assert!(difference(name, &ours, &theirs) <= bound, "{name}");
    }
    let metadata = &ours.metadata;
    assert_eq!(metadata["weights"], "head-weights.safetensors");
    assert_eq!(metadata["query"], "query.safetensors");
    let mix: Vec<f32> = metadata["mix"].split(',').map(|v| v.parse().unwrap()).collect();
    assert_eq!(mix, ours.f32("mix").1);
}

#[test]
fn the_mix_is_what_is_asked_for() {
    let bench = Bench::new();
    let image = bench.file("a.png", png(pattern(200, 90)));
    let relevance = |flags: Vec<OsString>| {
        bench.tokens(flags.iter().map(OsString::as_os_str).chain([image.as_os_str()])).expect(0, &[]);
        bench.read("a")
    };
    let scaled = |tokens: &Tokens, map: &str| {
        let (_, values) = tokens.f32(map);
        let (least, most) = values.iter().fold((f32::MAX, f32::MIN), |(a, b), &v| (a.min(v), b.max(v)));
        let error = |(v, r): (&f32, f32)| ((v - least) / (most - least) - r).abs();
        values.iter().zip(tokens.f32("relevance").1).map(error).fold(0.0, f32::max)
    };
    let tokens = relevance(with(query(), &["--mix", "0,0,2"]));
    assert_eq!(tokens.f32("mix").1, [0.0, 0.0, 2.0]);
    assert_eq!(tokens.metadata["mix"], "0,0,2");
    assert!(scaled(&tokens, "participatory") < 1e-4);
    let tokens = relevance(with(vec![], &["--mix", "1,0"]));
    assert_eq!(tokens.metadata["mix"], "1,0");
    assert!(scaled(&tokens, "entropy") < 1e-4 && !tokens.names().contains(&"mix"));
}

#[test]
fn the_reference_profile() {
    let bench = Bench::new();
    let small = bench.file("small.png", png(pattern(9, 7)));
    let flags = with(query(), &["--profile", "arr-coc-0-1", "--json"]);
    let run = bench.tokens(flags.into_iter().chain([photo("chelsea.png").into(), small.into()])).expect(0, &[]);
    let (ours, theirs) = (bench.read("chelsea"), Tokens::read(&golden("arr-coc-0-1-chelsea")));
    assert_eq!(ours.names(), ["information", "participatory", "perspectival", "relevance", "textures", "topk"]);
    for name in ["information", "participatory", "perspectival", "relevance", "textures"] {
        assert!(difference(name, &ours, &theirs) <= 2e-5, "{name}");
    }
    let ((shape, ours_topk), (_, topk)) = (ours.i32("topk"), theirs.i32("topk"));
    assert_eq!(shape, [200]);
    let relevance = theirs.f32("relevance").1;
    for (a, b) in ours_topk.iter().zip(topk) {
        assert!((relevance[*a as usize] - relevance[b as usize]).abs() < 2e-5, "{a} in the place of {b}");
    }
    assert_eq!(ours.metadata["format"], "thalweg-arr-coc-0-1");
    assert_eq!(bench.read("small").f32("textures").0, [13, 32, 32]);
    let document: Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(document["parameters"]["profile"], "arr-coc-0-1");
    assert_eq!(document["images"][0]["selected"], 200);
    assert!(document["seconds"]["profile"].is_number());
}

/// A name that reads like a number or like `null` stays a name in the JSON document.
#[test]
fn names_of_files_are_strings() {
    let bench = Bench::new();
    let image = bench.file("a.png", png(pattern(16, 16)));
    let weights = bench.file("7", fs::read(golden("head-weights")).unwrap());
    let query = bench.file("null", fs::read(golden("query")).unwrap());
    let flags = ["--weights".as_ref(), weights.as_os_str(), "--query".as_ref(), query.as_os_str()];
    let run = bench.tokens(flags.into_iter().chain([image.as_os_str(), "--json".as_ref()])).expect(0, &[]);
    let parameters = &serde_json::from_str::<Value>(&run.out).unwrap()["parameters"];
    assert_eq!((&parameters["weights"], &parameters["query"]), (&"7".into(), &"null".into()));
    assert_eq!((&parameters["patch"], &parameters["focus"]), (&32.into(), &0.8.into()));
}

#[test]
fn wrong_files_are_named() {
    let bench = Bench::new();
    let image = bench.file("a.png", png(pattern(16, 16)));
    let run = |weights: &OsStr, query: &OsStr| {
        let flags = ["--weights".as_ref(), weights, "--query".as_ref(), query, image.as_os_str()];
        bench.tokens(flags)
    };
    let (weights, query) = (golden("head-weights"), golden("query"));
    let (weights, query) = (weights.as_os_str(), query.as_os_str());
    let missing = bench.input("missing.safetensors");
    run(missing.as_os_str(), query).expect(1, &["--weights", "missing.safetensors: cannot read it: No such file"]);
    run(weights, image.as_os_str()).expect(1, &["--query", "a.png: query is unreadable", "a safetensors file"]);
    let words = ["--weights", "tensor `participatory_scorer.texture_proj.0.weight` is missing"];
    run(query, query).expect(1, &words);
    run(weights, weights).expect(1, &["--query", "tensor `query` is missing"]);

    let file = |name: &str, values: &[f32]| {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![values.len()], &bytes).unwrap();
        bench.file(name, safetensors::serialize([("query", view)], None).unwrap())
    };
    let short = file("short.safetensors", &[1.0; 255]);
    let words = ["--query", "short.safetensors: tensor `query` is [255], expected [256], the dimension of the head"];
    run(weights, short.as_os_str()).expect(1, &words);
    let mut values = [0.5; 256];
    values[17] = f32::NAN;
    let broken = file("broken.safetensors", &values);
    run(weights, broken.as_os_str()).expect(1, &["tensor `query` is NaN at element 17, expected finite numbers"]);
    assert!(!bench.out().exists());
}

#[test]
fn wrong_usage() {
    let bench = Bench::new();
    let image = bench.file("a.png", png(pattern(16, 16)));
    let cases: [(Vec<OsString>, &[&str]); 10] = [
        (query()[..2].to_vec(), &["--query <FILE>"]),
        (query()[2..].to_vec(), &["--weights <FILE>"]),
        (with(vec![], &["--profile", "arr-coc-0-1"]), &["--weights <FILE>", "--query <FILE>"]),
        (with(query(), &["--profile", "arr-coc-9"]), &["arr-coc-0-1"]),
        (with(query(), &["--profile", "arr-coc-0-1", "--budget=99"]), &["cannot be used with", "--budget"]),
        (with(query(), &["--profile", "arr-coc-0-1", "--heatmap"]), &["cannot be used with", "--heatmap"]),
        (with(query(), &["--mix", "1,1"]), &["--mix 1,1", "expected 3 weights with --query, not 2"]),
        (with(vec![], &["--mix", "1,1,1"]), &["expected 2 weights without --query, not 3"]),
        (with(vec![], &["--mix", "0,0"]), &["--mix", "not all are zero"]),
        (with(vec![], &["--mix", "-1,2"]), &["--mix", "none is negative"]),
    ];
    for (flags, words) in cases {
        bench.tokens(flags.into_iter().chain([image.clone().into()])).expect(2, words);
    }
    assert!(!bench.out().exists());
}
