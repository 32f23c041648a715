//! `[attest]` of the configuration.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use linewarden_agent::AttestOptions;
use linewarden_agent::attest::{
    EVENT_LOG, KeyFile, KeyFileError, KeySource, LogFile, MeasurementScope, StateFile, TpmScope,
};
use linewarden_files::{PrivateFileError, can_replace};
use linewarden_measurement::HashAlgorithm;
use linewarden_measurement::files::{self, FilePath, Limits};
use linewarden_measurement::pcr::{PcrIndex, PcrSelection};
use linewarden_protocol::ids::Period;
use linewarden_protocol::wire::ATTEST_PORT;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::problem::FieldError;

/// Default PCRs: measured by firmware and boot loader, and equal on devices of the same kind. PCR 1 is omitted: on most
/// machines it contains serial numbers or individual boot options.
const PCRS: [u32; 5] = [0, 2, 3, 4, 7];
const QUOTE_EVERY: u32 = 4;
/// Directories that are private in `deploy/systemd/linewarden-agent.service`, each with the setting that makes it private.
const UNIT_PRIVATE_DIRECTORIES: [(&str, &str); 3] = [
    ("/tmp", "PrivateTmp="),
    ("/var/tmp", "PrivateTmp="),
    ("/dev", "PrivateDevices="),
];

/// `[attest]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AttestSection {
    /// File with 64 hexadecimal digits, or, with `tpm`, the file of `linewarden-agent identity` and `answer`; mode 0600. Not
    /// needed for `linewarden-agent measure`.
    #[schemars(extend("format" = "path"), example = "attest.key")]
    pub key: Option<PathBuf>,
    /// TCTI of the TPM that has the key.
    #[schemars(example = "device:/dev/tpmrm0")]
    pub tpm: Option<String>,
    /// Absolute paths of the measured files; directories with their whole content.
    #[serde(default)]
    #[schemars(extend("examples" = [["/usr/bin/sensord", "/etc/sensord"]]))]
    pub files: Vec<PathBuf>,
    /// Measured PCRs; requires `tpm`.
    #[schemars(example = PCRS)]
    pub pcrs: Option<Vec<u32>>,
    /// Hash algorithm of the PCR bank; requires `tpm`.
    #[schemars(with = "Option<String>", extend("enum" = ["sha256", "sha384", "sha512"]))]
    pub bank: Option<HashAlgorithm>,
    /// Event log that must replay to the PCRs; requires `tpm`.
    #[schemars(extend("format" = "path"), example = EVENT_LOG)]
    pub event_log: Option<PathBuf>,
    /// UDP port for attestation requests.
    #[serde(default = "default_port")]
    pub port: u16,
    /// Whether the agent sends evidence when its configuration changes.
    #[serde(default = "default_send_log")]
    pub send_log: bool,
    /// Periods between two quotes, 0 for none; requires `tpm`.
    #[schemars(example = QUOTE_EVERY)]
    pub quote_every: Option<u32>,
    /// State file; by default the path of the key with the extension .state.
    #[schemars(extend("format" = "path"), example = "attest.state")]
    pub state: Option<PathBuf>,
    /// Period of the enrollment, used at the first start only.
    #[serde(default)]
    pub enrolled_period: u64,
}

fn default_port() -> u16 {
    ATTEST_PORT
}

fn default_send_log() -> bool {
    true
}

fn attest_error<T>(key: &str, problem: impl ToString) -> Result<T, FieldError> {
    Err(FieldError::new(&["attest", key], problem))
}

/// The validated section.
#[derive(Clone, Debug)]
pub(super) struct ValidAttest {
    scope: MeasurementScope,
    key: PathBuf,
    port: u16,
    send_log: bool,
    quote_every: u64,
    state: PathBuf,
    enrolled_period: Period,
}

