//! PTX text, its header, and the checks of it.

use std::fs;
use std::path::Path;

use crate::Error;
use crate::error::IoContext;
use crate::panics;

/// PTX and how it was made.
///
/// The text begins with comment lines. All other fields but `entries` are read from them:
///
/// ```text
/// // Made from Rust by thalweg-ptx-builder. Do not edit: change the sources and build again.
/// // compiler: rustc 1.96.0 (ac68faa20 2026-05-25), LLVM 22.1.8, cargo 1.95.0 (f2d3ce0bd 2026-03-21)
/// // target: sm_75
/// // flags: -Ctarget-cpu=sm_75 ... lto=fat ...
/// // source: 2a77f35f2b1c9ad5ba6ec6fd6da5e0c9 src/lib.rs
/// // entry: saxpy__u32_f32_rf32_xf32 blas-kernels 0.1.0 blas_kernels::level1
/// ```
///
/// Each `entry` line names a kernel that `kernel!` declares, and the package, its version and the
/// module of the declaration. A launcher of `thalweg` accepts only the entry that was made from its
/// own declaration.
///
/// Each `source` line has the fingerprint of a file and its path relative to the crate. The files
/// are those of the crate and its path dependencies that the compiler read for this target, and
/// their manifests. The fingerprint is the 128-bit FNV-1a of the file's bytes, where `\r\n` counts
/// as `\n`. It reveals a change, but it does not protect against someone who wants to hide one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PtxFile {
    /// The whole file with its header.
    pub text: String,
    /// The names of the kernels, in the order of the text.
    pub entries: Vec<String>,
    /// The kernels that `kernel!` declared, each with its package, version and module.
    pub origins: Vec<(String, String)>,
    /// The compiler, with the versions of rustc, LLVM and cargo.
    pub compiler: String,
    /// The oldest GPU that the PTX is for, such as `sm_75`.
    pub target: String,
    /// The flags, the profile and the features, on one line.
    pub flags: String,
    /// The files that the PTX was made from.
    pub sources: Vec<SourceFile>,
}

/// A file that PTX was made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFile {
    /// The path relative to the directory of the crate, with `/` between components.
    pub path: String,
    /// The 128-bit FNV-1a of the contents, where `\r\n` counts as `\n`.
    pub fingerprint: u128,
}

impl SourceFile {
    pub(crate) fn read(krate: &Path, path: &str) -> Result<Self, Error> {
        let file = krate.join(path);
        Ok(Self { path: path.into(), fingerprint: fingerprint(&fs::read(&file).at(&file)?) })
    }
}

impl PtxFile {
    /// Checks the compiler's output and adds the header.
    pub(crate) fn checked(
        body: &str,
        compiler: &str,
        target: &str,
        flags: &str,
        sources: Vec<SourceFile>,
        reports: bool,
    ) -> Result<Self, Error> {
        let mut text = format!(
            "// Made from Rust by thalweg-ptx-builder. Do not edit: change the sources and build again.\n\
             // compiler: {compiler}\n// target: {target}\n// flags: {flags}\n"
        );
        for SourceFile { path, fingerprint } in &sources {
            text += &format!("// source: {fingerprint:032x} {path}\n");
        }
        let (Marks { origins, bounds }, body) = take_marks(body);
        let body = align_maps(&body);
        for (entry, origin) in origins {
            text += &format!("// entry: {entry} {origin}\n");
        }
        let mut body = with_bounds(body, &bounds);
        if reports {
            body = panics::reported(&body);
        }
        text += &body;
        let ptx = Self::parse(text);
        let made = body.lines().find_map(|line| line.strip_prefix(".target "));
        if made.and_then(|made| made.split(',').next()) != Some(target) {
            return Err(Error::UnknownTarget { target: target.into() });
        }
        if ptx.entries.is_empty() {
            return Err(Error::NoEntries);
        }
        let symbols = functions(&body, ".extern");
        if !symbols.is_empty() {
            return Err(Error::Unresolved { symbols });
        }
        let mut functions = functions(&body, "");
        functions.retain(|name| name.contains("9panicking"));
        if !functions.is_empty() {
            return Err(Error::Panics { functions });
        }
        Ok(ptx)
    }

    /// Returns a file without kernels, for a build without PTX. A launch on a GPU finds the line
    /// `// none: ` in it and says why the crate has no PTX.
    #[must_use]
    pub fn none() -> Self {
        let why = "THALWEG_PTX was `none` when the crate was built";
        Self::parse(format!("// There is no PTX in this file. thalweg-ptx-builder wrote it.\n// none: {why}\n"))
    }

