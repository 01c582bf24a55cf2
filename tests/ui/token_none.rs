//! A change of state without any proof.
use thalweg::{Bundle, Device, stream_tags};

stream_tags!(Upload);

fn main() -> thalweg::Result<()> {
    let gpu = Device::cpu()?;
    let up = gpu.stream::<Upload>()?;
    let host = up.bind(gpu.pinned::<u8>(16)?)?;
    let host = host.__unbind(()); // bug
    //~^ E0308 `Token` `()`
    let host = up.record(host)?.synchronize()?; // fix
    println!("{}", host[0]);
    Ok(())
}
