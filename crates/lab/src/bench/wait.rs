//! Clocks of the benches.

use linewarden_dataplane::Store;

/// CLOCK_MONOTONIC, ns.
pub(super) fn monotonic_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// Draws the benches' frozen value once more, so that it does not age.
pub(super) fn keep_fresh(store: &Store) {
    store.set_fresh(super::keys::FRESH, monotonic_ns());
}