    /// Reads the header and the names of the entries from a file's text. PTX from other tools has
    /// no such header, so the fields that come from it are empty.
    #[must_use]
    pub fn parse(text: String) -> Self {
        let header = || text.lines().map_while(|line| line.strip_prefix("// "));
        let field = |key| header().find_map(|line| line.strip_prefix(key));
        let field = |key| field(key).unwrap_or_default().to_string();
        let source = |line: &str| {
            let (hash, path) = line.strip_prefix("source: ")?.split_once(' ')?;
            let fingerprint = u128::from_str_radix(hash, 16).ok()?;
            let path = path.into();
            Some(SourceFile { path, fingerprint })
        };
        let origin = |line: &str| {
            let (entry, origin) = line.strip_prefix("entry: ")?.split_once(' ')?;
            Some((entry.to_string(), origin.to_string()))
        };
        Self {
            entries: text.lines().filter_map(entry).map(String::from).collect(),
            compiler: field("compiler: "),
            target: field("target: "),
            flags: field("flags: "),
            sources: header().filter_map(source).collect(),
            origins: header().filter_map(origin).collect(),
            text,
        }
    }

    /// Returns whether the kernels report their panics (see
    /// [`PtxBuilder::report_panics`](crate::PtxBuilder::report_panics)).
    #[must_use]
    pub fn reports_panics(&self) -> bool {
        self.flags.split(' ').any(|flag| flag == crate::REPORTS)
    }

    /// Returns the options that the builder passed to LLVM (see
    /// [`PtxBuilder::llvm_arg`](crate::PtxBuilder::llvm_arg)).
    pub fn llvm_args(&self) -> impl Iterator<Item = &str> {
        self.flags.split(' ').filter_map(|flag| flag.strip_prefix(crate::LLVM_ARGS))
    }

    /// Reads a file that [`write`](Self::write) wrote.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let text = fs::read_to_string(path).at(path)?;
        Ok(Self::parse(text.replace("\r\n", "\n")))
    }

    /// Writes the text with its header to a file beside `path` and renames it to `path`. So a
    /// reader finds either the old file or the new one.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref();
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir).at(dir)?;
        }
        let beside = path.with_extension("ptx.new");
        fs::write(&beside, &self.text).at(&beside)?;
        fs::rename(&beside, path).at(path)
    }
}

/// The marks that `kernel!` leaves in its entries in the PTX: where each is declared, and the
/// bounds of those that have some, threads and blocks.
struct Marks {
    origins: Vec<(String, String)>,
    bounds: Vec<(String, [u32; 2])>,
}

/// Removes from PTX what `kernel!` put there for the builder, and returns it with the rest: the
/// variables `ENTRY__thalweg_origin` and `ENTRY__thalweg_bounds`. No kernel reads them.
fn take_marks(body: &str) -> (Marks, String) {
    let mut marks = Marks { origins: Vec::new(), bounds: Vec::new() };
    let mut rest = String::with_capacity(body.len());
    for line in body.lines() {
        let text = |(entry, bytes): (String, _)| Some((entry, String::from_utf8(bytes).ok()?));
        if let Some(origin) = mark(line, ORIGIN).and_then(text) {
            marks.origins.push(origin);
        } else if let Some((entry, bytes)) = mark(line, BOUNDS) {
            let number = |at: usize| bytes.iter().skip(at).take(4).rev().fold(0, |n, byte| n << 8 | u32::from(*byte));
            marks.bounds.push((entry, [number(0), number(4)]));
        } else if ![ORIGIN, BOUNDS].iter().any(|suffix| line.trim_end().ends_with(suffix)) {
            rest.push_str(line);
            rest.push('\n');
        }
    }
    marks.origins.sort();
    (marks, rest)
}

const ORIGIN: &str = "__thalweg_origin";
const BOUNDS: &str = "__thalweg_bounds";

/// Reads the entry and the bytes from a line such as
/// `.visible .global .align 1 .b8 ENTRY__thalweg_origin[3] = {97, 98, 99};`.
fn mark(line: &str, suffix: &str) -> Option<(String, Vec<u8>)> {
    let (declared, bytes) = line.trim().strip_suffix("};")?.split_once(" = {")?;
    let name = declared.rsplit(' ').next()?.split('[').next()?;
    let entry = name.strip_suffix(suffix)?;
    let bytes = bytes.split(',').map(|byte| byte.trim().parse()).collect::<Result<_, _>>().ok()?;
    Some((entry.into(), bytes))
}

/// Returns the name of the entry that a line begins to define.
fn entry(line: &str) -> Option<&str> {
    line.strip_prefix(".visible .entry ")?.split('(').next().map(str::trim)
}

