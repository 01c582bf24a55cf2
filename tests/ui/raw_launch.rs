//! The launch beneath the launchers, which checks nothing.
use thalweg_simt::host::{Declaration, Kernel, Launch, LaunchShape};
use thalweg::{Device, ptx, stream_tags};

ptx! {}

stream_tags!(Compute);

static KERNEL: Kernel = Kernel::new(
    &PTX,
    Declaration { origin: "mine", name: "mine", entry: "mine_", parameters: &[], cpu: None, cooperative: false, bounds: None },
);

fn main() -> thalweg::Result<()> {
    let compute = Device::cpu()?.stream::<Compute>()?;
    let shape = LaunchShape::new(&KERNEL, &[1], &[1], 0)?;
    compute.launch(&KERNEL, shape, &[])?; // bug
    //~^ E0133 `launch` `unsafe`
    println!("{shape:?}"); // fix
    compute.synchronize()
}
