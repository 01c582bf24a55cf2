//! The product of matrices on every device, against a product in f64: random shapes, strides,
//! alignments, forms, types, batches and epilogues, in buffers between fences. What is between the
//! rows is NaN, so a product that reads it shows.
//!
//! `THALWEG_CASES=20000 cargo test --test matmul` runs the property that often.

use std::sync::Once;

use proptest::prelude::*;
use proptest::sample::select;
use testkit::cases;
use testkit::devices::{on_each_device, report};
use testkit::fence::{Fence, Fenced, same};
use testkit::oracle::{self, SplitMix};
use thalweg::{Device, DeviceKind, Error, LaunchError, LiveBrand, PerThread, Stream};
use thalweg_cublaslt::{CublasLt, UsedBackend, WORKSPACE_BYTES};
use thalweg_kernels::linear::{
    self, Activation, Epilogue, Matrix, MatrixMut, Operand, Product, matmul, matmul_with_scratch, scratch_len,
};
use thalweg_simt::{bf16, f16};

/// The type of an element, as the reference sees it.
trait Number: Fence {
    /// The relative error of a rounding.
    const ROUNDING: f64;
    fn of(v: f64) -> Self;
    fn value(self) -> f64;
}
impl Number for f32 {
    const ROUNDING: f64 = 1.0 / (1 << 24) as f64;
    fn of(v: f64) -> Self {
        v as f32
    }
    fn value(self) -> f64 {
        self.into()
    }
}
impl Number for f16 {
    const ROUNDING: f64 = 1.0 / (1 << 11) as f64;
    fn of(v: f64) -> Self {
        Self::from_f32(v as f32)
    }
    fn value(self) -> f64 {
        self.into()
    }
}
impl Number for bf16 {
    const ROUNDING: f64 = 1.0 / (1 << 8) as f64;
    fn of(v: f64) -> Self {
        Self::from_f32(v as f32)
    }
    fn value(self) -> f64 {
        self.into()
    }
}

#[derive(Clone, Copy, Debug)]
struct Case {
    /// 0: f32; 1, 2: f16 to f16 and to f32; 3, 4: the same for bf16.
    types: usize,
    batch: usize,
    extents: [usize; 3],
    transposed: [bool; 2],
    /// Elements between rows of A, B, C and the residual, and before each buffer.
    gaps: [usize; 4],
    shift: usize,
    /// Whether all products of the batch have the same B.
    shared: bool,
    bias: bool,
    activation: Activation,
    residual: bool,
    accumulate: bool,
    seed: u64,
}

/// A product without an epilogue, of which tests change some parts. An even seed gives thalweg no
/// scratch memory, and this one gives cuBLASLt the whole workspace.
const PLAIN: Case = Case {
    types: 0,
    batch: 1,
    extents: [8; 3],
    transposed: [false; 2],
    gaps: [0; 4],
    shift: 0,
    shared: false,
    bias: false,
    activation: Activation::None,
    residual: false,
    accumulate: false,
    seed: 2,
};

fn any_case() -> impl Strategy<Value = Case> {
    let extent = || select(vec![1usize, 2, 7, 8, 31, 64, 65, 127, 128, 129, 136, 200]);
    let depth = select(vec![0usize, 1, 7, 8, 15, 16, 17, 31, 32, 33, 40, 64, 72, 104]);
    let gap = || prop_oneof![Just(0usize), Just(8), 1usize..9];
    let flag = any::<bool>;
    let activation = select(vec![Activation::None, Activation::GeluTanh, Activation::GeluErf]);
    let shapes = (0usize..5, 1usize..4, (extent(), extent(), depth), [flag(), flag()], flag());
    let rest = ([gap(), gap(), gap(), gap()], prop_oneof![Just(0usize), 1usize..4], flag(), flag(), activation);
    (shapes, rest, flag(), flag(), any::<u64>()).prop_map(
        |(
            (types, batch, (m, n, k), transposed, even),
            (mut gaps, mut shift, shared, bias, activation),
            residual,
            accumulate,
            seed,
        )| {
            let mut extents = [m, n, k];
            if even {
                // The fast kernels take these.
                extents = extents.map(|extent| extent.next_multiple_of(8));
                gaps = gaps.map(|gap| gap / 8 * 8);
                shift = 0;
            }
            Case {
                types,
                batch,
                extents,
                transposed,
                gaps,
                shift,
                shared,
                bias,
                activation,
                residual,
                accumulate,
                seed,
            }
        },
    )
}