/// Gives entries the directives of their bounds, which stand between the parameters and the body.
fn with_bounds(body: String, bounds: &[(String, [u32; 2])]) -> String {
    if bounds.is_empty() {
        return body;
    }
    let mut text = String::with_capacity(body.len());
    let mut of_entry = None;
    for line in body.lines() {
        if let Some(name) = entry(line) {
            of_entry = bounds.iter().find(|(entry, _)| entry == name);
        }
        if line.starts_with('{')
            && let Some((_, [threads, blocks])) = of_entry.take()
        {
            text += &format!(".maxntid {threads}, 1, 1\n");
            if *blocks > 0 {
                text += &format!(".minnctapersm {blocks}\n");
            }
        }
        text += line;
        text.push('\n');
    }
    text
}

/// Aligns the parameters of entries that may hold maps of the copy engine, which reads them only
/// from multiples of 64 bytes. These are the parameters that are passed by value and have a
/// multiple of 128 bytes. rustc cannot say it: it fails on parameters with an alignment of more
/// than 16.
fn align_maps(body: &str) -> String {
    let aligned = |line: &str| {
        let (align, name) = line.trim_start().strip_prefix(".param .align ")?.split_once(" .b8 ")?;
        let (_, bytes) = name.trim_end_matches(',').strip_suffix(']')?.rsplit_once('[')?;
        let (align, bytes): (u32, u32) = (align.parse().ok()?, bytes.parse().ok()?);
        let holds_maps = name.contains("_param_") && align < 64 && bytes > 0 && bytes.is_multiple_of(128);
        holds_maps.then(|| format!("\t.param .align 64 .b8 {name}"))
    };
    let mut text = String::with_capacity(body.len());
    let mut in_entry = false; // functions are left alone: those who call them state the alignment too
    for line in body.lines() {
        in_entry = line.starts_with(".visible .entry ") || in_entry && !line.starts_with('{');
        match aligned(line).filter(|_| in_entry) {
            Some(aligned) => text.push_str(&aligned),
            None => text.push_str(line),
        }
        text.push('\n');
    }
    text
}

