//! A gateway's start: all that can be wrong is looked at before anything is touched, and what only a start needs is given up before
//! anybody is answered. And its end.

use std::sync::{Arc, Mutex};

use linewarden_controller::Controller;
use linewarden_controller::attest::Signer;
use linewarden_controller::trust::TrustPolicy;
use linewarden_evidence::inband::MasterKey as PacketKey;
use linewarden_gateway::audit::{AuditLog, Happening};
use linewarden_gateway::config::{Backend, GatewayConfig, Resolved};
use linewarden_gateway::evidence_desk::EvidenceDesk;
use linewarden_gateway::{
    About, Attester, ControllerLink, Desk, DeskCounts, DeskSockets, Gateway, Stopped, plane,
};
use linewarden_link::Client;
use linewarden_registry::Registry;
use tokio::runtime::Runtime;

use super::evidence;
use super::reload::Reloader;
use super::told::{dataplane_name, gate_name, tell_start};
use crate::config_file::{ConfigFile, Problem};
use crate::failure::Failure;
use crate::output::Output;
use crate::privileges::Kept;
use crate::{gateway_config, registry};

/// A gateway that answers.
pub struct Running {
    desk: Option<Desk>,
    evidence_desk: Option<EvidenceDesk>,
    pub gateway: Gateway,
    registry: Option<Registry>,
    /// The last that ends.
    runtime: Runtime,
}

/// What a configuration names beside registry and data plane.
struct Parts {
    audit: Option<(AuditLog, u32)>,
    signer: Option<Signer>,
    trust: Option<TrustPolicy>,
    packet_key: PacketKey,
    attester: Option<Arc<Mutex<Attester>>>,
    client: Option<Client>,
}

impl Parts {
    fn read(file: &ConfigFile<GatewayConfig>, kept: &Kept) -> Result<Self, Failure> {
        let all = |problem| Failure::all(&[problem]);
        Ok(Self {
            audit: kept.confine(|| open_audit(file))?.map_err(all)?,
            signer: gateway_config::signer(file).map_err(all)?,
            trust: gateway_config::trust(file).map_err(all)?,
            packet_key: gateway_config::packet_key(file).map_err(all)?,
            // After all that can be wrong: a start that fails is no start.
            attester: evidence::attester(file).map_err(all)?,
            client: gateway_config::controller(file).map_err(all)?,
        })
    }
}

/// Starts it; with it what another configuration is given to.
pub fn start(
    file: ConfigFile<GatewayConfig>,
    resolved: &Resolved,
    output: Output,
) -> Result<(Running, Reloader), Failure> {
    let config = &file.value;
    let kept = Kept::by(config);
    let runtime = runtime(&kept)?;
    examine(&runtime.block_on(gateway_config::examine(&file)))?;
    let parts = Parts::read(&file, &kept)?;
    let registry = match &config.registry {
        Some(section) => Some(kept.confine(|| runtime.block_on(registry::open(section)))??),
        None => None,
    };
    // Before the interface is touched: a port that is taken refuses the start.
    let desk = bind_desk(resolved)?;
    let plane = match config.gateway.dataplane {
        // It has threads of its own, and needs no privilege.
        Backend::P4 => kept.confine(|| plane::start(&config.gateway, resolved))??,
        Backend::Xdp | Backend::Host => plane::start(&config.gateway, resolved)?,
    };
    kept.enforce()?;
    tell_start(output, config, resolved)?;
    let in_process = registry
        .as_ref()
        .map(|registry| in_process(registry, resolved, parts.signer, parts.trust));
    let controller = match (in_process, parts.client) {
        (Some(controller), _) => ControllerLink::from(controller),
        (None, Some(client)) => ControllerLink::Remote(client, about(config)),
        // The configuration was checked.
        (None, None) => return Err(Failure::input("no [registry] and no [controller]")),
    };
    let id = resolved.config.gateway_id;
    let attester = parts.attester;
    let source = evidence::source(&file, resolved, attester.as_ref());
    let gateway = Gateway::start_with(plane, controller.clone(), id, resolved.settings, source)?;
    let in_packets = evidence::in_packets(&file, &gateway, attester.as_ref(), &parts.packet_key)?;
    let evidence_desk =
        evidence::desk(&file, &gateway, attester).map_err(|problem| Failure::all(&[problem]))?;
    gateway.set_audit(parts.audit)?;
    gateway.record(started(config, resolved));
    let plane = gateway.plane_handle();
    let desk = desk
        .map(|sockets| Desk::open(sockets, plane, controller, id))
        .transpose()?;
    let running = Running {
        desk,
        evidence_desk,
        gateway,
        registry,
        runtime,
    };
    Ok((running, Reloader::new(file, in_packets, &resolved.config)))
}

