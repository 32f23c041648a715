//! `[attest]` of the configuration.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use linewarden_files::{PrivateFileError, can_replace};
use linewarden_measurement::HashAlgorithm;
use linewarden_measurement::files::{self, FilePath, Limits};
use linewarden_measurement::pcr::{PcrIndex, PcrSelection};
use linewarden_protocol::ids::Period;
use linewarden_protocol::wire::ATTEST_PORT;
use serde::Deserialize;

use super::AttestOptions;
use super::key::{KeyFile, KeyFileError, KeySource};
use super::state::Kept;
use super::subject::{EVENT_LOG, LogFile, Subject, TpmSubject};
use crate::config::{FieldError, field};

/// What firmware and boot loader measure and other devices of the same kind share. Not PCR 1: most machines have serial numbers or
/// boot options of their own in it.
const PCRS: [u32; 5] = [0, 2, 3, 4, 7];
const QUOTE_EVERY: u32 = 4;
/// Directories that `deploy/systemd/linewarden-agent.service` has of its own, and by which setting.
const OF_THE_UNIT: [(&str, &str); 3] = [
    ("/tmp", "PrivateTmp="),
    ("/var/tmp", "PrivateTmp="),
    ("/dev", "PrivateDevices="),
];

/// `[attest]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttestSection {
    /// A software key, or what enrolment with the TPM has left. To measure none is needed.
    pub key: Option<PathBuf>,
    /// Where the TPM is, if the key lies in one: a TCTI such as `device:/dev/tpmrm0`.
    pub tpm: Option<String>,
    /// Absolute paths that are measured; directories with all that is in them.
    #[serde(default)]
    pub files: Vec<PathBuf>,
    /// PCRs that are measured.
    pub pcrs: Option<Vec<u32>>,
    /// Their bank.
    pub bank: Option<HashAlgorithm>,
    /// The log that must replay to them.
    pub event_log: Option<PathBuf>,
    /// UDP port at which gateways ask.
    #[serde(default = "default_port")]
    pub port: u16,
    /// Whether the controller is told when the configuration has changed.
    #[serde(default = "default_send_log")]
    pub send_log: bool,
    /// Periods between two quotes; 0: never.
    pub quote_every: Option<u32>,
    /// What is remembered across restarts; the key's path with the ending `.state` if not given.
    pub state: Option<PathBuf>,
    /// The period in which the device was enrolled, for its first start.
    #[serde(default)]
    pub enrolled_period: u64,
}

fn default_port() -> u16 {
    ATTEST_PORT
}

fn default_send_log() -> bool {
    true
}

fn wrong<T>(key: &str, problem: impl ToString) -> Result<T, FieldError> {
    field(&["attest", key], problem)
}

impl AttestSection {
    /// Paths that are relative to the configuration file.
    pub(crate) fn paths_mut(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        let Self {
            key,
            event_log,
            state,
            ..
        } = self;
        [key.as_mut(), event_log.as_mut(), state.as_mut()]
            .into_iter()
            .flatten()
    }

