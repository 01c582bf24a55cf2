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
    /// Whether it is a release and no beta or nightly, its version, and the date of its commit.
    age: (bool, u32, u32, String),
}

impl Compiler {
    /// Returns the compiler that `explicit` or `THALWEG_RUSTC` names. If neither names one, it
    /// returns the one with the name `recorded` if that is installed. Otherwise it returns the
    /// current toolchain of the directory `krate` if that will do, or else the newest one that
    /// does.
    pub(crate) fn find(explicit: Option<&Path>, recorded: Option<&str>, krate: &Path) -> Result<Self, Error> {
        let set = || env::var_os("THALWEG_RUSTC").filter(|rustc| !rustc.is_empty());
        let explicit = explicit.map(PathBuf::from).or_else(|| set().map(Into::into));
        match explicit {
            Some(rustc) => choose(&rustc, &[], None, krate),
            None => {
                let current = PathBuf::from(env::var_os("RUSTC").unwrap_or("rustc".into()));
                choose(&current, &installed(), recorded, krate)
            }
        }
    }

    /// Returns the compiler at `rustc`, or says what it lacks.
    fn at(rustc: &Path, krate: &Path) -> Result<Self, String> {
        let output = |program: &Path, args: &[&str]| output(program, args, krate);
        let version = output(rustc, &["-vV"])?;
        let field = |key| version.lines().find_map(|line| line.strip_prefix(key));
        let first = version.lines().next().unwrap_or_default();
        let release = field("release: ").unwrap_or_default();
        let llvm = field("LLVM version: ").unwrap_or_default();
        let minor = release.split('.').nth(1).and_then(|n| n.parse().ok());
        let patch = release.split(['.', '-']).nth(2).and_then(|n| n.parse().ok()).unwrap_or(0);
        let Some(minor) = minor.filter(|minor: &u32| release.starts_with("1.") && *minor >= MINIMUM) else {
            return Err(format!("{first} is older than 1.{MINIMUM}"));
        };
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
                // It runs in the current directory, not in the crate's.
                let version =
                    self::output(&cargo, &["-V"], Path::new(".")).map_err(|why| format!("its cargo: {why}"))?;
                (cargo, version)
            }
        };
        let nightly = release.contains("nightly") && cargo_version.contains("nightly");
        Ok(Self {
            name: format!("{first}, LLVM {llvm}, {}", cargo_version.trim()),
            stable: !nightly,
            age: (!release.contains('-'), minor, patch, field("commit-date: ").unwrap_or_default().into()),
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

    /// Returns the path of the rustc.
    pub(crate) fn rustc(&self) -> &Path {
        &self.rustc
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

/// Returns the compiler with the name `recorded` if there is one. Otherwise it returns the one at
/// `current` if that will do, or else the newest of the `others`. Releases count as newer than
/// nightlies, because a nightly changes while the name of its toolchain stays.
fn choose(current: &Path, others: &[PathBuf], recorded: Option<&str>, krate: &Path) -> Result<Compiler, Error> {
    let mut tried = Vec::new();
    let mut at = |rustc: &Path| match Compiler::at(rustc, krate) {
        Ok(compiler) => Some(compiler),
        Err(why) => {
            tried.push(format!("{}: {why}", rustc.display()));
            None
        }
    };
    let current = match at(current) {
        Some(compiler) if recorded.is_none_or(|recorded| compiler.name == recorded) => return Ok(compiler),
        other => other,
    };
    let mut others: Vec<Compiler> = others.iter().filter_map(|rustc| at(rustc)).collect();
    if let Some(same) = others.iter().position(|compiler| Some(&*compiler.name) == recorded) {
        return Ok(others.swap_remove(same));
    }
    // Of equals it takes the first.
    let newest = others.into_iter().reduce(|best, other| if other.age > best.age { other } else { best });
    current.or(newest).ok_or(Error::NoCompiler { tried })
}

/// Returns the compilers of rustup and of the system, in an order that does not change.
fn installed() -> Vec<PathBuf> {
    let home = env::var_os("RUSTUP_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(env::home_dir()?.join(".rustup")));
    let toolchains = home.and_then(|home| fs::read_dir(home.join("toolchains")).ok());
    let rustc = format!("bin/rustc{}", env::consts::EXE_SUFFIX);
    let mut found: Vec<PathBuf> =
        toolchains.into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path().join(&rustc))).collect();
    found.sort();
    found.push("/usr/bin/rustc".into());
    found.retain(|rustc| rustc.exists());
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
fn output(program: &Path, args: &[&str], krate: &Path) -> Result<String, String> {
    // rustup's proxies choose a toolchain by the directory in which they run. A path stays relative
    // to ours.
    let path = if program.components().count() > 1 { std::path::absolute(program) } else { Ok(program.into()) };
    let output = path.and_then(|path| Command::new(path).args(args).current_dir(krate).output());
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

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Makes a toolchain that says that it is this release, and returns its rustc.
    fn toolchain(dir: &Path, name: &str, release: &str, date: &str) -> PathBuf {
        let root = dir.join(name);
        let sources = root.join("lib/rustlib/src/rust/library/core/src");
        fs::create_dir_all(&sources).unwrap();
        fs::write(sources.join("lib.rs"), "").unwrap();
        fs::create_dir_all(root.join("bin")).unwrap();
        let script = |tool: &str, text: String| {
            let path = root.join("bin").join(tool);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            path
        };
        script("cargo", format!("#!/bin/sh\necho 'cargo {release} ({date})'\n"));
        script(
            "rustc",
            format!(
                "#!/bin/sh\nif [ \"$1\" = -vV ]; then echo 'rustc {release} ({date})'; echo 'commit-date: {date}'; \
                 echo 'release: {release}'; echo 'LLVM version: 22'; else echo '{}'; fi\n",
                root.display()
            ),
        )
    }

    #[test]
    fn the_choice_depends_on_versions_and_not_on_the_order_or_the_names() {
        let dir = env::temp_dir().join(format!("thalweg-ptx-toolchains-{}", std::process::id()));
        let old = toolchain(&dir, "z-old", "1.96.2", "2026-05-01");
        let new = toolchain(&dir, "a-new", "1.100.0", "2026-10-01");
        let nightly = toolchain(&dir, "nightly", "1.103.0-nightly", "2026-11-01");
        let later = toolchain(&dir, "a-nightly", "1.103.0-nightly", "2026-11-02");
        let too_old = toolchain(&dir, "too-old", "1.94.0", "2026-01-01");
        let none = dir.join("none/bin/rustc");
        let name = |current: &Path, others: &[&PathBuf], recorded| {
            let others: Vec<_> = others.iter().map(|it| (*it).clone()).collect();
            choose(current, &others, recorded, &dir).map(|it| it.name).map_err(|error| error.to_string())
        };
        let (is_old, is_new) = ("rustc 1.96.2 (2026-05-01), LLVM 22, cargo 1.96.2 (2026-05-01)", "rustc 1.100.0");

        // The current toolchain comes first, whatever else there is.
        assert_eq!(name(&old, &[&new, &nightly], None).unwrap(), is_old);
        // Without it, the newest release does, in any order.
        for others in [[&old, &new, &nightly], [&nightly, &new, &old], [&new, &nightly, &old]] {
            assert!(name(&none, &others, None).unwrap().starts_with(is_new));
            assert!(name(&too_old, &others, None).unwrap().starts_with(is_new));
            // A recorded compiler comes before both.
            assert_eq!(name(&none, &others, Some(is_old)).unwrap(), is_old);
            assert_eq!(name(&nightly, &others, Some(is_old)).unwrap(), is_old);
            // If it is not there, the choice is as without it.
            assert!(name(&none, &others, Some("rustc 1.97.0")).unwrap().starts_with(is_new));
            assert_eq!(name(&old, &others, Some("rustc 1.97.0")).unwrap(), is_old);
        }
        assert!(name(&none, &[&nightly, &later], None).unwrap().contains("2026-11-02"));
        let error = name(&none, &[&too_old], None).unwrap_err();
        assert!(error.contains("none/bin/rustc") && error.contains("1.94.0 (2026-01-01) is older"), "{error}");
        fs::remove_dir_all(dir).unwrap();
    }
}