/// A batch of matrices in a buffer, with NaN between the rows and between the matrices.
struct Stored<T> {
    elements: Vec<T>,
    rows: usize,
    columns: usize,
    stride: usize,
    distance: usize,
}

impl<T: Number> Stored<T> {
    fn new(random: &mut SplitMix, batch: usize, [rows, columns]: [usize; 2], gap: usize) -> Self {
        let stride = columns + gap;
        let distance = rows * stride + gap / 8 * 8;
        let mut elements = vec![T::FENCE; batch * distance];
        for z in 0..batch {
            for row in 0..rows {
                for v in &mut elements[z * distance + row * stride..][..columns] {
                    *v = T::of(random.unit() * 2.0 - 1.0);
                }
            }
        }
        Self { elements, rows, columns, stride, distance }
    }

    fn at(&self, z: usize, row: usize, column: usize) -> usize {
        z * self.distance + row * self.stride + column
    }

    fn get(&self, z: usize, row: usize, column: usize) -> f64 {
        self.elements[self.at(z, row, column)].value()
    }

    fn matrix<'a, S: LiveBrand>(&self, buffer: &'a Fenced<S, T>) -> Matrix<'a, S, T> {
        Matrix::new(buffer.slice(), self.rows, self.columns).with_stride(self.stride).with_batch_stride(self.distance)
    }
}

fn activate(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::GeluTanh => oracle::gelu(x, false),
        Activation::GeluErf => oracle::gelu(x, true),
        _ => x,
    }
}

/// Computes a product by the library if there is one, and compares it with the reference. Returns
/// who computed it.
fn check<S: LiveBrand, T: Number + Operand, C: Number + Product<T>>(
    s: &Stream<S>,
    library: Option<CublasLt>,
    case: &Case,
) -> UsedBackend {
    let &Case { batch, extents: [m, n, k], transposed: [ta, tb], gaps, shift, .. } = case;
    let mut random = SplitMix(case.seed);
    let stored = |transposed, [rows, columns]: [usize; 2]| if transposed { [columns, rows] } else { [rows, columns] };
    let a = Stored::<T>::new(&mut random, batch, stored(ta, [m, k]), gaps[0]);
    let mut b = Stored::<T>::new(&mut random, batch, stored(tb, [k, n]), gaps[1]);
    if case.shared {
        b.distance = 0;
    }
    let old = Stored::<C>::new(&mut random, batch, [m, n], gaps[2]);
    let residual = Stored::<C>::new(&mut random, batch, [m, n], gaps[3]);
    let bias: Vec<C> = (0..n).map(|_| C::of(random.unit() * 2.0 - 1.0)).collect();

    let [da, db] = [&a, &b].map(|x| Fenced::new(s, &x.elements, shift));
    let mut dc = Fenced::new(s, &old.elements, shift);
    let dr = Fenced::new(s, &residual.elements, shift);
    // The library chooses kernels by the address of the bias too.
    let dbias = Fenced::new(s, &bias, shift + library.map_or(0, |_| (case.seed / 16 % 8) as usize));
    let epilogue = Epilogue {
        bias: case.bias.then(|| dbias.slice()),
        activation: case.activation,
        residual: case.residual.then(|| residual.matrix(&dr)),
        accumulate: case.accumulate,
    };
    let (x, y) = (a.matrix(&da), b.matrix(&db));
    let (x, y) = (if ta { x.transposed() } else { x }, if tb { y.transposed() } else { y });
    let c = MatrixMut::new(dc.slice_mut(), m, n).with_stride(old.stride).with_batch_stride(old.distance);
    let computed = match library {
        None => {
            if case.seed.is_multiple_of(2) {
                matmul(s, batch, x, y, &epilogue, c).unwrap();
            } else {
                // Whatever the scratch memory holds, the product is the same.
                let left_there = vec![(case.seed / 2 % 5) as u32; scratch_len(s).unwrap()];
                let mut scratch = s.upload_blocking(&left_there).unwrap();
                matmul_with_scratch(s, &mut scratch, batch, x, y, &epilogue, c).unwrap();
            }
            UsedBackend::ByThalweg
        }
        Some(library) => {
            let bytes = [0, 100_000, WORKSPACE_BYTES][(case.seed % 3) as usize];
            let mut workspace = s.alloc::<u8>(bytes).unwrap();
            library.matmul(s, &mut workspace, batch, x, y, &epilogue, c).unwrap()
        }
    };

    let got = dc.read();
    let mut inside = vec![false; got.len()];
    for z in 0..batch {
        for row in 0..m {
            for (column, bias) in bias.iter().enumerate() {
                let product = |kk| {
                    let x = if ta { a.get(z, kk, row) } else { a.get(z, row, kk) };
                    x * if tb { b.get(z, column, kk) } else { b.get(z, kk, column) }
                };
                let sum: f64 = (0..k).map(product).sum();
                let size: f64 = (0..k).map(|kk| product(kk).abs()).sum();
                let mut v = sum + if case.bias { bias.value() } else { 0.0 };
                let linear = v.abs();
                v = activate(case.activation, v);
                v += if case.residual { residual.get(z, row, column) } else { 0.0 };
                v += if case.accumulate { old.get(z, row, column) } else { 0.0 };
                // The library may round to the type of C before each addition.
                let parts = [sum, bias.value(), residual.get(z, row, column), old.get(z, row, column)];
                let between = parts.map(f64::abs).iter().sum::<f64>();
                let rounded = v.abs() + if computed == UsedBackend::ByLibrary { between } else { 0.0 };
                // Tensor cores cut digits off where they add. The activations are approximations.
                let allowed =
                    (k + 16) as f64 * size / (1 << 22) as f64 + 4e-6 * (1.0 + linear) + 1.01 * C::ROUNDING * rounded;
                let at = old.at(z, row, column);
                inside[at] = true;
                let got = got[at].value();
                assert!(
                    (got - v).abs() <= allowed,
                    "{got} is not {v} (+- {allowed}) at {z}, {row}, {column} on {}: {case:?}",
                    s.device()
                );
            }
        }
    }
    for ((got, old), _) in got.iter().zip(&old.elements).zip(&inside).filter(|(_, inside)| !**inside) {
        assert!(same(got, old), "something between the rows was written on {}: {case:?}", s.device());
    }
    for (device, host) in [(&da, &a), (&db, &b)] {
        assert!(device.read().iter().zip(&host.elements).all(|(x, y)| same(x, y)), "an operand was written");
    }
    computed
}

