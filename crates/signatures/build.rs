//! Compiles the CUDA kernels for this CPU if the feature `host-kernels` is enabled; kernels for a GPU are compiled at
//! run time.

fn main() {
    println!("cargo::rerun-if-changed=cuda");
    #[cfg(feature = "host-kernels")]
    cc::Build::new()
        .cpp(true)
        .cpp_link_stdlib(None)
        .std("c++17")
        .opt_level(2)
        .flag("-fno-exceptions")
        .flag("-fno-rtti")
        .flag("-Wno-unknown-pragmas")
        .file("cuda/host.cc")
        .compile("linewarden_host_kernels");
}