/// Computes the 128-bit FNV-1a of `bytes`, where `\r\n` counts as `\n`.
pub(crate) fn fingerprint(bytes: &[u8]) -> u128 {
    let mut hash: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    for (i, &byte) in bytes.iter().enumerate() {
        if byte == b'\r' && bytes.get(i + 1) == Some(&b'\n') {
            continue;
        }
        hash = (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
    }
    hash
}

/// Returns the names of the device functions that `PREFIX .func` declares or defines. The name is
/// the last word before the list of parameters. A return value in parentheses may come before the
/// name.
fn functions(ptx: &str, prefix: &str) -> Vec<String> {
    let mut names = Vec::new();
    for line in ptx.lines() {
        let Some(rest) = line.strip_prefix(prefix) else { continue };
        let Some(rest) = rest.trim_start().strip_prefix(".func") else { continue };
        let rest = rest.trim_start();
        let rest = match rest.strip_prefix('(') {
            Some(value) => value.split_once(')').map_or("", |(_, rest)| rest),
            None => rest,
        };
        let name = rest.trim_start().split(|c: char| c == '(' || c == ';' || c.is_whitespace());
        names.extend(name.take(1).filter(|name| !name.is_empty()).map(String::from));
    }
    names.sort();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &str = "\
.version 6.3
.target sm_75
.visible .entry a(
\t.param .u32 a_param_0
)
{
}
.func  (.param .b32 func_retval0) helper(
)
.visible .entry b()
{
}
";

    fn check(extra: &str) -> Result<PtxFile, Error> {
        let sources = vec![SourceFile { path: "src/lib.rs".into(), fingerprint: 7 }];
        PtxFile::checked(&format!("{BODY}{extra}"), "rustc", "sm_75", "-C", sources, false)
    }

    #[test]
    fn the_header_reads_back() {
        let ptx = check("").unwrap();
        assert_eq!(ptx.entries, ["a", "b"]);
        assert_eq!((&*ptx.compiler, &*ptx.target, &*ptx.flags), ("rustc", "sm_75", "-C"));
        assert_eq!(ptx.sources[0].fingerprint, 7);
        assert_eq!(PtxFile::parse(ptx.text.clone()), ptx);
        let foreign = PtxFile::parse(BODY.into());
        assert_eq!((foreign.entries.len(), foreign.sources.len()), (2, 0));
    }

    #[test]
    fn the_options_for_llvm_read_back() {
        let flags = "-Ctarget-cpu=sm_80 -Cllvm-args=-a=1 -Cllvm-args=-b opt-level=3";
        let ptx = PtxFile::checked(BODY, "rustc", "sm_75", flags, Vec::new(), false).unwrap();
        assert_eq!(ptx.llvm_args().collect::<Vec<_>>(), ["-a=1", "-b"]);
    }

    #[test]
    fn where_entries_are_declared_goes_from_the_text_to_the_header() {
        let variable = ".visible .global .align 1 .b8 b__thalweg_origin[5] = {107, 32, 49, 32, 109};\n";
        let ptx = check(&format!("\t// .globl\tb__thalweg_origin\n{variable}")).unwrap();
        assert_eq!(ptx.origins, [("b".to_string(), "k 1 m".to_string())]);
        assert!(ptx.text.contains("\n// entry: b k 1 m\n") && !ptx.text.contains("__thalweg_origin"), "{}", ptx.text);
        assert_eq!(
            ptx.text.lines().filter(|line| !line.starts_with("// ")).collect::<Vec<_>>(),
            BODY.lines().collect::<Vec<_>>()
        );
    }

    #[test]
    fn bounds_go_from_the_text_to_directives_of_their_entries() {
        let bounds = |entry: &str, bytes: &str| {
            format!(
                "\t// .globl\t{entry}__thalweg_bounds\n\
                 .visible .global .align 1 .b8 {entry}__thalweg_bounds[8] = {{{bytes}}};\n"
            )
        };
        let without = check("").unwrap().text;
        let both = check(&(bounds("b", "0, 1, 0, 0, 3, 0, 0, 0") + &bounds("a", "96, 0, 0, 0, 0, 0, 0, 0"))).unwrap();
        let expected = without
            .replace("\t.param .u32 a_param_0\n)\n{", "\t.param .u32 a_param_0\n)\n.maxntid 96, 1, 1\n{")
            .replace("b()\n{", "b()\n.maxntid 256, 1, 1\n.minnctapersm 3\n{");
        assert_eq!(both.text, expected);
    }

    #[test]
    fn parameters_that_may_hold_maps_are_aligned_for_the_copy_engine() {
        let entry = |maps| {
            format!(
                ".visible .entry c(\n\t.param .u32 c_param_0,\n{maps},\n\t.param .align 8 .b8 c_param_2[120]\n)\n{{\n}}\n"
            )
        };
        let ptx = check(&entry("\t.param .align 8 .b8 c_param_1[256]")).unwrap();
        assert!(ptx.text.ends_with(&entry("\t.param .align 64 .b8 c_param_1[256]")), "{}", ptx.text);
        for same in ["\t.param .align 8 .b8 c_param_1[136]", "\t.param .align 128 .b8 c_param_1[256]"] {
            assert!(check(&entry(same)).unwrap().text.ends_with(&entry(same)));
        }
        let function = ".func f(\n\t.param .align 8 .b8 f_param_0[256]\n)\n{\n}\n";
        assert!(check(function).unwrap().text.ends_with(function));
    }

    #[test]
    fn ptx_that_would_not_load_is_refused() {
        let made = |body, target| PtxFile::checked(body, "", target, "", vec![], false);
        assert!(matches!(made(".target sm_75\n", "sm_75"), Err(Error::NoEntries)));
        assert!(matches!(made(".target sm_75\n", "sm_999"), Err(Error::UnknownTarget { .. })));
        let vprintf = ".extern .func  (.param .b32 func_retval0) vprintf\n(\n\t.param .b64 p\n)\n;\n";
        let Err(Error::Unresolved { symbols }) = check(&format!("{vprintf}.extern .func f()\n;\n")) else { panic!() };
        assert_eq!(symbols, ["f", "vprintf"]);
        check(".extern .shared .align 16 .b8 smem[];\n").unwrap();
        let panic = ".func _RNvNtC4core9panicking18panic_bounds_check(\n)\n";
        assert!(matches!(check(panic), Err(Error::Panics { functions }) if functions.len() == 1));
    }

    #[test]
    fn fingerprints_are_fnv_1a_and_ignore_the_kind_of_line_end() {
        // These are test vectors of the FNV reference implementation.
        assert_eq!(fingerprint(b""), 0x6c62272e07bb014262b821756295c58d);
        assert_eq!(fingerprint(b"a"), 0xd228cb696f1a8caf78912b704e4a8964);
        assert_eq!(fingerprint(b"foobar"), 0x343e1662793c64bf6f0d3597ba446f18);
        assert_eq!(fingerprint(b"a\r\nb\r"), fingerprint(b"a\nb\r"));
    }
}
