//! Counts the checks that are left in the PTX. `trap` ends a kernel whose access is reported.

const PTX: &str = include_str!(concat!(env!("OUT_DIR"), "/kernels.ptx"));

/// Returns the text of an entry.
fn entry(name: &str) -> &'static str {
    let start = PTX.find(&format!(".visible .entry {name}__")).unwrap_or_else(|| panic!("no PTX of `{name}`"));
    let text = &PTX[start..];
    &text[..text.find("\n}\n").expect("an entry has an end")]
}

fn count(name: &str, instruction: &str) -> usize {
    entry(name).lines().filter(|line| line.trim_start().starts_with(instruction)).count()
}

/// The largest number of such instructions without a branch between them.
fn longest_run(entry: &str, instruction: &str) -> usize {
    let count = |part: &str| part.lines().filter(|line| line.trim_start().starts_with(instruction)).count();
    entry.split("bra").map(count).max().unwrap_or(0)
}

#[test]
fn what_guards_and_loops_prove_is_not_checked() {
    for name in ["saxpy", "blur", "double"] {
        assert_eq!(count(name, "trap"), 0, "{name}");
    }
    // Only the size of shared memory is checked, once for each window.
    for (name, checks) in [("textures", 0), ("transpose", 1), ("product", 2)] {
        assert_eq!(count(name, "trap"), checks, "{name}");
    }
    // Neither the walk over an area nor the planes of a column have checks, so the loads of a place
    // are side by side, as in the twins.
    assert_eq!(longest_run(entry("entropy"), "ld.global.b8"), 3);
    assert_eq!(count("textures", "st.global.cs.v4"), 2 * 13);
    // A body is as short as its twin, without the instruction that reads the size of a block.
    let lines = |name| entry(name).lines().filter(|line| line.trim_end().ends_with(';')).count();
    assert!(lines("saxpy") <= lines("raw_saxpy"), "{} {}", lines("saxpy"), lines("raw_saxpy"));
    // The index comes from memory, so one check stays; that of `y.at()` does not.
    assert_eq!(count("gather", "trap"), 1);
}

#[test]
fn barriers_are_where_they_are_written() {
    for (name, barriers) in [("reduce", 1), ("transpose", 1), ("histogram", 2), ("product", 2), ("entropy", 3)] {
        assert_eq!(count(name, "bar.sync"), barriers, "{name}");
    }
    assert_eq!(count("until", "bar.red"), 1);
}
