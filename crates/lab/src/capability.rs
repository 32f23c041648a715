//! Which of the capabilities that the lab needs this thread has.
//!
//! Asked before anything is made, so that a missing right is named instead of surfacing as some "operation not
//! permitted" half way through.

use std::fmt;

/// A Linux capability (capabilities(7)) that some part of the lab needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Capability {
    /// Interfaces, addresses, routes, offloads.
    NetAdmin,
    /// Packet sockets: the simulated fleet and the attackers.
    NetRaw,
    /// New network namespaces, and entering them.
    SysAdmin,
    /// Loading eBPF programs: the `xdp` data plane and the saturating load generator.
    Bpf,
}

impl Capability {
    /// Number of the bit in `CapEff` (include/uapi/linux/capability.h).
    fn bit(self) -> u32 {
        match self {
            Self::NetAdmin => 12,
            Self::NetRaw => 13,
            Self::SysAdmin => 21,
            Self::Bpf => 39,
        }
    }

    /// The name in capabilities(7).
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NetAdmin => "CAP_NET_ADMIN",
            Self::NetRaw => "CAP_NET_RAW",
            Self::SysAdmin => "CAP_SYS_ADMIN",
            Self::Bpf => "CAP_BPF",
        }
    }
}

/// What a private network with packet sockets in it needs.
pub const FOR_NETWORK: &[Capability] = &[Capability::SysAdmin, Capability::NetAdmin, Capability::NetRaw];
/// What the load generator needs besides [`FOR_NETWORK`].
pub const FOR_LOAD_GENERATOR: &[Capability] = &[
    Capability::SysAdmin,
    Capability::NetAdmin,
    Capability::NetRaw,
    Capability::Bpf,
];

/// Capabilities that are missing, and what can be done without them.
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
        f.write_str(
            " missing: run as root. Without it still work: the host data plane on loopback (`--dataplane host`), \
             `linewarden serve` and `agent` over UDP, enrolment and `puf report`; not the private network, the \
             simulated fleet, the attackers and the xdp data plane",
        )
    }
}

impl std::error::Error for Missing {}

/// Checks that this thread has all of `needed` in its effective set.
///
/// # Errors
/// The ones that are missing. When `/proc` cannot be read, all of them.
pub fn require(needed: &[Capability]) -> Result<(), Missing> {
    let effective = std::fs::read_to_string("/proc/thread-self/status")
        .ok()
        .and_then(|status| effective_set(&status))
        .unwrap_or(0);
    let missing: Vec<_> = needed
        .iter()
        .copied()
        .filter(|capability| effective & (1u64 << capability.bit()) == 0)
        .collect();
    if missing.is_empty() {
        Ok(())
    } else {
        Err(Missing(missing))
    }
}

/// `CapEff` out of the text of `/proc/PID/status`.
fn effective_set(status: &str) -> Option<u64> {
    let hex = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(hex.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_effective_set_out_of_a_status_file() {
        let status =
            "Name:\tx\nCapInh:\t0000000000000000\nCapEff:\t00000080a8003000\nCapBnd:\tffffffffffffffff\n";
        let set = effective_set(status).unwrap();
        assert_ne!(set & (1 << Capability::NetAdmin.bit()), 0);
        assert_ne!(set & (1 << Capability::Bpf.bit()), 0);
        assert_eq!(set & (1 << Capability::SysAdmin.bit()), 0);
    }

    #[test]
    fn says_which_capability_is_missing_and_what_works_without() {
        let text = Missing(vec![Capability::NetAdmin, Capability::Bpf]).to_string();
        assert!(text.starts_with("CAP_NET_ADMIN, CAP_BPF missing"), "{text}");
        assert!(text.contains("--dataplane host"), "{text}");
    }
}
