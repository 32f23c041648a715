//! Compiles the eBPF programs and generates their skeletons.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

use libbpf_cargo::SkeletonBuilder;

/// The programs of the feature `bench`.
const BENCH_PROGRAMS: [&str; 6] = [
    "xdp/bpf/bench",
    "xdp/bpf/bench_cipher",
    "xdp/bpf/bench_proof",
    "xdp/bpf/bench_sealed",
    "xdp/bpf/bench_stamp",
    "classic/bpf/bench_papers",
];

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    let arch = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let (define, include) = match arch.as_str() {
        "x86_64" => ("x86", "/usr/include/x86_64-linux-gnu"),
        "aarch64" => ("arm64", "/usr/include/aarch64-linux-gnu"),
        other => (other, "/usr/include"),
    };
    // -mcpu=v3: compare-and-swap and 32-bit ALU instructions, supported since Linux 5.12.
    let args: Vec<OsString> = vec![
        "-mcpu=v3".into(),
        format!("-D__TARGET_ARCH_{define}").into(),
        "-I".into(),
        include.into(),
        "-I".into(),
        "src/xdp/bpf".into(),
        "-Wall".into(),
        "-Werror".into(),
    ];
    let mut programs = vec!["xdp/bpf/gateway"];
    if env::var_os("CARGO_FEATURE_BENCH").is_some() {
        programs.extend(BENCH_PROGRAMS);
    }
    for path in programs {
        let source = format!("src/{path}.bpf.c");
        let program = path.rsplit('/').next().unwrap_or(path);
        let built = SkeletonBuilder::new()
            .source(&source)
            .clang_args(&args)
            // Embedded as numbers, each object would make the compiler, clippy and rustdoc parse 11 MB.
            .reference_obj(true)
            .build_and_generate(out.join(format!("{program}.skel.rs")));
        if let Err(error) = built {
            println!(
                "cargo::error=compiling {source} failed: {error}; check that clang is installed and run scripts/setup"
            );
            std::process::exit(1);
        }
    }
    println!("cargo::rerun-if-changed=src/xdp/bpf");
    println!("cargo::rerun-if-changed=src/classic/bpf");
}
