//! `thalweg trace`: logs are accepted, rejected, or cannot be read.

use crate::support::{Run, repository, thalweg};

#[test]
fn logs_are_accepted_and_rejected() {
    let logs = repository("tests/trace/logs");
    let (good, bad) = (logs.join("accepted/hand.log"), logs.join("rejected/columns-that-overlap.log"));
    let run = Run::of(thalweg().args(["trace", "check"]).arg(&good)).expect(0, &[]);
    assert!(run.out.contains("hand.log: accepted, 9 rows, 4 accesses, 2 streams"), "{run:#?}");

    let run = Run::of(thalweg().args(["trace", "check"]).args([&bad, &good])).expect(1, &[]);
    for part in [
        "columns-that-overlap.log: rejected: nothing orders two accesses to bytes 0x100f to 0x1010, 1 byte in all",
        "first  write by `left columns` on stream 1 of cuda:0, at src/main.rs:10:5",
        "second write by `columns that begin one byte before` on stream 2 of cuda:0, at src/main.rs:11:5",
        "hand.log: accepted",
    ] {
        assert!(run.out.contains(part), "no {part:?} in {run:#?}");
    }
}

#[test]
fn what_is_no_log_is_named() {
    let run = Run::of(thalweg().args(["trace", "check", "no-such.log"]).arg(repository("docs/trace.md")));
    let run = run.expect(1, &["no-such.log: the log cannot be read", "trace.md: this is no log of THALWEG_TRACE"]);
    assert_eq!(run.out, "");
    Run::of(thalweg().args(["trace", "check"])).expect(2, &["FILE|-"]);
    assert!(Run::of(thalweg().args(["trace", "check", "--help"])).expect(0, &[]).out.contains("Exit code:"));
}
