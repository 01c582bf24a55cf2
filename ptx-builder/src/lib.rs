//! Builds a Rust crate to PTX, with rustc's own `nvptx64-nvidia-cuda` backend.
//!
//! A crate of kernels is a library that is `no_std` on the GPU and declares its entries with
//! `thalweg_simt::kernel!`. Its own build script makes its PTX:
//!
//! ```no_run
//! // build.rs: builds this crate to `$OUT_DIR/kernels.ptx`, again after each change of its sources
//! fn main() -> Result<(), thalweg_ptx_builder::Error> {
//!     thalweg_ptx_builder::build_to_out_dir("kernels")
//! }
//! ```
//!
//! In the root of the crate, `thalweg_simt::ptx! { unsafe "kernels" }` embeds the file.
//! [`PtxBuilder`] does the same in steps. The command `thalweg-ptx` makes and checks PTX that is
//! kept in a repository.
//!
//! # What it needs
//!
//! It needs cargo and a rustc, 1.95 or newer, with the sources of `core`. It needs no CUDA toolkit,
//! no linker and, beyond what cargo downloads for the crate's own dependencies, no network.
//!
//! The builder takes the same rustc each time, by these rules:
//!
//! 1. If [`compiler`](PtxBuilder::compiler) or `THALWEG_RUSTC` names one, the builder uses it or
//!    fails.
//! 2. If [`like`](PtxBuilder::like) gives PTX whose compiler is installed, the builder uses that
//!    one. The command `thalweg-ptx` does this with the file that it checks or builds again.
//! 3. Otherwise it uses the toolchain that is current in the directory of the crate, if that is new
//!    enough and has the sources.
//! 4. Otherwise it uses the newest release among rustup's toolchains and `/usr/bin/rustc` that is
//!    new enough and has the sources, or the newest nightly if no release will do.
//!
//! The header of the PTX records the exact versions. One of these commands installs the sources:
//!
//! ```text
//! rustup component add rust-src
//! apt-get install rustc-web rust-web-src        # Debian 12 and its security updates
//! ```
//!
//! # What it does
//!
//! 1. It builds `core` for the GPU into a directory of its own. It does this once for each compiler
//!    and target, in 10 to 20 s. `-Zbuild-std=core` does the same, but it also resolves the
//!    dependencies of `std`, which would need a network.
//! 2. It builds the crate with that `core`, with fat link-time optimization and with panics that
//!    trap. The crate becomes a static library, so no linker runs. The assembly of this build is
//!    the PTX.
//! 3. It checks the PTX: the target is the requested one, there are entries, every function is
//!    defined, and no function of `core::panicking` is left.
//! 4. It adds a header with the compiler, the flags, the place where each entry was declared, and a
//!    fingerprint of each source file (see [`PtxFile`]). With the header, a stale file is
//!    recognized without a compiler.
//!
//! The crate keeps its own `Cargo.toml`, lock file and workspace. The builder replaces its release
//! profile. The same sources and compiler give the same bytes in any directory, if the path
//! dependencies of the crate are in its workspace. The symbols of other path dependencies contain a
//! hash that cargo makes of their directory.

mod compiler;
mod error;
mod panics;
mod ptx;

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use compiler::Compiler;
pub use error::Error;
use error::IoContext;
pub use ptx::{PtxFile, SourceFile};

/// The target triple that rustc uses for NVIDIA GPUs.
const TRIPLE: &str = "nvptx64-nvidia-cuda";

/// The flag of rustc that passes an option to LLVM.
const LLVM_ARGS: &str = "-Cllvm-args=";

/// The flag in the line of the flags if panics are reported.
const REPORTS: &str = "panics=reported";

/// The environment variable by which [`build_to_out_dir`] lets kernels report panics.
const PANICS: &str = "THALWEG_PTX_PANICS";

/// The minor version of the oldest rustc 1.x that is known to work.
const MINIMUM: u32 = 95;