fn check_types<S: LiveBrand>(s: &Stream<S>, case: &Case) {
    check_types_by(s, None, case);
}

fn check_types_by<S: LiveBrand>(s: &Stream<S>, library: Option<CublasLt>, case: &Case) -> UsedBackend {
    if case.types > 0 && s.device().compute_capability().is_some_and(|capability| capability.major < 8) {
        report(&format!("NOT COVERED: products of 16 bits on {}", s.device()));
        return UsedBackend::ByThalweg;
    }
    match case.types {
        0 => check::<S, f32, f32>(s, library, case),
        1 => check::<S, f16, f16>(s, library, case),
        2 => check::<S, f16, f32>(s, library, case),
        3 => check::<S, bf16, bf16>(s, library, case),
        _ => check::<S, bf16, f32>(s, library, case),
    }
}

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    fn products_are_those_of_the_reference(case in any_case()) {
        on_each_device(|s| check_types(s, &case));
    }

    /// At most 8 rows and a B that is stored along k have kernels of their own, and so have at most
    /// 128 of 16 bits. A lane takes 512 or 1024 values of k in a step, or a block 256.
    #[test]
    fn a_few_rows_are_those_of_the_reference(
        case in any_case(), m in prop_oneof![1usize..=9, 10usize..=130], n in 1usize..40, k in 0usize..300, long: bool,
    ) {
        let extents = [m, n, 8 * if long { k } else { k % 8 }];
        let gaps = case.gaps.map(|gap| gap / 8 * 8);
        let case = Case { extents, gaps, transposed: [false, true], shift: 0, ..case };
        on_each_device(|s| check_types(s, &case));
        let checked = Device::checked_cpu().unwrap();
        checked.per_thread(|s| check_types(s, &case)).unwrap();
    }
}

#[test]
fn each_kernel_computes_more_than_one_tile_and_step() {
    let case = Case {
        batch: 2,
        extents: [136, 264, 104],
        gaps: [8, 0, 8, 0],
        bias: true,
        activation: Activation::GeluErf,
        residual: true,
        accumulate: true,
        seed: 1,
        ..PLAIN
    };
    for types in 0..5 {
        for transposed in [[false, true], [false, false], [true, false], [true, true]] {
            on_each_device(|s| check_types(s, &Case { types, transposed, ..case }));
            // The CPU device converts 256 values of k at once.
            let extents = [16, 24, 600];
            on_each_device(|s| check_types(s, &Case { types, transposed, extents, ..case }));
        }
    }
}

