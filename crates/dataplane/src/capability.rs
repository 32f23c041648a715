//! Which capabilities this thread has, and how it gives them up.
//!
//! Asked before anything is made, so that a missing right is named instead of surfacing as some "operation not
//! permitted" half way through. Given up once everything is made that needs them.

use std::io;

use caps::{CapSet, CapsHashSet};

/// A Linux capability (capabilities(7)) that some part of Linewarden needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Capability {
    /// Files of other users: what root reads and writes where it is not the owner.
    DacOverride,
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

    fn in_library(self) -> caps::Capability {
        match self {
            Self::DacOverride => caps::Capability::CAP_DAC_OVERRIDE,
            Self::NetAdmin => caps::Capability::CAP_NET_ADMIN,
            Self::NetRaw => caps::Capability::CAP_NET_RAW,
            Self::SysAdmin => caps::Capability::CAP_SYS_ADMIN,
            Self::Perfmon => caps::Capability::CAP_PERFMON,
            Self::Bpf => caps::Capability::CAP_BPF,
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

/// Gives up all capabilities of the calling thread but these, for good, and so of the threads that it starts from then on. What it does not
/// have it does not gain. Other threads keep theirs.
///
/// # Errors
/// The kernel's, for a thread may always have less.
pub fn keep_only(kept: &[Capability]) -> io::Result<()> {
    give_up_all_but(&kept.iter().map(|kept| kept.in_library()).collect()).map_err(io::Error::other)
}

fn give_up_all_but(kept: &CapsHashSet) -> Result<(), caps::errors::CapsError> {
    // Without it the bounding set stays as the service manager made it.
    if caps::has_cap(None, CapSet::Effective, caps::Capability::CAP_SETPCAP)? {
        for other in caps::runtime::thread_all_supported().difference(kept) {
            caps::drop(None, CapSet::Bounding, *other)?;
        }
    }
    caps::clear(None, CapSet::Ambient)?;
    caps::clear(None, CapSet::Inheritable)?;
    let rest: CapsHashSet = caps::read(None, CapSet::Permitted)?
        .intersection(kept)
        .copied()
        .collect();
    caps::set(None, CapSet::Effective, &rest)?;
    caps::set(None, CapSet::Permitted, &rest)
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
    fn what_a_thread_gives_up_it_and_its_threads_lack_and_others_have() {
        let before = missing(&[Capability::NetRaw]);
        let sets = || {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let sets = status.lines().filter(|line| {
                ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"]
                    .iter()
                    .any(|set| line.starts_with(set))
            });
            sets.map(|line| u64::from_str_radix(line[7..].trim(), 16).unwrap())
                .collect::<Vec<_>>()
        };
        let seen = std::thread::spawn(move || {
            keep_only(&[]).unwrap();
            (sets(), std::thread::spawn(sets).join().unwrap())
        });
        assert_eq!(seen.join().unwrap(), (vec![0; 4], vec![0; 4]));
        assert_eq!(missing(&[Capability::NetRaw]), before);
        if !before.is_empty() {
            println!("SKIPPED: keeping one: no CAP_NET_RAW");
            return;
        }
        let kept = std::thread::spawn(move || {
            keep_only(&[Capability::NetRaw]).unwrap();
            sets()
        });
        assert_eq!(kept.join().unwrap(), [0, 1 << 13, 1 << 13, 0]);
    }

    #[test]
    fn the_older_capability_stands_for_the_newer_ones() {
        let set = 1 << Capability::SysAdmin.bit();
        assert!(Capability::Bpf.is_in(set) && Capability::Perfmon.is_in(set));
        assert!(!Capability::NetAdmin.is_in(set));
    }
}