/// Builds one crate to PTX.
///
/// ```no_run
/// # fn main() -> Result<(), thalweg_ptx_builder::Error> {
/// use thalweg_ptx_builder::PtxBuilder;
///
/// let ptx = PtxBuilder::new("kernels").target("sm_80").build()?;
/// println!("{:?} by {}", ptx.entries, ptx.compiler);
/// ptx.write("ptx/kernels.ptx")?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct PtxBuilder {
    krate: PathBuf,
    target: String,
    features: Option<String>,
    llvm_args: Vec<String>,
    reports: bool,
    compiler: Option<PathBuf>,
    recorded: Option<String>,
    work_dir: Option<PathBuf>,
}

impl PtxBuilder {
    /// Makes a builder for the crate in the directory `krate`. Its PTX is for compute capability
    /// 7.5 (`sm_75`) and up.
    pub fn new(krate: impl Into<PathBuf>) -> Self {
        let (features, compiler, recorded, work_dir) = (None, None, None, None);
        Self {
            krate: krate.into(),
            target: "sm_75".into(),
            features,
            llvm_args: Vec::new(),
            reports: false,
            compiler,
            recorded,
            work_dir,
        }
    }

    /// Sets the oldest GPU that the PTX is for, such as `sm_80`. Newer GPUs run it too. Default
    /// `sm_75`.
    pub fn target(mut self, target: &str) -> Self {
        self.target = target.into();
        self
    }

    /// Builds the crate with these features, separated by commas, and without its default features.
    pub fn features(mut self, features: &str) -> Self {
        self.features = Some(features.into());
        self
    }

    /// Passes an option to LLVM, such as `-unroll-threshold=20000`. The header of the PTX records
    /// it as the compiler's flag `-Cllvm-args`. Such options decide how loops are unrolled: where a
    /// body indexes an array by a loop's variable, the array stays in registers only if LLVM
    /// unrolls the whole loop.
    pub fn llvm_arg(mut self, option: &str) -> Self {
        self.llvm_args.push(option.into());
        self
    }

    /// Lets a kernel that panics on a GPU report which kernel, block and thread it was, or not,
    /// which is the default. Without a report a panic is a trap, and the host learns only that a
    /// launch failed. A report is about 30 instructions more at each place that panics, and none
    /// elsewhere. It knows neither the line nor the message, which the CPU device tells. `ptxas`
    /// accepts the reports for every architecture, and an H200 has run them.
    pub fn report_panics(mut self, on: bool) -> Self {
        self.reports = on;
        self
    }

    /// Uses this rustc instead of searching for one.
    pub fn compiler(mut self, rustc: impl Into<PathBuf>) -> Self {
        self.compiler = Some(rustc.into());
        self
    }

    /// Uses the compiler that made `ptx` if it is installed and nothing names another one. So a
    /// file that is built again changes only where its sources did.
    pub fn like(mut self, ptx: &PtxFile) -> Self {
        self.recorded = Some(ptx.compiler.clone()).filter(|compiler| !compiler.is_empty());
        self
    }