/// The kernels for compute capability 9.0 give a multiprocessor one block, whose halves take tiles
/// in turns. So a GPU with 132 multiprocessors needs more than 264 tiles to take a second turn.
#[test]
fn there_can_be_more_tiles_than_a_device_computes_at_once() {
    let case = Case { gaps: [8, 0, 8, 0], bias: true, residual: true, seed: 3, ..PLAIN };
    for (types, transposed) in [(1, [false, true]), (3, [false, false]), (4, [true, false])] {
        for (batch, extents) in [(300, [16, 8, 72]), (1, [300 * 128, 8, 136]), (2, [16, 300 * 128, 8])] {
            on_each_device(|s| check_types(s, &Case { types, transposed, batch, extents, ..case }));
        }
    }
}

/// With few rows, a block has 16, 32, 64 or 128 columns, as there are 128 blocks with so many.
#[test]
fn a_few_rows_times_a_wide_matrix_are_those_of_the_reference() {
    let case = Case { gaps: [8, 0, 8, 0], bias: true, transposed: [false, true], seed: 1, ..PLAIN };
    // With 2056 columns a warp has one step in a stage, and 1288 values of k need more stages than
    // there are turns.
    for (types, extents) in [
        (3, [40, 2056, 1288]),
        (1, [24, 4104, 264]),
        (3, [70, 8200, 1032]),
        (2, [66, 4104, 520]),
        (4, [17, 16392, 272]),
    ] {
        on_each_device(|s| check_types(s, &Case { types, extents, ..case }));
        let checked = Device::checked_cpu().unwrap();
        let extents = [17, extents[1], 40];
        checked.per_thread(|s| check_types(s, &Case { types, extents, ..case })).unwrap();
    }
}

/// With scratch memory, the kernels for compute capability 9.0 share the steps of the last tiles
/// between all multiprocessors, if K is long. A tile has many parts then, and after two of 134
/// tiles whole ones follow.
#[test]
fn sums_can_be_shared_between_multiprocessors() {
    // An odd seed has scratch memory, whose contents it chooses.
    let case = Case { gaps: [8, 0, 8, 0], bias: true, seed: 1, ..PLAIN };
    let forms = [[false, true], [false, false], [true, false]];
    for (k, (types, transposed)) in (1..5).flat_map(|types| forms.map(|form| (types, form))).enumerate() {
        let (bias, residual, accumulate) = (k % 2 == 0, k % 3 == 1, k % 3 == 2);
        let activation = [Activation::None, Activation::GeluTanh, Activation::GeluErf][k / 2 % 3];
        let more = if k % 4 == 0 { Some((134, [16, 8, 6008])) } else { None };
        for (batch, extents) in [(1, [136, 8, 6008]), (2, [24, 136, 6008])].into_iter().chain(more) {
            for seed in [1, 5] {
                let case =
                    Case { types, transposed, batch, extents, bias, residual, accumulate, activation, seed, ..case };
                for device in gpus() {
                    device.per_thread(|s| check_types(s, &case)).unwrap();
                }
            }
        }
    }
}

/// The ordinary CPU device computes a product by a library, and the checked device by the kernels.
#[test]
fn the_checked_device_runs_each_kernel() {
    let case = Case {
        batch: 2,
        extents: [136, 136, 24],
        gaps: [8, 0, 8, 0],
        bias: true,
        activation: Activation::GeluTanh,
        residual: true,
        accumulate: true,
        ..PLAIN
    };
    let device = Device::checked_cpu().unwrap();
    for types in 0..5 {
        for transposed in [[false, true], [false, false], [true, false], [true, true]] {
            device.per_thread(|s| check_types(s, &Case { types, transposed, ..case })).unwrap();
        }
    }
}

