//! Generic kernels without instances, and with instances that do not fit them.
use thalweg::{kernel, ptx};

ptx! {}

kernel! {
    unsafe fn none<T>(cx: impl Simt, x: In<T>)
    //~^ error `a generic kernel names its instances after its parameters`
    instances { none_f32 = <f32> } // fix
    grid(1) block(1)
    {}
}

kernel! {
    unsafe fn few<T, const N: u32>(cx: impl Simt, x: In<T>)
    instances { few_f32 = <f32> } // bug
    //~^ error `has 2 parameters of generics, and this instance 1`
    instances { few_f32 = <f32, 1> } // fix
    grid(1) block(1)
    {}
}

kernel! {
    unsafe fn path<T>(cx: impl Simt, x: In<T>)
    instances { path_f32 = <std::primitive::f32> } // bug
    //~^ error `bring a type into scope with`
    instances { path_f32 = <f32> } // fix
    grid(1) block(1)
    {}
}

kernel! {
    unsafe fn twice<T>(cx: impl Simt, x: In<T>)
    instances { twice_a = <f32>, twice_b = <f32> } // bug
    //~^ E0119 `conflicting implementations`
    instances { twice_a = <f32> } // fix
    grid(1) block(1)
    {}
}

fn main() {}
