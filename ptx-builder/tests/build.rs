//! Builds the crate in `tests/fixture` and variations of it. These tests need a compiler with the
//! sources of `core`. If there is none, they fail and say what to install.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use thalweg_ptx_builder::{Error, PtxBuilder, PtxFile};

/// A directory with a copy of the fixture and a place for its PTX.
struct Fixture {
    dir: PathBuf,
}

impl Fixture {
    /// Makes a fresh copy in the directory `name`. Each test uses other names.
    fn new(name: &str) -> Self {
        let dir = tmp().join(name);
        _ = fs::remove_dir_all(&dir);
        for file in ["Cargo.toml", "src/lib.rs", "dep/Cargo.toml", "dep/src/lib.rs"] {
            let to = dir.join("krate").join(file);
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixture").join(file), to).unwrap();
        }
        Self { dir }
    }

    fn krate(&self) -> PathBuf {
        self.dir.join("krate")
    }

    fn ptx(&self) -> PathBuf {
        self.dir.join("ptx/kernels.ptx")
    }

    fn builder(&self) -> PtxBuilder {
        PtxBuilder::new(self.krate()).work_dir(tmp().join("work"))
    }

    fn build(&self) -> Result<PtxFile, Error> {
        self.builder().build()
    }

    fn edit(&self, file: &str, edit: impl FnOnce(String) -> String) {
        let path = self.krate().join(file);
        fs::write(&path, edit(fs::read_to_string(&path).unwrap())).unwrap();
    }

    /// Runs `thalweg-ptx COMMAND krate ptx/kernels.ptx` without a network.
    fn command(&self, command: &str) -> Output {
        Command::new(env!("CARGO_BIN_EXE_thalweg-ptx"))
            .args([command, "krate", "ptx/kernels.ptx", "--work-dir"])
            .arg(tmp().join("work"))
            .current_dir(&self.dir)
            .env("CARGO_NET_OFFLINE", "true")
            // The cargo of a build script hands down variables such as these. Each would break the
            // build.
            .env("RUSTFLAGS", "-Ctarget-cpu=native")
            .env("CARGO_ENCODED_RUSTFLAGS", "-Ctarget-cpu=native")
            .env("RUSTC_WRAPPER", "/nonexistent")
            .env("CARGO_BUILD_TARGET", "nonexistent")
            .output()
            .unwrap()
    }
}

fn tmp() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

fn shown(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn ptx_has_entries_and_a_header_and_does_not_depend_on_the_directory() {
    let fixture = Fixture::new("header");
    let ptx = fixture.build().unwrap();
    let mut entries = ptx.entries.clone();
    entries.sort();
    assert_eq!(entries, ["entry_of_a_dependency", "histogram", "saxpy", "sort"]);
    let paths: Vec<_> = ptx.sources.iter().map(|source| &*source.path).collect();
    assert_eq!(paths, ["Cargo.toml", "dep/Cargo.toml", "dep/src/lib.rs", "src/lib.rs"]);
    for text in [".target sm_75", "fma.rn.f32", "bar.sync", "red.shared", "shfl.sync.bfly", "lg2.approx.ftz"] {
        assert!(ptx.text.contains(text), "{text}");
    }
    // The names of functions and tables contain names of crates, and the fixture has both.
    assert!(ptx.text.contains("stays_a_function") && ptx.text.contains("SQUARES"));

    let elsewhere = Fixture::new("another directory/with spaces");
    let builder = elsewhere.builder().work_dir(tmp().join("another work directory"));
    assert_eq!(builder.build().unwrap(), ptx);
}

#[test]
fn a_second_build_compiles_the_crate_and_not_what_it_depends_on() {
    let fixture = Fixture::new("second");
    let work = tmp().join("work of a second build");
    _ = fs::remove_dir_all(&work);
    let build = || fixture.builder().work_dir(&work).build();
    let compiled = |name: &str| {
        let kept = fs::read_dir(&work).unwrap().map(|entry| entry.unwrap().path());
        let kept: Vec<_> =
            kept.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("kernels")).collect();
        let [kept] = &kept[..] else { panic!("{kept:?}") };
        let deps = fs::read_dir(kept.join("nvptx64-nvidia-cuda/release/deps")).unwrap().map(|entry| entry.unwrap());
        let found: Vec<_> = deps.filter(|file| file.file_name().to_string_lossy().starts_with(name)).collect();
        found.iter().map(|file| file.metadata().unwrap().modified().unwrap()).max().unwrap()
    };
    let first = build().unwrap();
    let (dependency, own) = (compiled("libfixture_dep"), compiled("fixture_kernels"));
    fixture.edit("src/lib.rs", |text| text.replace("fn saxpy(", "fn saxpy2("));
    let second = build().unwrap();
    assert!(second.entries.contains(&"saxpy2".into()) && second.sources != first.sources, "{:?}", second.entries);
    assert!(compiled("libfixture_dep") == dependency && compiled("fixture_kernels") > own);

    // After a mistake, and after a change of the manifest, which gives the files another name.
    fixture.edit("src/lib.rs", |text| text + "mistake");
    build().unwrap_err();
    fixture.edit("src/lib.rs", |text| text.replace("mistake", "").replace("fn saxpy2(", "fn saxpy("));
    fixture.edit("Cargo.toml", |text| text.replace("version = \"0.0.0\"", "version = \"0.0.1\""));
    let third = build().unwrap();
    assert_eq!(third.entries, first.entries);
    // A change of what it depends on is seen, also one that leaves the file as old as it was.
    let file = fixture.krate().join("dep/src/lib.rs");
    let (before, time) = (fs::read_to_string(&file).unwrap(), fs::metadata(&file).unwrap().modified().unwrap());
    fixture.edit("dep/src/lib.rs", |text| text.replace("entry_of_a_dependency", "another_entry"));
    assert!(build().unwrap().entries.contains(&"another_entry".into()));
    fs::write(&file, before).unwrap();
    fs::File::options().append(true).open(&file).unwrap().set_modified(time).unwrap();
    assert_eq!(build().unwrap().entries, first.entries);

    // A library of another name, whose file has another name, too.
    fixture.edit("Cargo.toml", |text| text + "\n[lib]\nname = \"another\"\npath = \"src/another.rs\"\n");
    fs::rename(fixture.krate().join("src/lib.rs"), fixture.krate().join("src/another.rs")).unwrap();
    let renamed = build().unwrap();
    assert!(renamed.sources.iter().any(|source| source.path == "src/another.rs"));
    assert!(renamed.sources.iter().all(|source| source.path != "src/lib.rs"), "{:?}", renamed.sources);
}

