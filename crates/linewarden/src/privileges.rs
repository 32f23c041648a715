//! What a gateway may do that other processes may not: while it starts, and hardly longer.
//!
//! Capabilities belong to threads. Whatever starts threads before the data plane is attached does so from one that has given up its own.

use std::panic::resume_unwind;

use linewarden_dataplane::capability::{Capability, keep_only};
use linewarden_gateway::config::{Backend, Gate, GatewayConfig};

use crate::failure::Failure;

/// The capabilities that a gateway goes on with once it has started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept(Vec<Capability>);

impl Kept {
    /// None, unless something is configured that needs some as long as the gateway lives.
    pub fn by(config: &GatewayConfig) -> Self {
        let mut kept = Vec::new();
        let is_xdp = config.gateway.dataplane == Backend::Xdp;
        if is_xdp && config.evidence.is_some() {
            // The kernel tells by their numbers of programs and filters that others have put there.
            kept.extend([Capability::SysAdmin, Capability::NetAdmin]);
        }
        if is_xdp && config.gateway.gate == Gate::Sealed && config.gateway.pins().is_none() {
            // The sealing filter is no link that ends with its descriptor: it is taken off.
            kept.push(Capability::NetAdmin);
        }
        if nix::unistd::geteuid().is_root() {
            // Who started it as root, with files of another user's, wants them read and written also later.
            kept.push(Capability::DacOverride);
        }
        Self(kept)
    }

    /// Gives up all others, of the calling thread and of those that it starts from then on.
    ///
    /// # Errors
    /// The kernel's.
    pub fn enforce(&self) -> Result<(), Failure> {
        keep_only(&self.0).map_err(|error| Failure::failed(format!("privileges cannot be given up: {error}")))
    }

    /// Runs something on a thread that has given them up, so that threads which it starts have no more either.
    ///
    /// # Errors
    /// The kernel's.
    pub fn confine<T: Send>(&self, run: impl FnOnce() -> T + Send) -> Result<T, Failure> {
        std::thread::scope(|scope| {
            let confined = scope.spawn(|| {
                self.enforce()?;
                Ok(run())
            });
            confined.join().unwrap_or_else(|panic| resume_unwind(panic))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(text: &str) -> Vec<Capability> {
        let config = format!("{text}\n[registry]\npath = \"r\"\nmaster_key_file = \"k\"\n");
        let Kept(mut kept) = Kept::by(&toml::from_str(&config).unwrap());
        kept.retain(|capability| *capability != Capability::DacOverride);
        kept
    }

    #[test]
    fn what_is_kept_is_what_the_configuration_still_needs() {
        let xdp = "[gateway]\nid = 1\ninterfaces = [\"eth0\"]";
        assert_eq!(kept(xdp), []);
        assert_eq!(kept(&format!("{xdp}\ngate = \"open\"")), []);
        assert_eq!(kept(&format!("{xdp}\ngate = \"sealed\"")), []);
        let opens = format!("{xdp}\ngate = \"sealed\"\nwhen_gone = \"open\"");
        assert_eq!(kept(&opens), [Capability::NetAdmin]);
        let shows = format!("{xdp}\n[evidence]\nkey = \"k\"\nboot_count = \"c\"");
        assert_eq!(kept(&shows), [Capability::SysAdmin, Capability::NetAdmin]);
    }

    #[test]
    fn what_is_confined_leaves_this_thread_as_it_is() {
        let needed = [Capability::NetRaw];
        let before = linewarden_dataplane::capability::missing(&needed);
        let inside = Kept(Vec::new())
            .confine(|| linewarden_dataplane::capability::missing(&needed))
            .unwrap();
        assert_eq!(inside, needed);
        assert_eq!(linewarden_dataplane::capability::missing(&needed), before);
    }
}
