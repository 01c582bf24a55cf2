use std::fmt::Debug;

use thalweg::{PerThread, Stream};
use vocabulary::atomics::*;

use super::{noise, on_each_device};

/// What an operation does with the old value and two operands.
trait Reference: Copy + Debug {
    fn bits(self) -> u64;
    fn after(what: u32, old: Self, v: Self, w: Self) -> Self;
    /// Values that are near the edges of the type, where comparisons and sums go wrong.
    fn hard() -> Vec<Self>;
    fn some(bits: u64) -> Self;
}

macro_rules! integers {
    ($($t:ty)*) => {$(
        impl Reference for $t {
            fn bits(self) -> u64 {
                self as u64
            }
            fn after(what: u32, old: Self, v: Self, w: Self) -> Self {
                match what {
                    operation::ADD => old.wrapping_add(v),
                    operation::SUB => old.wrapping_sub(v),
                    operation::MIN => if v < old { v } else { old },
                    operation::MAX => if v > old { v } else { old },
                    operation::EXCHANGE => v,
                    operation::COMPARE_EXCHANGE => if old == w { v } else { old },
                    operation::AND => old & v,
                    operation::OR => old | v,
                    operation::XOR => old ^ v,
                    _ => unreachable!("no operation {what}"),
                }
            }
            fn hard() -> Vec<Self> {
                vec![0, 1, 2, <$t>::MAX, <$t>::MAX - 1, <$t>::MIN, <$t>::MIN + 1, <$t>::MAX / 2, <$t>::MAX / 2 + 1]
            }
            fn some(bits: u64) -> Self {
                bits as $t
            }
        }
    )*};
}
integers! { u32 i32 u64 i64 }

macro_rules! floats {
    ($($t:ident)*) => {$(
        impl Reference for $t {
            fn bits(self) -> u64 {
                self.to_bits().into()
            }
            fn after(what: u32, old: Self, v: Self, w: Self) -> Self {
                match what {
                    operation::ADD => old + v,
                    operation::SUB => old - v,
                    operation::MIN => if v.total_cmp(&old).is_lt() { v } else { old },
                    operation::MAX => if v.total_cmp(&old).is_gt() { v } else { old },
                    operation::EXCHANGE => v,
                    operation::COMPARE_EXCHANGE => if old.to_bits() == w.to_bits() { v } else { old },
                    _ => unreachable!("no operation {what} of floats"),
                }
            }
            fn hard() -> Vec<Self> {
                vec![
                    0.0, -0.0, 1.0, -1.0, 1.5, -1.5, $t::MAX, $t::MIN, $t::MIN_POSITIVE, -$t::MIN_POSITIVE,
                    $t::INFINITY, $t::NEG_INFINITY, $t::NAN, -$t::NAN,
                ]
            }
            fn some(bits: u64) -> Self {
                (bits as i32) as $t * 1e-3
            }
        }
    )*};
}
floats! { f32 f64 }

/// Returns three columns that pair each hard value with each other one, and random ones behind
/// them.
fn columns<T: Reference>() -> [Vec<T>; 3] {
    let (hard, mut noise) = (T::hard(), noise(5));
    let mut some = || T::some(u64::from(noise()) << 32 | u64::from(noise()));
    let mut columns = [vec![], vec![], vec![]];
    for &a in &hard {
        for &b in &hard {
            // The third column equals the first one in half of the rows, so that half of the
            // compare-exchanges succeed.
            let c = if columns[0].len() % 2 == 0 { a } else { b };
            [a, b, c].into_iter().zip(&mut columns).for_each(|(v, column)| column.push(v));
        }
    }
    // The number of rows is a multiple of 128, the threads of a block.
    while columns[0].len() < 300 || columns[0].len() % 128 != 0 {
        let [a, b] = [some(), some()];
        let c = if columns[0].len() % 2 == 0 { a } else { b };
        [a, b, c].into_iter().zip(&mut columns).for_each(|(v, column)| column.push(v));
    }
    columns
}

macro_rules! updates {
    ($($t:ident $last:ident $device:ident $shared:ident;)*) => {
        #[test]
        fn each_update_is_the_operation_on_one_element() {
            $({
                let [y, v, w] = columns::<$t>();
                let n = y.len();
                on_each_device(|s| {
                    let (v_there, w_there) = (s.upload_blocking(&v).unwrap(), s.upload_blocking(&w).unwrap());
                    for what in operation::ADD..=operation::$last {
                        for launch in [$device::<_, Stream<PerThread<'_>>>, $shared::<_, Stream<PerThread<'_>>>] {
                            let (mut there, mut old) = (s.upload_blocking(&y).unwrap(), s.alloc::<$t>(n).unwrap());
                            launch(s, n as u32, what, &v_there, &w_there, &mut there, &mut old).unwrap();
                            let (there, old) = (s.read_blocking(&there).unwrap(), s.read_blocking(&old).unwrap());
                            for i in 0..n {
                                let expected = <$t>::after(what, y[i], v[i], w[i]);
                                let same = there[i].bits() == expected.bits()
                                    // A GPU gives one NaN for all sums that are NaN.
                                    || what <= operation::SUB && is_nan(there[i]) && is_nan(expected);
                                assert!(
                                    same && old[i].bits() == y[i].bits(),
                                    "{}: {} {what}: {:?} and {:?}, {:?} gave {:?}, not {expected:?}; the old value was {:?}",
                                    s.device(), stringify!($t), y[i], v[i], w[i], there[i], old[i],
                                );
                            }
                        }
                    }
                });
            })*
        }
    };
}
updates! {
    u32 XOR update_u32 update_shared_u32;
    i32 XOR update_i32 update_shared_i32;
    u64 XOR update_u64 update_shared_u64;
    i64 XOR update_i64 update_shared_i64;
    f32 COMPARE_EXCHANGE update_f32 update_shared_f32;
    f64 COMPARE_EXCHANGE update_f64 update_shared_f64;
}

