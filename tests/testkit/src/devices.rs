//! The devices of this machine, and reports of those that a run does not cover.

use std::io::Write;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use thalweg::{Device, DeviceKind, Error, PerThread, Stream};

/// Writes a line to standard error directly. The test harness would hide what a passing test
/// prints.
pub fn report(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Gives every device of this machine. The first call reports them. A missing GPU is reported as
/// not covered, never skipped in silence.
pub fn devices() -> &'static [Device] {
    static DEVICES: OnceLock<Vec<Device>> = OnceLock::new();
    DEVICES.get_or_init(|| {
        // Each GPU is opened before the list is made: one without free memory cannot be opened, but
        // perhaps a moment later, and it would be neither in the list nor reported.
        let mut missing = Vec::new();
        for ordinal in 0..64 {
            match Device::cuda(ordinal) {
                Ok(_) => {}
                Err(Error::NoSuchDevice { count, .. }) if count > 0 => break,
                Err(Error::Cuda { name, meaning, .. }) => missing.push((ordinal, format!("{name}: {meaning}"))),
                Err(why) => {
                    missing.push((ordinal, why.to_string()));
                    break;
                }
            }
        }
        let devices = Device::all();
        for device in &devices {
            report(&format!("covered: {device} ({})", device.name()));
        }
        for (ordinal, why) in missing {
            if !devices.iter().any(|device| device.kind() == DeviceKind::Cuda && device.ordinal() == ordinal) {
                report(&format!("NOT COVERED: cuda:{ordinal} ({why})"));
            }
        }
        devices
    })
}

/// Gives a test all devices to itself: the tests of a binary that call this run one at a time.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives a test a GPU to itself, because page-locking memory in another test waits while a gate is
/// closed. For the same reason a test takes the memory it needs before it closes a gate.
pub fn alone_on(device: Device) -> Option<MutexGuard<'static, ()>> {
    (device.kind() == DeviceKind::Cuda).then(alone)
}

/// Runs `check` on every device. On a GPU, one test runs at a time.
pub fn everywhere(mut check: impl FnMut(Device)) {
    for &device in devices() {
        let _alone = alone_on(device);
        check(device);
    }
}

/// Does the same as [`everywhere`], and also runs `check` on 20 schedules of a seeded CPU device.
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