impl AttestSection {
    /// Validates the section. `used_ports`: UDP ports that other sections use.
    ///
    /// # Errors
    /// All mistakes in the section.
    pub(super) fn validate(&self, used_ports: &[u16]) -> Result<ValidAttest, Vec<FieldError>> {
        let mut errors = Vec::new();
        let mut refuse = |error| errors.push(error);
        let files = (0..self.files.len()).filter_map(|n| self.file_at(n)?.map_err(&mut refuse).ok());
        let files = files.collect();
        let port = match self.port {
            0 => attest_error(
                "port",
                "0: set the UDP port for attestation requests, such as 20554",
            ),
            port if used_ports.contains(&port) => attest_error(
                "port",
                format!("{port} is the port of LAP or peers: use another port"),
            ),
            port => Ok(port),
        };
        let port = port.map_err(&mut refuse);
        let key = self.key().map_err(&mut refuse);
        let tpm = self.tpm_scope().map_err(&mut refuse);
        let content = self.check_not_empty().map_err(&mut refuse);
        match (port, key, tpm, content) {
            (Ok(port), Ok(key), Ok(tpm), Ok(())) if errors.is_empty() => Ok(ValidAttest {
                scope: MeasurementScope { files, tpm },
                key: key.to_owned(),
                port,
                send_log: self.send_log,
                quote_every: self.quote_every.unwrap_or(QUOTE_EVERY).into(),
                state: self.state.clone().unwrap_or_else(|| key.with_extension("state")),
                enrolled_period: Period(self.enrolled_period),
            }),
            _ => Err(errors),
        }
    }

    /// Refuses an empty measurement: all devices with an empty measurement would have the same h.
    fn check_not_empty(&self) -> Result<(), FieldError> {
        match self.files.is_empty() && self.tpm.is_none() {
            true => attest_error(
                "files",
                "nothing is measured: name files, such as [\"/usr/bin/sensord\"], or a TPM with `tpm`",
            ),
            false => Ok(()),
        }
    }

    /// Path of the key file.
    ///
    /// # Errors
    /// No path is named.
    pub fn key(&self) -> Result<&Path, FieldError> {
        match &self.key {
            Some(key) => Ok(key),
            None => attest_error("key", "is missing: name the key file of the enrollment"),
        }
    }

    fn file_at(&self, n: usize) -> Option<Result<FilePath, FieldError>> {
        let path = self.files.get(n)?;
        Some(FilePath::new(path.as_os_str().as_bytes()).or_else(|error| attest_error("files", error)))
    }

    /// What is measured.
    ///
    /// # Errors
    /// A path or PCR is invalid, a TPM setting has no TPM, or nothing is measured.
    pub fn scope(&self) -> Result<MeasurementScope, FieldError> {
        self.check_not_empty()?;
        let files = (0..self.files.len()).filter_map(|n| self.file_at(n));
        Ok(MeasurementScope {
            files: files.collect::<Result<_, _>>()?,
            tpm: self.tpm_scope()?,
        })
    }

    fn tpm_scope(&self) -> Result<Option<TpmScope>, FieldError> {
        let Some(tcti) = &self.tpm else {
            let tpm_fields = [
                ("pcrs", self.pcrs.is_some()),
                ("bank", self.bank.is_some()),
                ("event_log", self.event_log.is_some()),
                ("quote_every", self.quote_every.is_some()),
            ];
            return match tpm_fields.into_iter().find(|(_, is_set)| *is_set) {
                Some((key, _)) => attest_error(key, "requires `tpm`: name the TPM, or remove the field"),
                None => Ok(None),
            };
        };
        if tcti.is_empty() {
            return attest_error("tpm", "\"\": name the TPM, such as \"device:/dev/tpmrm0\"");
        }
        if cfg!(not(feature = "tpm")) {
            return attest_error(
                "tpm",
                "TPM not available: this program was built without the feature `tpm`",
            );
        }
        self.build_tpm_scope(tcti).map(Some)
    }

    fn build_tpm_scope(&self, tcti: &str) -> Result<TpmScope, FieldError> {
        #[cfg(feature = "tpm")]
        linewarden_tpm::device::check_tcti(tcti).or_else(|error| attest_error("tpm", error))?;
        if self.pcrs.as_ref().is_some_and(Vec::is_empty) {
            return attest_error(
                "pcrs",
                "[]: name the PCRs that the key is bound to, or remove the field for the default",
            );
        }
        let bank = self.bank.unwrap_or(HashAlgorithm::Sha256);
        if bank == HashAlgorithm::Sha1 {
            return attest_error("bank", "\"sha1\" is not collision-resistant: use \"sha256\"");
        }
        let indices = self.pcrs.as_deref().unwrap_or(&PCRS);
        let pcrs: Result<PcrSelection, _> = indices.iter().map(|index| PcrIndex::try_from(*index)).collect();
        Ok(TpmScope {
            tcti: tcti.to_owned(),
            bank,
            pcrs: pcrs.or_else(|error| attest_error("pcrs", error))?,
            event_log: self.event_log.clone().unwrap_or_else(|| PathBuf::from(EVENT_LOG)),
        })
    }
}

