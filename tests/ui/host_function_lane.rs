//! A host function that takes its lane along.
use thalweg::{AnyStream, Device};

fn main() -> thalweg::Result<()> {
    let stream = AnyStream::new(Device::cpu()?)?;
    stream.enter(|s| {
        let s = *s;
        let serial = s.unique_id();
        s.launch_host(move || println!("{s:?}")) // bug
        //~^ E0521 `Stream<Scoped<`
        s.launch_host(move || println!("{serial}")) // fix
    })
}
