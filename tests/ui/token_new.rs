//! The proof of a change of state asked of the crate.
use thalweg::{Bundle, Device, Token, stream_tags};

stream_tags!(Upload);

fn main() -> thalweg::Result<()> {
    let gpu = Device::cpu()?;
    let up = gpu.stream::<Upload>()?;
    let host = up.bind(gpu.pinned::<u8>(16)?)?;
    let host = host.__unbind(Token::new()); // bug
    //~^ E0624 `new`
    let host = up.record(host)?.synchronize()?; // fix
    println!("{}", host[0]);
    Ok(())
}
