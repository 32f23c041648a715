//! Compiled P4 programs and their packet tests, from the repository.

use std::path::{Path, PathBuf};

use linewarden_switch::stf::Test;
use linewarden_switch::stf::replay::{self, PacketTrace};
use linewarden_switch::switch::Switch;

use crate::bench::BenchError;

/// The directory of the programs: `p4` in the repository.
#[derive(Clone, Debug)]
pub struct Programs(PathBuf);

/// Size limit of a program or packet test, bytes.
const FILE_BYTES_MAX: usize = 64 << 20;

impl Programs {
    /// The programs in `directory`.
    #[must_use]
    pub fn new(directory: &Path) -> Self {
        Self(directory.to_owned())
    }

    /// A switch with the program `name`, set up by the commands of a packet test.
    ///
    /// # Errors
    /// A file cannot be read, or a program or command is refused.
    pub fn switch(&self, name: &str, commands: &str) -> Result<Switch, BenchError> {
        let test = Test::parse(&format!("setup commands of {name}"), commands)?;
        replay::prepare_switch(&self.json(name)?, &test).map_err(program_error(name))
    }

    /// The packets of one of the program's packet tests with their outputs and times.
    ///
    /// # Errors
    /// A file cannot be read, or the test fails.
    pub fn traces(&self, name: &str, test: &str) -> Result<Vec<PacketTrace>, BenchError> {
        let path = self.0.join("tests").join(format!("{name}-{test}.stf"));
        let text = String::from_utf8_lossy(&read(&path)?).into_owned();
        let test = Test::parse(&path.display().to_string(), &text)?;
        replay::trace_packets(&self.json(name)?, &test).map_err(program_error(name))
    }

    fn json(&self, name: &str) -> Result<Vec<u8>, BenchError> {
        read(&self.0.join("compiled").join(format!("{name}.json")))
    }
}

fn read(path: &Path) -> Result<Vec<u8>, BenchError> {
    linewarden_files::read_bounded(path, FILE_BYTES_MAX).map_err(|source| BenchError::P4File {
        path: path.to_owned(),
        source,
    })
}

fn program_error(name: &str) -> impl FnOnce(linewarden_switch::stf::run::RunError) -> BenchError {
    move |source| BenchError::P4Program {
        name: name.to_owned(),
        source,
    }
}
