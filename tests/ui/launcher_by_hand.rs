//! The host side of a declaration, without the promise that arguments which pass `require` are
//! sound.
thalweg::ptx! {}

thalweg_simt::__launcher! {
    [{} None false None]
    fn touch(n: u32, x: Out<u32>) // bug
    //~^ error `fn`
    unsafe fn touch(n: u32, x: Out<u32>) // fix
    { x.len() == n } (1) (32) ()
}

fn main() {}
