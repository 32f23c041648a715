//! The configuration file of a controller.

mod nats;
mod signing_key;
mod socket;
mod telemetry;
mod trust;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use linewarden_cli::failure::Failure;
use linewarden_cli::{log, now_s, tls};
use linewarden_controller::trust::TrustPolicy;
use linewarden_protocol::ids::GatewayId;
use linewarden_registry::{Location, MasterKey, Registry};
use linewarden_service::validity_s;
use linewarden_tls::{ServerTls, first_certificate};
use serde::Deserialize;

pub use self::nats::read as read_nats;
pub use self::signing_key::read as read_signing_key;
pub use self::socket::read as read_socket;
pub use self::telemetry::read as read_telemetry;
use crate::file::{ConfigFile, Problem, read_text};
use crate::program::Program;

/// Maximum interval of evidence requests, s.
const TRUST_EVERY_S_MAX: u32 = 86_400;
/// Maximum timeout of an evidence request, s: the longest time that a gateway keeps its rows without evidence.
const TRUST_RESPONSE_TIMEOUT_S_MAX: u32 = 600;

/// The content of a controller's configuration file.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ControllerConfig {
    /// `[service]`: name and addresses.
    pub service: ServiceSection,
    /// `[tls]`: the controller's certificate, and the CA of gateways and users. Without it, the controller serves only
    /// gateways on this machine, at `socket`.
    pub tls: Option<TlsSection>,
    /// `[registry]`: the registry and its master key.
    pub registry: RegistrySection,
    /// `[rows]`: how rows are leased to gateways.
    #[serde(default)]
    pub rows: RowsSection,
    /// `[attest]`: attestation of devices.
    #[serde(default)]
    pub attest: AttestSection,
    /// `[trust.N]`: gateways that receive rows only while their evidence is trusted; other gateways always receive rows.
    #[serde(default)]
    pub trust: BTreeMap<GatewayNumber, TrustSection>,
    /// `[nats]`: where events are published.
    pub nats: Option<NatsSection>,
    /// `[telemetry]`: where traces are sent.
    pub telemetry: Option<TelemetrySection>,
    /// `[log]`.
    #[serde(default)]
    pub log: LogSection,
}

/// `[service]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceSection {
    /// Display name; default: the host name.
    pub name: Option<String>,
    /// Address and port of API, dashboard and gateway connections; used with `[tls]`.
    #[serde(default = "default_listen")]
    pub listen: SocketAddr,
    /// Socket for gateways on this machine.
    pub socket: Option<PathBuf>,
    /// Name of the group whose members can connect to the socket; default: only this user and root can connect.
    pub socket_group: Option<String>,
    /// Address and port of metrics and health checks, without TLS.
    pub metrics: Option<SocketAddr>,
}

/// `[tls]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsSection {
    /// The controller's certificate, PEM.
    pub cert: PathBuf,
    /// The private key of the controller's certificate, PEM, file mode 0600.
    pub key: PathBuf,
    /// The CA of the certificates of gateways and users, PEM.
    pub ca: PathBuf,
}

/// `[registry]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegistrySection {
    /// The file, or the database: `postgres://USER@HOST/DATABASE`.
    pub path: Location,
    /// The master key's file, of mode 0600.
    pub master_key_file: Option<PathBuf>,
    /// The environment variable that contains the master key, instead of a file.
    pub master_key_env: Option<String>,
}

/// `[rows]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RowsSection {
    /// Number of rows that a gateway receives when a device first authenticates at this gateway.
    pub lease_rows: u32,
    /// Number of rows that a gateway may use per durable mark: a crash of the gateway costs a device at most this many rows.
    pub mark_block: u32,
}

impl Default for RowsSection {
    fn default() -> Self {
        let policy = linewarden_controller::Policy::default();
        Self {
            lease_rows: policy.lease_rows,
            mark_block: policy.mark_block,
        }
    }
}

/// `[attest]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttestSection {
    /// File of the key that signs attestation results.
    pub signing_key: Option<PathBuf>,
}

