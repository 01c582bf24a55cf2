//! Files that are either whole or absent.
//!
//! A file is written under a random name in the folder of its destination, and renamed when it is
//! complete. No reader therefore sees an incomplete file, a full disk or Ctrl-C leaves none, and
//! two runs that write into one folder do not mix their files.

use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Map, Value, json};
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
    tensors: (&Path, &[Tensor<'_>], Map<String, Value>),
    heatmap: Option<(&Path, &[u8])>,
) -> Result<(), String> {
    let _whole = writing();
    let (path, tensors, metadata) = tensors;
    let first = stage(path, |file| safetensors(file, tensors, metadata))?;
    let second = heatmap.map(|(path, png)| stage(path, |file| file.write_all(png))).transpose()?;
    publish(first)?;
    second.map_or(Ok(()), publish)
}

/// Runs a function that writes files. Ctrl-C ends the process only before or after it.
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

/// Checks that a file can be written. A run calls it before the work whose result goes there.
pub(crate) fn can_write(path: &Path) -> Result<(), String> {
    let _whole = writing();
    if path.is_dir() {
        return Err(format!("cannot write {}: this is a folder", path.display()));
    }
    stage(path, |_| Ok(())).map(drop)
}

type Staged<'a> = (NamedTempFile, &'a Path);

fn stage<'a>(
    path: &'a Path,
    write: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>,
) -> Result<Staged<'a>, String> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
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
    /// The name of a 16-bit format, and the bits of its numbers.
    Half(&'static str, &'a [u16]),
}

/// The name, elements and shape of a tensor.
pub(crate) type Tensor<'a> = (&'static str, Data<'a>, Vec<usize>);

/// Writes the safetensors format: the length of the header (u64), the header in JSON, and the
/// tensors without gaps, all in little-endian order. Keys are sorted, so equal inputs give equal
/// bytes.
fn safetensors(to: &mut impl Write, tensors: &[Tensor<'_>], metadata: Map<String, Value>) -> io::Result<()> {
    use Data::{F32, F64, Half, I32};
    let mut header = Map::new();
    header.insert("__metadata__".to_owned(), Value::Object(metadata));
    let mut offset = 0;
    for (name, data, shape) in tensors {
        let (dtype, len, size) = match data {
            F32(values) => ("F32", values.len(), 4),
            F64(values) => ("F64", values.len(), 8),
            I32(values) => ("I32", values.len(), 4),
            Half(dtype, values) => (*dtype, values.len(), 2),
        };
        debug_assert_eq!(len, shape.iter().product::<usize>(), "{name}");
        let end = offset + size * len;
        header.insert((*name).to_owned(), json!({ "dtype": dtype, "shape": shape, "data_offsets": [offset, end] }));
        offset = end;
    }
    let mut header = Value::Object(header).to_string();
    while !header.len().is_multiple_of(8) {
        header.push(' ');
    }

    to.write_all(&(header.len() as u64).to_le_bytes())?;
    to.write_all(header.as_bytes())?;
    for (_, data, _) in tensors {
        match data {
            F64(values) => values.iter().try_for_each(|v| to.write_all(&v.to_le_bytes()))?,
            F32(values) => values.iter().try_for_each(|v| to.write_all(&v.to_le_bytes()))?,
            I32(values) => values.iter().try_for_each(|v| to.write_all(&v.to_le_bytes()))?,
            Half(_, values) => values.iter().try_for_each(|v| to.write_all(&v.to_le_bytes()))?,
        }
    }
    Ok(())
}
