//! Shared by the tests of all data planes: a fixture in which the oracle, `xdp` and `host` receive the same packets.

pub mod device;
pub mod fixture;
pub mod netns;
pub mod reply;
pub mod test_config;
pub mod view;

use std::sync::atomic::{AtomicBool, Ordering};

/// Sets the flag to false when dropped, also after a panic: threads that run or wait while it is true would otherwise
/// never end.
pub struct RunningFlag<'a>(pub &'a AtomicBool);

impl Drop for RunningFlag<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// The number in the environment variable `name`, or `default`.
pub fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

/// The CPUs on which the calling thread is allowed to run.
pub fn cpus() -> Vec<usize> {
    // SAFETY: all zeros is an empty set; sched_getaffinity writes only within the given size.
    let allowed = unsafe {
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(
            libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut allowed),
            0
        );
        allowed
    };
    // SAFETY: all CPU numbers are below the size of the set.
    let is_allowed = |cpu: &usize| unsafe { libc::CPU_ISSET(*cpu, &allowed) };
    (0..libc::CPU_SETSIZE as usize).filter(is_allowed).collect()
}

/// Pins the calling thread to a CPU.
pub fn pin_to(cpu: usize) {
    // SAFETY: all zeros is an empty set, and `cpu` is below its size; sched_setaffinity reads only that size.
    unsafe {
        let mut cpu_set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut cpu_set);
        assert_eq!(
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const cpu_set),
            0
        );
    }
}

/// Pins the calling thread to the first CPU on which it is allowed to run, and returns that CPU's number. Rate limits
/// and random numbers of `xdp` are per CPU.
pub fn pin_to_one_cpu() -> usize {
    let cpu = cpus()[0];
    pin_to(cpu);
    cpu
}