impl ValidAttest {
    /// The settings of the agent; reads the key and checks the state file.
    ///
    /// # Errors
    /// A file cannot be used.
    pub(super) fn options(&self) -> Result<AttestOptions, FieldError> {
        let (key, key_file) = self.read_key()?;
        read_state(&self.state)?;
        Ok(AttestOptions {
            scope: self.scope.clone(),
            key,
            key_file: Some(key_file),
            port: self.port,
            send_log: self.send_log,
            quote_every: self.quote_every,
            state: self.state.clone(),
            enrolled_period: self.enrolled_period,
        })
    }

    /// Reads the key; also returns its file.
    fn read_key(&self) -> Result<(KeySource, KeyFile), FieldError> {
        let tcti = self.scope.tpm.as_ref().map(|tpm| tpm.tcti.clone());
        let command = match tcti {
            None => "the operator creates it with `linewarden attest enroll --software`",
            Some(_) => "create it with `linewarden-agent identity`, which begins the enrollment",
        };
        let mut file = KeyFile::new(self.key.clone(), tcti);
        let source = file.read().map_err(|error| {
            let path = self.key.display();
            let is_unsafe = matches!(error, KeyFileError::File(PrivateFileError::Unsafe { .. }));
            let problem = match &error {
                KeyFileError::File(PrivateFileError::Io(error))
                    if error.kind() == io::ErrorKind::NotFound =>
                {
                    format!("{path}: file not found; {command}")
                }
                _ => format!("{path}: {error}"),
            };
            FieldError {
                is_unsafe,
                ..FieldError::new(&["attest", "key"], problem)
            }
        })?;
        Ok((source, file))
    }

    /// Checks the prerequisites on this machine; returns mistakes and warnings. Opens the TPM's device file without using the
    /// TPM, and measures the files.
    pub(super) fn machine_errors(&self) -> impl Iterator<Item = FieldError> {
        let state = read_state(&self.state).and_then(|()| {
            can_replace(&self.state).or_else(|error| attest_error("state", path_error(&self.state, &error)))
        });
        let log = match &self.scope.tpm {
            Some(tpm) if !tpm.pcrs.is_empty() => LogFile::read(&tpm.event_log)
                .map(drop)
                .or_else(|error| attest_error("event_log", error)),
            _ => Ok(()),
        };
        let tcti = self.scope.tpm.as_ref().map(|tpm| tpm.tcti.as_str());
        let device_file = tcti.and_then(|tcti| tcti.strip_prefix("device:"));
        let tpm = device_file.map_or(Ok(()), |path| open_device(Path::new(path)));
        let files = files::measure(Path::new("/"), &self.scope.files, Limits::default());
        let files = files.map(drop).or_else(|error| attest_error("files", error));
        let key = self.read_key().map(drop);
        let errors = [key, tpm, files, log, state].into_iter().filter_map(Result::err);
        errors.chain(paths_hidden_by_unit(&self.scope.files))
    }
}

/// Warnings for listed paths at which the packaged service reads other content than a shell.
fn paths_hidden_by_unit(files: &[FilePath]) -> impl Iterator<Item = FieldError> {
    let warning = |file: &FilePath| {
        let path = Path::new(OsStr::from_bytes(file.as_bytes()));
        let is_hidden =
            |directory: &&str| Path::new(directory).starts_with(path) || path.starts_with(directory);
        let (directory, setting) = UNIT_PRIVATE_DIRECTORIES
            .iter()
            .find(|(directory, _)| is_hidden(directory))?;
        let problem = format!(
            "{}: linewarden-agent.service has a private {directory} ({setting}), so the agent measures other content there: list files \
             in other directories",
            path.display(),
        );
        Some(FieldError {
            is_warning: true,
            ..FieldError::new(&["attest", "files"], problem)
        })
    };
    files.iter().filter_map(warning)
}

