//! Generates a crate's `src/proto/` from its `proto/`: the messages as Rust, and optionally descriptors for the text format.
//!
//! No protoc is needed: protox reads the files. The test `generated` compares the files in the source tree with
//! the generated ones.
#![allow(dead_code, reason = "the example uses only `write`, the test only `stale`")]

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

/// Messages of a crate.
pub struct Messages {
    /// Directory of the crate.
    pub crate_directory: &'static str,
    /// Protobuf files below `proto/`.
    pub sources: &'static [&'static str],
    /// Whether to generate `descriptors.bin`, which the text format requires.
    pub descriptors: bool,
}

impl Messages {
    /// Contents of the generated files by file name.
    fn generated(&self) -> io::Result<BTreeMap<String, Vec<u8>>> {
        let mut compiler = protox::Compiler::new([Path::new(self.crate_directory).join("proto")])
            .map_err(io::Error::other)?;
        compiler.include_imports(true).include_source_info(false);
        for source in self.sources {
            compiler.open_file(source).map_err(io::Error::other)?;
        }
        let out = tempfile::tempdir()?;
        let mut config = tonic_prost_build::Config::new();
        // Comments are not copied: as Markdown they would contain broken links and examples that do not
        // compile.
        config.disable_comments(["."]).btree_map(["."]);
        tonic_prost_build::configure()
            .out_dir(out.path())
            .disable_comments(["."])
            .compile_fds_with_config(compiler.file_descriptor_set(), config)?;
        let mut files = BTreeMap::new();
        if self.descriptors {
            let descriptors = compiler.encode_file_descriptor_set();
            files.insert("descriptors.bin".to_owned(), descriptors);
        }
        for name in file_names(out.path())? {
            let content = std::fs::read(out.path().join(&name))?;
            files.insert(name, content);
        }
        Ok(files)
    }

    fn target(&self) -> PathBuf {
        Path::new(self.crate_directory).join("src/proto")
    }

    /// Writes the generated files to `src/proto/`.
    pub fn write(&self) -> io::Result<()> {
        std::fs::create_dir_all(self.target())?;
        for (name, content) in self.generated()? {
            std::fs::write(self.target().join(name), content)?;
        }
        Ok(())
    }

    /// Names of the files in `src/proto/` that are missing, superfluous or different from the generated files.
    pub fn stale(&self) -> io::Result<BTreeSet<String>> {
        let mut stale = file_names(&self.target())?;
        for (name, content) in self.generated()? {
            let committed = std::fs::read(self.target().join(&name)).unwrap_or_default();
            match committed == content {
                true => stale.remove(&name),
                false => stale.insert(name),
            };
        }
        Ok(stale)
    }
}

fn file_names(directory: &Path) -> io::Result<BTreeSet<String>> {
    let name = |entry: io::Result<std::fs::DirEntry>| Ok(entry?.file_name().to_string_lossy().into_owned());
    std::fs::read_dir(directory)?.map(name).collect()
}
