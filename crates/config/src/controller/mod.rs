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
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::nats::read as read_nats;
pub use self::signing_key::read as read_signing_key;
pub use self::socket::read as read_socket;
pub use self::telemetry::read as read_telemetry;
use crate::command::failure;
use crate::file::ConfigFile;
use crate::problem::{FieldError, Problem};
use crate::program::Program;
use crate::text::directory;

/// Configuration of `linewarden-controller`. Relative paths start from this file's directory. Commented-out settings show the
/// default, or an example if there is none. SIGHUP reloads the certificates and their CA; all other changes need a restart.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ControllerConfig {
    /// Name and addresses of the controller.
    pub service: ServiceSection,
    /// Certificate of the controller. Without `[tls]`, the controller serves only the socket.
    #[schemars(extend("x-enabled" = true))]
    pub tls: Option<TlsSection>,
    /// Registry of the fleet, and its master key.
    pub registry: RegistrySection,
    /// Lease of rows to gateways.
    #[serde(default)]
    #[schemars(extend("x-enabled" = true))]
    pub rows: RowsSection,
    /// Attestation of devices.
    #[serde(default)]
    #[schemars(extend("x-enabled" = true))]
    pub attest: AttestSection,
    /// Reference values of a gateway's data plane: gateway 7 gets rows only while its evidence matches `[trust.7]`. A gateway
    /// without such a table always gets rows. The gateway needs `[evidence]`, or a P4 switch with a key. Use the same tables on
    /// all controllers of a fleet. For the files see docs/operations/evidence.md.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, TrustSection>", extend("propertyNames" = {"examples": ["7"]}))]
    pub trust: BTreeMap<GatewayNumber, TrustSection>,
    /// Publishes the registry event log to a NATS JetStream stream; disabled by default.
    pub nats: Option<NatsSection>,
    /// Sends traces to an OpenTelemetry collector with OTLP over gRPC; disabled by default.
    pub telemetry: Option<TelemetrySection>,
    /// Log of the program.
    #[serde(default)]
    #[schemars(extend("x-enabled" = true))]
    pub log: LogSection,
}

/// `[service]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServiceSection {
    /// Name of the controller in the registry event log and in lists, unique for each controller; by default the host name.
    #[schemars(example = "ctl-a")]
    pub name: Option<String>,
    /// Address and TCP port for TLS: API and dashboard for users, gRPC for gateways on other machines; needs `[tls]`.
    #[serde(default = "default_listen")]
    #[schemars(extend("format" = "socket-address", "x-enabled" = true))]
    pub listen: SocketAddr,
    /// Socket for gateways on this machine; by default none. Only the user of the controller and root can connect (mode 0600).
    #[schemars(extend("format" = "path"), example = "/run/linewarden-controller/controller.sock")]
    pub socket: Option<PathBuf>,
    /// Group whose members can also connect (mode 0660), each as any gateway. The user of the controller must be a member of the
    /// group.
    #[schemars(example = "linewarden-gateway")]
    pub socket_group: Option<String>,
    /// Address and TCP port for monitoring without TLS: /metrics, /healthz, /readyz; by default none.
    #[schemars(extend("format" = "socket-address"), example = "127.0.0.1:20561")]
    pub metrics: Option<SocketAddr>,
}

/// `[tls]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TlsSection {
    /// Certificate of the controller, PEM, of `linewarden certificate controller`.
    #[schemars(extend("format" = "path"), example = "ctl-a.pem")]
    pub cert: PathBuf,
    /// Private key of the certificate, PEM, mode 0600.
    #[schemars(extend("format" = "path"), example = "ctl-a.key")]
    pub key: PathBuf,
    /// CA that must have issued the client certificates, PEM. A client certificate is required for gateways, and optional for
    /// users.
    #[schemars(extend("format" = "path"), example = "ca.pem")]
    pub ca: PathBuf,
}

/// `[registry]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RegistrySection {
    /// File, or database that several controllers can share: "postgres://linewarden@db.example/fleet".
    #[schemars(with = "String", example = "fleet.registry")]
    pub path: Location,
    /// File of the master key, 64 hexadecimal digits, mode 0600.
    #[schemars(extend("format" = "path", "x-enabled" = true), example = "master.key")]
    pub master_key_file: Option<PathBuf>,
    /// Environment variable that contains the master key, in place of a file.
    #[schemars(example = &"LINEWARDEN_MASTER_KEY")]
    pub master_key_env: Option<String>,
}

/// `[rows]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RowsSection {
    /// Number of rows leased to a gateway when a device first authenticates there. With 0, no device would receive rows.
    #[schemars(range(min = 1))]
    pub lease_rows: u32,
    /// Number of rows that may be used before the registry has recorded their use; a crash of the gateway loses at most that
    /// number of rows of a device. With 0, no device would receive rows.
    #[schemars(range(min = 1))]
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AttestSection {
    /// Key of `linewarden attest key` that signs attestation results; not signed by default.
    #[schemars(extend("format" = "path"), example = "results.key")]
    pub signing_key: Option<PathBuf>,
}

