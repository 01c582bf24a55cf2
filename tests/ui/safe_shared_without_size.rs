//! Shared memory of elements without bytes, by whose size the start of a window was divided.
use thalweg::kernel;

thalweg::ptx! {}

kernel! {
    fn windows(b: impl Cooperative)
    grid(1) block(32) shared(64)
    {
        let window = b.shared::<[u32; 0]>(1); // bug
        //~ E0080 `an element must have a size`
        let window = b.shared::<[u32; 1]>(1); // fix
        let _ = window.len();
    }
}

fn main() {
    let compute = thalweg::Device::cpu().unwrap();
    thalweg::stream_tags!(Compute);
    windows(&compute.stream::<Compute>().unwrap()).unwrap();
}
