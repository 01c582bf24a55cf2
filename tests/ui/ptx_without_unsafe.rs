//! PTX from elsewhere without the word `unsafe`, by a rule that `ptx!` has for itself.
use thalweg::ptx;

ptx! { @ [] "", } // bug
//~ error `no rules expected`
ptx! { unsafe = "" } // fix

fn main() {}
