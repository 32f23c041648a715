//! Generates the messages and services of the link from `proto/`. No protoc is needed: protox reads the files.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    // Without source information, comments are not copied: as Markdown they would contain broken links.
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler
        .include_imports(true)
        .open_file("linewarden/link/v1.proto")?;
    tonic_prost_build::configure()
        .btree_map(".")
        .build_client(false)
        .compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}
