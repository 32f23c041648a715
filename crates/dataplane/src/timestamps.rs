//! The time at which datagrams are handled.

use linewarden_protocol::time::Now;

/// The time at which a batch is handled. Coarse: read once for up to 64 datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timestamps {
    /// CLOCK_MONOTONIC, or its coarse reading, ns.
    pub monotonic_ns: u64,
    /// CLOCK_BOOTTIME, ns.
    pub boot_ns: u64,
}

impl Timestamps {
    /// CLOCK_BOOTTIME, whole seconds.
    #[must_use]
    pub fn boot_s(self) -> u32 {
        u32::try_from(self.boot_ns / 1_000_000_000).unwrap_or(u32::MAX)
    }
}

impl From<Now> for Timestamps {
    fn from(now: Now) -> Self {
        Self {
            monotonic_ns: now.monotonic_ms.saturating_mul(1_000_000),
            boot_ns: now.boot_ms.saturating_mul(1_000_000),
        }
    }
}

/// The current time by the clocks of this machine.
pub(crate) fn now() -> Timestamps {
    let monotonic = clock(libc::CLOCK_MONOTONIC_COARSE);
    let boot = clock(libc::CLOCK_BOOTTIME);
    let positive = |value: i64| u64::try_from(value).unwrap_or_default();
    Timestamps {
        monotonic_ns: positive(monotonic.tv_sec) * 1_000_000_000 + positive(monotonic.tv_nsec),
        boot_ns: positive(boot.tv_sec) * 1_000_000_000 + positive(boot.tv_nsec),
    }
}

fn clock(id: libc::clockid_t) -> libc::timespec {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a timespec; both clocks exist on every Linux, so the call cannot fail.
    unsafe { libc::clock_gettime(id, &raw mut time) };
    time
}