    /// The same with their names.
    pub(crate) fn paths(&self) -> [(&'static str, Option<&PathBuf>); 3] {
        [
            ("key", self.key.as_ref()),
            ("event_log", self.event_log.as_ref()),
            ("state", self.state.as_ref()),
        ]
    }

    /// Everything that is wrong in it, as far as the file alone tells. `taken` are UDP ports of other uses.
    pub(crate) fn problems(&self, taken: &[u16]) -> Vec<FieldError> {
        let files = (0..self.files.len()).filter_map(|n| self.file_at(n)?.err());
        let mut problems: Vec<FieldError> = files.collect();
        let port = match self.port {
            0 => wrong("port", "0: name the port at which gateways ask, such as 20554"),
            port if taken.contains(&port) => wrong(
                "port",
                format!("{port} is LAP's or the peers' port; name another"),
            ),
            _ => Ok(()),
        };
        problems.extend(port.err());
        problems.extend(self.key().err());
        problems.extend(self.tpm_subject().err());
        problems.extend(self.anything().err());
        problems
    }

    /// Everybody who measures nothing proves the same.
    fn anything(&self) -> Result<(), FieldError> {
        match self.files.is_empty() && self.tpm.is_none() {
            true => wrong(
                "files",
                "nothing is measured: name files, such as [\"/usr/bin/sensord\"], or a TPM with `tpm`",
            ),
            false => Ok(()),
        }
    }

    /// Where its key lies.
    ///
    /// # Errors
    /// None is named.
    pub fn key(&self) -> Result<&Path, FieldError> {
        match &self.key {
            Some(key) => Ok(key),
            None => wrong(
                "key",
                "it is missing: name the file that enrolment has made, or makes",
            ),
        }
    }

    fn file_at(&self, n: usize) -> Option<Result<FilePath, FieldError>> {
        use std::os::unix::ffi::OsStrExt as _;
        let path = self.files.get(n)?;
        Some(FilePath::new(path.as_os_str().as_bytes()).or_else(|error| wrong("files", error)))
    }

    /// What is measured.
    ///
    /// # Errors
    /// A path or a PCR that is none, a TPM's field without one, or nothing at all.
    pub fn subject(&self) -> Result<Subject, FieldError> {
        self.anything()?;
        let files = (0..self.files.len()).filter_map(|n| self.file_at(n));
        Ok(Subject {
            files: files.collect::<Result<_, _>>()?,
            tpm: self.tpm_subject()?,
        })
    }

    fn tpm_subject(&self) -> Result<Option<TpmSubject>, FieldError> {
        let Some(tcti) = &self.tpm else {
            let given = [
                ("pcrs", self.pcrs.is_some()),
                ("bank", self.bank.is_some()),
                ("event_log", self.event_log.is_some()),
                ("quote_every", self.quote_every.is_some()),
            ];
            return match given.into_iter().find(|(_, is_given)| *is_given) {
                Some((key, _)) => wrong(key, "only with `tpm`: name the TPM that has it, or leave it out"),
                None => Ok(None),
            };
        };
        if tcti.is_empty() {
            return wrong("tpm", "\"\": name the TPM, such as \"device:/dev/tpmrm0\"");
        }
        if cfg!(not(feature = "tpm")) {
            return wrong("tpm", "this program was built without TPMs (feature `tpm`)");
        }
        self.subject_of(tcti).map(Some)
    }

    fn subject_of(&self, tcti: &str) -> Result<TpmSubject, FieldError> {
        #[cfg(feature = "tpm")]
        linewarden_tpm::device::check_tcti(tcti).or_else(|error| wrong("tpm", error))?;
        if self.pcrs.as_ref().is_some_and(Vec::is_empty) {
            return wrong(
                "pcrs",
                "[]: name those that the key is bound to, or leave it out for the usual ones",
            );
        }
        let bank = self.bank.unwrap_or(HashAlgorithm::Sha256);
        if bank == HashAlgorithm::Sha1 {
            return wrong(
                "bank",
                "\"sha1\" proves nothing, its hash is broken: name \"sha256\"",
            );
        }
        let indices = self.pcrs.as_deref().unwrap_or(&PCRS);
        let pcrs: Result<PcrSelection, _> = indices.iter().map(|index| PcrIndex::try_from(*index)).collect();
        Ok(TpmSubject {
            tcti: tcti.to_owned(),
            bank,
            pcrs: pcrs.or_else(|error| wrong("pcrs", error))?,
            event_log: self.event_log.clone().unwrap_or_else(|| PathBuf::from(EVENT_LOG)),
        })
    }

    /// Reads the key, and says which file it is of.
    fn source(&self) -> Result<(KeySource, KeyFile), FieldError> {
        // Says so where this program was built without TPMs.
        self.tpm_subject()?;
        let key = self.key()?;
        let mut file = KeyFile::new(key.to_owned(), self.tpm.clone());
        let source = file.read().or_else(|error| {
            let is_unsafe = matches!(error, KeyFileError::File(PrivateFileError::Unsafe { .. }));
            let is_missing = matches!(
                &error,
                KeyFileError::File(PrivateFileError::Io(error)) if error.kind() == io::ErrorKind::NotFound
            );
            let refused = match (is_missing, &self.tpm) {
                (false, _) => wrong("key", format!("{}: {error}", key.display())),
                (true, None) => wrong(
                    "key",
                    format!(
                        "{}: it is not there; `linewarden attest enroll --software` at the operator makes it",
                        key.display()
                    ),
                ),
                (true, Some(_)) => wrong(
                    "key",
                    format!(
                        "{}: it is not there; `linewarden attest identity` makes it, and so begins the enrolment",
                        key.display()
                    ),
                ),
            };
            refused.map_err(|refused| FieldError { is_unsafe, ..refused })
        })?;
        Ok((source, file))
    }

    fn state_path(&self) -> Result<PathBuf, FieldError> {
        let beside = |key: &Path| key.with_extension("state");
        self.state.clone().map_or_else(|| self.key().map(beside), Ok)
    }

    /// What the agent needs; reads the key and looks at the state.
    ///
    /// # Errors
    /// A field that cannot be used.
    pub fn options(&self) -> Result<AttestOptions, FieldError> {
        let subject = self.subject()?;
        let (key, key_file) = self.source()?;
        let state = self.state_path()?;
        read_state(&state)?;
        Ok(AttestOptions {
            subject,
            key,
            key_file: Some(key_file),
            port: self.port,
            send_log: self.send_log,
            quote_every: self.quote_every.unwrap_or(QUOTE_EVERY).into(),
            state,
            enrolled_period: Period(self.enrolled_period),
        })
    }

    /// What this machine lacks for it, and warnings. The TPM's device file is opened; the TPM is not asked. The files are measured.
    pub(crate) fn lacks(&self) -> Vec<FieldError> {
        let state = self.state_path().and_then(|state| {
            read_state(&state)?;
            can_replace(&state).or_else(|error| wrong("state", shown(&state, &error)))
        });
        let log = match self.tpm_subject() {
            Ok(Some(tpm)) if !tpm.pcrs.is_empty() => LogFile::read(&tpm.event_log)
                .map(drop)
                .or_else(|error| wrong("event_log", error)),
            _ => Ok(()),
        };
        let tpm = self.tpm.as_deref().and_then(|tcti| tcti.strip_prefix("device:"));
        let tpm = tpm.map_or(Ok(()), |path| open_device(Path::new(path)));
        let files = self.subject().and_then(|subject| {
            let measured = files::measure(Path::new("/"), &subject.files, Limits::default());
            measured.map(drop).or_else(|error| wrong("files", error))
        });
        [
            self.source().map(drop).err(),
            tpm.err(),
            files.err(),
            log.err(),
            state.err(),
        ]
        .into_iter()
        .flatten()
        .chain(self.hidden_by_the_unit())
        .collect()
    }

    /// Listed paths that the packaged service sees otherwise than a shell does.
    fn hidden_by_the_unit(&self) -> impl Iterator<Item = FieldError> {
        let is_in = |outer: &Path, inner: &Path| inner.starts_with(outer);
        let hidden = move |path: &PathBuf| {
            let of_its_own = OF_THE_UNIT.iter();
            let found = of_its_own.map(|(hidden, by)| (Path::new(*hidden), *by));
            let mut found = found.filter(|(hidden, _)| is_in(hidden, path) || is_in(path, hidden));
            found.next().map(|(hidden, by)| (path.clone(), hidden, by))
        };
        self.files.iter().filter_map(hidden).filter_map(|(path, hidden, by)| {
            let problem = format!(
                "{}: linewarden-agent.service has {} of its own ({by}): as that service the agent measures other content there; \
                 list what lies elsewhere",
                path.display(),
                hidden.display()
            );
            let warning = wrong::<()>("files", problem).err()?;
            Some(FieldError {
                is_warning: true,
                ..warning
            })
        })
    }
}

fn open_device(path: &Path) -> Result<(), FieldError> {
    let refused = |why: &dyn std::fmt::Display| {
        let path = path.display();
        wrong(
            "tpm",
            format!("{path}: {why}; is there a TPM, and may this user open it?"),
        )
    };
    match path.metadata() {
        Ok(metadata) if !metadata.file_type().is_char_device() => return refused(&"no device"),
        Ok(_) => {}
        Err(error) => return refused(&error),
    }
    match OpenOptions::new().read(true).write(true).open(path) {
        Ok(_) => Ok(()),
        // Without the kernel's resource manager one process has it, which may be this agent.
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Ok(()),
        Err(error) => refused(&error),
    }
}

fn read_state(path: &Path) -> Result<(), FieldError> {
    Kept::read_from(path)
        .map(drop)
        .or_else(|error| wrong("state", shown(path, &error)))
}

fn shown(path: &Path, error: &io::Error) -> String {
    format!("{}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(text: &str) -> AttestSection {
        toml::from_str(&format!("key = \"k/attest.key\"\n{text}")).unwrap()
    }

    fn fields(text: &str) -> Vec<String> {
        let problems = section(text).problems(&[20_550, 20_553]);
        problems.iter().map(|problem| problem.path.join(".")).collect()
    }

    #[test]
    fn each_mistake_names_its_field() {
        let tpm = "tpm = \"device:/dev/tpmrm0\"\n";
        assert_eq!(fields("files = [\"/etc\"]"), [""; 0]);
        assert_eq!(fields(tpm), [""; 0]);
        for (text, field) in [
            (String::new(), "attest.files"),
            (format!("{tpm}pcrs = []"), "attest.pcrs"),
            (format!("{tpm}files = [\"/a\"]\npcrs = []"), "attest.pcrs"),
            ("files = [\"/a\"]\ntpm = \"/dev/tpmrm0\"".to_owned(), "attest.tpm"),
            ("files = [\"etc\"]".to_owned(), "attest.files"),
            ("files = [\"/etc/../bin\"]".to_owned(), "attest.files"),
            ("files = [\"/a\"]\nport = 0".to_owned(), "attest.port"),
            ("files = [\"/a\"]\nport = 20553".to_owned(), "attest.port"),
            ("files = [\"/a\"]\npcrs = [0]".to_owned(), "attest.pcrs"),
            (
                "files = [\"/a\"]\nquote_every = 1".to_owned(),
                "attest.quote_every",
            ),
            ("files = [\"/a\"]\nbank = \"sha256\"".to_owned(), "attest.bank"),
            (format!("{tpm}bank = \"sha1\""), "attest.bank"),
            (format!("{tpm}pcrs = [24]"), "attest.pcrs"),
            ("files = [\"/a\"]\ntpm = \"\"".to_owned(), "attest.tpm"),
        ] {
            assert_eq!(fields(&text), [field], "{text}");
        }
    }

    #[test]
    fn nothing_is_measured_for_want_of_a_key() {
        let section: AttestSection = toml::from_str("files = [\"/etc/hostname\"]").unwrap();
        assert_eq!(section.subject().unwrap().files.len(), 1);
        let problems = section.problems(&[]);
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].to_string().starts_with("attest.key: it is missing"));
        assert!(section.options().is_err());
    }

    #[test]
    fn what_is_left_out_is_as_the_example_says() {
        let subject = section("tpm = \"device:/dev/tpmrm0\"").subject().unwrap();
        let tpm = subject.tpm.unwrap();
        assert_eq!(
            (tpm.bank, tpm.pcrs.to_string().as_str()),
            (HashAlgorithm::Sha256, "0,2-4,7")
        );
        assert_eq!(tpm.event_log, Path::new(EVENT_LOG));
        assert_eq!(section("").state_path().unwrap(), Path::new("k/attest.state"));
        assert_eq!(section("").port, 20_554);
    }

    #[test]
    fn paths_that_the_unit_hides_are_told_as_warnings() {
        let section = section("files = [\"/var/tmp/x\", \"/var\", \"/etc/hostname\", \"/device\", \"/dev\"]");
        let told: Vec<String> = section
            .hidden_by_the_unit()
            .map(|warning| {
                assert!(warning.is_warning);
                warning.problem
            })
            .collect();
        assert_eq!(told.len(), 3, "{told:?}");
        for (told, words) in told.iter().zip([
            "/var/tmp/x: ",
            "/var: linewarden-agent.service has /var/tmp",
            "/dev: ",
        ]) {
            assert!(told.starts_with(words), "{told}");
        }
        let unit = include_str!("../../../../deploy/systemd/linewarden-agent.service");
        for (_, setting) in OF_THE_UNIT {
            assert!(unit.contains(&format!("\n{setting}yes\n")), "{setting}");
        }
    }

    #[test]
    fn a_key_that_others_can_read_or_that_is_none_is_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().unwrap();
        let key = directory.path().join("attest.key");
        let section = AttestSection {
            key: Some(key.clone()),
            ..section("files = [\"/etc/hostname\"]")
        };
        let problem = |section: &AttestSection| section.options().unwrap_err().to_string();
        assert!(
            problem(&section).starts_with("attest.key"),
            "{}",
            problem(&section)
        );
        std::fs::write(&key, "ab".repeat(32)).unwrap();
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(problem(&section).contains("0644"), "{}", problem(&section));
        assert!(section.options().unwrap_err().is_unsafe && section.lacks()[0].is_unsafe);
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
        let options = section.options().unwrap();
        assert_eq!(options.state, directory.path().join("attest.state"));
        assert!(section.lacks().is_empty());
        std::fs::write(&key, "ab".repeat(31)).unwrap();
        assert!(
            problem(&section).contains("64 hexadecimal"),
            "{}",
            problem(&section)
        );
        std::fs::write(directory.path().join("attest.state"), "{").unwrap();
        let lacking: Vec<String> = section.lacks().iter().map(|field| field.path.join(".")).collect();
        assert_eq!(lacking, ["attest.key", "attest.state"]);
    }
}
