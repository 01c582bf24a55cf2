//! A buffer that a branch of a capture writes, used on the capture's stream before the join.
use thalweg::{Device, stream_tags};

stream_tags!(Work);

fn main() -> thalweg::Result<()> {
    let work = Device::cpu()?.stream::<Work>()?;
    let pair = (work.alloc::<u32>(16)?, work.alloc::<u32>(16)?);
    work.capture(pair, |s, (x, y)| {
        s.fork(
            &mut *x,
            &mut *y,
            |a, x| a.fill(x, 1),
            |_, _| s.fill(x, 2), // bug
            //~^ E0500 `requires unique access`
            |b, y| b.fill(y, 2), // fix
        )?;
        s.copy(x, y)
    })?;
    Ok(())
}
