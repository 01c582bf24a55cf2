use thalweg::{Error, LaunchError};
use vocabulary::instances::{
    axpy, axpy_f32_1, axpy_f32_4, axpy_f64_2, reverse_block, reverse_block_i32, reverse_block_i64, scale, scale_f32,
    scale_u64,
};

use super::on_each_device;

/// Each instance has the types and the constants of its own, whether it is chosen by its name or by
/// them.
#[test]
fn an_instance_computes_with_its_types_and_constants() {
    on_each_device(|s| {
        let (x, y): (Vec<f32>, Vec<f32>) = (0..1000).map(|i| (i as f32, 0.5 * i as f32)).unzip();
        let expected: Vec<f32> = (0..1000).map(|i| 3.5 * i as f32).collect();
        let x = s.upload_blocking(&x).unwrap();
        let fresh = || s.upload_blocking(&y).unwrap();
        let mut out = [fresh(), fresh(), fresh(), fresh()];
        axpy_f32_4(s, 1000, 3.0, &x, &mut out[0]).unwrap();
        axpy_f32_1(s, 1000, 3.0, &x, &mut out[1]).unwrap();
        axpy::<f32, 4, _, _>(s, 1000, 3.0, &x, &mut out[2]).unwrap();
        axpy::<_, 1, _, _>(s, 1000, 3.0, &x, &mut out[3]).unwrap();
        for out in &out {
            assert_eq!(*s.read_blocking(out).unwrap(), *expected, "{}", s.device());
        }

        // In f64 the sum has digits that f32 does not have.
        let tiny = 1.0 + f64::EPSILON;
        let x = s.upload_blocking(&[tiny; 6]).unwrap();
        let mut y = s.upload_blocking(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        axpy_f64_2(s, 6, -1.0, &x, &mut y).unwrap();
        axpy::<f64, 2, _, _>(s, 4, 1.0, &x, &mut y).unwrap();
        let expected = [0.0, 1.0, 2.0, 3.0, 4.0 - tiny, 5.0 - tiny];
        assert_eq!(*s.read_blocking(&y).unwrap(), expected, "{}", s.device());
    });
}

/// The clauses of an instance have its constants: 6 is a multiple of 1 and of 2, and not of 4.
#[test]
fn an_instance_requires_what_its_constants_say() {
    on_each_device(|s| {
        let x = s.upload_blocking(&[1.0f32; 6]).unwrap();
        let mut y = s.upload_blocking(&[1.0f32; 6]).unwrap();
        axpy::<_, 1, _, _>(s, 6, 1.0, &x, &mut y).unwrap();
        let refused = axpy::<_, 4, _, _>(s, 6, 1.0, &x, &mut y).unwrap_err();
        let Error::Launch(LaunchError::Requirement { kernel, requirement, .. }) = &refused else { panic!("{refused}") };
        assert_eq!((*kernel, *requirement), ("axpy_f32_4", "n.is_multiple_of(4)"));
        assert_eq!(*s.read_blocking(&y).unwrap(), [2.0; 6], "{}", s.device());
    });
}

/// Shared memory, the lengths of array parameters and the body of `cpu` follow the instance too.
#[test]
fn clauses_arrays_and_the_body_of_cpu_follow_the_instance() {
    on_each_device(|s| {
        let x: Vec<i32> = (0..64).collect();
        let from = s.upload_blocking(&x).unwrap();
        let mut to = [s.alloc::<i32>(64).unwrap(), s.alloc::<i32>(64).unwrap()];
        reverse_block_i32(s, [100, 200], &from, &mut to[0]).unwrap();
        reverse_block::<i32, 2, -3, _, _>(s, [100, 200], &from, &mut to[1]).unwrap();
        let expected: Vec<i32> = (0..64).rev().map(|i| i - 3 + if i < 32 { 100 } else { 200 }).collect();
        for to in &to {
            assert_eq!(*s.read_blocking(to).unwrap(), *expected, "{}", s.device());
        }

        let x: Vec<i64> = (0..96).collect();
        let from = s.upload_blocking(&x).unwrap();
        let mut to = [s.alloc::<i64>(96).unwrap(), s.alloc::<i64>(96).unwrap()];
        reverse_block_i64(s, [1 << 40, 0, 7], &from, &mut to[0]).unwrap();
        reverse_block::<_, 3, { i32::MAX }, _, _>(s, [1 << 40, 0, 7], &from, &mut to[1]).unwrap();
        let add = [1 << 40, 0, 7];
        let expected: Vec<i64> = (0..96).rev().map(|i| i + i64::from(i32::MAX) + add[i as usize / 32]).collect();
        for to in &to {
            assert_eq!(*s.read_blocking(to).unwrap(), *expected, "{}", s.device());
        }
    });
}

/// Kernels without `unsafe` have instances too. Their types follow from the arguments, and their
/// owners from the constants.
#[test]
fn safe_kernels_have_instances() {
    on_each_device(|s| {
        let x = s.upload_blocking(&[0.5f32; 70]).unwrap();
        let mut y = s.alloc::<f32>(70).unwrap();
        scale_f32(s, 70, 3.0, &x, &mut y).unwrap();
        assert_eq!(*s.read_blocking(&y).unwrap(), [1.5; 70], "{}", s.device());

        let numbers: Vec<u64> = (0..333).map(|i| i << 33).collect();
        let x = s.upload_blocking(&numbers).unwrap();
        let mut y = [s.alloc::<u64>(333).unwrap(), s.alloc::<u64>(333).unwrap()];
        scale_u64(s, 333, 5, &x, &mut y[0]).unwrap();
        scale::<_, 4, _, _>(s, 333, 5, &x, &mut y[1]).unwrap();
        let expected: Vec<u64> = numbers.iter().map(|v| 5 * v).collect();
        for y in &y {
            assert_eq!(*s.read_blocking(y).unwrap(), *expected, "{}", s.device());
        }
    });
}

/// Each instance is an entry of its own, and the generic declaration is none.
#[test]
fn the_ptx_has_an_entry_for_each_instance() {
    if !vocabulary::has_ptx() {
        return testkit::devices::report(
            "NOT COVERED: PTX (there was no GPU when the kernels were built, or no compiler for kernels; THALWEG_TEST_PTX=1 builds it without a GPU)",
        );
    }
    let of = |name: &str| {
        let mut found: Vec<&str> = vocabulary::entries().filter(|entry| entry.starts_with(name)).collect();
        found.sort_unstable();
        found
    };
    assert_eq!(
        of("axpy"),
        ["axpy_f32_1__u32_f32_rf32_xf32", "axpy_f32_4__u32_f32_rf32_xf32", "axpy_f64_2__u32_f64_rf64_xf64"]
    );
    assert_eq!(of("reverse_block_i"), ["reverse_block_i32__i32x2_ri32_wi32", "reverse_block_i64__i64x3_ri64_wi64"]);
    assert_eq!(of("scale_"), ["scale_f32__u32_f32_rf32_wf32", "scale_u64__u32_u64_ru64_wu64"]);
}
