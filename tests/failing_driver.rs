//! A GPU that cannot be opened is reported: `Device::best` takes the CPU device and logs why,
//! unless the machine has no GPU. The drivers that fail are the test's own.
#![cfg(target_os = "linux")]

use std::sync::Mutex;

use log::{Level, LevelFilter, Log, Metadata, Record};
use testkit::drivers::Drivers;
use testkit::process::again;
use thalweg::{Device, DeviceKind};

/// If this variable is set, this process is the program that finds the driver.
const CHILD: &str = "FAILING_DRIVER_CHILD";

/// The warnings so far.
static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Keep;

impl Log for Keep {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &Record<'_>) {
        Device::cpu().unwrap(); // a logger may ask for a device
        if record.level() <= Level::Warn {
            WARNINGS.lock().unwrap().push(format!("{}: {}", record.target(), record.args()));
        }
    }
    fn flush(&self) {}
}

/// Prints what the program is told, in lines that begin with a mark.
fn program() {
    static KEEP: Keep = Keep;
    log::set_logger(&KEEP).unwrap();
    log::set_max_level(LevelFilter::Trace);
    for _ in 0..2 {
        let best = Device::best().unwrap();
        println!("\n= best {}", if best.kind() == DeviceKind::Cuda { "gpu" } else { "cpu" });
    }
    for warning in WARNINGS.lock().unwrap().iter() {
        println!("= warning {warning}");
    }
    let fallback = Device::from_env().unwrap().fallback;
    println!("= line {}", fallback.unwrap_or_default());
    match Device::cuda(0) {
        Ok(_) => println!("= opened"),
        Err(error) => println!("= {} {error}", if error.means_no_gpu() { "absent" } else { "fails" }),
    }
    println!("= warnings {}", WARNINGS.lock().unwrap().len());
}

#[test]
#[cfg_attr(miri, ignore = "starts the compiler")]
fn a_driver_that_fails_is_warned_about_once() {
    if std::env::var_os(CHILD).is_some() {
        return program();
    }
    let drivers = Drivers::new(env!("CARGO_TARGET_TMPDIR"), "failing_driver");
    let told = |folder: &str, fails: &str, visible: Option<&str>| {
        let mut command = again(concat!(module_path!(), "::a_driver_that_fails_is_warned_about_once"));
        command.env(CHILD, "1");
        drivers.give(&mut command, folder, fails);
        command.envs(visible.map(|visible| ("CUDA_VISIBLE_DEVICES", visible)));
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        text.lines().filter_map(|line| line.strip_prefix("= ")).map(str::to_owned).collect::<Vec<_>>()
    };
    let purpose =
        |call: &str, code: u32| format!("{call} failed: CUDA_ERROR_ON_PURPOSE ({code}): this driver fails on purpose");
    let init = |code| format!("the NVIDIA driver cannot be used: {}", purpose("cuInit", code));
    for (folder, fails, visible, why) in [
        ("failing", "cuInit 999", None, init(999)),
        // The driver finds no GPU, though nobody hides one: perhaps its module is not loaded.
        ("failing", "cuInit 100", None, init(100)),
        ("failing", "cuInit 100", Some("0"), init(100)),
        // Hidden GPUs are not why it does not start.
        ("failing", "cuInit 999", Some(""), init(999)),
        ("failing", "cuDevicePrimaryCtxRetain 2", None, purpose("cuDevicePrimaryCtxRetain", 2)),
        ("failing", "", None, "the NVIDIA driver cannot be used: cuda:0 has no stream-ordered memory pools".to_owned()),
        ("broken", "", None, "the NVIDIA driver cannot be used: ".to_owned()),
    ] {
        let told = told(folder, fails, visible);
        let line = format!("running on the CPU device: {why}");
        let [best, again, warning, text, fails, warnings] = &told[..] else { panic!("{told:#?}") };
        assert_eq!([best, again, warnings], ["best cpu", "best cpu", "warnings 1"], "{told:#?}");
        assert!(warning.starts_with(&format!("warning thalweg::device: {line}")), "{told:#?}");
        assert!(text.starts_with(&format!("line {line}")), "{told:#?}");
        assert!(fails.starts_with(&format!("fails {why}")), "{told:#?}");
    }
    for visible in ["", "-1", "NoDevFiles"] {
        let told = told("failing", "cuInit 100", Some(visible));
        let why = format!("no CUDA device can be used: CUDA_VISIBLE_DEVICES is `{visible}`, which hides them all");
        let line = format!("line running on the CPU device: {why}");
        assert_eq!(told, ["best cpu", "best cpu", &line, &format!("absent {why}"), "warnings 0"]);
    }
    // The machine as it is: with or without a driver, nothing fails.
    let told = told("none", "", None);
    assert_eq!(told.last().unwrap(), "warnings 0", "{told:#?}");
}
