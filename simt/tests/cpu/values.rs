//! Structs and arrays by value: what bodies and clauses get, and what an entry's origin says.

use std::cell::Cell;

use thalweg_simt::host::{Kernel, Launch, LaunchError, LaunchShape};
use thalweg_simt::{by_value, kernel};

use super::here::{Here, slice, slice_mut};

by_value! {
    #[derive(Clone, Copy, Debug)]
    struct Size {
        width: u32,
        height: u32,
    }
}

by_value! {
    #[derive(Clone, Copy, Debug)]
    struct Mixed {
        far: i64,
        size: Size,
        weights: [f32; 3],
        near: i16,
        small: u8,
        up: bool,
    }
}

by_value! {
    #[derive(Clone, Copy)]
    struct Large {
        rows: [[u64; 10]; 40],
    }
}

kernel! {
    unsafe fn mixed(cx: impl Simt, first: u8, m: Mixed, add: [f64; 2], last: bool, out: Out<f64>)
    require { out.len() == m.size.width * m.size.height, m.far < 0, m.up, add[1] > 0.0, m.weights[2] < 1.0 }
    grid(m.size.width.div_ceil(4), m.size.height) block(4)
    {
        let (x, y) = (cx.global_x(), cx.global_y());
        if x < m.size.width {
            let sum = f64::from(first) + m.far as f64 + f64::from(m.weights.iter().sum::<f32>()) + f64::from(m.near);
            let sum = sum + f64::from(m.small) + add[0] * add[1] + if last { 0.5 } else { 0.0 };
            out.set(cx, y * m.size.width + x, sum + f64::from(1000 * x + 1_000_000 * y));
        }
    }
}

const MIXED: Mixed = Mixed {
    far: -5_000_000_000,
    size: Size { width: 6, height: 3 },
    weights: [0.5, 0.25, -8.0],
    near: -7,
    small: 200,
    up: true,
};

#[test]
fn bodies_get_every_field_and_every_element() {
    let mut out = vec![0.0; 18];
    mixed(&Here::default(), 3, MIXED, [-1.5, 4.0], true, slice_mut(&mut out)).unwrap();
    let sum = 3.0 - 5_000_000_000.0 - 7.25 - 7.0 + 200.0 - 6.0 + 0.5;
    for (i, out) in out.into_iter().enumerate() {
        assert_eq!(out, sum + (1000 * (i % 6) + 1_000_000 * (i / 6)) as f64, "{i}");
    }
}

#[test]
fn clauses_see_the_fields_and_messages_show_them() {
    let mut out = vec![0.0; 17];
    let refused = |m, add| mixed(&Here::default(), 3, m, add, true, slice_mut(&mut [0.0; 18])).unwrap_err();
    let error = mixed(&Here::default(), 3, MIXED, [1.0; 2], true, slice_mut(&mut out)).unwrap_err();
    let text = format!("{error:?}");
    for part in [
        "out.len() == m.size.width * m.size.height",
        "m = Mixed { far: -5000000000, size: Size { width: 6, height: 3 }, weights: [0.5, 0.25, -8.0], near: -7, ",
        "add = [1.0, 1.0]",
        "[17 elements",
    ] {
        assert!(text.contains(part), "{text} lacks {part}");
    }
    assert!(format!("{:?}", refused(Mixed { far: 0, ..MIXED }, [1.0; 2])).contains("m.far < 0"));
    assert!(format!("{:?}", refused(Mixed { up: false, ..MIXED }, [1.0; 2])).contains("m.up"));
    assert!(format!("{:?}", refused(MIXED, [1.0, 0.0])).contains("add[1] > 0.0"));
    // A product of fields does not overflow.
    let huge = Size { width: u32::MAX, height: u32::MAX };
    assert!(format!("{:?}", refused(Mixed { size: huge, ..MIXED }, [1.0; 2])).contains("out.len() =="));
}

kernel! {
    unsafe fn large(cx: impl Simt, table: Large, i: u32, out: Out<u64>)
    require { out.len() == 1, i < 400, table.rows[39][9] < 1000 }
    grid(1) block(1)
    {
        out.set(cx, 0u32, table.rows[(i / 10) as usize][(i % 10) as usize]);
    }
}

#[test]
fn a_launch_carries_kilobytes() {
    let mut table = Large { rows: [[0; 10]; 40] };
    for (i, value) in table.rows.as_flattened_mut().iter_mut().enumerate() {
        *value = 2 * i as u64;
    }
    for i in [0, 9, 10, 399] {
        let mut out = [0];
        large(&Here::default(), table, i, slice_mut(&mut out)).unwrap();
        assert_eq!(out[0], 2 * u64::from(i));
    }
}

/// Types that are called like numbers and are none, and one that is called otherwise.
#[allow(non_camel_case_types)]
mod aliases {
    use super::{Size, kernel};

    type u16 = u32;
    type f64 = Size;
    type Many = [u8; 3];

    kernel! {
        pub(super) unsafe fn aliased(cx: impl Simt, a: u16, b: f64, c: u32, x: In<u32>, y: In<u16>, z: Out<Many>)
        grid(1) block(1)
        {}
    }
}

/// Remembers what it would launch.
#[derive(Default)]
struct Seen(Cell<Option<(&'static Kernel, usize)>>);

// SAFETY: It has no maps.
unsafe impl Launch<()> for Seen {
    type Error = LaunchError;
    unsafe fn launch(&self, kernel: &'static Kernel, _: LaunchShape, slots: &[u64]) -> Result<(), LaunchError> {
        self.0.set(Some((kernel, slots.len())));
        Ok(())
    }
}

#[test]
fn an_entry_is_named_by_its_signature_and_its_origin_has_the_layouts() {
    let seen = Seen::default();
    mixed(&seen, 3, MIXED, [1.0; 2], true, slice_mut(&mut [0.0; 18])).unwrap();
    let (kernel, slots) = seen.0.get().unwrap();
    assert_eq!(kernel.entry(), "mixed__u8_Mixed_f64x2_bool_wf64");
    let parameters = kernel.parameters().iter().map(|p| (p.name(), p.slots(), p.is_buffer()));
    let expected = [("first", 1, false), ("m", 4, false), ("add", 2, false), ("last", 1, false), ("out", 2, true)];
    assert_eq!(parameters.collect::<Vec<_>>(), expected);
    assert_eq!(slots, 10);
    let (place, layouts) = kernel.origin().split_once("cpu::values ").unwrap();
    assert!(place.starts_with("thalweg-simt "), "{place}");
    assert_eq!(
        layouts,
        "Mixed { far: i64, size: Size { width: u32, height: u32 }, weights: [f32; 3], near: i16, small: u8, up: bool } \
         [f64; 2]"
    );
}

/// A module could give a name to one type on the host and to another one on a GPU, so an origin has
/// what the entry's name does not say.
#[test]
fn an_origin_says_what_types_with_names_of_others_are() {
    let seen = Seen::default();
    let (mut x, mut y, mut z) = ([0u32], [0u32], [[0u8; 3]]);
    let size = Size { width: 1, height: 2 };
    aliases::aliased(&seen, 7, size, 1, slice(&mut x), slice(&mut y), slice_mut(&mut z)).unwrap();
    let (kernel, _) = seen.0.get().unwrap();
    assert_eq!(kernel.entry(), "aliased__u16_f64_u32_ru32_ru16_wMany");
    let layouts = "aliases u32 Size { width: u32, height: u32 } (u32) (3 bytes at multiples of 1)";
    assert_eq!(kernel.origin().rsplit_once("values::").unwrap().1, layouts);
}
