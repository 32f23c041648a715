//! What the tests of all data planes share: a world in which the oracle, `xdp` and `host` see the same packets.
#![allow(dead_code, reason = "each test program uses its own part")]

pub mod device;
pub mod netns;
pub mod reply;
pub mod shape;
pub mod view;
pub mod world;

/// Pins the calling thread to the first CPU that it may run on, and returns its number: rate limits, clocks and random
/// numbers of `xdp` are per CPU.
pub fn pin_to_one_cpu() -> usize {
    let bytes = size_of::<libc::cpu_set_t>();
    // SAFETY: all zeros is an empty set; the calls read and write it within its size.
    unsafe {
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, bytes, &raw mut allowed), 0);
        let cpu = (0..libc::CPU_SETSIZE as usize)
            .find(|cpu| libc::CPU_ISSET(*cpu, &allowed))
            .unwrap();
        let mut one: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut one);
        assert_eq!(libc::sched_setaffinity(0, bytes, &raw const one), 0);
        cpu
    }
}
