//! Builds the kernels of this crate.

#[path = "built_kernels.rs"]
mod built_kernels;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    built_kernels::build(&["sm_75", "sm_80"], true)
}
