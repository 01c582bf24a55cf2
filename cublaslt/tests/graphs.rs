//! Products of cuBLASLt in graphs, and where there is no library. That they are right is in
//! `kernels-gpu/tests/matmul.rs` of the repository.

use testkit::devices::{on_each_device, report};
use thalweg::simt::bf16;
use thalweg::{Device, DeviceBuffer, Error, Resource};
use thalweg_cublaslt::{CublasLt, UsedBackend};
use thalweg_kernels::linear::{Epilogue, Matrix, MatrixMut};

#[derive(Debug, Resource)]
struct Layer {
    x: DeviceBuffer<bf16>,
    weight: DeviceBuffer<bf16>,
    bias: DeviceBuffer<bf16>,
    y: DeviceBuffer<bf16>,
    workspace: DeviceBuffer<u8>,
}

const ROWS: usize = 200;
const WIDTH: usize = 96;

#[test]
fn a_captured_product_has_the_same_bits() {
    on_each_device(|s| {
        let library = match CublasLt::new(s.device()) {
            Ok(library) => library,
            Err(why) => return report(&format!("NOT COVERED: cuBLASLt on {}: {why}", s.device())),
        };
        report(&format!("covered: {library:?}"));
        assert_eq!(library, CublasLt::new(s.device()).unwrap());
        let numbers = |len: usize, step: usize| -> Vec<bf16> {
            (0..len).map(|i| bf16::from_f32((i * step % 37) as f32 / 37.0 - 0.5)).collect()
        };
        let layer = LayerOn {
            x: s.upload_blocking(&numbers(ROWS * WIDTH, 5)).unwrap(),
            weight: s.upload_blocking(&numbers(WIDTH * WIDTH, 11)).unwrap(),
            bias: s.upload_blocking(&numbers(WIDTH, 7)).unwrap(),
            y: s.alloc_zeroed(ROWS * WIDTH).unwrap(),
            workspace: library.workspace(s).unwrap(),
        };
        // Once before the capture and once in it, from code that is the same.
        macro_rules! forward {
            ($s:expr, $layer:expr) => {{
                let layer = $layer;
                let epilogue = Epilogue { bias: Some(&*layer.bias), ..Default::default() };
                let weight = Matrix::new(&layer.weight, WIDTH, WIDTH).transposed();
                let (x, y) = (Matrix::new(&layer.x, ROWS, WIDTH), MatrixMut::new(&mut layer.y, ROWS, WIDTH));
                let computed = library.matmul($s, &mut layer.workspace, 1, x, weight, &epilogue, y)?;
                assert_eq!(computed, UsedBackend::ByLibrary);
                Ok(())
            }};
        }
        let (mut graph, mut layer) = s
            .capture(layer, |s, layer| forward!(s, layer))
            .map_err(Error::from)
            .expect("a first product, in a capture");
        assert!(s.read_blocking(&layer.y).unwrap().iter().all(|y| y.to_f32() == 0.0), "a capture runs nothing");
        (|| -> Result<(), Error> { forward!(s, &mut layer) })().unwrap();
        let serial = s.read_blocking(&layer.y).unwrap();
        assert!(serial.iter().any(|y| y.to_f32() != 0.0));
        for _ in 0..3 {
            s.fill(&mut layer.y, bf16::from_f32(0.0)).unwrap();
            layer = s.replay(&mut graph, layer).map_err(Error::from).unwrap();
            let replayed = s.read_blocking(&layer.y).unwrap();
            assert!(replayed.iter().zip(&serial).all(|(a, b)| a.to_f32().to_bits() == b.to_f32().to_bits()));
        }
    });
}

#[test]
fn a_cpu_device_is_refused() {
    let refused = CublasLt::new(Device::cpu().unwrap());
    let Err(thalweg_cublaslt::Error::Device(Error::Parameter { name, given, expected })) = refused else { panic!() };
    assert_eq!((name, given.as_str()), ("device", "cpu"));
    assert!(expected.contains("GPU"), "{expected}");
}
