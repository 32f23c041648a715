//! The fields of the configuration file, and their defaults.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use linewarden_registry::Location;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
