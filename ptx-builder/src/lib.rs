//! Builds a Rust crate to PTX, with rustc's own `nvptx64-nvidia-cuda` backend.
//!
//! A crate of kernels is an ordinary `no_std` library whose entries are declared with
//! `thalweg_simt::kernel!`. Its own build script makes its PTX:
//!
//! ```no_run
//! // build.rs: builds this crate to `$OUT_DIR/kernels.ptx`, again whenever one of its sources changes
//! fn main() -> Result<(), thalweg_ptx_builder::Error> {
//!     thalweg_ptx_builder::build_to_out_dir("kernels")
//! }
//! ```
//!
//! and `thalweg_simt::ptx! { unsafe "kernels" }` in its root embeds the file. [`PtxBuilder`] does the
//! same in steps; the command `thalweg-ptx` makes, and checks, PTX that is kept in a repository.
//!
//! # What it needs
//!
//! A rustc, 1.95 or newer, with the sources of `core`, and cargo. No CUDA toolkit, no linker, no
//! network. The first that has the sources is taken, of: the one named with
//! [`compiler`](PtxBuilder::compiler) or in `THALWEG_RUSTC` (then no other); the current toolchain;
//! rustup's toolchains; `/usr/bin/rustc`. So one of these is enough:
//!
//! ```text
//! rustup component add rust-src
//! apt-get install rustc-web rust-web-src        # Debian 12 and its security updates
//! ```
//!
//! # What it does
//!
//! 1. Builds `core` for the GPU, once per compiler and target (10 to 20 s), into a directory of its
//!    own. This is what `-Zbuild-std=core` does, short of resolving the dependencies of `std`, which
//!    would need a network.
//! 2. Builds the crate with that `core`, with fat link-time optimisation and panics that trap, as a
//!    static library, so that no linker runs, and takes the assembly, which is the PTX.
//! 3. Checks the PTX: it has entries, every symbol is resolved, and no call of `core`'s panic
//!    functions is left.
//! 4. Heads it with the compiler, the flags, where each entry was declared, and a fingerprint of each
//!    source file (see [`Ptx`]), so that a checked-in file can be told from a stale one without a
//!    compiler.
//!
//! The crate keeps its own `Cargo.toml`, lock file and workspace; its release profile is replaced.
//! The same sources and compiler give the same bytes in any directory, as long as the crate's path
//! dependencies lie in its workspace: cargo names the symbols of others after their place.

mod compiler;
mod error;
mod ptx;

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use compiler::Compiler;
pub use error::Error;
use error::IoContext;
pub use ptx::{Ptx, Source};

/// The target triple of rustc for NVIDIA GPUs.
const TRIPLE: &str = "nvptx64-nvidia-cuda";

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
    compiler: Option<PathBuf>,
    work_dir: Option<PathBuf>,
}

impl PtxBuilder {
    /// A builder for the crate in the directory `krate`, for compute capability 7.5 (`sm_75`) and up.
    pub fn new(krate: impl Into<PathBuf>) -> Self {
        Self { krate: krate.into(), target: "sm_75".into(), features: None, compiler: None, work_dir: None }
    }

    /// The oldest GPU that the PTX is for, as `sm_75`; newer ones run it too.
    pub fn target(mut self, target: &str) -> Self {
        self.target = target.into();
        self
    }

    /// The features of the crate to build with, separated by commas, instead of its default ones.
    pub fn features(mut self, features: &str) -> Self {
        self.features = Some(features.into());
        self
    }

    /// The rustc to use, instead of searching for one.
    pub fn compiler(mut self, rustc: impl Into<PathBuf>) -> Self {
        self.compiler = Some(rustc.into());
        self
    }