/// `[trust.N]` of gateway N.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrustSection {
    /// The file with the reference values of the data plane.
    pub reference: PathBuf,
    /// The file with the public key of the reference values' signature; unsigned if omitted.
    pub reference_key: Option<PathBuf>,
    /// The file with the public key that verifies the gateway's evidence.
    pub key: PathBuf,
    /// Interval of evidence requests, seconds.
    #[serde(default = "default_trust_every_s")]
    pub every_s: u32,
    /// Timeout of an evidence request, seconds.
    #[serde(default = "default_trust_response_timeout_s")]
    pub response_timeout_s: u32,
}

/// Gateway ID as a table name: N of `[trust.N]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct GatewayNumber(pub u32);

impl TryFrom<String> for GatewayNumber {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let number = text
            .parse()
            .ok()
            .filter(|number: &u32| number.to_string() == text);
        number
            .map(Self)
            .ok_or_else(|| format!("{text:?} is not a gateway ID; use a number, such as 7 in [trust.7]"))
    }
}

/// `[nats]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NatsSection {
    /// Addresses of all servers of one cluster: `nats://HOST:PORT` or `tls://HOST:PORT`.
    pub servers: Vec<String>,
    /// JetStream stream; created if it does not exist.
    #[serde(default = "default_stream")]
    pub stream: String,
    /// Prefix of subjects; a subject is the prefix, a dot and the kind of the event.
    #[serde(default = "default_subject_prefix")]
    pub subject_prefix: String,
    /// The CA of the servers' certificates, PEM; enables TLS.
    pub ca: Option<PathBuf>,
    /// Permits connections to other machines without TLS.
    #[serde(default)]
    pub plaintext: bool,
    /// Client certificate, PEM, if the servers require one.
    pub cert: Option<PathBuf>,
    /// Private key of the client certificate, PEM, file mode 0600.
    pub key: Option<PathBuf>,
    /// NATS credentials file (`.creds`), file mode 0600.
    pub credentials_file: Option<PathBuf>,
}

/// `[telemetry]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TelemetrySection {
    /// `http://HOST:PORT` or `https://HOST:PORT` of a collector for OTLP over gRPC.
    pub otlp: String,
    /// The CA of the collector's certificate, PEM, for `https`.
    pub ca: Option<PathBuf>,
    /// Permits `http` to another machine.
    #[serde(default)]
    pub plaintext: bool,
    /// Fraction of traces that are sent, from 0 to 1.
    #[serde(default = "default_sample")]
    pub sample: f64,
}

/// `[log]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogSection {
    /// Level or filter, as `--log`.
    pub level: Option<String>,
}

fn default_trust_every_s() -> u32 {
    60
}
fn default_trust_response_timeout_s() -> u32 {
    10
}

fn default_listen() -> SocketAddr {
    SocketAddr::from(([0; 8], 20_560))
}

fn default_stream() -> String {
    "LINEWARDEN".to_owned()
}

fn default_subject_prefix() -> String {
    "linewarden.events".to_owned()
}

fn default_sample() -> f64 {
    1.0
}

impl TrustSection {
    /// The paths of this section.
    pub fn paths(&mut self) -> [Option<&mut PathBuf>; 3] {
        [
            Some(&mut self.reference),
            self.reference_key.as_mut(),
            Some(&mut self.key),
        ]
    }

    /// The problems of the section's fields, in a gateway's or a controller's configuration.
    #[must_use]
    pub fn problems(&self) -> Vec<(&'static str, String)> {
        let paths = [
            ("reference", Some(&self.reference)),
            ("reference_key", self.reference_key.as_ref()),
            ("key", Some(&self.key)),
        ];
        let empty = paths
            .into_iter()
            .filter(|(_, path)| path.is_some_and(|path| path.as_os_str().is_empty()));
        let mut problems: Vec<_> = empty
            .map(|(field, _)| (field, "\"\": set a path".to_owned()))
            .collect();
        for (field, value, max) in [
            ("every_s", self.every_s, TRUST_EVERY_S_MAX),
            (
                "response_timeout_s",
                self.response_timeout_s,
                TRUST_RESPONSE_TIMEOUT_S_MAX,
            ),
        ] {
            if !(1..=max).contains(&value) {
                problems.push((field, format!("must be 1 to {max}; found {value}")));
            }
        }
        problems
    }
}

