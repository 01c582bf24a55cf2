//! A thread that outlives the scope whose streams it uses.
use thalweg::{Device, Result, stream_tags};

stream_tags!(Compute);

fn main() -> Result<()> {
    Device::cpu()?.scope(|rank| {
        std::thread::spawn(move || rank.stream::<Compute>().map(drop)); // bug
        //~^ E0521 `rank`
        std::thread::scope(|t| t.spawn(move || rank.stream::<Compute>().map(drop)).join()).unwrap()?; // fix
        Ok(())
    })
}
