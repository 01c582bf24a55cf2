//! Attribute macros that are called like the attributes which the macros write: the language takes
//! none of them for its own attribute.
use thalweg::ptx;

ptx! {}

mod inline {
    #[rustfmt::skip] use core::prelude::v1::test as inline; // bug
    thalweg::kernel! {
        //~^ E0659 `is ambiguous`
        unsafe fn k<T: thalweg::simt::Element>(cx: impl Simt, n: u32, y: Out<T>) instances { k_u8 = <u8> } grid(1) block(1) {}
    }
}
mod track_caller {
    //~ E0659 `track_caller`
    #[rustfmt::skip] use core::prelude::v1::test as track_caller; // bug
    thalweg::kernel! {
        //~^ E0659 `is ambiguous`
        unsafe fn k<T: thalweg::simt::Element>(cx: impl Simt, n: u32, y: Out<T>) instances { k_u8 = <u8> } grid(1) block(1) {}
    }
}
mod repr {
    #[rustfmt::skip] use core::prelude::v1::test as repr; // bug
    thalweg::by_value! {
        //~^ E0659 `is ambiguous`
        #[derive(Clone, Copy)]
        struct Size {
            n: u32,
        }
    }
}
mod doc {
    #[rustfmt::skip] use core::prelude::v1::test as doc; // bug
    thalweg::kernel! {
        //~^ E0659 `is ambiguous`
        unsafe fn k<T: thalweg::simt::Element>(cx: impl Simt, n: u32, y: Out<T>) instances { k_u8 = <u8> } grid(1) block(1) {}
    }
}
mod must_use {
    #[rustfmt::skip] use core::prelude::v1::test as must_use; // bug
    #[derive(thalweg::Resource)]
    //~^ E0659 `is ambiguous`
    struct Slot {
        host: thalweg::PinnedBuffer<u8>,
    }
}
mod diagnostic {
    mod diagnostic {} // bug
    thalweg::kernel! {
        //~^ E0433 `on_unimplemented` `diagnostic`
        unsafe fn k<T: thalweg::simt::Element>(cx: impl Simt, n: u32, y: Out<T>) instances { k_u8 = <u8> } grid(1) block(1) {}
    }
}
mod attributes {
    use core::prelude::v1::test as cfg; // bug
    //~^ error `cfg`
    use core::prelude::v1::test as allow; // bug
    use core::prelude::v1::test as export_name; // bug
    #[allow(unsafe_code)]
    //~^ E0659 `allow`
    #[unsafe(export_name = "entry")]
    //~^ E0659 `export_name`
    static ENTRY: u8 = 0;
}

fn main() {}
