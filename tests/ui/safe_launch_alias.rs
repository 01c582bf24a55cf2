//! One buffer as an input and as an output of a kernel without `unsafe`.
use thalweg::{DeviceBuffer, Error, On, Stream, kernel, ptx, stream_tags};

ptx! {}
stream_tags!(Compute);

kernel! {
    fn copy(t: impl Simt, n: u32, x: In<f32>[n], y: Out<f32>[n] by [x])
    grid(n.div_ceil(64)) block(64)
    {
        if let Some(y) = y.cell(t) {
            y.set(x.get(t, y.at()));
        }
    }
}

fn both(on: &Stream<Compute>, x: &mut On<Compute, DeviceBuffer<f32>>, y: &On<Compute, DeviceBuffer<f32>>) -> Result<(), Error> {
    copy(on, 1, x, x) // bug
    //~^ E0502 `*x`
    copy(on, 1, y, x) // fix
}

fn main() {}
