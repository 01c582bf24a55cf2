//! Folders with subfolders, standard input, images that are done already, and what is not said.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

use crate::support::{Bench, Run, Tokens, pattern, photo, png, thalweg};

/// Returns the paths of all files below a folder, relative to it, sorted.
fn tree(folder: &Path) -> Vec<String> {
    let mut paths = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                paths.push(path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    paths.sort();
    paths
}

/// Makes a tree of photographs of different widths, in which two have the same stem, and of files
/// that a run skips.
fn folders() -> Bench {
    let bench = Bench::new();
    for folder in ["one/deep", "two", ".cache"] {
        fs::create_dir_all(bench.input(folder)).unwrap();
    }
    for (name, width) in [("a.png", 20), ("one/a.png", 30), ("one/deep/a.png", 40), ("two/b.png", 50)] {
        bench.file(name, png(pattern(width, 16)));
    }
    for name in ["notes.txt", "two/list.csv", "two/b.heatmap.png", ".cache/c.png", "one/.hidden.png"] {
        bench.file(name, "no photograph");
    }
    bench
}

fn width(path: &Path) -> String {
    Tokens::read(path).metadata["width"].clone()
}

#[test]
fn subfolders_become_subfolders() {
    let bench = folders();
    let folder = bench.folder.path().join("in");
    let run = bench.tokens([folder.as_os_str(), "--recursive".as_ref(), "--heatmap".as_ref()]);
    let skipped = "thalweg: skipped 2 hidden entries, 1 heatmap, 2 files of other types\n";
    let run = run.expect(0, &[skipped]);
    let mut expected = Vec::new();
    for stem in ["a", "one/a", "one/deep/a", "two/b"] {
        expected.extend([format!("{stem}.heatmap.png"), format!("{stem}.safetensors")]);
    }
    assert_eq!(tree(&bench.out()), expected);
    for (stem, of) in [("a", "20"), ("one/a", "30"), ("one/deep/a", "40"), ("two/b", "50")] {
        assert_eq!(width(&bench.out().join(format!("{stem}.safetensors"))), of, "{stem}");
    }
    assert!(run.out.contains("one/deep/a.png"), "the table names what is what: {run:#?}");
}

#[test]
fn subfolders_are_skipped_by_default() {
    let bench = folders();
    let folder = bench.folder.path().join("in");
    let run = bench.tokens([folder.as_os_str(), "--json".as_ref()]);
    let words = "thalweg: skipped 2 subfolders (--recursive reads them), 1 hidden entry, 1 file of another type\n";
    let run = run.expect(0, &[words]);
    assert_eq!(tree(&bench.out()), ["a.safetensors"]);
    let document: Value = serde_json::from_str(&run.out).unwrap();
    let skipped = document["skipped"].as_array().unwrap();
    let why = |name: &str| {
        let path = bench.input(name);
        skipped.iter().find(|one| one["source"] == path.to_str().unwrap()).map(|one| one["why"].as_str().unwrap())
    };
    assert_eq!(skipped.len(), 4);
    assert_eq!(why("one"), Some("subfolder (--recursive reads it)"));
    assert_eq!(why("notes.txt"), Some("file of another type"));
    assert_eq!(why(".cache"), Some("hidden entry"));

    // A folder that only has subfolders is an error, which says what reads them.
    fs::remove_file(bench.input("a.png")).unwrap();
    let words = ["in: no *.png, *.jpg, *.jpeg or *.webp in this folder; --recursive also reads its subfolders"];
    bench.tokens([folder.as_os_str(), "--quiet".as_ref()]).expect(1, &words);
    fs::create_dir(bench.input("bare")).unwrap();
    let words = ["bare: no *.png, *.jpg, *.jpeg or *.webp in this folder or below"];
    bench.tokens([bench.input("bare").as_os_str(), "--recursive".as_ref()]).expect(1, &words);
}

/// Results of two folders meet in one tree. They must not replace each other there.
#[test]
fn two_trees_into_one() {
    let bench = Bench::new();
    for folder in ["x/sub", "y/sub"] {
        fs::create_dir_all(bench.input(folder)).unwrap();
    }
    for (name, width) in [("x/sub/same.png", 20), ("y/sub/same.png", 30), ("y/same.png", 40)] {
        bench.file(name, png(pattern(width, 16)));
    }
    let run = bench.tokens([bench.input("x").as_os_str(), bench.input("y").as_os_str(), "-r".as_ref()]);
    run.expect(1, &["2 of 3 inputs failed", "has the same stem, so both would write", "out/sub/same.safetensors"]);
    assert_eq!(tree(&bench.out()), ["same.safetensors"]);
    assert_eq!(width(&bench.out().join("same.safetensors")), "40");
}

/// Links back up the tree make circles. Each folder is still read once. Otherwise the two links
/// here would lead to 2^40 paths, because the system follows 40 links.
#[cfg(unix)]
#[test]
fn a_circle_of_folders() {
    let bench = folders();
    for link in ["one/deep/up", "two/up"] {
        std::os::unix::fs::symlink(bench.folder.path().join("in"), bench.input(link)).unwrap();
    }
    let folder = bench.folder.path().join("in");
    bench.tokens([folder.as_os_str(), "--recursive".as_ref()]).expect(0, &[]);
    let expected = ["a.safetensors", "one/a.safetensors", "one/deep/a.safetensors", "two/b.safetensors"];
    assert_eq!(tree(&bench.out()), expected);
}

/// Runs `thalweg tokens` with `input` on its standard input.
fn piped(bench: &Bench, input: &[u8], arguments: &[&str]) -> Run {
    let mut command = thalweg();
    command.arg("tokens").args(arguments).arg("--out").arg(bench.out());
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    // The command may end before it has read everything.
    _ = child.stdin.take().expect("a pipe").write_all(input);
    Run::from(child.wait_with_output().expect("it ends"))
}

#[test]
fn an_image_on_standard_input() {
    let bench = Bench::new();
    let image = fs::read(photo("eye.png")).unwrap();
    let other = bench.file("other.png", png(pattern(20, 16)));
    let run = piped(&bench, &image, &["-", other.to_str().unwrap(), "-", "--heatmap", "--json"]).expect(0, &[]);
    let names = ["other.heatmap.png", "other.safetensors", "stdin.heatmap.png", "stdin.safetensors"];
    assert_eq!(bench.results(), names);
    let document: Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(document["images"][0]["source"], "stdin");
    let piped_in = bench.read("stdin");
    assert_eq!(piped_in.metadata["source"], "stdin");
    bench.tokens([photo("eye.png")]).expect(0, &[]);
    assert_eq!(piped_in.f32("tokens"), bench.read("eye").f32("tokens"));

    piped(&bench, b"", &["-"]).expect(1, &["stdin: the file is empty"]);
    piped(&bench, b"GIF89a..", &["-"]).expect(1, &["stdin: this is a GIF file; expected PNG, JPEG or WebP"]);
    piped(&bench, &image[..image.len() / 2], &["-"]).expect(1, &["stdin: truncated"]);
}

#[test]
fn images_that_are_done_are_skipped() {
    let bench = Bench::new();
    let [a, b] = ["a.png", "b.png"].map(|name| bench.file(name, png(pattern(40, 30))));
    let tokens = |flags: &[&str]| {
        let paths = [a.to_str().unwrap(), b.to_str().unwrap()];
        bench.tokens(paths.into_iter().chain(flags.iter().copied()))
    };
    bench.tokens([&a]).expect(0, &[]);
    let earlier = fs::read(bench.out().join("a.safetensors")).unwrap();

    // Other parameters would give other bytes, so the old file is the earlier run's.
    let run = tokens(&["--skip-existing", "--budget=100"]);
    let run = run.expect(0, &["thalweg: skipped 1 image whose result exists\n"]);
    assert!(run.out.contains("images      1\n"), "{run:#?}");
    assert_eq!(bench.results(), ["a.safetensors", "b.safetensors"]);
    assert!(fs::read(bench.out().join("a.safetensors")).unwrap() == earlier);

    // A heatmap that is missing is a result that does not exist.
    fs::write(bench.out().join("a.heatmap.png"), "").unwrap();
    let run = tokens(&["--skip-existing", "--heatmap"]).expect(0, &["skipped 1 image whose result exists"]);
    assert!(run.out.contains("images      1\n"), "{run:#?}");
    assert!(bench.results().contains(&"b.heatmap.png".to_owned()));
    let run = tokens(&["--skip-existing"]).expect(0, &["skipped 2 images whose results exist"]);
    assert_eq!(run.out, "");

    // Without the flag, results are replaced.
    tokens(&["--budget=100"]).expect(0, &[]);
    assert!(fs::read(bench.out().join("a.safetensors")).unwrap() != earlier);
}

#[test]
fn quiet_prints_errors_only() {
    let bench = folders();
    let folder = bench.folder.path().join("in");
    let run = |flags: &[&str]| bench.tokens(folder.to_str().into_iter().chain(flags.iter().copied()));
    let quiet = run(&["--quiet"]).expect(0, &[]);
    assert_eq!((quiet.out.as_str(), quiet.err.as_str()), ("", ""));
    assert_eq!(tree(&bench.out()), ["a.safetensors"]);
    let loud = run(&["--device=cpu"]).expect(0, &["skipped"]);
    assert!(loud.out.contains("wall time"), "{loud:#?}");

    let document: Value = serde_json::from_str(&run(&["-q", "--json"]).expect(0, &[]).out).unwrap();
    assert_eq!(document["images"].as_array().unwrap().len(), 1);
    bench.file("bad.png", "no image");
    let failed = run(&["-q"]).expect(1, &["1 of 2 inputs failed", "bad.png: not an image"]);
    assert!(failed.out.is_empty() && !failed.err.contains("skipped"), "{failed:#?}");
}

#[test]
fn completions_name_commands_and_flags() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let run = Run::of(thalweg().args(["completions", shell])).expect(0, &[]);
        for word in ["tokens", "devices", "completions", "foveal-bias", "skip-existing"] {
            assert!(run.out.contains(word), "no {word} for {shell}");
        }
    }
    Run::of(thalweg().args(["completions", "tcsh"])).expect(2, &["tcsh", "bash"]);
    // The script works in the shell for which it is.
    let script = Run::of(thalweg().args(["completions", "bash"])).expect(0, &[]).out;
    let ask = "COMP_WORDS=(thalweg tokens --fov); COMP_CWORD=2; _thalweg thalweg --fov tokens; echo ${COMPREPLY[@]}";
    let mut bash = std::process::Command::new("bash");
    let run = Run::of(bash.args(["--norc", "-c", &format!("{script}\n{ask}")]));
    assert_eq!(run.out.trim(), "--foveal-bias", "{:?}", run.err);
}
