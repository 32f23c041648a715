//! Capabilities of the gateway process. After its start, the process drops all capabilities that the configuration no longer
//! needs.
//!
//! Capabilities are per thread. Threads that start before the data plane is attached are started from a thread that has
//! only the retained capabilities.

use std::panic::resume_unwind;

use linewarden_cli::failure::Failure;
use linewarden_config::gateway::{Backend, Gate, GatewayConfig};
use linewarden_dataplane::capability::{Capability, keep_only};

/// The capabilities that a gateway retains after its start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetainedCapabilities(Vec<Capability>);

impl RetainedCapabilities {
    /// Returns the capabilities that the configuration needs for the lifetime of the gateway.
    pub fn for_config(config: &GatewayConfig) -> Self {
        let mut retained = Vec::new();
        let is_xdp = config.gateway.dataplane == Backend::Xdp;
        if is_xdp && config.evidence.is_some() {
            // The kernel lists programs and filters of other processes only with these capabilities.
            retained.extend([Capability::SysAdmin, Capability::NetAdmin]);
        }
        if is_xdp && config.gateway.gate == Gate::Sealed && config.gateway.pin_directory_if_kept().is_none() {
            // The sealing filter stays attached after its file descriptor is closed, so the gateway must remove the filter.
            retained.push(Capability::NetAdmin);
        }
        if nix::unistd::geteuid().is_root() {
            // A gateway started as root may have files of another user, which it must still read and write later.
            retained.push(Capability::DacOverride);
        }
        Self(retained)
    }

    /// Drops all other capabilities of the calling thread, and of threads that this thread starts later.
    ///
    /// # Errors
    /// The kernel refuses the change.
    pub fn enforce(&self) -> Result<(), Failure> {
        keep_only(&self.0).map_err(|error| Failure::failed(format!("dropping capabilities failed: {error}")))
    }

    /// Runs a closure on a new thread that has dropped all other capabilities. Threads that the closure starts inherit the
    /// reduced set.
    ///
    /// # Errors
    /// The kernel refuses the change.
    pub fn run_confined<T: Send>(&self, run: impl FnOnce() -> T + Send) -> Result<T, Failure> {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                self.enforce()?;
                Ok(run())
            });
            thread.join().unwrap_or_else(|panic| resume_unwind(panic))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn retained(text: &str) -> Vec<Capability> {
        let config = format!("{text}\n[controller]\nsocket = \"s\"\n");
        let RetainedCapabilities(mut retained) =
            RetainedCapabilities::for_config(&toml::from_str(&config).unwrap());
        retained.retain(|capability| *capability != Capability::DacOverride);
        retained
    }

    #[test]
    fn only_capabilities_that_the_configuration_needs_are_kept() {
        let xdp = "[gateway]\nid = 1\ninterfaces = [\"eth0\"]";
        assert_eq!(retained(xdp), []);
        assert_eq!(retained(&format!("{xdp}\ngate = \"bound\"")), []);
        assert_eq!(retained(&format!("{xdp}\ngate = \"sealed\"")), []);
        let removes_gate = format!("{xdp}\ngate = \"sealed\"\ngate_on_exit = \"remove\"");
        assert_eq!(retained(&removes_gate), [Capability::NetAdmin]);
        let with_evidence = format!("{xdp}\n[evidence]\nkey = \"k\"\nboot_count = \"c\"");
        assert_eq!(
            retained(&with_evidence),
            [Capability::SysAdmin, Capability::NetAdmin]
        );
    }

    #[test]
    fn confinement_does_not_change_the_calling_thread() {
        let needed = [Capability::NetRaw];
        let before = linewarden_dataplane::capability::missing(&needed);
        let inside = RetainedCapabilities(Vec::new())
            .run_confined(|| linewarden_dataplane::capability::missing(&needed))
            .unwrap();
        assert_eq!(inside, needed);
        assert_eq!(linewarden_dataplane::capability::missing(&needed), before);
    }
}
