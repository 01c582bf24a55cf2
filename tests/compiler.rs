//! Tests that need a Rust compiler: programs that must not compile, and their twins, and drivers
//! and tools of the tests' own.

mod captures;
mod failing_driver;
mod nvtx;

#[test]
#[cfg_attr(miri, ignore = "starts the compiler")]
fn refused_programs_and_their_twins() {
    testkit::compile_fail::refused_programs_and_their_twins(testkit::this_test!());
}