    /// Sets the directory for intermediate files. Without it, they go to `ptx` in cargo's target
    /// directory.
    ///
    /// Builds that share the directory can run at the same time. They also share the built `core`.
    pub fn work_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.work_dir = Some(dir.into());
        self
    }

    /// Returns the path of the rustc that [`build`](Self::build) would run.
    ///
    /// # Errors
    /// There is no usable compiler.
    pub fn rustc(&self) -> Result<PathBuf, Error> {
        let compiler = Compiler::find(self.compiler.as_deref(), self.recorded.as_deref(), &absolute(&self.krate)?)?;
        Ok(compiler.rustc().into())
    }

    /// Builds the crate. Warnings of the compiler go to standard error. If the caller named no
    /// compiler, the call reads `THALWEG_RUSTC`, and without it takes an installed one.
    ///
    /// # Errors
    /// There is no usable compiler, the compilation fails, or the PTX would not load (see
    /// [`Error`]).
    pub fn build(&self) -> Result<PtxFile, Error> {
        let krate = absolute(&self.krate)?;
        let manifest = krate.join("Cargo.toml");
        fs::metadata(&manifest).at(&manifest)?;
        let compiler = Compiler::find(self.compiler.as_deref(), self.recorded.as_deref(), &krate)?;

        let work = absolute(&self.work_dir.clone().unwrap_or_else(|| default_work_dir(out_dir())))?;
        let scratch = Scratch::new(&work)?;
        let sysroot = self.core(&compiler, &work, &scratch.0)?;
        // What the crate depends on is compiled once. A build takes the files of the one before
        // away, so that no other build has them meanwhile, and puts them back.
        let id = format!("{} {} {}", compiler.name(), self.flags_line(), krate.display());
        let kept = work.join(format!("kernels-{:032x}", ptx::fingerprint(id.as_bytes())));
        let target_dir = scratch.0.join("kernels");
        let mut known = Vec::new();
        if fs::rename(&kept, &target_dir).is_ok() {
            known = forget(&target_dir, &krate)?;
        }
        let mut cargo = compiler.cargo(["rustc", "--lib", "--crate-type=staticlib"], &manifest, &target_dir);
        let mut flags = self.rustc_flags();
        flags.push("--sysroot".into());
        flags.push(sysroot.into());
        cargo.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f".as_ref()));
        if let Some(features) = &self.features {
            cargo.args(["--no-default-features", "--features", features]);
        }
        cargo.args(["--", "--emit=asm"]);
        let made = compiler::run(&mut cargo).and_then(|warnings| {
            if !warnings.is_empty() {
                eprintln!("{warnings}");
            }
            let found = assembly(&target_dir.join(TRIPLE).join("release"))?;
            let path = found.first().cloned().unwrap_or_else(|| target_dir.join("kernels.s"));
            Ok((fs::read_to_string(&path).at(&path)?, sources(&target_dir, &krate, &work)?))
        });
        // After a mistake in the crate, what it depends on is as good as before.
        let compiled = match &made {
            Ok((_, sources)) => sources.clone(),
            Err(_) => known.iter().filter_map(|path| SourceFile::read(&krate, path).ok()).collect(),
        };
        if !compiled.is_empty() && write_sources(&target_dir, &compiled).is_ok() {
            _ = fs::rename(&target_dir, &kept); // unless another build did
        }
        let (text, sources) = made?;
        PtxFile::checked(&text, compiler.name(), &self.target, &self.flags_line(), sources, self.reports)
    }

    /// Returns what has changed since `ptx` was built: paths of sources relative to the crate, or
    /// `the builder's flags`. The list is empty if `ptx` is up to date. This needs no compiler.
    pub fn changes(&self, ptx: &PtxFile) -> Vec<String> {
        let mut changes = Vec::new();
        if ptx.flags != self.flags_line() {
            changes.push("the builder's flags".into());
        }
        let differs = |s: &&SourceFile| SourceFile::read(&self.krate, &s.path).ok().as_ref() != Some(s);
        changes.extend(ptx.sources.iter().filter(differs).map(|s| s.path.clone()));
        changes
    }

    /// Builds `core` and `compiler_builtins` into a sysroot of their own, unless an earlier build
    /// did. Returns the sysroot.
    fn core(&self, compiler: &Compiler, work: &Path, scratch: &Path) -> Result<PathBuf, Error> {
        // `core` itself has no loops for which the options of a crate are meant.
        let without_features = Self { features: None, llvm_args: Vec::new(), reports: false, ..self.clone() };
        let id = format!("{} {}", compiler.name(), without_features.flags_line());
        let sysroot = work.join(format!("core-{:032x}", ptx::fingerprint(id.as_bytes())));
        if sysroot.exists() {
            return Ok(sysroot);
        }
        let build = scratch.join("core");
        let source = build.join("src");
        fs::create_dir_all(&source).at(&source)?;
        // The sources are reached through a link inside the package, so that symbol names do not
        // depend on the directory of rustc.
        let library = link(compiler.library(), build.join("library"));
        // The manifest depends on `alloc`, which is not built. The manifest of `alloc` enables the
        // features that `compiler_builtins` of this compiler needs.
        let manifest = build.join("Cargo.toml");
        let text = format!(
            "[package]\nname = \"core-for-ptx\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\
             [dependencies]\nalloc = {{ path = '{}' }}\n\
             [workspace]\nexclude = ['library']\n",
            library.join("alloc").display()
        );
        fs::write(&manifest, text).at(&manifest)?;
        let lib = source.join("lib.rs");
        fs::write(&lib, "#![no_std]\n").at(&lib)?;

        let target_dir = build.join("target");
        let packages = ["build", "-p=core", "-p=compiler_builtins"];
        let mut cargo = compiler.cargo(packages, &manifest, &target_dir);
        // Link-time optimization of the kernels reads the bitcode.
        let mut flags = without_features.rustc_flags();
        flags.push("-Cembed-bitcode=yes".into());
        cargo.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f".as_ref()));
        cargo.env("RUSTC_BOOTSTRAP", "1"); // `core` uses unstable features on every channel
        compiler::run(&mut cargo)?;

        // The rename comes last, so a sysroot that exists is complete. If another build was faster,
        // its sysroot has the same content.
        let staged = build.join("sysroot");
        let lib = staged.join("lib/rustlib").join(TRIPLE).join("lib");
        fs::create_dir_all(&lib).at(&lib)?;
        // This takes the .rmeta files too, because some cargos leave the metadata out of the .rlib.
        for made in files(&target_dir)? {
            let Some(name) = made.file_name() else { continue };
            let text = name.to_string_lossy();
            if text.starts_with("libcore-") || text.starts_with("libcompiler_builtins-") {
                fs::rename(&made, lib.join(name)).at(&made)?;
            }
        }
        match fs::rename(&staged, &sysroot) {
            Err(_) if sysroot.exists() => {}
            renamed => renamed.at(&sysroot)?,
        }
        Ok(sysroot)
    }

    fn rustc_flags(&self) -> Vec<OsString> {
        let target = format!("-Ctarget-cpu={}", self.target);
        let mut flags: Vec<OsString> =
            [&target, "-Zunstable-options", "-Cpanic=immediate-abort"].map(Into::into).into();
        // For Turing LLVM chooses PTX 6.3, which lacks an instruction that kernels may use
        // (`clamped_bytes`). Drivers know PTX 6.5 since CUDA 10.2.
        if self.target.starts_with("sm_7") {
            flags.push("-Ctarget-feature=+ptx65".into());
        }
        flags.extend(self.llvm_args.iter().map(|option| format!("{LLVM_ARGS}{option}").into()));
        flags
    }

    /// Returns the line of the header with everything but sources and compiler that decides the
    /// output.
    fn flags_line(&self) -> String {
        let profile = compiler::PROFILE.map(|(key, value)| format!("{key}={value}"));
        let flags = self.rustc_flags();
        let flags = flags.join(" ".as_ref());
        let features = self.features.iter().map(|features| format!(" features={features}")).collect::<String>();
        let reports = if self.reports { format!(" {REPORTS}") } else { String::new() };
        format!("{} {}{features}{reports}", flags.display(), profile.join(" "))
    }
}

