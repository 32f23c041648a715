//! Threads that stay on one CPU.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

thread_local! {
    static IS_PINNED: Cell<bool> = const { Cell::new(false) };
}

/// Keeps the calling thread on one CPU, with all threads and processes that the thread starts later, unless such a thread
/// calls this function itself. Each calling thread gets the next of the allowed CPUs. Further calls of a thread have no effect.
///
/// For a test whose threads wait for each other, such as a client and its database: on a virtual machine, waking a thread on
/// another CPU takes several times as long. If the kernel refuses, nothing changes.
pub fn stay_on_one_cpu() {
    static ALLOWED: OnceLock<Vec<usize>> = OnceLock::new();
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    if IS_PINNED.replace(true) {
        return;
    }
    let allowed = ALLOWED.get_or_init(|| {
        let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
        (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
    });
    let index = NEXT.fetch_add(1, Ordering::Relaxed) % allowed.len().max(1);
    if let Some(cpu) = allowed.get(index) {
        let mut set = CpuSet::new();
        set.set(*cpu);
        let _ = sched_setaffinity(None, &set);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_and_its_children_stay_on_one_cpu() {
        let count = || {
            (0..CpuSet::MAX_CPU)
                .filter(|cpu| sched_getaffinity(None).unwrap().is_set(*cpu))
                .count()
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                stay_on_one_cpu();
                assert_eq!(count(), 1);
                std::thread::scope(|inner| inner.spawn(|| assert_eq!(count(), 1)).join().unwrap());
            });
        });
    }
}