impl Running {
    /// Ends it: what was used is settled.
    pub fn stop(self) -> Result<Stopped, Failure> {
        if let Some(desk) = self.desk {
            let DeskCounts {
                answered,
                strange,
                limited,
                silent,
                failed,
                kernel_drops,
            } = desk.close();
            tracing::info!(
                answered,
                strange,
                limited,
                silent,
                failed,
                kernel_drops,
                "tickets"
            );
        }
        // The gateway first: who asks for evidence slowly keeps nothing from being settled.
        let stopped = self.gateway.stop();
        drop(self.evidence_desk);
        let stopped = stopped?;
        if let Some(registry) = self.registry {
            self.runtime.block_on(registry.close());
        }
        Ok(stopped)
    }
}

fn runtime(kept: &Kept) -> Result<Runtime, Failure> {
    let runtime = kept.confine(|| {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .on_thread_start(confiner(kept))
            .enable_all()
            .build()
    })?;
    Ok(runtime?)
}

/// The controller of a registry at hand.
fn in_process(
    registry: &Registry,
    resolved: &Resolved,
    signer: Option<Signer>,
    trust: Option<TrustPolicy>,
) -> Controller {
    let controller = Controller::new(registry.clone(), resolved.policy);
    let controller = match signer {
        Some(signer) => controller.signing(signer),
        None => controller,
    };
    match trust {
        Some(policy) => controller.trusting(resolved.config.gateway_id, policy),
        None => controller,
    }
}

/// What a controller elsewhere is told of this gateway.
fn about(config: &GatewayConfig) -> About {
    About {
        dataplane: dataplane_name(config).to_owned(),
        slots: config.gateway.slots().into(),
    }
}

/// Threads of the runtime that are started later, too, by whichever thread.
fn confiner(kept: &Kept) -> impl Fn() + Send + Sync + 'static {
    let kept = kept.clone();
    move || {
        if let Err(failure) = kept.enforce() {
            tracing::error!(%failure, "a thread keeps what it may");
        }
    }
}

/// Warnings go to the log, errors end the start.
fn examine(problems: &[Problem]) -> Result<(), Failure> {
    for problem in problems.iter().filter(|problem| problem.exit_code == 0) {
        tracing::warn!("{problem}");
    }
    match problems.iter().any(|problem| problem.exit_code != 0) {
        true => Err(Failure::all(problems)),
        false => Ok(()),
    }
}

/// The audit record's file and its rate, if one is kept.
pub fn open_audit(file: &ConfigFile<GatewayConfig>) -> Result<Option<(AuditLog, u32)>, Problem> {
    let Some(section) = &file.value.audit else {
        return Ok(None);
    };
    let gateway = linewarden_protocol::ids::GatewayId(file.value.gateway.id);
    match AuditLog::open(gateway, &section.options()) {
        Ok(log) => Ok(Some((log, section.per_s))),
        Err(error) => {
            let problem = format!("{}: cannot be opened: {error}", section.path.display());
            Err(file.problem(&["audit", "path"], &problem).with_code(1))
        }
    }
}

fn started(config: &GatewayConfig, resolved: &Resolved) -> Happening {
    let names = config.gateway.interfaces.iter().cloned();
    Happening::Started {
        program: env!("CARGO_PKG_VERSION"),
        dataplane: dataplane_name(config).to_owned(),
        gate: gate_name(config).to_owned(),
        interfaces: names.zip(resolved.interfaces.iter().copied()).collect(),
    }
}

/// Where devices' tickets are taken, unless the configuration wants none taken.
fn bind_desk(resolved: &Resolved) -> Result<Option<DeskSockets>, Failure> {
    let bind = |port| DeskSockets::bind(&resolved.config.local, port);
    Ok(resolved.desk_port.map(bind).transpose()?)
}