#[test]
fn a_newer_target_is_named() {
    let ptx = Fixture::new("sm_90").builder().target("sm_90").build().unwrap();
    assert_eq!(ptx.target, "sm_90");
    assert!(ptx.text.contains("\n.target sm_90"));
}

#[test]
fn staleness_is_seen_without_a_compiler() {
    let fixture = Fixture::new("stale");
    fixture.build().unwrap().write(fixture.ptx()).unwrap();
    let ptx = PtxFile::read(fixture.ptx()).unwrap();
    let changes = || fixture.builder().changes(&ptx);
    assert!(changes().is_empty());
    fixture.edit("src/lib.rs", |text| text.replace('\n', "\r\n"));
    assert!(changes().is_empty(), "only line ends differ");
    fixture.edit("dep/src/lib.rs", |text| text + "\n");
    fs::remove_file(fixture.krate().join("src/lib.rs")).unwrap();
    assert_eq!(changes(), ["dep/src/lib.rs", "src/lib.rs"]);
    assert!(fixture.builder().target("sm_80").changes(&ptx)[0].contains("flags"));
    // A checkout with other line ends has the same PTX.
    let text = fs::read_to_string(fixture.ptx()).unwrap();
    fs::write(fixture.ptx(), text.replace('\n', "\r\n")).unwrap();
    assert_eq!(PtxFile::read(fixture.ptx()).unwrap(), ptx);
}

#[test]
fn the_command_builds_and_checks_without_a_network() {
    let fixture = Fixture::new("command");
    let built = fixture.command("build");
    assert!(built.status.success(), "{}", shown(&built));
    let text = fs::read_to_string(fixture.ptx()).unwrap();
    assert!(fixture.command("check").status.success());

    fs::write(fixture.ptx(), text.replace("fma.rn.f32", "fma.rz.f32")).unwrap();
    let tampered = fixture.command("check");
    assert_eq!(tampered.status.code(), Some(1), "{}", shown(&tampered));
    assert!(shown(&tampered).contains("fma.rz.f32"), "{}", shown(&tampered));

    fs::write(fixture.ptx(), text.replace("// compiler: rustc", "// compiler: another")).unwrap();
    let moved = fixture.command("check");
    assert_eq!(moved.status.code(), Some(3), "{}", shown(&moved));
    assert!(shown(&moved).contains("NOT COMPARED"), "{}", shown(&moved));
    // Nor is it green if the instructions are others, which no fingerprint shows.
    let foreign = text.replace("// compiler: rustc", "// compiler: another").replace("fma.rn.f32", "fma.rz.f32");
    fs::write(fixture.ptx(), foreign).unwrap();
    assert_eq!(fixture.command("check").status.code(), Some(3));

    fixture.edit("src/lib.rs", |text| text.replace("fn sort(", "fn sort2("));
    let stale = fixture.command("check");
    assert_eq!(stale.status.code(), Some(1));
    // The command that it names has the options of this one. The target is in the file.
    let work = tmp().join("work");
    let update = format!("thalweg-ptx build krate ptx/kernels.ptx --work-dir {}", work.display());
    for text in ["src/lib.rs", "has sort,", "lacks sort2", &update] {
        assert!(shown(&stale).contains(text), "{}", shown(&stale));
    }
    assert_eq!(fixture.command("frobnicate").status.code(), Some(2));
}

