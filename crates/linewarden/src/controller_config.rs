//! The configuration of a controller as people write it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use linewarden_controller::trust::TrustPolicy;
use linewarden_gateway::config::{RegistrySection, TrustSection};
use linewarden_protocol::ids::GatewayId;
use linewarden_service::validity_s;
use linewarden_tls::{ServerTls, first_certificate};
use serde::Deserialize;

use crate::cmd::now_s;
use crate::config_file::{ConfigFile, OfRole, Problem, Role};
use crate::failure::Failure;
use crate::{log, nats_config, registry, secret_file, telemetry_config, tls, trust_config};

/// A whole configuration file.
#[derive(Clone, Debug, PartialEq, Deserialize)]
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
    /// Gateways that get rows only while they show what they run; all others always get them.
    #[serde(default)]
    pub trust: BTreeMap<GatewayNumber, TrustSection>,
    /// Where events are published.
    pub nats: Option<NatsSection>,
    /// Where traces go.
    pub telemetry: Option<TelemetrySection>,
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

/// The name of a table: N of `[trust.N]`.
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
            .ok_or_else(|| format!("{text:?} is no gateway's number, such as 7 in [trust.7]"))
    }
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
    /// Without TLS also to other machines, where nobody else is on the way.
    #[serde(default)]
    pub plaintext: bool,
    /// One's own certificate, PEM, where servers ask for one.
    pub cert: Option<PathBuf>,
    /// Its private key, PEM, of mode 0600.
    pub key: Option<PathBuf>,
    /// A `.creds` file, of mode 0600.
    pub credentials_file: Option<PathBuf>,
}

/// `[telemetry]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TelemetrySection {
    /// `http://HOST:PORT` or `https://HOST:PORT` of a collector that speaks OTLP over gRPC.
    pub otlp: String,
    /// The CA of its certificate, PEM, for `https`.
    pub ca: Option<PathBuf>,
    /// Whether `http` may go to another machine.
    #[serde(default)]
    pub plaintext: bool,
    /// Which part of all traces is sent, from 0 to 1.
    #[serde(default = "default_sample")]
    pub sample: f64,
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

fn default_sample() -> f64 {
    1.0
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
            self.telemetry
                .as_mut()
                .and_then(|telemetry| telemetry.ca.as_mut()),
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
        let trust = self.trust.values_mut().flat_map(TrustSection::paths);
        let named = paths
            .into_iter()
            .chain(nats)
            .chain(trust)
            .flatten()
            .filter(|path| !path.as_os_str().is_empty());
        named.for_each(|path| *path = directory.join(&*path));
    }
}

/// Reads a controller's configuration, its paths made absolute.
///
/// # Errors
/// All mistakes in it.
pub fn read(path: &Path) -> Result<ConfigFile<ControllerConfig>, Failure> {
    let text = crate::config_file::read_text(path)?;
    crate::config_file::refuse_other_role::<ControllerConfig>(path, &text)?;
    match parse(path, text) {
        (Some(file), problems) if problems.is_empty() => Ok(file),
        (_, problems) => Err(Failure::all(&problems)),
    }
}

/// Likewise from its text: what is right in it, and all that is not.
pub fn parse(path: &Path, text: String) -> (Option<ConfigFile<ControllerConfig>>, Vec<Problem>) {
    let mut parsed = ConfigFile::<ControllerConfig>::parse(path, text);
    let mut problems = std::mem::take(&mut parsed.problems);
    let Some(mut file) = parsed.file.take() else {
        return (None, problems);
    };
    let directory = file.directory();
    file.value.resolve_paths(&directory);
    let wrong = file.value.mistakes();
    let wrong = wrong.iter().filter(|(field, _)| !parsed.lacks(field));
    problems.extend(wrong.map(|(field, problem)| file.problem(field, problem)));
    let wrong = file.value.mistakes_of_trust();
    let wrong = wrong.iter().filter(|(field, _)| !parsed.lacks(field));
    problems.extend(wrong.map(|(field, problem)| file.problem(field, problem)));
    problems.sort_by_key(Problem::place);
    (Some(file), problems)
}

impl ControllerConfig {
    fn mistakes_of_trust(&self) -> Vec<([String; 3], String)> {
        let of = |(number, section): (&GatewayNumber, &TrustSection)| {
            let field = place_of_trust(*number);
            let mistakes = section.mistakes().into_iter();
            mistakes
                .map(move |(name, problem)| (field(name), problem))
                .collect::<Vec<_>>()
        };
        self.trust.iter().flat_map(of).collect()
    }

