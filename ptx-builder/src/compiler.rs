//! Finds a rustc that has the sources of `core`, and runs cargo with it.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::IoContext;
use crate::{Error, MINIMUM, TRIPLE};

/// The release profile, which replaces that of the crate's workspace. All of it decides the output.
pub(crate) const PROFILE: [(&str, &str); 8] = [
    ("opt-level", "3"),
    ("lto", "fat"),
    ("codegen-units", "1"),
    ("panic", "abort"),
    ("debug", "false"),
    ("debug-assertions", "false"),
    ("overflow-checks", "false"),
    ("incremental", "false"),
];

/// A rustc with the sources of `core`, and the cargo to run it with.
pub(crate) struct Compiler {
    rustc: PathBuf,
    cargo: PathBuf,
    library: PathBuf,
    name: String,
    stable: bool,
}

impl Compiler {
    pub(crate) fn find(explicit: Option<&Path>) -> Result<Self, Error> {
        let set = || env::var_os("THALWEG_RUSTC").filter(|rustc| !rustc.is_empty());
        let explicit = explicit.map(PathBuf::from).or_else(|| set().map(Into::into));
        let mut tried = Vec::new();
        for rustc in explicit.map_or_else(candidates, |rustc| vec![rustc]) {
            match Self::at(&rustc) {
                Ok(compiler) => return Ok(compiler),
                Err(why) => tried.push(format!("{}: {why}", rustc.display())),
            }
        }
        Err(Error::NoCompiler { tried })
    }

    /// Returns the compiler at `rustc`, or says what it lacks.
    fn at(rustc: &Path) -> Result<Self, String> {
        let version = output(rustc, &["-vV"])?;
        let field = |key| version.lines().find_map(|line| line.strip_prefix(key));
        let first = version.lines().next().unwrap_or_default();
        let release = field("release: ").unwrap_or_default();
        let llvm = field("LLVM version: ").unwrap_or_default();
        let minor = release.split('.').nth(1).and_then(|n| n.parse().ok());
        if !release.starts_with("1.") || minor.is_none_or(|minor: u32| minor < MINIMUM) {
            return Err(format!("{first} is older than 1.{MINIMUM}"));
        }
        let sysroot = PathBuf::from(output(rustc, &["--print=sysroot"])?.trim());
        let library = sysroot.join("lib/rustlib/src/rust/library");
        if !library.join("core/src/lib.rs").exists() {
            return Err(format!("{first} has no sources of `core`"));
        }
        // This is the rustc itself. rustup's proxy would choose one by the current directory.
        let in_sysroot = |tool| sysroot.join("bin").join(format!("{tool}{}", env::consts::EXE_SUFFIX));
        let rustc = Some(in_sysroot("rustc")).filter(|path| path.exists());
        let rustc = rustc.ok_or_else(|| format!("no rustc in {}/bin", sysroot.display()))?;
        // The toolchain's own cargo is used if it has the release of its rustc. Debian's
        // /usr/bin/cargo may be much older, and then the current cargo is used.
        let own = in_sysroot("cargo");
        let own_version = output(&own, &["-V"]).ok();
        let own_version = own_version.filter(|v| v.split(' ').nth(1) == Some(release));
        let (cargo, cargo_version) = match own_version {
            Some(version) => (own, version),
            None => {
                let cargo = PathBuf::from(env::var_os("CARGO").unwrap_or("cargo".into()));
                let version = output(&cargo, &["-V"]).map_err(|why| format!("its cargo: {why}"))?;
                (cargo, version)
            }
        };
        let nightly = release.contains("nightly") && cargo_version.contains("nightly");
        Ok(Self {
            name: format!("{first}, LLVM {llvm}, {}", cargo_version.trim()),
            stable: !nightly,
            rustc,
            cargo,
            library,
        })
    }

