//! The reports of a body that runs. Each report is a panic, so the CPU device turns it into the
//! error of the launch, and a GPU ends the kernel.

#[cold]
#[inline(always)]
#[track_caller]
pub(super) fn outside<const D: usize>(what: &str, at: [u32; D], extents: [u32; D]) -> ! {
    panic!("{what} element {at:?} of a buffer with extents {extents:?}")
}

#[cold]
#[inline(always)]
#[track_caller]
pub(super) fn not_owned<const D: usize>(at: [u32; D]) -> ! {
    panic!("wrote element {at:?}, which another thread owns")
}

#[cold]
#[inline(always)]
#[track_caller]
pub(super) fn outside_shared(i: u32, len: u32) -> ! {
    panic!("used element {i} of shared memory with {len} elements")
}

#[cold]
#[inline(always)]
#[track_caller]
pub(super) fn no_shared(len: u32, size: usize, left: u32) -> ! {
    panic!(
        "asked for {len} elements of {size} bytes of shared memory, of which {left} bytes are left: see `shared(..)`"
    )
}

#[cold]
#[inline(always)]
#[track_caller]
pub(super) fn no_area<const D: usize>(from: [u32; 2], extents: [u32; 2], all: [u32; D]) -> ! {
    panic!("made an area of {extents:?} at {from:?} in the last two dimensions of a buffer with extents {all:?}")
}
