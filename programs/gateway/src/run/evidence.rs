//! Evidence of the data plane: signer, in-packet evidence, and evidence socket.

use std::sync::{Arc, Mutex};

use linewarden_cli::failure::Failure;
use linewarden_config::gateway::{EvidenceSection, GatewayConfig, ResolvedGateway, read_evidence_signer};
use linewarden_config::{ConfigFile, Problem};
use linewarden_evidence::BootCount;
use linewarden_evidence::inband::MasterKey;
use linewarden_files::next_count;
use linewarden_gateway::data_plane::DataPlaneOptions;
use linewarden_gateway::evidence_server::EvidenceServer;
use linewarden_gateway::{Attester, EvidenceSource, Gateway, PacketStamper, SwitchAttester};
use linewarden_protocol::ids::GatewayId;

/// Returns the source of evidence: the switch for a P4 data plane, otherwise this process; `None` without evidence.
pub fn evidence_source(
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

/// Creates the attester for this start of the gateway, if evidence is configured; increments the boot count.
///
/// # Errors
/// The key or the boot count is unusable.
pub fn create_attester(file: &ConfigFile<GatewayConfig>) -> Result<Option<Arc<Mutex<Attester>>>, Problem> {
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

/// Starts in-packet evidence, if configured.
///
/// # Errors
/// The secret is unusable, or the thread cannot be started.
pub fn start_packet_stamper(
    file: &ConfigFile<GatewayConfig>,
    gateway: &Gateway,
    attester: Option<&Arc<Mutex<Attester>>>,
    key: &MasterKey,
) -> Result<Option<PacketStamper>, Failure> {
    let content_format = file
        .value
        .evidence
        .as_ref()
        .and_then(EvidenceSection::content_format);
    let (Some(content_format), Some(attester)) = (content_format, attester) else {
        return Ok(None);
    };
    let packet_stamper = PacketStamper::start(
        gateway.data_plane_handle(),
        Arc::clone(attester),
        key,
        content_format,
    )?;
    Ok(Some(packet_stamper))
}

/// Opens the evidence socket, if configured.
///
/// # Errors
/// The socket cannot be created.
pub fn open_socket(
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
