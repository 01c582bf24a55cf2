//! What one foreign stream orders, used on another.
use thalweg::{Device, DeviceBuffer, Foreign, ForeignStream, On, Result, Stream};

fn clear<'a>(a: &Stream<Foreign<'a>>, mut x: On<Foreign<'a>, DeviceBuffer<u8>>) -> Result<()> {
    a.zero(&mut x)
}

fn main() -> Result<()> {
    let gpu = Device::cpu()?;
    let (a, b) = (ForeignStream::legacy(gpu)?, ForeignStream::legacy(gpu)?);
    a.enter(|a| {
        let x = a.alloc::<u8>(16)?;
        b.enter(|b| {
            let x = a.hand_off(x, b)?; // fix
            clear(b, x)
            //~^ E0521 `Foreign<`
        })
    })
}
