//! Which entry of a crate's PTX a launcher reaches, and how arguments arrive there. This crate has
//! PTX, which that of the other tests has not.

mod identity;
mod launches;

thalweg::ptx! { unsafe = include_str!("fixtures/entries.ptx") }
