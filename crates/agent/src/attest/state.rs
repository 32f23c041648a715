//! State of attestation that an agent stores across restarts. It contains no secrets.

use std::io;
use std::path::{Path, PathBuf};

use linewarden_files::{read_bounded, replace};
use serde::{Deserialize, Serialize};

const VERSION: u32 = 1;
const BYTES_MAX: usize = 4_096;

/// Content of the state file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct State {
    version: u32,
    /// The last period that the controller has confirmed.
    pub(crate) period: u64,
    /// Hash h of the last measurement, hexadecimal.
    pub(crate) measured: Option<String>,
    /// Hash h of the last configuration whose evidence the controller accepted, hexadecimal.
    pub(crate) accepted: Option<String>,
    /// The period of the last quote that the controller accepted.
    pub(crate) quoted_period: Option<u64>,
    /// Recently verified gateways: after a restart, a flood with other gateway IDs does not delay their requests.
    #[serde(default)]
    pub(crate) gateways: Vec<u32>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            version: VERSION,
            period: 0,
            measured: None,
            accepted: None,
            quoted_period: None,
            gateways: Vec::new(),
        }
    }
}

/// The state with its file.
#[derive(Clone, Debug)]
pub struct StateFile {
    path: PathBuf,
    saved: State,
    pub(crate) state: State,
}

impl StateFile {
    /// Reads the state; a missing file is an empty state.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged.
    pub fn read_from(path: &Path) -> io::Result<Self> {
        let state = match read_bounded(path, BYTES_MAX) {
            Ok(bytes) => parse(&bytes)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => State::default(),
            Err(error) => return Err(error),
        };
        Ok(Self {
            path: path.to_owned(),
            saved: state.clone(),
            state,
        })
    }

    /// Writes a changed state durably.
    ///
    /// # Errors
    /// Writing fails; the next call tries again.
    pub(crate) fn save(&mut self) -> io::Result<()> {
        if self.state == self.saved {
            return Ok(());
        }
        let bytes = serde_json::to_vec(&self.state)?;
        replace(&self.path, &bytes)?;
        self.saved = self.state.clone();
        Ok(())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

fn parse(bytes: &[u8]) -> io::Result<State> {
    let damaged = |reason: String| {
        let remedy =
            "delete the file: the agent then begins at `enrolled_period`, and sends its evidence again";
        io::Error::new(io::ErrorKind::InvalidData, format!("{reason}; {remedy}"))
    };
    let state: State =
        serde_json::from_slice(bytes).map_err(|error| damaged(format!("malformed state: {error}")))?;
    match state.version {
        VERSION => Ok(state),
        unsupported => Err(damaged(format!("unsupported version {unsupported}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_read_as_written_and_a_damaged_one_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("attest.state");
        let mut state_file = StateFile::read_from(&path).unwrap();
        assert_eq!(state_file.state, State::default());
        state_file.save().unwrap();
        assert!(!path.exists(), "an empty state is not written");
        state_file.state.period = 9;
        state_file.state.accepted = Some("ab".to_owned());
        state_file.state.gateways = vec![3, 7];
        state_file.save().unwrap();
        assert_eq!(StateFile::read_from(&path).unwrap().state, state_file.state);
        // A state of an earlier version without gateways.
        std::fs::write(
            &path,
            r#"{"version":1,"period":9,"measured":null,"accepted":null,"quoted_period":null}"#,
        )
        .unwrap();
        let read = StateFile::read_from(&path).unwrap().state;
        assert_eq!((read.period, read.gateways), (9, vec![]));
        for damaged in ["", "{}", r#"{"version":2,"period":9}"#] {
            std::fs::write(&path, damaged).unwrap();
            let error = StateFile::read_from(&path).unwrap_err();
            assert!(error.to_string().contains("enrolled_period"), "{error}");
        }
    }
}
