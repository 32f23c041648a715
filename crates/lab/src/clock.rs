//! The clocks of the simulated fleet.

use std::time::Duration;

/// `CLOCK_BOOTTIME`, which includes suspend time, for session lifetimes and retransmissions. Milliseconds.
#[must_use]
pub fn boot_ms() -> u64 {
    u64::try_from(read(libc::CLOCK_BOOTTIME).as_millis()).unwrap_or(u64::MAX)
}

/// `CLOCK_REALTIME`, the clock of the kernel's receive timestamps; only differences are meaningful. Nanoseconds.
#[must_use]
pub fn real_ns() -> u64 {
    u64::try_from(read(libc::CLOCK_REALTIME).as_nanos()).unwrap_or(u64::MAX)
}

/// `CLOCK_MONOTONIC`, which eBPF programs read. Nanoseconds.
#[must_use]
pub fn monotonic_ns() -> u64 {
    u64::try_from(read(libc::CLOCK_MONOTONIC).as_nanos()).unwrap_or(u64::MAX)
}

fn read(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the structure lives through the call. All three clocks exist on every supported kernel, so the call
    // cannot fail; after a failed call the time would be zero.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    Duration::new(
        time.tv_sec.try_into().unwrap_or(0),
        time.tv_nsec.try_into().unwrap_or(0),
    )
}
