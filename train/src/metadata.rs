//! The values in the metadata of files of weights.

use crate::error::Result;
use crate::layers::{Gelu, Pooling};
use crate::tensors::Tensors;

/// Reads the value `key` of the metadata, a number of blocks. A file has a tensor at least for
/// each.
pub(crate) fn blocks(file: &Tensors, key: &str, default: Option<usize>) -> Result<usize> {
    let depth = number(file, key, default)?;
    if depth > file.tensors.len() {
        return Err(file.format_error(format!("`{key}` is {depth}, and there are {} tensors", file.tensors.len())));
    }
    Ok(depth)
}

/// Reads the value `key` of the metadata, which the file must have if there is no default.
pub(crate) fn number(file: &Tensors, key: &str, default: Option<usize>) -> Result<usize> {
    let found = file.value(key)?.or(default);
    found.ok_or_else(|| file.format_error(format!("the metadata has no `{key}`")))
}

/// Reads what the metadata of a file of weights says: `heads`, `depth`, and if they are there
/// `eps`, `gelu` and `pool`. The first two may have defaults.
pub(crate) fn metadata(
    file: &Tensors,
    [heads, depth]: [Option<usize>; 2],
    (eps, gelu, pool): (f32, Gelu, Pooling),
) -> Result<(usize, usize, f32, Gelu, Pooling)> {
    let gelu = match file.metadata.get("gelu").map(String::as_str) {
        None => gelu,
        Some("tanh") => Gelu::Tanh,
        Some("erf") => Gelu::Erf,
        Some(other) => return Err(file.format_error(format!("`gelu` is `tanh` or `erf`, and not `{other}`"))),
    };
    let pool = match file.metadata.get("pool").map(String::as_str) {
        None => pool,
        Some("mean") => Pooling::Mean,
        Some("cls") => Pooling::Class,
        Some(other) => return Err(file.format_error(format!("`pool` is `mean` or `cls`, and not `{other}`"))),
    };
    let (heads, depth) = (number(file, "heads", heads)?, blocks(file, "depth", depth)?);
    Ok((heads, depth, file.value("eps")?.unwrap_or(eps), gelu, pool))
}
