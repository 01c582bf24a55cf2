//! A change of state without the proof that only the crate can make.
use thalweg::{Device, Resource, Token, stream_tags};

stream_tags!(Upload);

fn main() -> thalweg::Result<()> {
    let gpu = Device::cpu()?;
    let up = gpu.stream::<Upload>()?;
    let host = gpu.pinned::<u8>(16)?;
    drop(host.__bind(up, Token(()))); // bug
    //~^ E0423 `private fields`
    drop(up.bind(host)?); // fix
    Ok(())
}
