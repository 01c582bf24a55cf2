//! A buffer of a branch, kept beyond the join.
use thalweg::{Device, stream_tags};

stream_tags!(Work);

fn main() -> thalweg::Result<()> {
    let work = Device::cpu()?.stream::<Work>()?;
    let pair = (work.alloc::<u32>(16)?, work.alloc::<u32>(16)?);
    work.capture(pair, |s, (x, y)| {
        let mut kept = None; // bug
        s.fork(
            &mut *x,
            &mut *y,
            |a, x| {
                a.fill(x, 1)?;
                kept = Some(x); // bug
                //~^ E0521 `escapes outside of closure`
                Ok(())
            },
            |b, y| b.fill(y, 2),
        )
    })?;
    Ok(())
}
