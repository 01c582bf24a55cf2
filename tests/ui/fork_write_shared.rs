//! A buffer that both branches of a capture read, written by one of them.
use thalweg::{Device, stream_tags};

stream_tags!(Work);

fn main() -> thalweg::Result<()> {
    let work = Device::cpu()?.stream::<Work>()?;
    let three = [work.alloc::<u32>(16)?, work.alloc::<u32>(16)?, work.alloc::<u32>(16)?];
    work.capture(three, |s, [input, x, y]| {
        s.fork(
            (&*input, &mut *x),
            (&*input, &mut *y),
            |a, (input, x)| a.copy(x, input), // bug
            //~^ E0596 `BranchRef<`
            |a, (input, x)| a.copy(input, x), // fix
            |b, (input, y)| b.copy(input, y),
        )
    })?;
    Ok(())
}
