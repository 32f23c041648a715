//! Linux capabilities of the calling thread, and how the thread drops them.
//!
//! The gateway checks capabilities before it creates anything: the error then names the missing capability, whereas a
//! later operation would fail with "operation not permitted". The gateway drops capabilities after it has created
//! everything that needs them.

use std::io;

use caps::{CapSet, CapsHashSet};

/// A Linux capability (capabilities(7)) that a part of Linewarden needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Capability {
    /// Read and write access to the files of other users, as root has it.
    DacOverride,
    /// Interfaces, addresses, routes, offloads; XDP programs on interfaces.
    NetAdmin,
    /// Packet sockets: slow-path replies of `xdp`, the simulated fleet and the attackers.
    NetRaw,
    /// Creating and entering network namespaces.
    SysAdmin,
    /// eBPF programs with pointer arithmetic, such as those of Linewarden.
    Perfmon,
    /// Loading eBPF programs: the `xdp` data plane and the saturating load generator.
    Bpf,
}

impl Capability {
    /// Number of the bit in `CapEff` (include/uapi/linux/capability.h).
    fn bit(self) -> u32 {
        match self {
            Self::DacOverride => 1,
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
            Self::DacOverride => "CAP_DAC_OVERRIDE",
            Self::NetAdmin => "CAP_NET_ADMIN",
            Self::NetRaw => "CAP_NET_RAW",
            Self::SysAdmin => "CAP_SYS_ADMIN",
            Self::Perfmon => "CAP_PERFMON",
            Self::Bpf => "CAP_BPF",
        }
    }

    fn to_caps(self) -> caps::Capability {
        match self {
            Self::DacOverride => caps::Capability::CAP_DAC_OVERRIDE,
            Self::NetAdmin => caps::Capability::CAP_NET_ADMIN,
            Self::NetRaw => caps::Capability::CAP_NET_RAW,
            Self::SysAdmin => caps::Capability::CAP_SYS_ADMIN,
            Self::Perfmon => caps::Capability::CAP_PERFMON,
            Self::Bpf => caps::Capability::CAP_BPF,
        }
    }

    /// Whether the set contains the capability. The older CAP_SYS_ADMIN includes CAP_BPF and CAP_PERFMON.
    fn is_in(self, set: u64) -> bool {
        let has = |capability: Self| set & (1u64 << capability.bit()) != 0;
        has(self) || (matches!(self, Self::Perfmon | Self::Bpf) && has(Self::SysAdmin))
    }
}

/// The capabilities of `needed` that are not in the effective set of this thread. If `/proc` cannot be read, all of
/// `needed`.
#[must_use]
pub fn missing(needed: &[Capability]) -> Vec<Capability> {
    let effective = std::fs::read_to_string("/proc/thread-self/status")
        .ok()
        .and_then(|status| effective_set(&status))
        .unwrap_or(0);
    let is_missing = |capability: &Capability| !capability.is_in(effective);
    needed.iter().copied().filter(is_missing).collect()
}

/// Permanently drops all capabilities of the calling thread except these. Threads that the calling thread starts later
/// inherit the smaller set. A missing capability is not gained. Other threads keep their capabilities.
///
/// # Errors
/// Errors of the kernel. Dropping a capability needs no privilege.
pub fn keep_only(kept: &[Capability]) -> io::Result<()> {
    drop_others(&kept.iter().map(|capability| capability.to_caps()).collect()).map_err(io::Error::other)
}

fn drop_others(kept: &CapsHashSet) -> Result<(), caps::errors::CapsError> {
    // Without CAP_SETPCAP the bounding set stays as the service manager set it.
    if caps::has_cap(None, CapSet::Effective, caps::Capability::CAP_SETPCAP)? {
        for capability in caps::runtime::thread_all_supported().difference(kept) {
            caps::drop(None, CapSet::Bounding, *capability)?;
        }
    }
    caps::clear(None, CapSet::Ambient)?;
    caps::clear(None, CapSet::Inheritable)?;
    let remaining: CapsHashSet = caps::read(None, CapSet::Permitted)?
        .intersection(kept)
        .copied()
        .collect();
    caps::set(None, CapSet::Effective, &remaining)?;
    caps::set(None, CapSet::Permitted, &remaining)
}

/// `CapEff` from the text of `/proc/PID/status`.
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
    fn cap_sys_admin_includes_the_newer_capabilities() {
        let set = 1 << Capability::SysAdmin.bit();
        assert!(Capability::Bpf.is_in(set) && Capability::Perfmon.is_in(set));
        assert!(!Capability::NetAdmin.is_in(set));
    }
}