impl RegistrySection {
    /// Opens the registry.
    ///
    /// # Errors
    /// The master key or the registry cannot be opened.
    pub async fn open(&self) -> Result<Registry, Failure> {
        let key = match (&self.master_key_file, &self.master_key_env) {
            (Some(file), _) => MasterKey::from_file(file)?,
            (None, Some(variable)) => MasterKey::from_env(variable)?,
            (None, None) => {
                return Err(Failure::input(
                    "[registry] has neither master_key_file nor master_key_env: set one of them",
                ));
            }
        };
        Ok(Registry::open(&self.path, &key).await?)
    }

    /// Checks whether the registry can be opened, without changing the registry.
    ///
    /// # Errors
    /// The field that is wrong, and the reason.
    pub async fn check(&self) -> Result<(), (&'static str, Failure)> {
        let (field, key) = match (&self.master_key_file, &self.master_key_env) {
            (Some(path), _) => ("master_key_file", MasterKey::from_file(path)),
            (None, Some(variable)) => ("master_key_env", MasterKey::from_env(variable)),
            // The check of the configuration reports this mistake.
            (None, None) => return Ok(()),
        };
        let key = key.map_err(|error| (field, error.into()))?;
        let result = Registry::examine(&self.path, &key).await;
        result.map_err(|error| ("path", error.into()))
    }
}

impl ControllerConfig {
    /// Makes relative paths absolute, based on the directory of the configuration file.
    pub fn resolve_paths(&mut self, directory: &Path) {
        let paths = [
            self.service.socket.as_mut(),
            self.registry.path.file_mut(),
            self.registry.master_key_file.as_mut(),
            self.attest.signing_key.as_mut(),
            self.telemetry
                .as_mut()
                .and_then(|telemetry| telemetry.ca.as_mut()),
        ];
        let tls = self
            .tls
            .as_mut()
            .map(|tls| [&mut tls.cert, &mut tls.key, &mut tls.ca]);
        let nats = self.nats.as_mut().map(|nats| {
            [
                &mut nats.ca,
                &mut nats.cert,
                &mut nats.key,
                &mut nats.credentials_file,
            ]
        });
        let nats = nats.into_iter().flatten().map(Option::as_mut);
        let trust = self.trust.values_mut().flat_map(TrustSection::paths);
        let all_paths = paths
            .into_iter()
            .chain(tls.into_iter().flatten().map(Some))
            .chain(nats)
            .chain(trust)
            .flatten()
            .filter(|path| !path.as_os_str().is_empty());
        all_paths.for_each(|path| *path = directory.join(&*path));
    }
}

/// Reads a controller's configuration; the paths in the configuration become absolute.
///
/// # Errors
/// All mistakes in the file.
pub fn read(path: &Path) -> Result<ConfigFile<ControllerConfig>, Failure> {
    let text = read_text(path)?;
    Program::Controller.check_owner(path, &text)?;
    match parse(path, text) {
        (Some(file), problems) if problems.is_empty() => Ok(file),
        (_, problems) => Err(crate::file::failure(&problems)),
    }
}

