//! Which of the capabilities that the lab needs this thread has.

use std::fmt;

pub use linewarden_dataplane::capability::Capability;
use linewarden_dataplane::capability::missing;

/// What a private network with packet sockets in it needs.
pub const FOR_NETWORK: &[Capability] = &[Capability::SysAdmin, Capability::NetAdmin, Capability::NetRaw];
/// What the load generator needs besides [`FOR_NETWORK`].
pub const FOR_LOAD_GENERATOR: &[Capability] = &[
    Capability::SysAdmin,
    Capability::NetAdmin,
    Capability::NetRaw,
    Capability::Perfmon,
    Capability::Bpf,
];

/// Capabilities that are missing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Missing(Vec<Capability>);

impl Missing {
    /// The capabilities that are missing, never none.
    #[must_use]
    pub fn capabilities(&self) -> &[Capability] {
        &self.0
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, capability) in self.0.iter().enumerate() {
            write!(f, "{}{}", if n == 0 { "" } else { ", " }, capability.name())?;
        }
        f.write_str(" missing: run as root")
    }
}

impl std::error::Error for Missing {}

/// Checks that this thread has all of `needed` in its effective set.
///
/// # Errors
/// The ones that are missing. When `/proc` cannot be read, all of them.
pub fn require(needed: &[Capability]) -> Result<(), Missing> {
    match missing(needed) {
        none if none.is_empty() => Ok(()),
        some => Err(Missing(some)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_which_capability_is_missing() {
        let text = Missing(vec![Capability::NetAdmin, Capability::Bpf]).to_string();
        assert_eq!(text, "CAP_NET_ADMIN, CAP_BPF missing: run as root");
    }
}
