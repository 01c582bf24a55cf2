//! The brands of lanes and captures are made by the crate alone.
use thalweg::{Brand, StreamTag, Tag}; // bug
use thalweg::Tag; // fix

struct Mine;
impl Brand for Mine {} // bug
//~^ E0277 `Mine` `Sealed`
impl StreamTag for Mine {} // bug
//~^ E0277 `Mine` `Sealed`
impl Tag for Mine {} // fix

fn main() {}