/// Builds the crate whose build script calls this to `$OUT_DIR/<name>.ptx`, with its default
/// features and for `sm_75` and up. It tells cargo to run the build script again when a source
/// changes.
///
/// If cargo compiles the crate for a GPU, it does nothing (see [`compiles_for_gpu`]).
///
/// With `THALWEG_PTX_PANICS=1` in the environment, kernels that panic on a GPU report where (see
/// [`PtxBuilder::report_panics`]).
///
/// With `THALWEG_PTX=none` in the environment it needs no compiler and writes [`PtxFile::none`].
/// The crate then runs on the CPU device, and a launch on a GPU is an error that says so.
///
/// # Errors
/// [`PtxBuilder::build`] fails, the file cannot be written, `THALWEG_PTX` has a value other than
/// `none`, or the caller is not a build script.
pub fn build_to_out_dir(name: &str) -> Result<(), Error> {
    if compiles_for_gpu() {
        return Ok(());
    }
    let krate = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").ok_or(Error::NotABuildScript)?);
    let out = out_dir().ok_or(Error::NotABuildScript)?;
    println!("cargo:rerun-if-env-changed=THALWEG_RUSTC");
    println!("cargo:rerun-if-env-changed={PANICS}");
    let reports = env::var_os(PANICS).is_some_and(|set| set == "1");
    let without = without_ptx()?;
    let ptx = if without { PtxFile::none() } else { PtxBuilder::new(&krate).report_panics(reports).build()? };
    ptx.write(out.join(format!("{name}.ptx")))?;
    if without {
        println!(
            "cargo:warning=built without PTX, because THALWEG_PTX is `none`: the kernels run on the CPU device only"
        );
        println!("cargo:rerun-if-changed=build.rs"); // or cargo would run it after each change of a source
        return Ok(());
    }
    let mut watched: Vec<PathBuf> = ptx.sources.iter().map(|source| krate.join(&source.path)).collect();
    // The lock file decides the versions of the dependencies from a registry.
    watched.extend(krate.ancestors().map(|dir| dir.join("Cargo.lock")).find(|lock| lock.exists()));
    for path in watched {
        println!("cargo:rerun-if-changed={}", path.display());
    }
    Ok(())
}

