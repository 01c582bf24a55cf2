//! Programs of several ranks that must not compile, and their twins: see `tests/compile_fail.rs` of the
//! repository, whose harness this is.

#[path = "../../tests/compile_fail.rs"]
mod harness;