    /// Where intermediate files go; `$OUT_DIR/ptx` in a build script, else `target/ptx`.
    ///
    /// Builds that share it can run at the same time, and share the built `core`.
    pub fn work_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.work_dir = Some(dir.into());
        self
    }

    /// Builds the crate. Warnings of the compiler go to standard error.
    ///
    /// # Errors
    /// No usable compiler, a failed compilation, or PTX that would not load: see [`Error`].
    pub fn build(&self) -> Result<Ptx, Error> {
        let krate = absolute(&self.krate)?;
        let manifest = krate.join("Cargo.toml");
        fs::metadata(&manifest).at(&manifest)?;
        let compiler = Compiler::find(self.compiler.as_deref())?;

        let work = absolute(&self.work_dir.clone().unwrap_or_else(default_work_dir))?;
        let scratch = Scratch::new(&work)?;
        let sysroot = self.core(&compiler, &work, &scratch.0)?;
        let target_dir = scratch.0.join("kernels");
        let asm = scratch.0.join("kernels.s");
        let mut cargo = compiler.cargo(["rustc", "--lib", "--crate-type=staticlib"], &manifest, &target_dir);
        let mut flags = self.rustc_flags();
        flags.push("--sysroot".into());
        flags.push(sysroot.into());
        cargo.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f".as_ref()));
        if let Some(features) = &self.features {
            cargo.args(["--no-default-features", "--features", features]);
        }
        let mut emit = OsString::from("--emit=asm=");
        emit.push(&asm);
        cargo.arg("--").arg(emit);
        let warnings = compiler::run(&mut cargo)?;
        if !warnings.is_empty() {
            eprintln!("{warnings}");
        }

        let text = fs::read_to_string(&asm).at(&asm)?;
        let sources = sources(&target_dir, &krate, &work)?;
        Ptx::checked(&text, compiler.name(), &self.target, &self.flags_line(), sources)
    }

    /// What has changed since `ptx` was built: paths of sources relative to the crate, or `the
    /// builder's flags`. Empty when it is up to date. Needs no compiler.
    pub fn changes(&self, ptx: &Ptx) -> Vec<String> {
        let mut changes = Vec::new();
        if ptx.flags != self.flags_line() {
            changes.push("the builder's flags".into());
        }
        let differs = |s: &&Source| Source::read(&self.krate, &s.path).ok().as_ref() != Some(s);
        changes.extend(ptx.sources.iter().filter(differs).map(|s| s.path.clone()));
        changes
    }

    /// Builds `core` and `compiler_builtins` into a sysroot of their own, unless that was done before.
    fn core(&self, compiler: &Compiler, work: &Path, scratch: &Path) -> Result<PathBuf, Error> {
        let without_features = Self { features: None, ..self.clone() };
        let id = format!("{} {}", compiler.name(), without_features.flags_line());
        let sysroot = work.join(format!("core-{:032x}", ptx::fingerprint(id.as_bytes())));
        if sysroot.exists() {
            return Ok(sysroot);
        }
        let build = scratch.join("core");
        let source = build.join("src");
        fs::create_dir_all(&source).at(&source)?;
        // Through a link inside the package, so that symbol names do not depend on where rustc lives.
        let library = link(compiler.library(), build.join("library"));
        // `alloc` is not built: it knows what features its compiler's `compiler_builtins` wants.
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
        // Bitcode is what link-time optimisation of the kernels reads.
        let mut flags = self.rustc_flags();
        flags.push("-Cembed-bitcode=yes".into());
        cargo.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f".as_ref()));
        cargo.env("RUSTC_BOOTSTRAP", "1"); // `core` uses its own unstable features on any channel
        compiler::run(&mut cargo)?;

        // Renamed last: a sysroot that exists is complete. Where another build was faster, its one is the same.
        let staged = build.join("sysroot");
        let lib = staged.join("lib/rustlib").join(TRIPLE).join("lib");
        fs::create_dir_all(&lib).at(&lib)?;
        // The .rmeta, too: some cargos leave the metadata out of the .rlib.
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
        [&target, "-Zunstable-options", "-Cpanic=immediate-abort"].map(Into::into).into()
    }

    /// Everything that decides the output besides sources and compiler, for the header.
    fn flags_line(&self) -> String {
        let profile = compiler::PROFILE.map(|(key, value)| format!("{key}={value}"));
        let flags = self.rustc_flags();
        let flags = flags.join(" ".as_ref());
        let features = self.features.iter().map(|features| format!(" features={features}")).collect::<String>();
        format!("{} {}{features}", flags.display(), profile.join(" "))
    }
}