/// Writes PTX that is checked in to `$OUT_DIR`, under its own name, so that a build needs no
/// compiler of kernels. Where the sources of the kernels are, the file is used only if the
/// fingerprints in its header agree with them. Otherwise the kernels are built again for this
/// build, and a warning says that `update` is the command that keeps them. In a published package
/// some of the sources are in other packages, so `sources` is false there, and the file is used as
/// it is.
///
/// With `THALWEG_PTX=none` in the environment, [`PtxFile::none`] takes the place of a file that is
/// out of date.
///
/// # Errors
/// The file cannot be read or written and cannot be built again, or the caller is not a build
/// script.
pub fn embed(builder: PtxBuilder, checked_in: &str, sources: bool, update: &str) -> Result<(), String> {
    let text = |error: Error| error.to_string();
    println!("cargo:rerun-if-changed={checked_in}");
    let ptx = if sources { current(builder, checked_in, update)? } else { PtxFile::read(checked_in).map_err(text)? };
    let out = out_dir().ok_or(Error::NotABuildScript).map_err(text)?;
    let name = Path::new(checked_in).file_name().unwrap_or_default();
    ptx.write(out.join(name)).map_err(text)
}

/// Returns the PTX of the present sources: the checked-in file, or a new build if that is stale.
fn current(builder: PtxBuilder, checked_in: &str, update: &str) -> Result<PtxFile, String> {
    // Has cargo run the build script again when a source of the PTX changes.
    let krate = builder.krate.clone();
    let watch = |ptx: &PtxFile| {
        for source in &ptx.sources {
            println!("cargo:rerun-if-changed={}", krate.join(&source.path).display());
        }
    };
    let (stale, builder) = match PtxFile::read(checked_in) {
        Ok(ptx) => match &*builder.changes(&ptx) {
            [] => {
                watch(&ptx);
                return Ok(ptx);
            }
            changes => {
                let stale = format!("{checked_in} was built from other versions of {}", changes.join(", "));
                (stale, builder.like(&ptx))
            }
        },
        Err(error) => (error.to_string(), builder),
    };
    if without_ptx().map_err(|error| error.to_string())? {
        println!("cargo:warning={stale}; THALWEG_PTX is `none`, so these kernels run on the CPU device only");
        return Ok(PtxFile::none());
    }
    println!("cargo:rerun-if-env-changed=THALWEG_RUSTC");
    let ptx = builder.build().map_err(|error| {
        format!(
            "{stale},\nand building the kernels again failed:\n{error}\n\nOnce that is solved, bring it up to date with\n  {update}"
        )
    })?;
    println!("cargo:warning={stale}; the kernels were built again for this build only, to keep them: {update}");
    watch(&ptx);
    Ok(ptx)
}

/// Returns, to a build script, whether `THALWEG_PTX=none` asks for a build without PTX. It tells
/// cargo to run the build script again when the variable changes.
///
/// # Errors
/// The variable has another value.
pub fn without_ptx() -> Result<bool, Error> {
    println!("cargo:rerun-if-env-changed=THALWEG_PTX");
    match env::var_os("THALWEG_PTX").filter(|value| !value.is_empty()) {
        None => Ok(false),
        Some(value) if value == "none" => Ok(true),
        Some(value) => Err(Error::Setting { value: value.to_string_lossy().into() }),
    }
}

/// Returns, to a build script, whether cargo compiles the crate for a GPU. If so, it is
/// [`PtxBuilder::build`] that runs the build script, and the script has nothing to make.
#[must_use]
pub fn compiles_for_gpu() -> bool {
    env::var_os("CARGO_CFG_TARGET_ARCH").is_some_and(|arch| arch == "nvptx64")
}

