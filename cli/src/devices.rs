//! The subcommand `thalweg devices`.

use std::fmt::Write as _;
use std::process::ExitCode;

use serde_json::{Value, json};
use thalweg::{Concurrency, Device, DeviceKind, Version, concurrency_check, stream_tags};

use crate::args::DevicesArgs;
use crate::output;

stream_tags!(Left, Right);

/// Lists the devices, and says which one a run would use. If that device cannot be used, prints the
/// list before it returns the error.
pub(crate) fn run(args: &DevicesArgs) -> Result<ExitCode, String> {
    let Seen { devices, best, note, used } = look(
        || Device::open("auto").map(|opened| (opened.device, opened.fallback)).map_err(|e| e.to_string()),
        (args.device.name != "auto").then_some(|| args.device.open().map(|(device, _)| device)),
        Device::all,
    )?;
    let check = used.as_ref().ok().filter(|_| args.check).map(check).transpose()?;
    let text = if args.json {
        let list: Vec<Value> = devices.iter().map(describe).collect();
        let document = json!({
            "thalweg": env!("CARGO_PKG_VERSION"),
            "auto": best.to_string(),
            "auto_note": note,
            "used": used.as_ref().ok().map(Device::to_string),
            "check": check.map(|check| json!({
                "in_turn_ns": check.in_turn.as_nanos() as u64,
                "together_ns": check.together.as_nanos() as u64,
                "overlap": check.overlap,
                "at_once": check.at_once(),
            })),
            "devices": list,
        });
        format!("{document:#}\n")
    } else {
        let mut text = table(&devices, &best, note.as_deref());
        if let Ok(used) = &used {
            let why = if args.device.name == "auto" { "as auto chooses" } else { "as --device or THALWEG_DEVICE says" };
            _ = writeln!(text, "used: {used} ({why})");
        }
        if let Some(check) = check {
            _ = writeln!(text, "check: {check}");
            if !check.at_once() {
                text += "  they can take turns because other work fills the device, because a debugger or a profiler\n  \
                         serializes kernels, or because CUDA_DEVICE_MAX_CONNECTIONS is small\n";
            }
        }
        text
    };
    output::print(&text)?;
    used.map(|_| ExitCode::SUCCESS)
}

/// Measures whether two streams of the device run at once.
fn check(device: &Device) -> Result<Concurrency, String> {
    let measured = device.stream::<Left>().and_then(|left| concurrency_check(&left, &device.stream::<Right>()?));
    measured.map_err(|e| format!("{device}: the streams could not be checked: {e}"))
}

struct Seen {
    devices: Vec<Device>,
    /// The device that `auto` means, with the reason if that is the CPU.
    best: Device,
    note: Option<String>,
    /// The device of a run.
    used: Result<Device, String>,
}

/// Opens what a run would use before it lists what can be opened. A GPU without free memory cannot
/// be opened, but perhaps a moment later; once open, it stays so. Each device is asked for once, so
/// the list has the one that is used.
fn look(
    auto: impl FnOnce() -> Result<(Device, Option<String>), String>,
    named: Option<impl FnOnce() -> Result<Device, String>>,
    all: impl FnOnce() -> Vec<Device>,
) -> Result<Seen, String> {
    let (best, note) = auto()?;
    let used = named.map_or(Ok(best), |open| open());
    Ok(Seen { devices: all(), best, note, used })
}

fn describe(device: &Device) -> Value {
    let dotted = |version: Option<Version>| version.map(|version| version.to_string());
    json!({
        "id": device.to_string(),
        "kind": format!("{:?}", device.kind()).to_lowercase(),
        "name": device.name(),
        "total_memory": device.total_memory(),
        "free_memory": device.free_memory().ok(),
        "multiprocessors": device.multiprocessors(),
        "copy_engines": device.copy_engines(),
        "priorities": [device.priorities().start(), device.priorities().end()],
        "compute_capability": dotted(device.compute_capability()),
        "driver_version": dotted(device.driver_version()),
    })
}

fn table(devices: &[Device], best: &Device, note: Option<&str>) -> String {
    let gib = |bytes: u64| format!("{:.1} GiB", bytes as f64 / (1u64 << 30) as f64);
    let mut text = String::new();
    for device in devices {
        let auto = if device.to_string() == best.to_string() { "  (auto)" } else { "" };
        _ = writeln!(text, "{device}  {}{auto}", device.name());
        let mut line = |key: &str, value: String| _ = writeln!(text, "  {key:<20}{value}");
        let free =
            device.free_memory().map_or_else(|e| format!("free unknown: {e}"), |bytes| format!("{} free", gib(bytes)));
        line("memory", format!("{}, {free}", gib(device.total_memory())));
        let units = if device.kind() == DeviceKind::Cpu { "threads" } else { "multiprocessors" };
        line(units, device.multiprocessors().to_string());
        line("copy engines", device.copy_engines().to_string());
        let priorities = device.priorities();
        let priorities = match (*priorities.start(), *priorities.end()) {
            (first, last) if first == last => first.to_string(),
            (first, last) => format!("{first} (first) to {last} (last)"),
        };
        line("stream priorities", priorities);
        if let Some(version) = device.compute_capability() {
            line("compute capability", version.to_string());
        }
        if let Some(version) = device.driver_version() {
            line("driver", format!("CUDA {version}"));
        }
    }
    if let Some(note) = note {
        _ = writeln!(text, "auto: {note}");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// A GPU that cannot be opened at first stands in the list as soon as something uses it.
    #[test]
    fn the_list_has_what_is_used() {
        let cpu = Device::cpu().expect("a CPU device");
        let gpu = Device::new_cpu().expect("another one");
        for full in 0..4 {
            for by_name in [false, true] {
                // As `Device::cuda`: the first attempts fail, and an open device stays open.
                let attempts = Cell::new(0);
                let open = || {
                    attempts.set(attempts.get() + 1);
                    (attempts.get() > full).then_some(gpu)
                };
                let auto = || Ok(open().map_or((cpu, Some("full".to_owned())), |gpu| (gpu, None)));
                let named = || open().ok_or_else(|| "full".to_owned());
                let all = || open().into_iter().chain([cpu]).collect();
                let seen = look(auto, by_name.then_some(named), all).expect("a list");
                let listed = |device: &Device| seen.devices.iter().any(|d| d.to_string() == device.to_string());
                assert!(listed(&seen.best) && seen.used.as_ref().map_or(true, listed), "{full} {by_name}");
                assert_eq!(seen.note.is_some(), seen.best.to_string() == "cpu");
                if !by_name {
                    assert_eq!(seen.used.expect("a device").to_string(), seen.best.to_string());
                }
            }
        }
    }
}