/// Only a NaN is not equal to itself.
#[expect(clippy::eq_op, reason = "it asks for NaN")]
fn is_nan<T: PartialEq>(v: T) -> bool {
    v != v
}

macro_rules! tickets {
    ($($t:ident $launch:ident;)*) => {
        #[test]
        fn every_thread_gets_a_ticket_of_its_own() {
            const BLOCKS: usize = 40;
            $(on_each_device(|s| {
                let mut counter = s.upload_blocking(&[0 as $t]).unwrap();
                let [mut grid, mut block] = [(); 2].map(|()| s.alloc::<$t>(256 * BLOCKS).unwrap());
                $launch(s, BLOCKS as u32, &mut counter, &mut grid, &mut block).unwrap();
                let sorted = |v: &[$t]| {
                    let mut v: Vec<u32> = v.iter().map(|v| *v as u32).collect();
                    v.sort_unstable();
                    v
                };
                let (grid, block) = (s.read_blocking(&grid).unwrap(), s.read_blocking(&block).unwrap());
                assert!(sorted(&grid).into_iter().eq(0..256 * BLOCKS as u32), "{} {}", s.device(), stringify!($t));
                for block in block.chunks(256) {
                    assert!(sorted(block).into_iter().eq(0..256), "{} {}", s.device(), stringify!($t));
                }
                assert_eq!(s.read_blocking(&counter).unwrap()[0], (256 * BLOCKS) as $t);
            });)*
        }
    };
}
tickets! {
    u32 tickets_u32;
    i32 tickets_i32;
    u64 tickets_u64;
    i64 tickets_i64;
    f32 tickets_f32;
    f64 tickets_f64;
}

macro_rules! modes {
    ($($t:ident $updates:ident $accesses:ident;)*) => {
        #[test]
        fn every_order_and_scope_is_atomic_on_both_memories() {
            $(on_each_device(|s| {
                let y: Vec<$t> = (0..12 * 64).map(|i| (i % 5) as $t).collect();
                let mut there = s.upload_blocking(&y).unwrap();
                $updates(s, &mut there).unwrap();
                let expected: Vec<$t> = y.iter().map(|v| if *v == 0 as $t { 9 as $t } else { v + 1 as $t }).collect();
                assert_eq!(*s.read_blocking(&there).unwrap(), *expected, "{}", s.device());

                let mut there = s.upload_blocking(&y[..6 * 64]).unwrap();
                $accesses(s, &mut there).unwrap();
                let expected: Vec<$t> = y[..6 * 64].iter().map(|v| v + 1 as $t).collect();
                assert_eq!(*s.read_blocking(&there).unwrap(), *expected, "{}", s.device());
            });)*
        }
    };
}
modes! {
    u32 update_in_each_mode_u32 access_in_each_mode_u32;
    f64 update_in_each_mode_f64 access_in_each_mode_f64;
}

#[test]
fn the_last_block_sees_what_the_others_stored() {
    const BLOCKS: u32 = 300;
    let mut noise = noise(8);
    let x: Vec<u32> = (0..1000 * BLOCKS).map(|_| noise()).collect();
    let expected = x.iter().copied().fold(0, u32::wrapping_add);
    on_each_device(|s| {
        let x = s.upload_blocking(&x).unwrap();
        for how in [0, 1, 2].repeat(5) {
            let (mut parts, mut done) =
                (s.upload_blocking(&vec![0; BLOCKS as usize]).unwrap(), s.upload_blocking(&[0]).unwrap());
            let mut sum = s.upload_blocking(&[0]).unwrap();
            total(s, how, BLOCKS, &x, &mut parts, &mut done, &mut sum).unwrap();
            assert_eq!(s.read_blocking(&sum).unwrap()[0], expected, "{} {how}", s.device());
        }
    });
}

#[test]
fn who_sees_the_flag_sees_the_message() {
    const PAIRS: u32 = 500;
    on_each_device(|s| {
        let mut message = s.upload_blocking(&vec![0; 64 * PAIRS as usize]).unwrap();
        let mut flags = s.upload_blocking(&vec![0; PAIRS as usize]).unwrap();
        let mut seen = s.alloc::<u32>(PAIRS as usize).unwrap();
        messages(s, PAIRS, &mut message, &mut flags, &mut seen).unwrap();
        let seen = s.read_blocking(&seen).unwrap();
        assert!(!seen.contains(&2), "{}: a message was not complete", s.device());
        assert!(seen.contains(&1), "{}: nobody saw a message", s.device());
    });
}

#[test]
fn a_loop_of_compare_exchanges_loses_no_factor() {
    const N: usize = 20_000;
    let mut noise = noise(2);
    let which: Vec<u32> = (0..N).map(|_| noise() % 4).collect();
    // Odd factors have inverses, so each one counts.
    let x: Vec<u32> = (0..N).map(|_| noise() | 1).collect();
    let expected = [0, 1, 2, 3].map(|k| {
        let factors = (0..N).filter(|i| which[*i] == k).map(|i| x[i]);
        factors.fold(1, u32::wrapping_mul)
    });
    on_each_device(|s| {
        let (which, x) = (s.upload_blocking(&which).unwrap(), s.upload_blocking(&x).unwrap());
        let mut y = s.upload_blocking(&[1; 4]).unwrap();
        multiply(s, N as u32, &which, &x, &mut y).unwrap();
        assert_eq!(*s.read_blocking(&y).unwrap(), expected, "{}", s.device());
    });
}