#[test]
fn mistakes_in_the_kernels_are_named() {
    let fixture = Fixture::new("mistakes");
    let original = fs::read_to_string(fixture.krate().join("src/lib.rs")).unwrap();
    let add = |code: &str| {
        fixture.edit("src/lib.rs", |_| format!("{original}{code}"));
        fixture.build().unwrap_err()
    };
    let error = add(r#"unsafe extern "C" { fn vprintf(format: *const u8, values: *const u8) -> i32; }
        #[unsafe(no_mangle)] pub unsafe extern "ptx-kernel" fn p(x: *const u8) { unsafe { vprintf(x, x); } }"#);
    assert!(matches!(&error, Error::Unresolved { symbols } if *symbols == ["vprintf"]), "{error}");
    let error = add("fn f() -> u32 { 1.0 }");
    assert!(matches!(&error, Error::Compile { stderr, .. } if stderr.contains("E0308")), "{error}");

    fixture.edit("src/lib.rs", |_| "#![no_std]\nuse fixture_dep as _;\n".into());
    fixture.edit("dep/src/lib.rs", |text| text.replace("#[unsafe(no_mangle)]", ""));
    let error = fixture.build().unwrap_err();
    assert!(matches!(error, Error::NoEntries), "{error}");
    let error = PtxBuilder::new("nowhere").build().unwrap_err();
    assert!(matches!(&error, Error::Io { path, .. } if path.ends_with("nowhere/Cargo.toml")), "{error}");
}

#[test]
fn a_compiler_that_will_not_do_is_named_with_what_to_install() {
    let fixture = Fixture::new("compilers");
    let error = fixture.builder().compiler("/nonexistent/rustc").build().unwrap_err();
    let Error::NoCompiler { tried } = &error else { panic!("{error}") };
    assert_eq!(tried.len(), 1, "an explicit choice is not replaced: {error}");
    for text in ["/nonexistent/rustc", "rustup component add rust-src", "apt-get install rustc-web rust-web-src"] {
        assert!(error.to_string().contains(text), "{error}");
    }
}

#[test]
fn bounds_of_an_entry_become_directives() {
    let fixture = Fixture::new("bounds");
    fixture.edit("src/lib.rs", |text| {
        text + "\n#[unsafe(export_name = \"sort__thalweg_bounds\")]\nstatic BOUNDS: [u8; 8] = [0, 1, 0, 0, 2, 0, 0, 0];\n"
    });
    let ptx = fixture.build().unwrap().text;
    let sort = ptx.split_once(".visible .entry sort(").unwrap().1;
    assert!(sort.split_once("\n{").unwrap().0.ends_with(")\n.maxntid 256, 1, 1\n.minnctapersm 2"), "{sort}");
    assert!(ptx.matches(".maxntid").count() == 1 && !ptx.contains("thalweg_bounds"));
}

#[test]
fn a_reader_that_has_gone_is_no_error() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = Command::new(env!("CARGO_BIN_EXE_thalweg-ptx")).arg("--help").stdout(writer).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

#[test]
fn kernels_report_panics_if_the_builder_is_asked() {
    let fixture = Fixture::new("reports");
    let plain = fixture.build().unwrap();
    assert!(!plain.reports_panics() && !plain.text.contains("thalweg_panic"));
    let builder = fixture.builder().report_panics(true);
    let ptx = builder.build().unwrap();
    assert!(ptx.reports_panics() && ptx.text.contains("thalweg_panic[2];"));
    // `histogram` checks an index. What has no trap is as before.
    let entry = |ptx: &PtxFile, name: &str| {
        ptx.text.split_once(&format!(".visible .entry {name}(")).unwrap().1.split_once("\n}").unwrap().0.to_owned()
    };
    let histogram = entry(&ptx, "histogram");
    assert_eq!(histogram.matches("[thalweg_panic+8], 0, 1").count(), histogram.matches("trap;").count());
    assert!(histogram.contains("trap;"));
    assert_eq!(entry(&ptx, "saxpy"), entry(&plain, "saxpy"));
    // The file says that it has reports.
    assert_eq!(fixture.builder().changes(&ptx), ["the builder's flags"]);
    assert!(builder.changes(&ptx).is_empty());
}