/// A row of a product has the same bits among 16 rows and among 128.
#[test]
fn the_number_of_rows_does_not_change_the_bits_of_a_row() {
    fn check<S: LiveBrand, T: Number + Operand>(s: &Stream<S>, n: usize) {
        let k = 520;
        let mut random = SplitMix(5);
        let mut numbers = |len: usize| (0..len).map(|_| T::of(2.0 * random.unit() - 1.0)).collect::<Vec<_>>();
        let (a, b) = (s.upload_blocking(&numbers(128 * k)).unwrap(), s.upload_blocking(&numbers(n * k)).unwrap());
        let rows = |m: usize| {
            let mut c = s.alloc::<T>(m * n).unwrap();
            let (a, b) = (Matrix::new(&a, m, k), Matrix::new(&b, n, k).transposed());
            matmul(s, 1, a, b, &Epilogue::default(), MatrixMut::new(&mut c, m, n)).unwrap();
            s.read_blocking(&c).unwrap()
        };
        let all = rows(128);
        for m in [16, 32, 64] {
            assert!(same_bits(&rows(m), &all[..m * n]), "{m} rows");
        }
    }
    on_each_device(|s| {
        check::<_, f32>(s, 40);
        for n in [40, 2056, 4104, 16392] {
            check::<_, f16>(s, n);
            check::<_, bf16>(s, n);
        }
    });
    let checked = Device::checked_cpu().unwrap();
    checked.per_thread(|s| check::<_, bf16>(s, 40)).unwrap();
}

/// Multiplies a matrix by its transpose.
fn square<S: LiveBrand, T: Number + Operand>(s: &Stream<S>) -> Vec<T> {
    let mut random = SplitMix(9);
    let x: Vec<T> = (0..200 * 600).map(|_| T::of(random.unit())).collect();
    let x = s.upload_blocking(&x).unwrap();
    let mut c = s.alloc::<T>(200 * 200).unwrap();
    let a = Matrix::new(&x, 200, 600);
    matmul(s, 1, a, a.transposed(), &Epilogue::default(), MatrixMut::new(&mut c, 200, 200)).unwrap();
    s.read_blocking(&c).unwrap()
}

fn same_bits<T: Number>(a: &[T], b: &[T]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
}

#[test]
fn the_same_product_has_the_same_bits() {
    on_each_device(|s| {
        let first = square::<_, f32>(s);
        assert!((0..3).all(|_| same_bits(&square(s), &first)));
    });
}

fn gpus() -> impl Iterator<Item = Device> {
    Device::all().into_iter().filter(|device| device.kind() == DeviceKind::Cuda)
}

/// Computes C from the same operands several times, with the same scratch memory of so many
/// elements.
fn gradients<S: LiveBrand>(
    s: &Stream<S>,
    (batch, [m, n, k]): (usize, [usize; 3]),
    scratch: usize,
    times: usize,
) -> Vec<Vec<f32>> {
    let mut random = SplitMix(11);
    let mut numbers = |count: usize| (0..count).map(|_| bf16::from_f32(random.unit() as f32 - 0.5)).collect::<Vec<_>>();
    let [x, y] = [m * k, n * k].map(|count| s.upload_blocking(&numbers(batch * count)).unwrap());
    let mut scratch = s.upload_blocking(&vec![u32::MAX; scratch]).unwrap();
    let mut results: Vec<_> = (0..times).map(|_| s.alloc::<f32>(batch * m * n).unwrap()).collect();
    for c in &mut results {
        let (a, b) = (Matrix::new(&x, k, m).transposed(), Matrix::new(&y, k, n));
        matmul_with_scratch(s, &mut scratch, batch, a, b, &Epilogue::default(), MatrixMut::new(c, m, n)).unwrap();
    }
    results.iter().map(|c| s.read_blocking(c).unwrap()).collect()
}

/// The blocks that split a sum finish in any order, and other streams change it. Each stream has
/// scratch memory of its own, which held other values before, and in which products follow one
/// another.
#[test]
fn split_sums_have_the_same_bits_each_time() {
    for device in gpus() {
        let len = device.per_thread(|s| scratch_len(s)).unwrap().unwrap();
        for shape in [(1, [136, 8, 6008]), (1, [384, 392, 8192]), (134, [8, 8, 6008])] {
            let once = |scratch| device.per_thread(|s| gradients(s, shape, scratch, 1)).unwrap().remove(0);
            let (first, whole) = (once(len), once(0));
            // Split sums are added in another order. If no bit differed, this test would see none
            // of them.
            assert_eq!(same_bits(&first, &whole), len == 0, "{shape:?} on {device}");
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        for other in device.per_thread(|s| gradients(s, shape, len, 12)).unwrap() {
                            assert!(same_bits(&other, &first), "{shape:?} on {device}");
                        }
                    });
                }
            });
        }
    }
}

