//! The configuration file of a controller.

mod fields;
mod nats;
mod registry;
mod signing_key;
mod socket;
mod telemetry;
mod trust;

use std::path::Path;

use linewarden_cli::failure::Failure;
use linewarden_cli::{now_s, tls};
use linewarden_controller::trust::TrustPolicy;
use linewarden_protocol::ids::GatewayId;
use linewarden_service::validity_s;
use linewarden_tls::{ServerTls, first_certificate};

pub use self::fields::{
    AttestSection, ControllerConfig, GatewayNumber, LogSection, NatsSection, RegistrySection, RowsSection,
    ServiceSection, TelemetrySection, TlsSection, TrustSection,
};
use self::nats::ValidNats;
pub use self::nats::read as read_nats;
use self::registry::ValidRegistry;
pub use self::signing_key::read as read_signing_key;
pub use self::socket::read as read_socket;
pub use self::telemetry::read as read_telemetry;
use crate::file::{ConfigFile, Configuration, Validated};
use crate::problem::{FieldError, Problem};
use crate::program::Program;

impl Configuration for ControllerConfig {
    const PROGRAM: Program = Program::Controller;

    type Valid = ValidController;

    fn log_level(&self) -> Option<&str> {
        self.log.level.as_deref()
    }

    fn resolve_paths(&mut self, directory: &Path) {
        let registry = self.registry.path.file_mut();
        if let Some(registry) = registry.filter(|registry| !registry.as_os_str().is_empty()) {
            *registry = directory.join(&*registry);
        }
    }

    fn validate(&self) -> Result<ValidController, Vec<FieldError>> {
        let mut errors = self.service_errors();
        let telemetry = self.telemetry.as_ref().and_then(telemetry::field_error);
        errors.extend(telemetry.map(|(field, problem)| FieldError::new(&["telemetry", field], problem)));
        let nats = self.nats.as_ref().map(nats::validate).transpose();
        let nats = nats.map_err(|(field, problem)| FieldError::new(&["nats", field], problem));
        match (self.registry.validate(), nats) {
            (Ok(registry), Ok(nats)) if errors.is_empty() => Ok(ValidController { registry, nats }),
            (registry, nats) => {
                errors.extend(registry.err());
                errors.extend(nats.err());
                Err(errors)
            }
        }
    }

    fn check_machine(config: &Validated<Self>) -> Result<Vec<Problem>, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        Ok(runtime.block_on(check_machine(config)))
    }
}

/// The sections of which the controller uses validated values. The other sections are validated, too; the controller uses
/// their fields.
#[derive(Debug)]
pub struct ValidController {
    /// The registry.
    pub registry: ValidRegistry,
    /// The NATS servers.
    nats: Option<ValidNats>,
}

impl ControllerConfig {
    fn service_errors(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        let mut refuse =
            |field: &str, problem: &str| errors.push(FieldError::new(&["service", field], problem));
        let ServiceSection {
            listen,
            socket,
            socket_group,
            metrics,
            ..
        } = &self.service;
        if self.tls.is_none() && socket.is_none() {
            refuse(
                "socket",
                "is missing: set a socket for gateways on this machine, or add [tls] for gateways and users on the network",
            );
        }
        if socket_group.is_some() && socket.is_none() {
            refuse(
                "socket_group",
                "needs `socket`: set a socket for gateways on this machine, or remove socket_group",
            );
        }
        if self.tls.is_some() && metrics.is_some_and(|metrics| metrics.port() != 0 && metrics == *listen) {
            refuse(
                "metrics",
                "equals `listen`, the address of the API: use another port for metrics",
            );
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

async fn check_machine(validated: &Validated<ControllerConfig>) -> Vec<Problem> {
    let (file, config) = (&validated.file, &validated.file.value);
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
    problems.extend(read_nats(validated).err());
    problems.extend(read_telemetry(file).err());
    if let Err((field, failure)) = validated.valid.registry.check().await {
        problems.push(field_problem(["registry", field], &failure));
    }
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
