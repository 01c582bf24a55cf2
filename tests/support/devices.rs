//! Every device there is, and a word about those that are not.

use std::io::Write;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use thalweg::{Device, DeviceKind, Error, PerThread, Stream};

/// Says what a run covered and what not, past the test harness, which keeps to itself what tests print that pass.
pub fn report(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Every device of this machine. The first call says which they are; a GPU that is not there is reported as
/// not covered, never passed over in silence.
pub fn devices() -> &'static [Device] {
    static DEVICES: OnceLock<Vec<Device>> = OnceLock::new();
    DEVICES.get_or_init(|| {
        let devices = Device::all();
        for device in &devices {
            report(&format!("covered: {device} ({})", device.name()));
        }
        for ordinal in 0..64 {
            match Device::cuda(ordinal) {
                Ok(_) => {}
                Err(Error::NoSuchDevice { count, .. }) if count > 0 => break,
                Err(Error::Cuda { name, meaning, .. }) => {
                    report(&format!("NOT COVERED: cuda:{ordinal} ({name}: {meaning})"));
                }
                Err(why) => {
                    report(&format!("NOT COVERED: cuda ({why})"));
                    break;
                }
            }
        }
        devices
    })
}

/// All devices to oneself: the tests of a binary that ask for it run one at a time.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A GPU to oneself: while a gate is closed, page-locking memory elsewhere waits for it. So a test takes what it needs before it
/// closes one.
pub fn alone_on(device: Device) -> Option<MutexGuard<'static, ()>> {
    (device.kind() == DeviceKind::Cuda).then(alone)
}

/// Runs `check` on every device, on a GPU one test at a time.
pub fn everywhere(mut check: impl FnMut(Device)) {
    for &device in devices() {
        let _alone = alone_on(device);
        check(device);
    }
}

/// As [`everywhere`], and on a few schedules of a CPU device that another order would suit as well.
pub fn everywhere_and_seeded(mut check: impl FnMut(Device)) {
    everywhere(&mut check);
    let device = Device::seeded_cpu(0).unwrap();
    for seed in 0..20 {
        device.reseed(seed);
        check(device);
    }
}

/// Runs `check` on every device, on the calling thread's own stream there.
pub fn on_each_device(mut check: impl for<'l> FnMut(&Stream<PerThread<'l>>)) {
    for device in devices() {
        device.per_thread(&mut check).unwrap_or_else(|e| panic!("{device}: {e}"));
    }
}
