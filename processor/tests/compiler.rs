//! Programs that must not compile, and their twins. They need a Rust compiler.

#[test]
#[cfg_attr(miri, ignore = "starts the compiler")]
fn refused_programs_and_their_twins() {
    testkit::compile_fail::refused_programs_and_their_twins(testkit::this_test!());
}