/// For the build script of a crate of kernels: builds that crate, with its default features, to `$OUT_DIR/<name>.ptx`
/// for `sm_75` and up, and tells cargo to run the build script again when one of its sources changes.
///
/// # Errors
/// Those of [`PtxBuilder::build`], or no build script runs this.
pub fn build_to_out_dir(name: &str) -> Result<(), Error> {
    if compiles_for_gpu() {
        return Ok(());
    }
    let krate = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").ok_or(Error::NotABuildScript)?);
    let out = env::var_os("OUT_DIR").ok_or(Error::NotABuildScript)?;
    let ptx = PtxBuilder::new(&krate).build()?;
    ptx.write(Path::new(&out).join(format!("{name}.ptx")))?;
    let mut watched: Vec<PathBuf> = ptx.sources.iter().map(|source| krate.join(&source.path)).collect();
    // The lock file decides the versions of what comes from a registry.
    watched.extend(krate.ancestors().map(|dir| dir.join("Cargo.lock")).find(|lock| lock.exists()));
    for path in watched {
        println!("cargo:rerun-if-changed={}", path.display());
    }
    println!("cargo:rerun-if-env-changed=THALWEG_RUSTC");
    Ok(())
}

/// For build scripts: whether cargo compiles the crate for a GPU. Then [`PtxBuilder::build`] runs the build script, as a part
/// of its work, and the script has nothing to make.
#[must_use]
pub fn compiles_for_gpu() -> bool {
    env::var_os("CARGO_CFG_TARGET_ARCH").is_some_and(|arch| arch == "nvptx64")
}

fn default_work_dir() -> PathBuf {
    match env::var_os("OUT_DIR") {
        Some(out) => Path::new(&out).join("ptx"),
        None => "target/ptx".into(),
    }
}

/// The files that made the crate for the GPU, its own and those of its path dependencies, with their manifests.
///
/// The list that cargo leaves beside the static library has whole paths, but also the files of build scripts and of what
/// they depend on. rustc's own lists have what was compiled for the GPU, with paths that may be relative.
fn sources(target_dir: &Path, krate: &Path, work: &Path) -> Result<Vec<Source>, Error> {
    let release = target_dir.join(TRIPLE).join("release");
    let for_gpu = listed(&release.join("deps"))?;
    let mut paths = Vec::new();
    for file in listed(&release)? {
        // What lies in `work` was made by a build script.
        if !file.starts_with(work) && for_gpu.iter().any(|path| file.ends_with(path)) {
            let mut packages = file.ancestors().map(|dir| dir.join("Cargo.toml"));
            paths.extend(packages.find(|manifest| manifest.exists()));
            paths.push(file);
        }
    }
    paths.sort();
    paths.dedup();
    let relative = paths.iter().map(|path| relative(path, krate));
    relative.map(|path| Source::read(krate, &path)).collect()
}

/// The source files in the lists (`*.d`) in a directory.
fn listed(dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut found = Vec::new();
    for list in fs::read_dir(dir).at(dir)? {
        let list = list.at(dir)?.path();
        if list.extension().is_none_or(|e| e != "d") {
            continue;
        }
        let text = fs::read_to_string(&list).at(&list)?;
        let made_from = text.lines().filter_map(|line| Some(line.split_once(": ")?.1));
        // Spaces inside a path are escaped.
        let files = made_from
            .flat_map(|files| files.replace("\\ ", "\0").split_whitespace().map(String::from).collect::<Vec<_>>());
        found.extend(files.map(|file| PathBuf::from(file.replace('\0', " "))));
    }
    Ok(found)
}

/// All files under `dir`.
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

/// Links to the directory `to` where links are common, and names it where they are not.
fn link(to: &Path, from: PathBuf) -> PathBuf {
    #[cfg(unix)]
    if std::os::unix::fs::symlink(to, &from).is_ok() {
        return "library".into();
    }
    _ = from;
    to.into()
}

/// A new directory for one build, so that nothing an earlier or a concurrent build left is taken for this one's. Dropping it
/// removes it.
struct Scratch(PathBuf);

impl Scratch {
    fn new(work: &Path) -> Result<Self, Error> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("build-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let dir = work.join(name);
        _ = fs::remove_dir_all(&dir); // of a process with the same number that was killed
        fs::create_dir_all(&dir).at(&dir)?;
        Ok(Self(dir))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0); // what cannot be removed takes space and harms nobody
    }
}

/// `path` from the root and without `..`, as cargo writes paths; `canonicalize` would follow links,
/// and on Windows make a path that cargo does not take.
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

/// `path` as seen from the directory `base`, with `/` between components.
fn relative(path: &Path, base: &Path) -> String {
    let common = path.components().zip(base.components());
    let common = common.take_while(|(a, b)| a == b).count();
    let up = base.components().skip(common).map(|_| "..".into());
    let down = path.components().skip(common);
    let down = down.map(|c| c.as_os_str().to_string_lossy().into_owned());
    up.chain(down).collect::<Vec<String>>().join("/")
}
