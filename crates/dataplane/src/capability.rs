//! Which capabilities this thread has.
//!
//! Asked before anything is made, so that a missing right is named instead of surfacing as some "operation not
//! permitted" half way through.

/// A Linux capability (capabilities(7)) that some part of Linewarden needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Capability {
    /// Interfaces, addresses, routes, offloads; XDP programs on interfaces.
    NetAdmin,
    /// Packet sockets: the simulated fleet and the attackers.
    NetRaw,
    /// New network namespaces, and entering them.
    SysAdmin,
    /// eBPF programs that compute with pointers, as every one that is fast does.
    Perfmon,
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
            Self::Perfmon => 38,
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
            Self::Perfmon => "CAP_PERFMON",
            Self::Bpf => "CAP_BPF",
        }
    }

    /// Whether the kernel finds it in that set; for CAP_BPF and CAP_PERFMON the older CAP_SYS_ADMIN will do.
    fn is_in(self, set: u64) -> bool {
        let has = |capability: Self| set & (1u64 << capability.bit()) != 0;
        has(self) || (matches!(self, Self::Perfmon | Self::Bpf) && has(Self::SysAdmin))
    }
}

/// Those of `needed` that this thread does not have in its effective set: all of them when `/proc` cannot be read.
#[must_use]
pub fn missing(needed: &[Capability]) -> Vec<Capability> {
    let effective = std::fs::read_to_string("/proc/thread-self/status")
        .ok()
        .and_then(|status| effective_set(&status))
        .unwrap_or(0);
    let is_missing = |capability: &Capability| !capability.is_in(effective);
    needed.iter().copied().filter(is_missing).collect()
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
        assert!(Capability::NetAdmin.is_in(set) && Capability::Bpf.is_in(set));
        assert!(!Capability::SysAdmin.is_in(set) && !Capability::Perfmon.is_in(set));
    }

    #[test]
    fn the_older_capability_stands_for_the_newer_ones() {
        let set = 1 << Capability::SysAdmin.bit();
        assert!(Capability::Bpf.is_in(set) && Capability::Perfmon.is_in(set));
        assert!(!Capability::NetAdmin.is_in(set));
    }
}
