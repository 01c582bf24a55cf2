//! Files that are either whole or absent.
//!
//! A file is written under a random name in the folder of its destination, and renamed when it is
//! complete. No reader therefore sees an incomplete file, a full disk or Ctrl-C leaves none, and
//! two runs that write into one folder do not mix their files.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use safetensors::{Dtype, SafeTensorError};
use serde_json::Value;
use tempfile::NamedTempFile;

/// Held while temporary files exist.
static WRITING: Mutex<()> = Mutex::new(());

fn writing() -> MutexGuard<'static, ()> {
    WRITING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes Ctrl-C, SIGTERM and SIGHUP end the process only after the result that is being written is
/// complete.
pub(crate) fn finish_writing_on_interrupt() -> Result<(), String> {
    #[cfg(unix)]
    let handled = {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
        signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP]).and_then(|mut signals| {
            let wait = move || signals.forever().for_each(interrupted);
            std::thread::Builder::new().name("signals".into()).spawn(wait).map(drop)
        })
    };
    #[cfg(not(unix))]
    let handled = ctrlc::set_handler(|| interrupted(2)); // SIGINT
    handled.map_err(|e| format!("cannot handle Ctrl-C: {e}"))
}

/// Ends the process with the exit code that shells report for the signal.
fn interrupted(signal: i32) {
    let _whole = writing();
    say(format_args!("thalweg: interrupted; the files that were written are whole"));
    std::process::exit(128 + signal)
}

/// Writes the tensors, and a heatmap if there is one. Neither is published before both are written.
pub(crate) fn write(
    tensors: (&Path, &[Tensor<'_>], &BTreeMap<String, String>),
    heatmap: Option<(&Path, &[u8])>,
) -> Result<(), String> {
    let _whole = writing();
    let (path, tensors, metadata) = tensors;
    let views = tensors.iter().map(|(name, data, shape)| (*name, View(data, shape)));
    let bytes = serialize(views, metadata).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
    let first = stage(path, |file| file.write_all(&bytes))?;
    let second = heatmap.map(|(path, png)| stage(path, |file| file.write_all(png))).transpose()?;
    publish(first)?;
    second.map_or(Ok(()), publish)
}

/// Returns a safetensors file. Equal tensors and metadata give equal bytes: the crate takes the
/// metadata from a hash map, so the header is sorted here.
fn serialize<'n>(
    tensors: impl IntoIterator<Item = (&'n str, View<'n>)>,
    metadata: &BTreeMap<String, String>,
) -> Result<Vec<u8>, SafeTensorError> {
    let mut file = safetensors::serialize(tensors, Some(metadata.clone().into_iter().collect()))?;
    if let Some((&mut len, rest)) = file.split_first_chunk_mut() {
        let header = &mut rest[..u64::from_le_bytes(len) as usize];
        let sorted: BTreeMap<String, BTreeMap<String, Value>> = serde_json::from_slice(header)?;
        serde_json::to_writer(header, &sorted)?; // the same length, so the spaces behind it stay
    }
    Ok(file)
}

/// Runs a function that writes files. Ctrl-C ends the process only before or after it.
#[cfg(feature = "train")]
pub(crate) fn whole<T>(write: impl FnOnce() -> T) -> T {
    let _whole = writing();
    write()
}

/// Writes one file.
pub(crate) fn write_bytes(path: &Path, bytes: &[u8]) -> Result<(), String> {
    let _whole = writing();
    publish(stage(path, |file| file.write_all(bytes))?)
}

/// Prints to standard output. A full disk or a closed pipe is an error and does not panic.
pub(crate) fn print(text: &str) -> Result<(), String> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|e| format!("cannot write to standard output: {e}"))
}

/// Prints a line to standard error. It ignores a full disk or a closed pipe, because nobody is left
/// to be told. `eprintln!` would panic, and in the thread that handles signals it would end the
/// handling.
pub(crate) fn say(line: fmt::Arguments<'_>) {
    _ = io::stderr().write_fmt(format_args!("{line}\n"));
}

