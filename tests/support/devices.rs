//! Every device there is, and a word about those that are not.

use std::io::Write;
use std::sync::OnceLock;

use thalweg::{Device, Error, PerThread, Stream};

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

/// Runs `check` on every device, on the calling thread's own stream there.
pub fn on_each_device(mut check: impl for<'l> FnMut(&Stream<PerThread<'l>>)) {
    for device in devices() {
        device.per_thread(&mut check).unwrap_or_else(|e| panic!("{device}: {e}"));
    }
}
