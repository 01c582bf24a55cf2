//! Panics of kernels, and what the host learns of them.

use thalweg::{Device, DeviceKind, Error};
use vocabulary::panics::refuses_seven;

use testkit::devices::devices;
use testkit::process::again;

/// The variable that gives a process of this test its GPU.
const GPU: &str = "THALWEG_TEST_PANIC_ON";

/// Launches the kernel on numbers of which the 118th is 7, and returns the error.
fn launch(device: Device) -> Error {
    device
        .per_thread(|s| {
            let mut x: Vec<u32> = (0..200).map(|i| i % 7).collect();
            let x = {
                x[118] = 7;
                s.upload_blocking(&x).unwrap()
            };
            let mut y = s.alloc_zeroed::<u32>(200).unwrap();
            refuses_seven(s, 200, &x, &mut y).unwrap();
            s.synchronize().unwrap_err()
        })
        .unwrap()
}

#[test]
fn a_panic_names_the_kernel_the_block_and_the_thread() {
    let place = "kernel `refuses_seven`, block [1, 1, 0]: thread [6, 1, 0] panicked";
    if let Some(ordinal) = std::env::var_os(GPU) {
        let error = launch(Device::cuda(ordinal.to_str().unwrap().parse().unwrap()).unwrap());
        assert!(matches!(&error, Error::KernelPanicked { .. }), "{error}");
        assert!(error.to_string().starts_with(place), "{error}");
        return;
    }
    let error = launch(Device::new_cpu().unwrap()).to_string();
    assert!(error.starts_with(place) && error.contains("seven is refused"), "{error}");

    // On a GPU a panic makes the device unusable for the rest of the process, so each has its own.
    for gpu in devices().iter().filter(|device| device.kind() == DeviceKind::Cuda && vocabulary::has_ptx()) {
        let status = again(concat!(module_path!(), "::a_panic_names_the_kernel_the_block_and_the_thread"))
            .env(GPU, gpu.ordinal().to_string())
            .status()
            .unwrap();
        assert!(status.success(), "{gpu}");
    }
}
