//! A buffer of a capture on the stream of a branch that it was not lent to.
use thalweg::{Device, stream_tags};

stream_tags!(Work);

fn main() -> thalweg::Result<()> {
    let work = Device::cpu()?.stream::<Work>()?;
    let three = [work.alloc::<u32>(16)?, work.alloc::<u32>(16)?, work.alloc::<u32>(16)?];
    work.capture(three, |s, [x, y, z]| {
        s.fork(
            &mut *x,
            &mut *y,
            |a, _| a.fill(z, 1), // bug
            //~^ E0521 `escapes outside of closure`
            |a, x| a.fill(x, 1), // fix
            |b, y| b.fill(y, 2),
        )?;
        s.fill(z, 1)
    })?;
    Ok(())
}