fn open_device(path: &Path) -> Result<(), FieldError> {
    let refused = |reason: &dyn std::fmt::Display| {
        let path = path.display();
        attest_error(
            "tpm",
            format!("{path}: {reason}; check that there is a TPM, and that this user may open it"),
        )
    };
    match path.metadata() {
        Ok(metadata) if !metadata.file_type().is_char_device() => return refused(&"not a device"),
        Ok(_) => {}
        Err(error) => return refused(&error),
    }
    match OpenOptions::new().read(true).write(true).open(path) {
        Ok(_) => Ok(()),
        // Without the kernel's resource manager, only one process can open the TPM, possibly this agent.
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Ok(()),
        Err(error) => refused(&error),
    }
}

fn read_state(path: &Path) -> Result<(), FieldError> {
    StateFile::read_from(path)
        .map(drop)
        .or_else(|error| attest_error("state", path_error(path, &error)))
}

fn path_error(path: &Path, error: &io::Error) -> String {
    format!("{}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(text: &str) -> AttestSection {
        toml::from_str(&format!("key = \"k/attest.key\"\n{text}")).unwrap()
    }

    fn fields(text: &str) -> Vec<String> {
        let problems = section(text)
            .validate(&[20_550, 20_553])
            .err()
            .unwrap_or_default();
        problems.iter().map(|problem| problem.path.join(".")).collect()
    }

    #[cfg(feature = "tpm")]
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
    fn measuring_needs_no_key_but_attesting_does() {
        let section: AttestSection = toml::from_str("files = [\"/etc/hostname\"]").unwrap();
        assert_eq!(section.scope().unwrap().files.len(), 1);
        let problems = section.validate(&[]).unwrap_err();
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].to_string().starts_with("attest.key: is missing"));
    }

    #[cfg(feature = "tpm")]
    #[test]
    fn defaults_are_those_of_the_example() {
        let subject = section("tpm = \"device:/dev/tpmrm0\"").scope().unwrap();
        let tpm = subject.tpm.unwrap();
        assert_eq!(
            (tpm.bank, tpm.pcrs.to_string().as_str()),
            (HashAlgorithm::Sha256, "0,2-4,7")
        );
        assert_eq!(tpm.event_log, Path::new(EVENT_LOG));
        let valid = section("files = [\"/a\"]").validate(&[]).unwrap();
        assert_eq!(valid.state, Path::new("k/attest.state"));
        assert_eq!(valid.port, 20_554);
    }

    #[test]
    fn paths_that_the_unit_hides_cause_warnings() {
        let files = ["/var/tmp/x", "/var", "/etc/hostname", "/device", "/dev"];
        let files = files.map(|path| FilePath::new(path).unwrap());
        let warnings: Vec<String> = paths_hidden_by_unit(&files)
            .map(|warning| {
                assert!(warning.is_warning);
                warning.problem
            })
            .collect();
        assert_eq!(warnings.len(), 3, "{warnings:?}");
        for (warning, start) in warnings.iter().zip([
            "/var/tmp/x: ",
            "/var: linewarden-agent.service has a private /var/tmp",
            "/dev: ",
        ]) {
            assert!(warning.starts_with(start), "{warning}");
        }
        let unit = include_str!("../../../../deploy/systemd/linewarden-agent.service");
        for (_, setting) in UNIT_PRIVATE_DIRECTORIES {
            assert!(unit.contains(&format!("\n{setting}yes\n")), "{setting}");
        }
    }

    #[test]
    fn an_unprotected_or_malformed_key_is_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().unwrap();
        let key = directory.path().join("attest.key");
        let section = AttestSection {
            key: Some(key.clone()),
            ..section("files = [\"/etc/hostname\"]")
        };
        let valid = section.validate(&[]).unwrap();
        let problem = || valid.options().unwrap_err().to_string();
        assert!(problem().starts_with("attest.key"), "{}", problem());
        std::fs::write(&key, "ab".repeat(32)).unwrap();
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(problem().contains("0644"), "{}", problem());
        assert!(valid.options().unwrap_err().is_unsafe);
        assert!(valid.machine_errors().next().unwrap().is_unsafe);
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
        let options = valid.options().unwrap();
        assert_eq!(options.state, directory.path().join("attest.state"));
        assert_eq!(valid.machine_errors().count(), 0);
        std::fs::write(&key, "ab".repeat(31)).unwrap();
        assert!(problem().contains("64 hexadecimal"), "{}", problem());
        std::fs::write(directory.path().join("attest.state"), "{").unwrap();
        let problem_fields: Vec<String> = valid.machine_errors().map(|field| field.path.join(".")).collect();
        assert_eq!(problem_fields, ["attest.key", "attest.state"]);
    }
}
