//! The brand of a capture as a tag, so that memory could be allocated in it.
use thalweg::{Capture, Tag};

struct Mine;
impl Tag for Capture<'static> {} // bug
//~^ E0117 `Capture` `is not defined in the current crate`
impl Tag for Mine {} // fix

fn main() {}