    /// Returns the versions of rustc, LLVM and cargo. Compilers with equal names make equal PTX.
    /// (The name includes cargo because cargo chooses the hashes in symbol names.)
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the directory with the sources of `core` and of the other library crates.
    pub(crate) fn library(&self) -> &Path {
        &self.library
    }

    /// Returns a cargo command that builds for the GPU. It is isolated from the cargo that may be
    /// running this process, which holds a lock on its target directory and has flags for the host.
    pub(crate) fn cargo(
        &self,
        command: impl IntoIterator<Item = &'static str>,
        manifest: &Path,
        target_dir: &Path,
    ) -> Command {
        let mut cargo = Command::new(&self.cargo);
        cargo.args(command);
        cargo.args(["--quiet", "--release", "--target", TRIPLE]);
        cargo.arg("--manifest-path").arg(manifest);
        cargo.arg("--target-dir").arg(target_dir);
        for (name, _) in env::vars_os() {
            if is_inherited(&name) {
                cargo.env_remove(name);
            }
        }
        cargo.env("RUSTC", &self.rustc);
        // The variables are empty and not unset, because a configuration file may name wrappers
        // too.
        cargo.env("RUSTC_WRAPPER", "");
        cargo.env("RUSTC_WORKSPACE_WRAPPER", "");
        for (key, value) in PROFILE {
            let key = key.to_uppercase().replace('-', "_");
            cargo.env(format!("CARGO_PROFILE_RELEASE_{key}"), value);
        }
        if self.stable {
            cargo.env("RUSTC_BOOTSTRAP", "1");
        }
        cargo
    }
}

/// Returns where to look for a compiler if none is named.
fn candidates() -> Vec<PathBuf> {
    let mut found = vec![PathBuf::from(env::var_os("RUSTC").unwrap_or("rustc".into()))];
    let home = env::var_os("RUSTUP_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(env::home_dir()?.join(".rustup")));
    let toolchains = home.and_then(|home| fs::read_dir(home.join("toolchains")).ok());
    let mut toolchains: Vec<PathBuf> =
        toolchains.into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())).collect();
    // Releases come before nightlies, because a nightly changes while its name stays.
    toolchains.sort_by_key(|path| (path.to_string_lossy().contains("nightly"), path.clone()));
    let rustc = format!("bin/rustc{}", env::consts::EXE_SUFFIX);
    found.extend(toolchains.iter().map(|toolchain| toolchain.join(&rustc)));
    found.push("/usr/bin/rustc".into());
    found.retain(|rustc| rustc.components().count() == 1 || rustc.exists());
    found
}

/// Returns whether an environment variable comes from an outer cargo or is for host builds. The
/// variables that say where cargo keeps its files and how it reaches the network do not count.
fn is_inherited(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    let kept = ["CARGO_HOME", "CARGO_NET_", "CARGO_HTTP_", "CARGO_REGISTR", "CARGO_SOURCE_"];
    (name.starts_with("CARGO") && !kept.iter().any(|kept| name.starts_with(kept)))
        || name.starts_with("RUSTC")
        || name.starts_with("RUSTDOC")
        || name == "RUSTFLAGS"
}

/// Returns the standard output of a short command, or says what failed.
fn output(program: &Path, args: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(args).output();
    let output = output.map_err(|e| format!("cannot run {}: {e}", program.display()))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        return Err(stderr.lines().next().unwrap_or("failed").into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a build and returns its standard error, which contains warnings if the build succeeds.
pub(crate) fn run(command: &mut Command) -> Result<String, Error> {
    let output = command.output().at(command.get_program().as_ref())?;
    let stderr = String::from_utf8_lossy(&output.stderr).trim().to_string();
    if output.status.success() {
        return Ok(stderr);
    }
    let words = [command.get_program()].into_iter().chain(command.get_args());
    let words: Vec<_> = words.map(OsStr::to_string_lossy).collect();
    Err(Error::Compile { command: words.join(" "), stderr })
}
