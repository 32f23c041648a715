//! Who signs what the data plane runs, and where it is asked for.

use std::sync::{Arc, Mutex};

use linewarden_evidence::BootCount;
use linewarden_evidence::inband::MasterKey;
use linewarden_files::next_count;
use linewarden_gateway::config::{EvidenceSection, GatewayConfig, Resolved};
use linewarden_gateway::evidence_desk::EvidenceDesk;
use linewarden_gateway::{Attester, EvidenceSource, Gateway, InPackets, SwitchAttester};
use linewarden_protocol::ids::GatewayId;

use crate::config_file::{ConfigFile, Problem};
use crate::failure::Failure;
use crate::gateway_config;

/// Who signs: this process for what the kernel runs, or the switch itself.
pub fn source(
    file: &ConfigFile<GatewayConfig>,
    resolved: &Resolved,
    attester: Option<&Arc<Mutex<Attester>>>,
) -> Option<EvidenceSource> {
    match (&file.value.p4, &resolved.p4) {
        (Some(p4), Some(options)) => Some(EvidenceSource::Switch(SwitchAttester {
            address: p4.address,
            tls: options.tls.clone(),
        })),
        _ => attester.cloned().map(EvidenceSource::Gateway),
    }
}

/// Signs for this start, which is counted, if evidence is wanted.
///
/// # Errors
/// A key or a count that cannot be used.
pub fn attester(file: &ConfigFile<GatewayConfig>) -> Result<Option<Arc<Mutex<Attester>>>, Problem> {
    let (Some(section), Some(signer)) = (&file.value.evidence, gateway_config::evidence_signer(file)?) else {
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

/// Has packets carry evidence, if they are to.
///
/// # Errors
/// A secret that cannot be used, or no thread.
pub fn in_packets(
    file: &ConfigFile<GatewayConfig>,
    gateway: &Gateway,
    attester: Option<&Arc<Mutex<Attester>>>,
    key: &MasterKey,
) -> Result<Option<InPackets>, Failure> {
    let form = file.value.evidence.as_ref().and_then(EvidenceSection::form);
    let (Some(form), Some(attester)) = (form, attester) else {
        return Ok(None);
    };
    let in_packets = InPackets::start(gateway.plane_handle(), Arc::clone(attester), key, form)?;
    Ok(Some(in_packets))
}

/// Opens the socket, if one is named.
///
/// # Errors
/// It cannot be made.
pub fn desk(
    file: &ConfigFile<GatewayConfig>,
    gateway: &Gateway,
    attester: Option<Arc<Mutex<Attester>>>,
) -> Result<Option<EvidenceDesk>, Problem> {
    let socket = file
        .value
        .evidence
        .as_ref()
        .and_then(|section| section.socket.as_ref());
    let (Some(path), Some(attester)) = (socket, attester) else {
        return Ok(None);
    };
    match EvidenceDesk::open(path, gateway.plane_handle(), attester) {
        Ok(desk) => Ok(Some(desk)),
        Err(error) => {
            let problem = format!("{}: {error}", path.display());
            Err(file.problem(&["evidence", "socket"], &problem).with_code(1))
        }
    }
}
