//! Writes `src/proto/` from `proto/`: the messages as Rust, and their descriptors, which text format is read
//! with.
//!
//! Nothing has to be installed: protox reads the files, no protoc. The test `generated` compares what lies in
//! the tree with this.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// The protocol buffers and where the generated files go, under the crate's directory.
const SOURCES: [&str; 5] = [
    "p4/v1/p4runtime.proto",
    "p4/v1/p4data.proto",
    "p4/config/v1/p4info.proto",
    "google/rpc/status.proto",
    "linewarden/evidence/v1.proto",
];
const TARGET: &str = "src/proto";

/// The generated files by name.
pub fn generated() -> io::Result<BTreeMap<String, Vec<u8>>> {
    let mut compiler = protox::Compiler::new([manifest_dir().join("proto")]).map_err(io::Error::other)?;
    compiler.include_imports(true).include_source_info(false);
    for source in SOURCES {
        compiler.open_file(source).map_err(io::Error::other)?;
    }
    let out = tempfile::tempdir()?;
    let mut config = tonic_prost_build::Config::new();
    // Comments stay in the .proto files: as Markdown they would be broken links and examples that do not
    // compile.
    config.disable_comments(["."]).btree_map(["."]);
    tonic_prost_build::configure()
        .out_dir(out.path())
        .disable_comments(["."])
        .compile_fds_with_config(compiler.file_descriptor_set(), config)?;
    let mut files = BTreeMap::from([(
        "descriptors.bin".to_owned(),
        compiler.encode_file_descriptor_set(),
    )]);
    for entry in std::fs::read_dir(out.path())? {
        let entry = entry?;
        files.insert(
            entry.file_name().to_string_lossy().into_owned(),
            std::fs::read(entry.path())?,
        );
    }
    Ok(files)
}

/// Where the generated files lie.
pub fn target_dir() -> PathBuf {
    manifest_dir().join(TARGET)
}

fn manifest_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Writes the files.
#[allow(dead_code, reason = "the test only compares")]
pub fn main() -> io::Result<()> {
    std::fs::create_dir_all(target_dir())?;
    for (name, content) in generated()? {
        std::fs::write(target_dir().join(name), content)?;
    }
    Ok(())
}