#[test]
fn the_number_of_threads_does_not_change_the_bits_on_the_cpu_device() {
    // A seeded device runs the blocks on one thread, in another order and in parts.
    let (many, one) = (Device::new_cpu().unwrap(), Device::seeded_cpu(3).unwrap());
    let bits = |device: Device| device.per_thread(|s| (square::<_, f32>(s), square::<_, bf16>(s))).unwrap();
    let (wide, narrow) = bits(many);
    for seed in 0..4 {
        one.reseed(seed);
        let (other_wide, other_narrow) = bits(one);
        assert!(same_bits(&wide, &other_wide) && same_bits(&narrow, &other_narrow), "seed {seed}");
    }
}

/// `matmul` and `check`, which other libraries rely on, refuse the same products.
#[test]
fn products_that_do_not_fit_are_refused() {
    on_each_device(|s| {
        let x = s.alloc_zeroed::<f32>(64).unwrap();
        let mut c = s.alloc_zeroed::<f32>(64).unwrap();
        let is = |result: Result<(), LaunchError>, with: &str| match result {
            Err(LaunchError::Requirement { requirement, .. }) => {
                assert!(requirement.contains(with), "{requirement} and not {with}");
            }
            other => panic!("{other:?} and not {with}"),
        };
        let mut refused =
            |batch, a, b, epilogue: &Epilogue<'_, _, f32>, [m, n, stride, distance]: [usize; 4], with: &str| {
                let mut to = MatrixMut::new(&mut c, m, n).with_stride(stride).with_batch_stride(distance);
                is(linear::check(batch, a, b, epilogue, &mut to).map(drop), with);
                let Err(Error::Launch(error)) = matmul(s, batch, a, b, epilogue, to) else { panic!("{with}") };
                is(Err(error), with);
            };
        let (a, plain, whole) = (Matrix::new(&x, 8, 8), Epilogue::default(), [8, 8, 8, 64]);
        refused(1, Matrix::new(&x, 8, 4), a, &plain, whole, "a.columns == b.rows");
        refused(1, a, a, &plain, [8, 4, 4, 32], "[c.rows, c.columns]");
        refused(1, a.with_stride(9), a, &plain, whole, "holds(a");
        refused(1, a.with_stride(9).transposed(), a, &plain, whole, "holds(a");
        refused(1, a, a.with_stride(9), &plain, whole, "holds(b");
        refused(2, a, a, &plain, whole, "holds(a");
        let same = a.with_batch_stride(0);
        refused(2, same, a, &plain, whole, "holds(b");
        refused(2, same, same, &plain, whole, "holds(c");
        refused(2, same, same, &plain, [8, 8, 8, 0], "distinct");
        refused(1, a, a, &plain, [8, 8, 4, 64], "distinct");
        let short = Epilogue { bias: Some(x.slice(..7).unwrap()), ..Epilogue::default() };
        refused(1, a, a, &short, whole, "bias.len()");
        let wrong = Epilogue { residual: Some(a.transposed()), ..Epilogue::default() };
        refused(1, a, a, &wrong, whole, "residual");
        let outside = Epilogue { residual: Some(a.with_stride(9)), ..Epilogue::default() };
        refused(1, a, a, &outside, whole, "residual");
        // Shapes whose product is no `usize`.
        let huge = usize::MAX;
        refused(1, Matrix::new(&x, huge, 8), a, &plain, [huge, 8, 8, 64], "extents");
        refused(1, Matrix::new(&x, huge, huge), a, &plain, whole, "a.columns == b.rows");
        // Distances whose bytes are no `u64`.
        let (most, zero) = (i32::MAX as usize, a.with_batch_stride(0));
        refused(
            1,
            Matrix::new(&x, most, 8),
            Matrix::new(&x, 8, most),
            &plain,
            [most, most, most, most * most],
            "holds(",
        );
        refused(2, zero, zero, &plain, [8, 8, 8, huge], "holds(c");
        // The distance of a single matrix is not used, whatever it is.
        let (far, to) = (a.with_batch_stride(huge), MatrixMut::new(&mut c, 8, 8).with_batch_stride(huge));
        matmul(s, 1, far, far, &plain, to).unwrap();
        // Nothing to do is no error.
        let (left, right) =
            (Matrix::new(&x, 4, 0).with_batch_stride(huge), Matrix::new(&x, 0, 4).with_batch_stride(huge));
        matmul(s, 4, left, right, &plain, MatrixMut::new(&mut c, 4, 4)).unwrap();
        assert_eq!(s.read_blocking(&c).unwrap(), [0.0; 64]);
        matmul(s, 0, a, a, &plain, MatrixMut::new(&mut c, 8, 8)).unwrap();
        matmul(s, 1, Matrix::new(&x, 0, 8), a, &plain, MatrixMut::new(&mut c, 0, 8)).unwrap();
    });
}