    /// What is wrong with fields beside others, each with its path.
    fn mistakes(&self) -> Vec<([&'static str; 2], String)> {
        let mut wrong = Vec::new();
        for (table, field, path) in [
            ("tls", "cert", &self.tls.cert),
            ("tls", "key", &self.tls.key),
            ("tls", "ca", &self.tls.ca),
        ] {
            if path.as_os_str().is_empty() {
                wrong.push(([table, field], "is empty; name a file".to_owned()));
            }
        }
        let registry = &self.registry;
        match (&registry.master_key_file, &registry.master_key_env) {
            (None, None) => wrong.push((
                ["registry", "master_key_file"],
                "is missing: name the master key's file, or by master_key_env an environment variable with it".to_owned(),
            )),
            (Some(_), Some(_)) => wrong.push((
                ["registry", "master_key_env"],
                "stands beside master_key_file; take one of them out".to_owned(),
            )),
            _ => {}
        }
        for (field, value) in [
            ("lease_rows", self.rows.lease_rows),
            ("mark_block", self.rows.mark_block),
        ] {
            if value == 0 {
                wrong.push((
                    ["rows", field],
                    "0: devices would get no rows; 1 or more".to_owned(),
                ));
            }
        }
        if self
            .service
            .metrics
            .is_some_and(|metrics| metrics.port() != 0 && metrics == self.service.listen)
        {
            wrong.push((
                ["service", "metrics"],
                "is where the API listens already; choose another port".to_owned(),
            ));
        }
        let nats = self.nats.as_ref().and_then(nats_config::mistake);
        wrong.extend(nats.map(|(field, problem)| (["nats", field], problem)));
        let telemetry = self.telemetry.as_ref().and_then(telemetry_config::mistake);
        wrong.extend(telemetry.map(|(field, problem)| (["telemetry", field], problem)));
        if let Some(level) = &self.log.level
            && let Err(problem) = log::filter(level)
        {
            wrong.push((["log", "level"], problem));
        }
        wrong
    }
}

/// A field of a `[trust.N]`.
fn place_of_trust(GatewayNumber(number): GatewayNumber) -> impl Fn(&str) -> [String; 3] {
    move |field| ["trust".to_owned(), number.to_string(), field.to_owned()]
}

/// What gateways must show to get rows.
///
/// # Errors
/// Reference values or keys that cannot be read, or reference values of another data plane: all of them.
pub fn trust(file: &ConfigFile<ControllerConfig>) -> Result<Vec<(GatewayId, TrustPolicy)>, Vec<Problem>> {
    let (mut policies, mut problems) = (Vec::new(), Vec::new());
    for (number, section) in &file.value.trust {
        let gateway = GatewayId(number.0);
        match trust_config::policy(section, gateway, None) {
            Ok(policy) => policies.push((gateway, policy)),
            Err((field, failure)) => problems.push(
                file.problem(&place_of_trust(*number)(field), &failure.to_string())
                    .with_code(failure.code()),
            ),
        }
    }
    match problems.is_empty() {
        true => Ok(policies),
        false => Err(problems),
    }
}

/// What this machine lacks; nothing is changed.
pub async fn examine(file: &ConfigFile<ControllerConfig>) -> Vec<Problem> {
    let config = &file.value;
    let place = |field: [&str; 2], failure: &Failure| {
        file.problem(&field, &failure.to_string())
            .with_code(failure.code())
    };
    let mut problems = Vec::new();
    match tls::certificates(&config.tls.ca) {
        Err(failure) => problems.push(place(["tls", "ca"], &failure)),
        Ok(ca) => match tls::identity(&config.tls.cert, &config.tls.key) {
            Err(failure) => {
                // What is wrong begins with the file's name.
                let of_key = failure
                    .to_string()
                    .starts_with(&config.tls.key.display().to_string());
                let field = if of_key { "key" } else { "cert" };
                problems.push(place(["tls", field], &failure));
            }
            Ok(identity) => {
                problems.extend(outlived(file));
                if let Err(error) = ServerTls::new(identity, Some(&ca)) {
                    problems.push(place(["tls", "ca"], &tls::in_file(&config.tls.ca, &error)));
                }
            }
        },
    }
    if let Some(path) = &config.attest.signing_key
        && let Err(failure) = secret_file::signer(path)
    {
        problems.push(place(["attest", "signing_key"], &failure));
    }
    problems.extend(trust(file).err().into_iter().flatten());
    problems.extend(nats_config::read(file).err());
    problems.extend(telemetry_config::read(file).err());
    if let Err((field, failure)) = registry::examine(&config.registry).await {
        problems.push(place(["registry", field], &failure));
    }
    problems.sort_by_key(Problem::place);
    problems
}

/// A certificate that nobody takes any more, or yet.
pub fn outlived(file: &ConfigFile<ControllerConfig>) -> Option<Problem> {
    let path = &file.value.tls.cert;
    let first = first_certificate(&tls::certificates(path).ok()?).ok()?;
    let (from_s, until_s) = validity_s(&first)?;
    let now_s = i64::try_from(now_s().ok()?).ok()?;
    let why = match (now_s < from_s, now_s > until_s) {
        (true, _) => "is not valid yet; see whether the clock is right",
        (_, true) => {
            "has expired: nobody connects; make another one with `linewarden certificate controller`"
        }
        _ => return None,
    };
    Some(file.problem(&["tls", "cert"], &format!("{}: {why}", path.display())))
}