fn out_dir() -> Option<PathBuf> {
    env::var_os("OUT_DIR").map(PathBuf::from)
}

/// Returns the directory that all builds in one target directory share, so that they build `core`
/// once. In a build script it is found from `$OUT_DIR`.
fn default_work_dir(out: Option<PathBuf>) -> PathBuf {
    let Some(out) = out else { return "target/ptx".into() };
    // Cargo names it `TARGET/PROFILE/build/PACKAGE/out`. In other places the files stay inside.
    let target = out.ancestors().nth(4).filter(|_| out.ancestors().nth(2).is_some_and(|dir| dir.ends_with("build")));
    target.unwrap_or(&out).join("ptx")
}

/// Returns the files from which the crate was compiled for the GPU: its own, those of its path
/// dependencies, and their manifests.
///
/// The list that cargo leaves beside the static library has whole paths, but it also has the files
/// of build scripts and of their dependencies. rustc's own lists have only what was compiled for
/// the GPU, but their paths may be relative. So this takes the files that are in both.
fn sources(target_dir: &Path, krate: &Path, work: &Path) -> Result<Vec<SourceFile>, Error> {
    let release = target_dir.join(TRIPLE).join("release");
    let for_gpu = listed(&release.join("deps"))?;
    let mut paths = Vec::new();
    for file in listed(&release)? {
        // A build script made the files in `work`.
        if !file.starts_with(work) && for_gpu.iter().any(|path| file.ends_with(path)) {
            let mut packages = file.ancestors().map(|dir| dir.join("Cargo.toml"));
            paths.extend(packages.find(|manifest| manifest.exists()));
            paths.push(file);
        }
    }
    paths.sort();
    paths.dedup();
    let relative = paths.iter().map(|path| relative(path, krate));
    relative.map(|path| SourceFile::read(krate, &path)).collect()
}

/// Removes from a kept target directory what belongs to the crate itself, so that cargo compiles it
/// again. Returns the sources that the directory was made from.
///
/// Cargo compares times. If a source has other contents than it was compiled from and is not newer,
/// as after a copy that keeps times, cargo would not see it, and the whole directory goes.
fn forget(target_dir: &Path, krate: &Path) -> Result<Vec<String>, Error> {
    let list = target_dir.join(SOURCES);
    let (Ok(text), Ok(made)) = (fs::read_to_string(&list), fs::metadata(&list).and_then(|list| list.modified())) else {
        fs::remove_dir_all(target_dir).at(target_dir)?;
        return Ok(Vec::new());
    };
    let known: Vec<_> = text.lines().filter_map(|line| line.split_once(' ')).collect();
    for (fingerprint, path) in &known {
        let newer = fs::metadata(krate.join(path)).and_then(|file| file.modified()).is_ok_and(|time| time > made);
        let same = |source: SourceFile| format!("{:032x}", source.fingerprint) == *fingerprint;
        // Cargo sees that a file is missing.
        if !newer && !SourceFile::read(krate, path).map_or(true, same) {
            fs::remove_dir_all(target_dir).at(target_dir)?;
            return Ok(Vec::new());
        }
    }
    let release = target_dir.join(TRIPLE).join("release");
    // The lists of sources beside libraries, one of which may have another name now.
    for entry in fs::read_dir(&release).at(&release)? {
        let path = entry.at(&release)?.path();
        if path.extension().is_some_and(|e| e == "d") {
            fs::remove_file(&path).at(&path)?;
        }
    }
    for path in assembly(&release)? {
        // The file has the name of the library and a hash, which the directory of its fingerprint
        // ends with, too.
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        for file in [path.clone(), path.with_extension("d")] {
            fs::remove_file(&file).at(&file)?;
        }
        let Some((_, hash)) = name.rsplit_once('-') else { continue };
        let all = release.join(".fingerprint");
        for entry in fs::read_dir(&all).at(&all)? {
            let entry = entry.at(&all)?;
            if entry.file_name().to_string_lossy().ends_with(hash) {
                fs::remove_dir_all(entry.path()).at(&entry.path())?;
            }
        }
    }
    Ok(known.into_iter().map(|(_, path)| path.to_owned()).collect())
}

