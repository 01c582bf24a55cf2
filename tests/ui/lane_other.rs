//! What one lane orders, used on another.
use thalweg::{AnyStream, DeviceBuffer, Device, Scoped, On, Result, Stream};

fn clear<'a>(a: &Stream<Scoped<'a>>, mut x: On<Scoped<'a>, DeviceBuffer<u8>>) -> Result<()> {
    a.zero(&mut x)
}

fn main() -> Result<()> {
    let gpu = Device::cpu()?;
    let (a, b) = (AnyStream::new(gpu)?, AnyStream::new(gpu)?);
    a.enter(|a| {
        let x = a.alloc::<u8>(16)?;
        b.enter(|b| {
            let x = a.hand_off(x, b)?; // fix
            clear(b, x)
            //~^ E0521 `Scoped<`
        })
    })
}
