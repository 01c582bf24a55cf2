//! The brands of lanes are made by the crate alone.
use thalweg::{StreamTag, Tag}; // bug
use thalweg::Tag; // fix

struct Mine;
impl StreamTag for Mine {} // bug
//~^ E0277 `Mine` `Sealed`
impl Tag for Mine {} // fix

fn main() {}