/// The list of sources in a kept target directory.
const SOURCES: &str = "sources";

fn write_sources(target_dir: &Path, sources: &[SourceFile]) -> std::io::Result<()> {
    let line = |source: &SourceFile| format!("{:032x} {}\n", source.fingerprint, source.path);
    fs::write(target_dir.join(SOURCES), sources.iter().map(line).collect::<String>())
}

/// Returns the files of PTX that a build left.
fn assembly(release: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut found = files(&release.join("deps"))?;
    found.retain(|path| path.extension().is_some_and(|e| e == "s"));
    Ok(found)
}

/// Returns the source files that the lists (`*.d`) in a directory name.
fn listed(dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut found = Vec::new();
    for list in fs::read_dir(dir).at(dir)? {
        let list = list.at(dir)?.path();
        if list.extension().is_none_or(|e| e != "d") {
            continue;
        }
        let text = fs::read_to_string(&list).at(&list)?;
        let made_from = text.lines().filter_map(|line| Some(line.split_once(": ")?.1));
        // A space inside a path has a backslash before it.
        let files = made_from
            .flat_map(|files| files.replace("\\ ", "\0").split_whitespace().map(String::from).collect::<Vec<_>>());
        found.extend(files.map(|file| PathBuf::from(file.replace('\0', " "))));
    }
    Ok(found)
}

/// Returns all files under `dir`.
fn files(dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).at(dir)? {
        let entry = entry.at(dir)?;
        let path = entry.path();
        if entry.file_type().at(&path)?.is_dir() {
            found.extend(files(&path)?);
        } else {
            found.push(path);
        }
    }
    Ok(found)
}

/// Makes the link `from` to the directory `to` on Unix, and returns its name. If there can be no
/// link, it returns `to`.
fn link(to: &Path, from: PathBuf) -> PathBuf {
    #[cfg(unix)]
    if std::os::unix::fs::symlink(to, &from).is_ok() {
        return "library".into();
    }
    _ = from;
    to.into()
}

/// A new directory for one build, so that the build does not mistake files of an earlier or
/// concurrent one for its own. Dropping it removes the directory.
struct Scratch(PathBuf);

impl Scratch {
    fn new(work: &Path) -> Result<Self, Error> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("build-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let dir = work.join(name);
        _ = fs::remove_dir_all(&dir); // a killed process with the same number may have left it
        fs::create_dir_all(&dir).at(&dir)?;
        Ok(Self(dir))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0); // a directory that cannot be removed only takes space
    }
}

/// Returns `path` from the root and without `..`, as cargo writes paths. `canonicalize` would
/// follow links, and on Windows it would make a path that cargo does not accept.
fn absolute(path: &Path) -> Result<PathBuf, Error> {
    let mut absolute = PathBuf::new();
    for component in std::path::absolute(path).at(path)?.components() {
        match component {
            Component::ParentDir => _ = absolute.pop(),
            Component::CurDir => {}
            other => absolute.push(other),
        }
    }
    Ok(absolute)
}

/// Returns `path` relative to the directory `base`, with `/` between components.
fn relative(path: &Path, base: &Path) -> String {
    let common = path.components().zip(base.components());
    let common = common.take_while(|(a, b)| a == b).count();
    let up = base.components().skip(common).map(|_| "..".into());
    let down = path.components().skip(common);
    let down = down.map(|c| c.as_os_str().to_string_lossy().into_owned());
    up.chain(down).collect::<Vec<String>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_scripts_of_one_target_directory_share_their_files() {
        let dir = |out: &str| default_work_dir(Some(out.into()));
        assert_eq!(dir("/a/target/debug/build/kernels-1/out"), Path::new("/a/target/ptx"));
        assert_eq!(dir("/a/target/release/build/others-2/out"), Path::new("/a/target/ptx"));
        assert_eq!(dir("/elsewhere/out"), Path::new("/elsewhere/out/ptx"));
        assert_eq!(dir("out"), Path::new("out/ptx"));
        assert_eq!(default_work_dir(None), Path::new("target/ptx"));
    }
}
