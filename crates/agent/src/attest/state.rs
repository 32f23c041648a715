//! What an agent remembers of attestation across restarts. Nothing of it is secret.

use std::io;
use std::path::{Path, PathBuf};

use linewarden_files::{read_bounded, replace};
use serde::{Deserialize, Serialize};

const VERSION: u32 = 1;
const BYTES_MAX: usize = 4_096;

/// The file's content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct State {
    version: u32,
    /// The last period that the controller has vouched for.
    pub(crate) period: u64,
    /// h of the last measurement, in hexadecimal digits.
    pub(crate) measured: Option<String>,
    /// h of the configuration that the controller was told last.
    pub(crate) taken: Option<String>,
    /// The period of the last quote that it has taken.
    pub(crate) quoted: Option<u64>,
    /// Gateways that have asked under a right tag, a few: a flood in other names does not keep theirs from being looked at.
    #[serde(default)]
    pub(crate) gateways: Vec<u32>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            version: VERSION,
            period: 0,
            measured: None,
            taken: None,
            quoted: None,
            gateways: Vec::new(),
        }
    }
}

/// The state with its file.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    path: PathBuf,
    written: State,
    pub(crate) state: State,
}

impl Kept {
    /// Reads the file; none is an empty one.
    ///
    /// # Errors
    /// It cannot be read, or is damaged.
    pub(crate) fn read_from(path: &Path) -> io::Result<Self> {
        let state = match read_bounded(path, BYTES_MAX) {
            Ok(bytes) => parse(&bytes)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => State::default(),
            Err(error) => return Err(error),
        };
        Ok(Self {
            path: path.to_owned(),
            written: state.clone(),
            state,
        })
    }

    /// Makes what has changed durable.
    ///
    /// # Errors
    /// The file's; the next call tries again.
    pub(crate) fn save(&mut self) -> io::Result<()> {
        if self.state == self.written {
            return Ok(());
        }
        let bytes = serde_json::to_vec(&self.state)?;
        replace(&self.path, &bytes)?;
        self.written = self.state.clone();
        Ok(())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

fn parse(bytes: &[u8]) -> io::Result<State> {
    let damaged = |why: String| {
        let remedy = "without the file the agent begins at `enrolled_period`, and sends its evidence again";
        io::Error::new(io::ErrorKind::InvalidData, format!("{why}; {remedy}"))
    };
    let state: State =
        serde_json::from_slice(bytes).map_err(|error| damaged(format!("no state: {error}")))?;
    match state.version {
        VERSION => Ok(state),
        other => Err(damaged(format!("a state of version {other}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_as_it_was_written_and_a_damaged_one_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("attest.state");
        let mut kept = Kept::read_from(&path).unwrap();
        assert_eq!(kept.state, State::default());
        kept.save().unwrap();
        assert!(!path.exists(), "there is nothing to remember yet");
        kept.state.period = 9;
        kept.state.taken = Some("ab".to_owned());
        kept.state.gateways = vec![3, 7];
        kept.save().unwrap();
        assert_eq!(Kept::read_from(&path).unwrap().state, kept.state);
        // Of an agent that did not remember gateways.
        std::fs::write(
            &path,
            r#"{"version":1,"period":9,"measured":null,"taken":null,"quoted":null}"#,
        )
        .unwrap();
        let read = Kept::read_from(&path).unwrap().state;
        assert_eq!((read.period, read.gateways), (9, vec![]));
        for damaged in ["", "{}", r#"{"version":2,"period":9}"#] {
            std::fs::write(&path, damaged).unwrap();
            let error = Kept::read_from(&path).unwrap_err();
            assert!(error.to_string().contains("enrolled_period"), "{error}");
        }
    }
}
