//! Tests that need a Rust compiler: programs of several ranks that must not compile, and their
//! twins, and a driver that fails.

mod failing_driver;

#[test]
#[cfg_attr(miri, ignore = "starts the compiler")]
fn refused_programs_and_their_twins() {
    testkit::compile_fail::refused_programs_and_their_twins(testkit::this_test!());
}
