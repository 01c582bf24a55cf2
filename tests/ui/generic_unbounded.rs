//! A function over any `S`, of which nothing says that it stands for a stream.
use thalweg::{LiveBrand, Result, Stream};

fn wait<S>(s: &Stream<S>) -> Result<()> { // bug
fn wait<S: LiveBrand>(s: &Stream<S>) -> Result<()> { // fix
    s.synchronize()
    //~^ E0277 `the bound is` `LiveBrand`
}

fn main() {}
