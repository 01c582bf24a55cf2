//! What a stream of one device orders, used on the stream of the same tag of another device.
use thalweg::{At, Device, DeviceBuffer, On, Result, Stream, stream_tags};

stream_tags!(Compute);

fn clear<'r>(s: &Stream<At<'r, Compute>>, mut x: On<At<'r, Compute>, DeviceBuffer<u8>>) -> Result<()> {
    s.zero(&mut x)
}

fn main() -> Result<()> {
    let (here, there) = (Device::cpu()?, Device::new_cpu()?);
    here.scope(|a| {
        let s = a.stream::<Compute>()?;
        let x = s.alloc::<u8>(16)?;
        there.scope(|b| {
            let t = b.stream::<Compute>()?;
            //~^ E0521 `a` `escapes the closure body here`
            let x = s.hand_off(x, &t).map_err(|refused| refused.error)?; // fix
            clear(&t, x)
            //~^ E0521 `b` `escapes the closure body here`
        })
    })
}
