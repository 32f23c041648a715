//! Another configuration for a gateway at work: all that may change changes at once, or nothing does.

use std::net::IpAddr;

use linewarden_gateway::config::{FieldError, GatewayConfig};
use linewarden_gateway::{Change, Gateway, GatewayError, InPackets};
use linewarden_protocol::sources::DeviceSources;

use super::LOG_LEVEL;
use super::start::open_audit;
use crate::config_file::{ConfigFile, Problem};
use crate::failure::Failure;
use crate::{gateway_config, log};

/// Knows the configuration in force.
pub struct Reloader {
    file: ConfigFile<GatewayConfig>,
    /// What packets carry, which tells of settings.
    in_packets: Option<InPackets>,
    /// Where devices send to: constants of the data plane.
    local: Vec<IpAddr>,
    /// From where messages are taken.
    sources: DeviceSources,
    /// The sources are to be set once more: see [`linewarden_dataplane::DataPlane::set_sources`].
    is_settling: bool,
    /// What the log has on the machine's addresses.
    logged: Vec<FieldError>,
}

impl Reloader {
    pub fn new(
        file: ConfigFile<GatewayConfig>,
        in_packets: Option<InPackets>,
        config: &linewarden_dataplane::Config,
    ) -> Self {
        Self {
            file,
            in_packets,
            local: config.local.clone(),
            sources: config.sources(),
            // Sessions of the process before, at addresses that the machine got meanwhile.
            is_settling: true,
            logged: Vec::new(),
        }
    }

    /// Follows the addresses and subnets of the machine's interfaces. The data plane is changed only if these have changed.
    ///
    /// # Errors
    /// The gateway has ended.
    pub fn follow_addresses(&mut self, gateway: &Gateway) -> Result<(), GatewayError> {
        let Some(sources) = self.find_sources() else {
            return Ok(());
        };
        let is_changed = sources != self.sources;
        if is_changed {
            let prefixes: Vec<String> = sources.prefixes().iter().map(ToString::to_string).collect();
            tracing::info!(
                device_prefixes = prefixes.join(" "),
                refused_addresses = sources.refused().len(),
                "addresses of this machine have changed; the data plane follows"
            );
        } else if !self.is_settling {
            return Ok(());
        }
        self.is_settling = is_changed;
        self.sources = sources.clone();
        gateway.set_sources(sources)
    }

    /// Those of now; `None`: they cannot be looked up. What is new to the log is logged.
    fn find_sources(&mut self) -> Option<DeviceSources> {
        let is_new = |problem: &&FieldError| !self.logged.contains(problem);
        let (sources, warnings, errors) = match self.file.value.find_sources(&self.local, &self.sources) {
            Ok(found) => (found.sources, found.without_subnet, found.overflow),
            Err(problem) => {
                if is_new(&&problem) {
                    tracing::error!(%problem, "looking up the machine's addresses failed; the data plane keeps the last ones");
                }
                self.logged = vec![problem];
                return None;
            }
        };
        for problem in warnings.iter().filter(is_new) {
            tracing::warn!(%problem, "an interface has no subnet");
        }
        for problem in errors.iter().filter(is_new) {
            tracing::error!(
                %problem,
                action = "set device_prefixes to the devices' subnets",
                "the data plane has no room for all addresses of this machine; devices at some or all addresses are not admitted"
            );
        }
        self.logged = [warnings, errors].concat();
        Some(sources)
    }

    /// Reads the file again. The audit record is opened anew in any case: it may have been moved away.
    ///
    /// # Errors
    /// Everything that is wrong with the file, or needs a restart; the old configuration stays in force.
    pub fn reload(&mut self, gateway: &Gateway) -> Result<(), Failure> {
        let changed = self.change(gateway);
        if changed.is_err() {
            match open_audit(&self.file) {
                Ok(audit) => gateway.set_audit(audit)?,
                Err(problem) => tracing::error!("{problem}; going on with the file before"),
            }
        }
        changed
    }

    fn change(&mut self, gateway: &Gateway) -> Result<(), Failure> {
        let next = gateway_config::read(self.file.path())?;
        let fixed = self.file.value.needing_restart(&next.value);
        if !fixed.is_empty() {
            return Err(Failure::all(&gateway_config::places(&next, &fixed)));
        }
        // The seeds are the running data plane's; nothing of them is taken over.
        let resolved = next
            .value
            .resolve([0; 2], 0)
            .map_err(|errors| Failure::all(&gateway_config::places(&next, &errors)))?;
        let audit = open_audit(&next).map_err(|problem| Failure::all(&[problem]))?;
        let live = resolved.live();
        let sources = live.sources.clone();
        let change = Change {
            settings: resolved.settings,
            live,
            mark_block: resolved.policy.mark_block,
            audit,
        };
        gateway.change(change).map_err(|error| refused(&next, &error))?;
        self.sources = sources;
        self.is_settling = true;
        if let Some(in_packets) = &self.in_packets {
            in_packets.refresh();
        }
        log::change(next.value.log.level.as_deref(), LOG_LEVEL);
        if self.file.value.gateway.forward_to != next.value.gateway.forward_to {
            let forward_to = gateway_config::veths(&next);
            let is_of = |problem: &&Problem| problem.field.as_deref() == Some("gateway.forward_to");
            let forward_to = forward_to.iter().filter(is_of);
            forward_to.for_each(|warning| tracing::warn!("{warning}"));
        }
        self.file = next;
        Ok(())
    }
}

/// The data plane's refusal is of the one thing that the kernel has a say in.
fn refused(next: &ConfigFile<GatewayConfig>, error: &GatewayError) -> Failure {
    let problem: Problem = match error {
        GatewayError::Reconfigure(_) => next.problem(&["gateway", "forward_to"], &error.to_string()),
        _ => return Failure::failed(error),
    };
    Failure::all(&[problem])
}
