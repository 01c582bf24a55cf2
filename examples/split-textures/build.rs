fn main() -> Result<(), thalweg_ptx_builder::Error> {
    thalweg_ptx_builder::build_to_out_dir("kernels")
}
