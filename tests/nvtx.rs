//! A timeline's spans reach a tool that listens to NVTX: a library that the environment names,
//! as it names Nsight Systems'.
#![cfg(all(unix, target_pointer_width = "64"))]

use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::devices::devices;
use testkit::process::again;
use thalweg::{Activity, AnyStream, Error, Result, Timeline};

/// If this variable is set, this process is the program that a tool listens to. It names the file
/// into which the tool writes what it hears.
const LOG: &str = "NVTX_TOOL_LOG";
const TOOL: &str = "NVTX_INJECTION64_PATH";

/// Compiles the tool.
fn tool(folder: &Path) -> PathBuf {
    let library = folder.join("libnvtx_tool.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/nvtx_tool.rs");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let status = Command::new(&rustc)
        .args(["--edition=2024", "--crate-type=cdylib", "-o"])
        .args([&library, &source])
        .status()
        .unwrap_or_else(|e| panic!("this test needs a Rust compiler, and {} does not start: {e}", rustc.display()));
    assert!(status.success(), "the tool compiles: {status}");
    library
}

/// What the program does, on each device.
fn spans() -> Result<()> {
    for &device in devices() {
        let (stream, timeline) = (AnyStream::new(device)?, Timeline::new(device)?);
        stream.enter(|s| {
            let mut x = timeline.host("main", "allocate", || s.alloc::<u32>(100))?;
            timeline.span(s, Activity::Compute, "outer", || {
                timeline.span(s, Activity::Compute, "first fill", || s.fill(&mut x, 1))?;
                timeline.span(s, Activity::Compute, "second fill", || s.fill(&mut x, 2))
            })?;
            let failed: Result<()> =
                timeline.span(s, Activity::Copy, "fails", || Err(Error::Thread { reason: "on purpose".into() }));
            assert!(failed.is_err());
            Timeline::disabled().span(s, Activity::Compute, "nobody listens", || s.fill(&mut x, 3))?;
            // Labels alone, without a timeline's events.
            Timeline::labels_only().span(s, Activity::Compute, "only a label", || s.fill(&mut x, 4))?;
            timeline.wait("main", "wait", || s.synchronize())
        })?;
        timeline.finish()?;
    }
    Ok(())
}

#[test]
#[cfg_attr(miri, ignore = "starts the compiler")]
fn a_tool_hears_every_span() {
    if std::env::var_os(LOG).is_some() {
        return spans().unwrap();
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("nvtx-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let run = |tool: &Path| {
        let log = folder.join("log");
        let status = again(concat!(module_path!(), "::a_tool_hears_every_span"))
            .envs([(LOG, &*log), (TOOL, tool)])
            .status()
            .unwrap();
        assert!(status.success(), "{status}");
        std::fs::read_to_string(log)
    };
    // If the variable names a library that does not exist, the program runs as usual.
    assert!(run(&folder.join("nothing.so")).is_err());

    let one = ["push allocate", "pop", "push outer", "push first fill", "pop", "push second fill", "pop", "pop"];
    let one = one.into_iter().chain(["push fails", "pop", "push only a label", "pop", "push wait", "pop"]);
    let want: Vec<_> = ["initialized"].into_iter().chain(devices().iter().flat_map(|_| one.clone())).collect();
    let heard = run(&tool(&folder)).unwrap_or_else(|e| panic!("the tool was not loaded: {e}"));
    assert_eq!(heard.lines().collect::<Vec<_>>(), want);
    std::fs::remove_dir_all(folder).unwrap();
}
