//! The witness of a thread, made by the macro that makes it for the CPU device. Its context could
//! be that of another thread.
use thalweg::kernel;

thalweg::ptx! {}

struct Fake<C>(C);

impl<C: Copy> Fake<C> {
    fn run_independent(&self, f: impl Fn(C)) {
        f(self.0)
    }
}

kernel! {
    fn forged(t: impl Simt, n: u32, y: Out<u32>[n] by [x])
    grid(1) block(32)
    {
        let fake = Fake(**t);
        fake.run_independent(|_| {});
        thalweg_simt::__safe_context!(cpu Simt fake, |t| { y.cell(t).unwrap().set(77) }); // bug
        //~^ error `no rules expected`
        y.cell(t).unwrap().set(77); // fix
    }
}

fn main() {}