/// `[trust.N]` of gateway N.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TrustSection {
    /// Reference values of the data plane.
    #[schemars(extend("format" = "path"), example = "gateway-7.reference")]
    pub reference: PathBuf,
    /// Public key that must have signed the reference values; by default the signature is not checked.
    #[schemars(extend("format" = "path"), example = "operator.pub")]
    pub reference_key: Option<PathBuf>,
    /// Public key that verifies the statements of the gateway or its switch.
    #[schemars(extend("format" = "path"), example = "gateway-7.pub")]
    pub key: PathBuf,
    /// Interval between two requests for evidence, seconds.
    #[serde(default = "default_trust_every_s")]
    #[schemars(range(min = 1, max = 86_400))]
    pub every_s: u32,
    /// Timeout of a response to a request for evidence, seconds. The maximum is the longest time that a gateway keeps its rows
    /// without evidence.
    #[serde(default = "default_trust_response_timeout_s")]
    #[schemars(range(min = 1, max = 600))]
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
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NatsSection {
    /// Servers of one cluster: nats:// or tls:// addresses.
    #[schemars(extend("examples" = [["nats://127.0.0.1:4222"]]))]
    pub servers: Vec<String>,
    /// JetStream stream, created if it does not exist.
    #[serde(default = "default_stream")]
    pub stream: String,
    /// Prefix of the subjects. Each subject is the prefix, a dot and the kind of the event.
    #[serde(default = "default_subject_prefix")]
    pub subject_prefix: String,
    /// CA of the servers, PEM, which enables TLS.
    #[schemars(extend("format" = "path"), example = "nats-ca.pem")]
    pub ca: Option<PathBuf>,
    /// Client certificate, PEM, if the servers require one.
    #[schemars(extend("format" = "path"), example = "nats.pem")]
    pub cert: Option<PathBuf>,
    /// Private key of the client certificate, PEM, mode 0600.
    #[schemars(extend("format" = "path"), example = "nats.key")]
    pub key: Option<PathBuf>,
    /// Credentials file (.creds), mode 0600.
    #[schemars(extend("format" = "path"), example = "nats.creds")]
    pub credentials_file: Option<PathBuf>,
    /// Permit connections to other machines without TLS: not confidential and not authenticated.
    #[serde(default)]
    pub plaintext: bool,
}

/// `[telemetry]`.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TelemetrySection {
    /// Address of the collector: http:// or https://.
    #[schemars(example = "http://127.0.0.1:4317")]
    pub otlp: String,
    /// CA of the collector's certificate, PEM, for https.
    #[schemars(extend("format" = "path"), example = "otlp-ca.pem")]
    pub ca: Option<PathBuf>,
    /// Permit http to another machine: not confidential.
    #[serde(default)]
    pub plaintext: bool,
    /// Fraction of the traces that are sent.
    #[serde(default = "default_sample")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub sample: f64,
}

/// `[log]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LogSection {
    /// Log level: error, warn, info, debug, trace, or a filter such as "warn,linewarden_controller=debug".
    #[schemars(example = &"info")]
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

/// Reads a controller's configuration; the paths in the configuration become absolute.
///
/// # Errors
/// All mistakes in the file.
pub fn read(path: &Path) -> Result<ConfigFile<ControllerConfig>, Failure> {
    let text = Program::Controller.read(path)?;
    match parse(path, text) {
        (Some(file), problems) if problems.is_empty() => Ok(file),
        (_, problems) => Err(failure(&problems)),
    }
}

/// Parses the text of a controller's configuration. Returns the content, if it can be parsed, and all mistakes.
pub fn parse(path: &Path, text: String) -> (Option<ConfigFile<ControllerConfig>>, Vec<Problem>) {
    let mut parsed = ConfigFile::<ControllerConfig>::parse(path, text);
    let registry = parsed
        .file
        .as_mut()
        .and_then(|file| file.value.registry.path.file_mut());
    if let Some(registry) = registry.filter(|registry| !registry.as_os_str().is_empty()) {
        *registry = directory(path).join(&*registry);
    }
    parsed.check(ControllerConfig::field_errors)
}

impl ControllerConfig {
    /// Mistakes that parsing does not find, each with the path of its field.
    fn field_errors(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
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
        let field_error = |(field, problem): ([&str; 2], String)| FieldError::new(&field, problem);
        errors.into_iter().map(field_error).collect()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example::{example, example_with_all_fields};
    use crate::schema::schema_of;

    #[test]
    fn the_example_is_a_configuration_as_it_is_and_with_every_field() {
        let schema = schema_of::<ControllerConfig>();
        println!("{}", example(&schema));
        let (_, problems) = parse(Path::new("c.toml"), example(&schema));
        assert_eq!(problems, []);
        let parsed =
            ConfigFile::<ControllerConfig>::parse(Path::new("c.toml"), example_with_all_fields(&schema));
        assert_eq!(parsed.problems, []);
    }
}