/// The bar of work on photographs.
pub(crate) const IMAGES: &str = "{bar:40} {pos}/{len} images  {elapsed}  {wide_msg}";

/// Returns a bar on standard error. It is drawn on a terminal only, and not if the run is quiet.
pub(crate) fn bar(len: usize, template: &str, quiet: bool) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(len as u64), ProgressDrawTarget::hidden());
    if io::stderr().is_terminal() && !quiet {
        bar.set_draw_target(ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
    }
    bar
}

/// Checks that a file can be written. A run calls it before the work whose result goes there.
pub(crate) fn can_write(path: &Path) -> Result<(), String> {
    let _whole = writing();
    if path.is_dir() {
        return Err(format!("cannot write {}: this is a folder", path.display()));
    }
    stage(path, |_| Ok(())).map(drop)
}

/// Returns the folder of a file.
pub(crate) fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

type Staged<'a> = (NamedTempFile, &'a Path);

fn stage<'a>(
    path: &'a Path,
    write: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>,
) -> Result<Staged<'a>, String> {
    let folder = folder(path);
    let mut builder = tempfile::Builder::new();
    builder.prefix(".thalweg-").suffix(".tmp");
    // The umask decides who may read the file, as for any other new file. By default, only the
    // owner could read it.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let written = builder.tempfile_in(folder).and_then(|temp| {
        let mut file = BufWriter::with_capacity(1 << 20, temp.as_file());
        write(&mut file)?;
        file.flush()?;
        drop(file);
        Ok(temp)
    });
    Ok((written.map_err(|e| cannot_write(path, &e))?, path))
}

fn publish((temp, path): Staged<'_>) -> Result<(), String> {
    temp.persist(path).map(drop).map_err(|e| cannot_write(path, &e.error))
}

fn cannot_write(path: &Path, error: &io::Error) -> String {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|folder| !folder.exists()) {
        return format!("cannot write {}: there is no folder {}", path.display(), folder.display());
    }
    // `tempfile` adds where its file would have been, which says nothing to a user.
    let error = error.to_string();
    format!("cannot write {}: {}", path.display(), error.split(" at path ").next().unwrap_or(&error))
}

/// The elements of a tensor.
pub(crate) enum Data<'a> {
    F32(&'a [f32]),
    F64(&'a [f64]),
    I32(&'a [i32]),
    I64(&'a [i64]),
    /// A 16-bit format, and the bits of its numbers.
    Half(Dtype, &'a [u16]),
}

/// The name, elements and shape of a tensor.
pub(crate) type Tensor<'a> = (&'static str, Data<'a>, Vec<usize>);

/// A tensor as it is written.
struct View<'a>(&'a Data<'a>, &'a [usize]);

impl View<'_> {
    /// The format is little-endian, as every host that runs kernels is.
    fn bytes(&self) -> &[u8] {
        match self.0 {
            Data::F32(values) => bytemuck::cast_slice(values),
            Data::F64(values) => bytemuck::cast_slice(values),
            Data::I32(values) => bytemuck::cast_slice(values),
            Data::I64(values) => bytemuck::cast_slice(values),
            Data::Half(_, values) => bytemuck::cast_slice(values),
        }
    }
}

impl safetensors::View for View<'_> {
    fn dtype(&self) -> Dtype {
        match self.0 {
            Data::F32(_) => Dtype::F32,
            Data::F64(_) => Dtype::F64,
            Data::I32(_) => Dtype::I32,
            Data::I64(_) => Dtype::I64,
            Data::Half(dtype, _) => *dtype,
        }
    }
    fn shape(&self) -> &[usize] {
        self.1
    }
    fn data(&self) -> Cow<'_, [u8]> {
        self.bytes().into()
    }
    fn data_len(&self) -> usize {
        self.bytes().len()
    }
}