/// Parses the text of a controller's configuration. Returns the content, if it can be parsed, and all mistakes.
pub fn parse(path: &Path, text: String) -> (Option<ConfigFile<ControllerConfig>>, Vec<Problem>) {
    let mut parsed = ConfigFile::<ControllerConfig>::parse(path, text);
    let mut problems = std::mem::take(&mut parsed.problems);
    let Some(mut file) = parsed.file.take() else {
        return (None, problems);
    };
    let directory = file.directory();
    file.value.resolve_paths(&directory);
    let errors = file.value.field_errors();
    let errors = errors.iter().filter(|(field, _)| !parsed.is_missing(field));
    problems.extend(errors.map(|(field, problem)| file.problem(field, problem)));
    let errors = file.value.trust_field_errors();
    let errors = errors.iter().filter(|(field, _)| !parsed.is_missing(field));
    problems.extend(errors.map(|(field, problem)| file.problem(field, problem)));
    problems.sort_by_key(Problem::position);
    (Some(file), problems)
}

impl ControllerConfig {
    fn trust_field_errors(&self) -> Vec<([String; 3], String)> {
        let section_errors = |(number, section): (&GatewayNumber, &TrustSection)| {
            let field = trust_field(*number);
            let mistakes = section.problems().into_iter();
            mistakes
                .map(move |(name, problem)| (field(name), problem))
                .collect::<Vec<_>>()
        };
        self.trust.iter().flat_map(section_errors).collect()
    }

