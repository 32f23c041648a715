//! Reloads the configuration of a running gateway: all changeable settings change together, or none.

use std::net::IpAddr;

use linewarden_cli::failure::Failure;
use linewarden_cli::log;
use linewarden_config::gateway::{GatewayConfig, check_veths};
use linewarden_config::{ConfigFile, FieldError, Problem, Validated};
use linewarden_gateway::{ConfigChange, Gateway, GatewayError, PacketStamper};
use linewarden_protocol::sources::DeviceSources;

use super::LOG_LEVEL;
use super::inputs::open_audit;

/// Holds the configuration in force.
pub struct Reloader {
    file: ConfigFile<GatewayConfig>,
    /// In-packet evidence. The evidence covers the settings, so a reload requests a new measurement.
    packet_stamper: Option<PacketStamper>,
    /// Local addresses of the gateway, which do not change while the data plane runs.
    local: Vec<IpAddr>,
    /// Addresses from which devices may send.
    sources: DeviceSources,
    /// Whether the sources must be set a second time: see [`linewarden_dataplane::Admission::set_sources`].
    must_resend_sources: bool,
    /// Problems of the machine's addresses that are already logged.
    logged_problems: Vec<FieldError>,
}

impl Reloader {
    pub fn new(
        file: ConfigFile<GatewayConfig>,
        packet_stamper: Option<PacketStamper>,
        config: &linewarden_dataplane::Config,
    ) -> Self {
        Self {
            file,
            packet_stamper,
            local: config.local.clone(),
            sources: config.sources(),
            // Sessions of the previous process may be at addresses that the machine has acquired since that process
            // ended.
            must_resend_sources: true,
            logged_problems: Vec::new(),
        }
    }

    /// Follows changes of the addresses and subnets of the machine's interfaces. Updates the data plane only on change.
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
                excluded_addresses = sources.excluded().len(),
                "addresses of this machine changed; data plane updated"
            );
        } else if !self.must_resend_sources {
            return Ok(());
        }
        self.must_resend_sources = is_changed;
        self.sources = sources.clone();
        gateway.set_sources(sources)
    }

    /// Returns the present sources; `None` if the addresses of this machine cannot be read. Logs new problems.
    fn find_sources(&mut self) -> Option<DeviceSources> {
        let is_new = |problem: &&FieldError| !self.logged_problems.contains(problem);
        let (sources, warnings, errors) = match self.file.value.detect_sources(&self.local, &self.sources) {
            Ok(detected) => (detected.sources, detected.without_subnet, detected.overflow),
            Err(problem) => {
                if is_new(&&problem) {
                    tracing::error!(error = %problem, "reading the addresses of this machine failed; the data plane keeps the previous addresses; retrying");
                }
                self.logged_problems = vec![problem];
                return None;
            }
        };
        for problem in warnings.iter().filter(is_new) {
            tracing::warn!(reason = %problem, "interface has no subnet");
        }
        for problem in errors.iter().filter(is_new) {
            tracing::error!(
                reason = %problem,
                action = "set device_prefixes to the subnets of the devices",
                "this machine has more addresses than the data plane can hold; some or all devices are not admitted"
            );
        }
        self.logged_problems = [warnings, errors].concat();
        Some(sources)
    }

    /// Reloads the configuration file. Reopens the gateway audit log in any case, because log rotation may have moved the
    /// log file.
    ///
    /// # Errors
    /// All mistakes in the file, and changes that need a restart; the previous configuration stays in force.
    pub fn reload(&mut self, gateway: &Gateway) -> Result<(), Failure> {
        let result = self.change(gateway);
        if result.is_err() {
            match open_audit(&self.file) {
                Ok(audit) => gateway.set_audit(audit).map_err(Failure::failed)?,
                Err(problem) => {
                    tracing::error!(error = %problem, action = "correct the path, owner or mode, and reload", "reopening the gateway audit log failed; writing to the previous file")
                }
            }
        }
        result
    }

    fn change(&mut self, gateway: &Gateway) -> Result<(), Failure> {
        let validated = Validated::<GatewayConfig>::read(self.file.path())?;
        let needs_restart = self.file.value.needing_restart(&validated.file.value);
        if !needs_restart.is_empty() {
            return Err(validated.file.field_failures(&needs_restart));
        }
        // These seeds are not used: the running data plane keeps its seeds.
        let resolved = validated
            .resolve([0; 2])
            .map_err(|errors| validated.file.field_failures(&errors))?;
        let next = validated.file;
        let audit = open_audit(&next)?;
        let live = resolved.live();
        let sources = live.sources.clone();
        let change = ConfigChange {
            settings: resolved.settings,
            live,
            audit,
        };
        gateway
            .reconfigure(change)
            .map_err(|error| reconfigure_failure(&next, &error))?;
        self.sources = sources;
        self.must_resend_sources = true;
        if let Some(packet_stamper) = &self.packet_stamper {
            packet_stamper.refresh();
        }
        log::set_level(next.value.log.level.as_deref(), LOG_LEVEL);
        if self.file.value.gateway.forward_to != next.value.gateway.forward_to {
            let warnings = check_veths(&next);
            let is_forward_to = |problem: &&Problem| problem.field.as_deref() == Some("gateway.forward_to");
            let warnings = warnings.iter().filter(is_forward_to);
            warnings.for_each(|warning| tracing::warn!(reason = %warning, "configuration warning"));
        }
        self.file = next;
        Ok(())
    }
}

/// Converts an error to a failure. If the data plane has refused the change, the cause is `forward_to`, because the kernel
/// checks only this setting.
fn reconfigure_failure(next: &ConfigFile<GatewayConfig>, error: &GatewayError) -> Failure {
    match error {
        GatewayError::Reconfigure(_) => next.field_failure(&["gateway", "forward_to"], &error.to_string()),
        _ => Failure::failed(error),
    }
}
