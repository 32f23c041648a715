//! The capabilities that the lab needs, and a check for them.

use std::fmt;

pub use linewarden_dataplane::capability::Capability;
use linewarden_dataplane::capability::missing;

/// Capabilities for the lab's private network of network namespaces, and for packet sockets.
pub const FOR_NETWORK: &[Capability] = &[Capability::SysAdmin, Capability::NetAdmin, Capability::NetRaw];
/// Capabilities for the load generator: those of [`FOR_NETWORK`] and two for eBPF.
pub const FOR_LOAD_GENERATOR: &[Capability] = &[
    Capability::SysAdmin,
    Capability::NetAdmin,
    Capability::NetRaw,
    Capability::Perfmon,
    Capability::Bpf,
];

/// Capabilities that are missing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MissingCapabilities(Vec<Capability>);

impl MissingCapabilities {
    /// The missing capabilities, at least one.
    #[must_use]
    pub fn capabilities(&self) -> &[Capability] {
        &self.0
    }
}

impl fmt::Display for MissingCapabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, capability) in self.0.iter().enumerate() {
            write!(f, "{}{}", if n == 0 { "" } else { ", " }, capability.name())?;
        }
        f.write_str(" missing: run as root")
    }
}

impl std::error::Error for MissingCapabilities {}

/// Checks that this thread has all of `needed` in its effective set.
///
/// # Errors
/// The missing capabilities; all of `needed` if `/proc` cannot be read.
pub fn require(needed: &[Capability]) -> Result<(), MissingCapabilities> {
    match missing(needed) {
        capabilities if capabilities.is_empty() => Ok(()),
        capabilities => Err(MissingCapabilities(capabilities)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_lists_the_missing_capabilities() {
        let text = MissingCapabilities(vec![Capability::NetAdmin, Capability::Bpf]).to_string();
        assert_eq!(text, "CAP_NET_ADMIN, CAP_BPF missing: run as root");
    }
}