    /// Mistakes that parsing does not find, each with the path of its field.
    fn field_errors(&self) -> Vec<([&'static str; 2], String)> {
        let mut errors = Vec::new();
        let tls = self.tls.as_ref();
        for (table, field, path) in [
            ("tls", "cert", tls.map(|tls| &tls.cert)),
            ("tls", "key", tls.map(|tls| &tls.key)),
            ("tls", "ca", tls.map(|tls| &tls.ca)),
            ("service", "socket", self.service.socket.as_ref()),
        ] {
            if path.is_some_and(|path| path.as_os_str().is_empty()) {
                errors.push(([table, field], "is empty: set the path of a file".to_owned()));
            }
        }
        if self.tls.is_none() && self.service.socket.is_none() {
            errors.push((
                ["service", "socket"],
                "is missing: set a socket for gateways on this machine, or add [tls] for gateways and users on the network"
                    .to_owned(),
            ));
        }
        if self.service.socket_group.is_some() && self.service.socket.is_none() {
            errors.push((
                ["service", "socket_group"],
                "needs `socket`: set a socket for gateways on this machine, or remove socket_group"
                    .to_owned(),
            ));
        }
        let registry = &self.registry;
        match (&registry.master_key_file, &registry.master_key_env) {
            (None, None) => errors.push((
                ["registry", "master_key_file"],
                "is missing: set the path of the master key, or set master_key_env to an environment variable that holds the key".to_owned(),
            )),
            (Some(_), Some(_)) => errors.push((
                ["registry", "master_key_env"],
                "conflicts with master_key_file: remove master_key_env or master_key_file".to_owned(),
            )),
            _ => {}
        }
        for (field, value) in [
            ("lease_rows", self.rows.lease_rows),
            ("mark_block", self.rows.mark_block),
        ] {
            if value == 0 {
                errors.push((
                    ["rows", field],
                    "must be at least 1; found 0; with 0, no device receives rows".to_owned(),
                ));
            }
        }
        if self.service.metrics.is_some_and(|metrics| {
            metrics.port() != 0 && self.tls.is_some() && metrics == self.service.listen
        }) {
            errors.push((
                ["service", "metrics"],
                "equals `listen`, the address of the API: use another port for metrics".to_owned(),
            ));
        }
        let nats = self.nats.as_ref().and_then(nats::field_error);
        errors.extend(nats.map(|(field, problem)| (["nats", field], problem)));
        let telemetry = self.telemetry.as_ref().and_then(telemetry::field_error);
        errors.extend(telemetry.map(|(field, problem)| (["telemetry", field], problem)));
        if let Some(level) = &self.log.level
            && let Err(problem) = log::filter(level)
        {
            errors.push((["log", "level"], problem));
        }
        errors
    }
}

/// Path of a field of `[trust.N]`.
fn trust_field(GatewayNumber(number): GatewayNumber) -> impl Fn(&str) -> [String; 3] {
    move |field| ["trust".to_owned(), number.to_string(), field.to_owned()]
}

/// Reads the trust policies of gateways.
///
/// # Errors
/// Reference values or keys cannot be read, or reference values are of another data plane: all mistakes are reported.
pub fn read_trust_policies(
    file: &ConfigFile<ControllerConfig>,
) -> Result<Vec<(GatewayId, TrustPolicy)>, Vec<Problem>> {
    let (mut policies, mut problems) = (Vec::new(), Vec::new());
    for (number, section) in &file.value.trust {
        let gateway = GatewayId(number.0);
        match trust::policy(section, gateway) {
            Ok(policy) => policies.push((gateway, policy)),
            Err((field, failure)) => problems.push(
                file.problem(&trust_field(*number)(field), &failure.to_string())
                    .with_code(failure.code()),
            ),
        }
    }
    match problems.is_empty() {
        true => Ok(policies),
        false => Err(problems),
    }
}

/// Checks certificate, key and CA.
fn check_tls(file: &ConfigFile<ControllerConfig>, section: &TlsSection) -> Vec<Problem> {
    let field_problem = |field: &str, failure: &Failure| {
        file.problem(&["tls", field], &failure.to_string())
            .with_code(failure.code())
    };
    let ca = match tls::read_certificates(&section.ca) {
        Ok(ca) => ca,
        Err(failure) => return vec![field_problem("ca", &failure)],
    };
    match tls::read_identity(&section.cert, &section.key) {
        Err(failure) => {
            // The message begins with the path of the file.
            let is_key_error = failure
                .to_string()
                .starts_with(&section.key.display().to_string());
            let field = if is_key_error { "key" } else { "cert" };
            vec![field_problem(field, &failure)]
        }
        Ok(identity) => {
            let ca_problem = ServerTls::new(identity, Some(&ca)).err();
            let ca_problem =
                ca_problem.map(|error| field_problem("ca", &tls::file_failure(&section.ca, &error)));
            certificate_problem(file).into_iter().chain(ca_problem).collect()
        }
    }
}

/// Checks whether this machine meets the prerequisites; changes nothing.
pub async fn check_machine(file: &ConfigFile<ControllerConfig>) -> Vec<Problem> {
    let config = &file.value;
    let field_problem = |field: [&str; 2], failure: &Failure| {
        file.problem(&field, &failure.to_string())
            .with_code(failure.code())
    };
    let mut problems = Vec::new();
    if let Some(section) = &config.tls {
        problems.extend(check_tls(file, section));
    }
    if let Some(path) = &config.attest.signing_key
        && let Err(failure) = read_signing_key(path)
    {
        problems.push(field_problem(["attest", "signing_key"], &failure));
    }
    problems.extend(read_socket(file).err());
    problems.extend(read_trust_policies(file).err().into_iter().flatten());
    problems.extend(read_nats(file).err());
    problems.extend(read_telemetry(file).err());
    if let Err((field, failure)) = config.registry.check().await {
        problems.push(field_problem(["registry", field], &failure));
    }
    problems.sort_by_key(Problem::position);
    problems
}

/// Returns a problem if the controller's certificate has expired or is not valid yet. Other defects of the certificate are not
/// detected here.
pub fn certificate_problem(file: &ConfigFile<ControllerConfig>) -> Option<Problem> {
    let path = &file.value.tls.as_ref()?.cert;
    let first = first_certificate(&tls::read_certificates(path).ok()?).ok()?;
    let (from_s, until_s) = validity_s(&first)?;
    let now_s = i64::try_from(now_s().ok()?).ok()?;
    let reason = match (now_s < from_s, now_s > until_s) {
        (true, _) => "the certificate is not valid yet: check the clock",
        (_, true) => {
            "the certificate has expired and clients refuse it: create a new one with `linewarden certificate controller`"
        }
        _ => return None,
    };
    Some(file.problem(&["tls", "cert"], &format!("{}: {reason}", path.display())))
}