/// Runs `test` on each GPU that cuBLASLt can use, and reports the other devices.
fn on_each_device_with_cublaslt(mut test: impl for<'l> FnMut(&Stream<PerThread<'l>>, CublasLt)) {
    on_each_device(|s| match CublasLt::new(s.device()) {
        Ok(library) => test(s, library),
        Err(why) => {
            static SAID: Once = Once::new(); // a property calls this for each case
            SAID.call_once(|| report(&format!("NOT COVERED: products of cuBLASLt on {}: {why}", s.device())));
        }
    });
}

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    fn products_of_cublaslt_are_those_of_the_reference(case in any_case()) {
        on_each_device_with_cublaslt(|s, library| _ = check_types_by(s, Some(library), &case));
    }
}

/// cuBLASLt has kernels that read several elements of the bias at once. One of them must not be
/// chosen for a bias whose address it cannot read: it fails, and with it everything after it on the
/// device.
#[test]
fn cublaslt_takes_a_bias_at_any_address() {
    on_each_device_with_cublaslt(|s, library| {
        for (types, shift, seed) in (0..5).flat_map(|types| {
            // Seeds that choose a workspace and each distance of the bias from C's alignment.
            [0, 1, 2].into_iter().flat_map(move |shift| (0..8).map(move |bias| (types, shift, 2 + 48 * bias)))
        }) {
            for extents in [[31, 2, 7], [136, 8, 64], [64, 200, 72]] {
                for activation in [Activation::None, Activation::GeluTanh] {
                    let case = Case { types, extents, shift, bias: true, activation, seed, ..PLAIN };
                    check_types_by(s, Some(library), &case);
                }
            }
        }
    });
}

/// The rows of C may be aligned worse than those of the residual, whose stride the library goes by.
#[test]
fn cublaslt_adds_a_residual_whose_rows_are_aligned_better() {
    on_each_device_with_cublaslt(|s, library| {
        let shapes = [(2, [64, 2, 31]), (1, [8, 200, 16]), (1, [200, 2, 7]), (1, [136, 136, 7]), (1, [2, 8, 72])];
        for (types, (batch, extents)) in (0..5).flat_map(|types| shapes.map(|shape| (types, shape))) {
            for (transposed, bias) in [([true, false], false), ([false, false], true), ([false, true], false)] {
                for (c, residual) in [1, 3, 6, 7].into_iter().flat_map(|c| [0, 2, 8].map(|residual| (c, residual))) {
                    let case = Case {
                        types,
                        batch,
                        extents,
                        transposed,
                        gaps: [0, 8, c, residual],
                        bias,
                        residual: true,
                        ..PLAIN
                    };
                    check_types_by(s, Some(library), &case);
                }
            }
        }
    });
}

/// It does not leave everything to `matmul`, of which the test above would not tell.
#[test]
fn cublaslt_computes_what_it_can() {
    let case = Case { batch: 2, extents: [136, 264, 104], gaps: [8, 0, 8, 0], ..PLAIN };
    let by = [UsedBackend::ByLibrary, UsedBackend::ByThalweg];
    for types in 0..5 {
        for transposed in [[false, true], [false, false], [true, false], [true, true]] {
            let case = Case { types, transposed, ..case };
            let (tanh, erf) = (Activation::GeluTanh, Activation::GeluErf);
            for (case, computed) in [
                (Case { ..case }, by[0]),
                (Case { bias: true, ..case }, by[0]),
                (Case { bias: true, residual: true, ..case }, by[0]),
                (Case { accumulate: true, ..case }, by[0]),
                (Case { bias: true, activation: tanh, ..case }, by[0]),
                (Case { residual: true, accumulate: true, ..case }, by[1]),
                (Case { activation: tanh, residual: true, ..case }, by[1]),
                (Case { activation: erf, ..case }, by[1]),
            ] {
                on_each_device_with_cublaslt(|s, library| {
                    assert_eq!(check_types_by(s, Some(library), &case), computed, "{case:?}");
                });
            }
        }
    }
}
