//! Generates the messages and services of P4Runtime from `proto/`, and the descriptors that the text format requires. No
//! protoc is needed: protox reads the files.

use std::error::Error;
use std::path::Path;
use std::{env, fs};

const SOURCES: [&str; 5] = [
    "p4/v1/p4runtime.proto",
    "p4/v1/p4data.proto",
    "p4/config/v1/p4info.proto",
    "google/rpc/status.proto",
    "linewarden/evidence/v1.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    // Without source information, comments are not copied: as Markdown they would contain broken links and examples that
    // do not compile.
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_imports(true).open_files(SOURCES)?;
    let descriptors = compiler.encode_file_descriptor_set();
    fs::write(
        Path::new(&env::var("OUT_DIR")?).join("descriptors.bin"),
        descriptors,
    )?;
    tonic_prost_build::configure()
        .btree_map(".")
        .compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}
