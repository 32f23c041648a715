//! Start and stop of a gateway.
//!
//! The start checks everything before any change. Before the gateway serves devices, the start drops the privileges that
//! only the start needs.

use std::sync::{Arc, Mutex};

use linewarden_cli::failure::Failure;
use linewarden_cli::output::Output;
use linewarden_config::gateway::{GatewayConfig, ResolvedGateway, read_packet_key};
use linewarden_config::{ConfigFile, Problem, Validated, failure};
use linewarden_dataplane::{DataPlane, DataPlaneError};
use linewarden_evidence::inband::MasterKey as PacketKey;
use linewarden_gateway::audit::{AuditEvent, AuditLog};
use linewarden_gateway::data_plane::{self, DataPlaneOptions};
use linewarden_gateway::evidence_server::EvidenceServer;
use linewarden_gateway::{
    Attester, DataPlaneInfo, Gateway, StopReport, TicketCounts, TicketRelay, TicketSockets,
};
use linewarden_link::{Client, RemoteController};
use linewarden_types::ControllerLink;

use super::evidence;
use super::output::{dataplane_name, gate_name, print_start};
use super::reload::Reloader;
use crate::privileges::RetainedCapabilities;

/// A running gateway.
pub struct RunningGateway {
    ticket_relay: Option<TicketRelay>,
    evidence_server: Option<EvidenceServer>,
    pub gateway: Gateway,
}

/// Files and keys that a configuration names.
struct StartInputs {
    /// The gateway audit log and the maximum number of records per second.
    audit: Option<(AuditLog, u32)>,
    packet_key: PacketKey,
    attester: Option<Arc<Mutex<Attester>>>,
    client: Client,
}

impl StartInputs {
    fn read(validated: &Validated<GatewayConfig>, retained: &RetainedCapabilities) -> Result<Self, Failure> {
        let file = &validated.file;
        Ok(Self {
            audit: retained.run_confined(|| open_audit(file))??,
            packet_key: read_packet_key(file)?,
            // The boot count increments only after the check of the machine, so a refused start does not count.
            attester: evidence::create_attester(file)?,
            client: validated.controller_client()?,
        })
    }
}

/// Starts the gateway; returns the running gateway and its reloader.
pub fn start(
    validated: Validated<GatewayConfig>,
    resolved: &ResolvedGateway,
    output: Output,
) -> Result<(RunningGateway, Reloader), Failure> {
    let file = &validated.file;
    let config = &file.value;
    let retained = RetainedCapabilities::for_config(config);
    check_problems(&validated.machine_problems())?;
    let inputs = StartInputs::read(&validated, &retained)?;
    // The sockets are bound before the data plane is attached, because a port in use prevents the start.
    let ticket_sockets = bind_ticket_sockets(resolved)?;
    let data_plane = match resolved.data_plane {
        // The P4 data plane has its own threads and needs no privilege.
        DataPlaneOptions::P4(_) => retained.run_confined(|| start_data_plane(resolved))??,
        DataPlaneOptions::Xdp { .. } | DataPlaneOptions::Host { .. } => start_data_plane(resolved)?,
    };
    retained.enforce()?;
    print_start(output, config, resolved)?;
    let controller: Arc<dyn ControllerLink> = Arc::new(RemoteController::from(inputs.client));
    let id = resolved.config.gateway_id;
    let attester = inputs.attester;
    let source = evidence::evidence_source(file, resolved, attester.as_ref());
    let gateway = Gateway::start_with_evidence(
        data_plane,
        Arc::clone(&controller),
        resolved.settings,
        gateway_info(config),
        source,
    )
    .map_err(Failure::failed)?;
    let packet_stamper =
        evidence::start_packet_stamper(file, &gateway, attester.as_ref(), &inputs.packet_key)?;
    let evidence_server = evidence::open_socket(file, &gateway, attester)?;
    gateway.set_audit(inputs.audit).map_err(Failure::failed)?;
    gateway.record(started_event(config, resolved));
    let handle = gateway.data_plane_handle();
    let ticket_relay = ticket_sockets
        .map(|sockets| TicketRelay::open(sockets, handle, controller, id))
        .transpose()
        .map_err(Failure::failed)?;
    let running_gateway = RunningGateway {
        ticket_relay,
        evidence_server,
        gateway,
    };
    let reloader = Reloader::new(validated.file, packet_stamper, &resolved.config);
    Ok((running_gateway, reloader))
}

fn start_data_plane(resolved: &ResolvedGateway) -> Result<Box<dyn DataPlane>, DataPlaneError> {
    data_plane::start(
        &resolved.config,
        &resolved.data_plane,
        &resolved.interfaces,
        &resolved.forward_to,
    )
}

impl RunningGateway {
    /// Stops the gateway and commits the used rows.
    pub fn stop(self) -> Result<StopReport, Failure> {
        if let Some(ticket_relay) = self.ticket_relay {
            let TicketCounts {
                answered,
                unknown,
                rate_limited,
                rejected,
                failed,
                kernel_drops,
            } = ticket_relay.close();
            tracing::info!(
                answered,
                unknown,
                rate_limited,
                rejected,
                failed,
                kernel_drops,
                "ticket relay counters"
            );
        }
        // The gateway stops first: a slow client of the evidence socket must not delay the commit.
        let result = self.gateway.stop();
        drop(self.evidence_server);
        let report = result.map_err(Failure::failed)?;
        Ok(report)
    }
}

/// The properties of this gateway that are reported to the controllers.
fn gateway_info(config: &GatewayConfig) -> DataPlaneInfo {
    DataPlaneInfo {
        kind: dataplane_name(config).to_owned(),
        slots: config.gateway.slots().into(),
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

fn started_event(config: &GatewayConfig, resolved: &ResolvedGateway) -> AuditEvent {
    let names = config.gateway.interfaces.iter().cloned();
    AuditEvent::Started {
        program: env!("CARGO_PKG_VERSION"),
        dataplane: dataplane_name(config).to_owned(),
        gate: gate_name(config).to_owned(),
        interfaces: names.zip(resolved.interfaces.iter().copied()).collect(),
    }
}

/// Binds the sockets of the ticket relay, if it is enabled.
fn bind_ticket_sockets(resolved: &ResolvedGateway) -> Result<Option<TicketSockets>, Failure> {
    let bind = |port| TicketSockets::bind(&resolved.config.local, port);
    resolved
        .ticket_port
        .map(bind)
        .transpose()
        .map_err(Failure::failed)
}
