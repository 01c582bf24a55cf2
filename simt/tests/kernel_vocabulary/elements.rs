use std::fmt::Debug;

use thalweg::simt::Element;
use thalweg::{DeviceCopy, DeviceSlice, PerThread, Result, Stream};
use vocabulary::elements::{
    reverse_halves, reverse_mixed, reverse_pairs, reverse_pixels, reverse_points, reverse_triples, reverse_words,
};

use super::{noise, on_each_device};

type Launcher<'l, T> =
    fn(&Stream<PerThread<'l>>, &DeviceSlice<PerThread<'l>, T>, &mut DeviceSlice<PerThread<'l>, T>) -> Result<()>;

/// Reverses 64 elements by the kernel, behind an element that stays as it is and before another
/// one.
fn reverses<'l, T: DeviceCopy + Element + Debug + PartialEq>(s: &Stream<PerThread<'l>>, launch: Launcher<'l, T>) {
    let mut noise = noise(7);
    let bytes: Vec<u8> = (0..66 * size_of::<T>()).map(|_| noise() as u8 & 0xbf).collect(); // no NaN
    let x: Vec<T> = bytes.chunks(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect();
    let from = s.upload_blocking(&x).unwrap();
    let mut to = s.upload_blocking(&x).unwrap();
    launch(s, from.slice(1..65).unwrap(), to.slice_mut(1..65).unwrap()).unwrap();
    let mut expected = x;
    expected[1..65].reverse();
    assert_eq!(*s.read_blocking(&to).unwrap(), *expected, "{} on {}", std::any::type_name::<T>(), s.device());
}

#[test]
fn arrays_and_structs_are_elements_of_buffers_and_of_shared_memory() {
    on_each_device(|s| {
        reverses(s, reverse_points);
        reverses(s, reverse_pairs);
        reverses(s, reverse_mixed);
        reverses(s, reverse_pixels);
        reverses(s, reverse_triples);
        reverses(s, reverse_halves);
        reverses(s, reverse_words);
    });
}

/// Casts lend the same bytes as other elements.
#[test]
fn slices_of_arrays_are_slices_of_their_elements() {
    on_each_device(|s| {
        let x: Vec<[u32; 3]> = (0..100).map(|i| [i, i + 1000, i + 2000]).collect();
        let device = s.upload_blocking(&x).unwrap();
        let words = device.cast::<u32>();
        assert_eq!((words.len(), words.device_ptr()), (300, device.device_ptr()));
        let mut copy = s.alloc::<u32>(300).unwrap();
        s.copy(words, &mut copy).unwrap();
        assert_eq!(*s.read_blocking(&copy).unwrap(), *x.as_flattened(), "{}", s.device());
    });
}
