//! A struct with a reference, which would be an address of the host in a kernel.
use thalweg::by_value;

by_value! {
    //~ E0277 `a kernel cannot have a parameter of type` `&'static [f32]`
    #[derive(Clone, Copy)]
    struct Row {
        values: &'static [f32], // bug
        values: [f32; 4], // fix
    }
}

fn main() {}
