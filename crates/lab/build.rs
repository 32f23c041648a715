//! Compiles the eBPF programs and generates their skeletons.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

use libbpf_cargo::SkeletonBuilder;

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    // Where Debian keeps the <asm/types.h> that <linux/bpf.h> includes.
    let arch = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let asm_headers = format!("/usr/include/{arch}-linux-gnu");
    // -mcpu=v3: 32-bit arithmetic, known since Linux 5.12.
    let args: Vec<OsString> = vec![
        "-mcpu=v3".into(),
        "-I".into(),
        asm_headers.into(),
        "-Wall".into(),
        "-Werror".into(),
    ];
    for program in ["burst", "loadgen", "pace", "pass"] {
        let source = format!("src/bpf/{program}.bpf.c");
        let built = SkeletonBuilder::new()
            .source(&source)
            .clang_args(&args)
            .build_and_generate(out.join(format!("{program}.skel.rs")));
        if let Err(error) = built {
            println!(
                "cargo::error={source} could not be compiled: {error:#}; install clang with scripts/setup"
            );
            std::process::exit(1);
        }
    }
    println!("cargo::rerun-if-changed=src/bpf");
}
