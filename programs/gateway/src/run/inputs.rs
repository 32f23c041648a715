//! First stage of a start: checks the machine, and reads the files and keys that the configuration names. A start that this
//! stage refuses has changed nothing.

use std::sync::{Arc, Mutex};

use linewarden_cli::failure::Failure;
use linewarden_config::gateway::{GatewayConfig, ResolvedGateway, read_evidence_signer, read_packet_key};
use linewarden_config::{ConfigFile, Problem, Validated, failure};
use linewarden_evidence::BootCount;
use linewarden_evidence::inband::MasterKey as PacketKey;
use linewarden_files::next_count;
use linewarden_gateway::Attester;
use linewarden_gateway::audit::AuditLog;
use linewarden_link::Client;
use linewarden_protocol::ids::GatewayId;

use crate::privileges::RetainedCapabilities;

/// A checked configuration, with the files and keys that it names.
pub struct StartInputs {
    pub file: ConfigFile<GatewayConfig>,
    pub resolved: ResolvedGateway,
    /// The capabilities that the running gateway keeps.
    pub retained: RetainedCapabilities,
    /// The gateway audit log and the maximum number of records per second.
    pub audit: Option<(AuditLog, u32)>,
    pub packet_key: PacketKey,
    pub attester: Option<Arc<Mutex<Attester>>>,
    pub client: Client,
}

impl StartInputs {
    /// Checks the machine, and reads the files and keys.
    ///
    /// # Errors
    /// A problem of the machine, or an unusable file.
    pub fn read(validated: Validated<GatewayConfig>, resolved: ResolvedGateway) -> Result<Self, Failure> {
        let retained = RetainedCapabilities::for_config(&validated.file.value);
        check_problems(&validated.machine_problems())?;
        let file = &validated.file;
        Ok(Self {
            audit: retained.run_confined(|| open_audit(file))??,
            packet_key: read_packet_key(file)?,
            // The boot count increments only after the check of the machine, so a refused start does not count.
            attester: create_attester(file)?,
            client: validated.controller_client()?,
            file: validated.file,
            resolved,
            retained,
        })
    }
}

/// Logs warnings; errors end the start.
fn check_problems(problems: &[Problem]) -> Result<(), Failure> {
    for problem in problems.iter().filter(|problem| problem.exit_code == 0) {
        tracing::warn!(reason = %problem, "configuration warning");
    }
    match problems.iter().any(|problem| problem.exit_code != 0) {
        true => Err(failure(problems)),
        false => Ok(()),
    }
}

/// Opens the gateway audit log, if configured; returns also the maximum number of records per second.
pub fn open_audit(file: &ConfigFile<GatewayConfig>) -> Result<Option<(AuditLog, u32)>, Problem> {
    let Some(section) = &file.value.audit else {
        return Ok(None);
    };
    let gateway = linewarden_protocol::ids::GatewayId(file.value.gateway.id);
    match AuditLog::open(gateway, &section.options()) {
        Ok(log) => Ok(Some((log, section.per_s))),
        Err(error) => {
            let problem = format!(
                "{}: opening the gateway audit log failed: {error}; check the path, owner and mode",
                section.path.display()
            );
            Err(file.problem(&["audit", "path"], &problem).with_code(1))
        }
    }
}

/// Creates the attester for this start of the gateway, if evidence is configured; increments the boot count.
///
/// # Errors
/// The key or the boot count is unusable.
fn create_attester(file: &ConfigFile<GatewayConfig>) -> Result<Option<Arc<Mutex<Attester>>>, Problem> {
    let (Some(section), Some(signer)) = (&file.value.evidence, read_evidence_signer(file)?) else {
        return Ok(None);
    };
    let count = next_count(&section.boot_count).map_err(|error| {
        let problem = format!("{}: {error}", section.boot_count.display());
        file.problem(&["evidence", "boot_count"], &problem).with_code(1)
    })?;
    let gateway = GatewayId(file.value.gateway.id);
    let attester = Attester::new(gateway, BootCount(count), signer);
    Ok(Some(Arc::new(Mutex::new(attester))))
}
