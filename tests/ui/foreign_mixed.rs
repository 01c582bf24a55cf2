//! A buffer of one foreign stream, used on another.
use thalweg::{Device, ForeignStream, Result};

fn main() -> Result<()> {
    let gpu = Device::cpu()?;
    let (one, two) = (ForeignStream::legacy(gpu)?, ForeignStream::per_thread(gpu)?);
    one.enter(|a| {
        two.enter(|b| {
            let mut x = a.alloc::<u8>(16)?;
            let mut y = b.alloc::<u8>(16)?;
            b.copy(&x, &mut y)?; // bug
            //~^ E0521 `Foreign<`
            b.copy(&a.hand(x, b)?, &mut y)?; // fix
            Ok(())
        })
    })
}
