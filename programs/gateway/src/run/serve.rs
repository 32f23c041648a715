//! Third stage of a start, and the stop: the gateway serves devices over an attached data plane.

use std::sync::{Arc, Mutex};

use linewarden_cli::failure::Failure;
use linewarden_config::gateway::{GatewayConfig, ResolvedGateway};
use linewarden_config::{ConfigFile, Problem};
use linewarden_evidence::inband::MasterKey;
use linewarden_gateway::audit::AuditEvent;
use linewarden_gateway::data_plane::DataPlaneOptions;
use linewarden_gateway::evidence_server::EvidenceServer;
use linewarden_gateway::{
    Attester, DataPlaneInfo, EvidenceSource, Gateway, PacketStamper, StopReport, SwitchAttester,
    TicketCounts, TicketRelay,
};
use linewarden_link::RemoteController;
use linewarden_types::ControllerLink;

use super::attach::AttachedGateway;
use super::output::{dataplane_name, gate_name};
use super::reload::Reloader;

/// A running gateway.
pub struct RunningGateway {
    ticket_relay: Option<TicketRelay>,
    evidence_server: Option<EvidenceServer>,
    pub gateway: Gateway,
}

impl RunningGateway {
    /// Starts to serve devices; returns the running gateway and its reloader.
    ///
    /// # Errors
    /// The settings are inconsistent, a secret or socket is unusable, or the operating system provides no thread.
    pub fn start(attached: AttachedGateway) -> Result<(Self, Reloader), Failure> {
        let inputs = attached.inputs;
        let (file, resolved, attester) = (inputs.file, inputs.resolved, inputs.attester);
        let controller: Arc<dyn ControllerLink> = Arc::new(RemoteController::from(inputs.client));
        let gateway = Gateway::start_with_evidence(
            attached.data_plane,
            Arc::clone(&controller),
            resolved.settings,
            gateway_info(&file.value),
            evidence_source(&file, &resolved, attester.as_ref()),
        )
        .map_err(Failure::failed)?;
        let packet_stamper = start_packet_stamper(&file, &gateway, attester.as_ref(), &inputs.packet_key)?;
        let evidence_server = open_evidence_socket(&file, &gateway, attester)?;
        gateway.set_audit(inputs.audit).map_err(Failure::failed)?;
        gateway.record(started_event(&file.value, &resolved));
        let handle = gateway.data_plane_handle();
        let ticket_relay = attached
            .ticket_sockets
            .map(|sockets| TicketRelay::open(sockets, handle, controller, resolved.config.gateway_id))
            .transpose()
            .map_err(Failure::failed)?;
        let running_gateway = Self {
            ticket_relay,
            evidence_server,
            gateway,
        };
        let reloader = Reloader::new(file, packet_stamper, &resolved.config);
        Ok((running_gateway, reloader))
    }

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

fn started_event(config: &GatewayConfig, resolved: &ResolvedGateway) -> AuditEvent {
    let names = config.gateway.interfaces.iter().cloned();
    AuditEvent::Started {
        program: env!("CARGO_PKG_VERSION"),
        dataplane: dataplane_name(config).to_owned(),
        gate: gate_name(config).to_owned(),
        interfaces: names.zip(resolved.interfaces.iter().copied()).collect(),
    }
}

/// Returns the source of evidence: the switch for a P4 data plane, otherwise this process; `None` without evidence.
fn evidence_source(
    file: &ConfigFile<GatewayConfig>,
    resolved: &ResolvedGateway,
    attester: Option<&Arc<Mutex<Attester>>>,
) -> Option<EvidenceSource> {
    match (&file.value.p4, &resolved.data_plane) {
        (Some(p4), DataPlaneOptions::P4(options)) => Some(EvidenceSource::Switch(SwitchAttester {
            address: p4.address,
            tls: options.tls.clone(),
        })),
        _ => attester.cloned().map(EvidenceSource::Gateway),
    }
}

/// Starts in-packet evidence, if configured.
///
/// # Errors
/// The secret is unusable, or the thread cannot be started.
fn start_packet_stamper(
    file: &ConfigFile<GatewayConfig>,
    gateway: &Gateway,
    attester: Option<&Arc<Mutex<Attester>>>,
    key: &MasterKey,
) -> Result<Option<PacketStamper>, Failure> {
    let section = file.value.evidence.as_ref();
    let is_configured = section.is_some_and(|section| section.in_packets.is_some());
    let Some(attester) = attester.filter(|_| is_configured) else {
        return Ok(None);
    };
    let packet_stamper = PacketStamper::start(gateway.data_plane_handle(), Arc::clone(attester), key)?;
    Ok(Some(packet_stamper))
}

/// Opens the evidence socket, if configured.
///
/// # Errors
/// The socket cannot be created.
fn open_evidence_socket(
    file: &ConfigFile<GatewayConfig>,
    gateway: &Gateway,
    attester: Option<Arc<Mutex<Attester>>>,
) -> Result<Option<EvidenceServer>, Problem> {
    let socket_path = file
        .value
        .evidence
        .as_ref()
        .and_then(|section| section.socket.as_ref());
    let (Some(path), Some(attester)) = (socket_path, attester) else {
        return Ok(None);
    };
    match EvidenceServer::open(path, gateway.data_plane_handle(), attester) {
        Ok(server) => Ok(Some(server)),
        Err(error) => {
            let problem = format!("{}: {error}", path.display());
            Err(file.problem(&["evidence", "socket"], &problem).with_code(1))
        }
    }
}
