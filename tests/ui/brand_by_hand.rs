//! The brands of lanes and captures are made by the crate alone.
use thalweg::{Brand, LiveBrand, Tag}; // bug
use thalweg::Tag; // fix

struct Mine;
impl Brand for Mine {} // bug
//~^ E0277 `Mine` `Sealed`
impl LiveBrand for Mine {} // bug
//~^ E0277 `Mine` `Sealed`
impl Tag for Mine {} // fix

fn main() {}
