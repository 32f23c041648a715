//! The configuration of a controller as people write it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use linewarden_gateway::config::RegistrySection;
use serde::Deserialize;

use crate::config_file::{OfRole, Role};

/// A whole configuration file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ControllerConfig {
    /// The service itself.
    pub service: ServiceSection,
    /// Its certificate, and the CA of gateways and users.
    pub tls: TlsSection,
    /// What it knows.
    pub registry: RegistrySection,
    /// How rows are given out.
    #[serde(default)]
    pub rows: RowsSection,
    /// What devices run is checked.
    #[serde(default)]
    pub attest: AttestSection,
    /// Where events are published.
    pub nats: Option<NatsSection>,
    /// Its log.
    #[serde(default)]
    pub log: LogSection,
}

/// `[service]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceSection {
    /// What it is called, for people; the host's name if not given.
    pub name: Option<String>,
    /// Where it listens: API, dashboard and gateways.
    #[serde(default = "default_listen")]
    pub listen: SocketAddr,
    /// Where it listens for metrics and health, in the clear.
    pub metrics: Option<SocketAddr>,
}

/// `[tls]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsSection {
    /// Its certificate, PEM.
    pub cert: PathBuf,
    /// Its private key, PEM, of mode 0600.
    pub key: PathBuf,
    /// The CA of gateways' and users' certificates, PEM.
    pub ca: PathBuf,
}

/// `[rows]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RowsSection {
    /// Rows that are leased with a device's first authentication at a gateway.
    pub lease_rows: u32,
    /// How many of them may be spent at once: what a gateway's crash costs a device at most.
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
    /// The key that signs results.
    pub signing_key: Option<PathBuf>,
}

/// `[nats]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NatsSection {
    /// `nats://HOST:PORT` or `tls://HOST:PORT`, of one cluster.
    pub servers: Vec<String>,
    /// The stream; made if it is not there.
    #[serde(default = "default_stream")]
    pub stream: String,
    /// Subjects are this, a dot and the kind of the event.
    #[serde(default = "default_subject_prefix")]
    pub subject_prefix: String,
    /// The CA of the servers' certificates, PEM; then they are spoken to by TLS.
    pub ca: Option<PathBuf>,
    /// One's own certificate, PEM, where servers ask for one.
    pub cert: Option<PathBuf>,
    /// Its private key, PEM, of mode 0600.
    pub key: Option<PathBuf>,
    /// A `.creds` file, of mode 0600.
    pub credentials_file: Option<PathBuf>,
}

/// `[log]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogSection {
    /// As `--log`.
    pub level: Option<String>,
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

impl OfRole for ControllerConfig {
    const ROLE: Role = Role::Controller;
}

impl ControllerConfig {
    /// Makes the paths absolute, seen from the configuration file's directory.
    pub fn resolve_paths(&mut self, directory: &Path) {
        let paths = [
            Some(&mut self.tls.cert),
            Some(&mut self.tls.key),
            Some(&mut self.tls.ca),
            self.registry.path.file_mut(),
            self.registry.master_key_file.as_mut(),
            self.attest.signing_key.as_mut(),
        ];
        let nats = self.nats.as_mut().map(|nats| {
            [
                &mut nats.ca,
                &mut nats.cert,
                &mut nats.key,
                &mut nats.credentials_file,
            ]
        });
        let nats = nats.into_iter().flatten().map(Option::as_mut);
        let named = paths
            .into_iter()
            .chain(nats)
            .flatten()
            .filter(|path| !path.as_os_str().is_empty());
        named.for_each(|path| *path = directory.join(&*path));
    }
}
