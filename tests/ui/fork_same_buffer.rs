//! A buffer that both branches of a capture write.
use thalweg::{Device, stream_tags};

stream_tags!(Work);

fn main() -> thalweg::Result<()> {
    let work = Device::cpu()?.stream::<Work>()?;
    let pair = (work.alloc::<u32>(16)?, work.alloc::<u32>(16)?);
    work.capture(pair, |s, (x, y)| {
        s.fill(y, 0)?;
        s.fork(&mut *x, &mut *x, |a, x| a.fill(x, 1), |b, x| b.fill(x, 2))?; // bug
        //~^ E0499 `as mutable more than once at a time`
        s.fork(&mut *x, &mut *y, |a, x| a.fill(x, 1), |b, y| b.fill(y, 2))?; // fix
        s.copy(x, y)
    })?;
    Ok(())
}
