//! Logs that the checker accepts, and logs with one mistake each, which it rejects.

use std::fs;
use std::path::Path;

use super::{Access, Rejected, Row, check_log};

/// The names of the logs of a folder, and whether each is accepted.
fn logs(folder: &str) -> Vec<(String, Result<(), Rejected>)> {
    // In the repository, or where the tests were taken without it.
    let places = [concat!(env!("CARGO_MANIFEST_DIR"), "/tests/trace/logs"), "tests/trace/logs"];
    let folder = places.map(Path::new).into_iter().find(|place| place.exists()).unwrap().join(folder);
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    files.map(|file| (file.display().to_string(), check_log(&*fs::read(&file).unwrap()).map(drop))).collect()
}

#[test]
fn logs_without_a_mistake_are_accepted() {
    let logs = logs("accepted");
    assert!(logs.len() >= 18, "{}", logs.len());
    for (name, accepted) in logs {
        accepted.unwrap_or_else(|why| panic!("{name}: {why}"));
    }
}

#[test]
fn logs_with_a_mistake_are_rejected() {
    let logs = logs("rejected");
    assert!(logs.len() >= 31, "{}", logs.len());
    for (name, rejected) in logs {
        assert!(matches!(rejected, Err(Rejected::Race(_))), "{name}: {rejected:?}");
    }
}

#[test]
fn a_report_names_both_calls_and_the_bytes() {
    let log = "thalweg trace 1\ndevice 1 cuda:0\nstream 1 1\nname 1 app::Upload\nstream 2 1\nalloc 1 1000 100\n\
               work 1 w:1000+100 # fill @ src/main.rs:3:5\nwork 2 r:10f0+20 # blur @ src/main.rs:4:5\n";
    let Err(Rejected::Race(text)) = check_log(log.as_bytes()) else { panic!("the second stream does not wait") };
    assert_eq!(
        text,
        "nothing orders two accesses to bytes 0x10f0 to 0x1100, 16 bytes in all\n  \
         first  write by `fill` on stream 1 of cuda:0 (app::Upload), at src/main.rs:3:5 (row 7)\n  \
         second read  by `blur` on stream 2 of cuda:0, at src/main.rs:4:5 (row 8)"
    );
}

#[test]
fn files_that_are_no_logs_are_told_apart_from_logs_with_a_mistake() {
    for (log, line) in [("", 1), ("PNG", 1), ("thalweg trace 2\n", 1), ("thalweg trace 1\nwrok 1\n", 2)] {
        match check_log(log.as_bytes()) {
            Err(Rejected::Malformed { line: found, .. }) => assert_eq!(found, line, "{log:?}"),
            other => panic!("{log:?}: {other:?}"),
        }
    }
    assert_eq!(check_log(&b"thalweg trace 1\n"[..]).unwrap().rows, 0);
}

#[test]
fn every_row_of_the_logs_is_written_as_it_was_read() {
    let mut rows = 0;
    for kind in ["accepted", "rejected"] {
        for (name, _) in logs(kind) {
            for line in fs::read_to_string(&name).unwrap().lines().skip(1) {
                assert_eq!(Row::parse(line).unwrap_or_else(|| panic!("{name}: {line}")).to_string(), line);
                rows += 1;
            }
        }
    }
    assert!(rows > 200, "{rows}");
}

#[test]
fn rows_without_gaps_are_one_range() {
    let ranges = |access: Access| access.ranges().map(|r| (r.start, r.end)).collect::<Vec<_>>();
    let at = Access::read(0x100, 8);
    assert_eq!(ranges(at.pitched([(4, 8), (3, 32)])), [(0x100, 0x100 + 96)]);
    assert_eq!(ranges(at.pitched([(2, 16), (1, 32)])), [(0x100, 0x108), (0x110, 0x118)]);
    assert_eq!(ranges(at.pitched([(1, 16), (2, 64)])), [(0x100, 0x108), (0x140, 0x148)]);
    let planes = ranges(at.pitched([(2, 16), (2, 64)]));
    assert_eq!(planes, [(0x100, 0x108), (0x110, 0x118), (0x140, 0x148), (0x150, 0x158)]);
    assert_eq!(ranges(at.pitched([(2, 8), (2, 64)])), [(0x100, 0x110), (0x140, 0x150)]);
    assert!(ranges(Access::read(0x100, 0)).is_empty());
}
