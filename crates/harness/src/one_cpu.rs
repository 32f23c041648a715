//! Threads that stay on one CPU.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

thread_local! {
    static STAYS: Cell<bool> = const { Cell::new(false) };
}

/// Keeps the calling thread on one CPU, with the threads and processes that it starts later. The CPUs are used in turn.
///
/// For a test whose threads only wait for each other, such as a client and its database: if each wakes the other on
/// another CPU, a virtual machine takes several times as long. Without effect if the kernel refuses.
pub fn stay_on_one_cpu() {
    static ALLOWED: OnceLock<Vec<usize>> = OnceLock::new();
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    if STAYS.replace(true) {
        return;
    }
    let allowed = ALLOWED.get_or_init(|| {
        let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
        (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
    });
    let turn = NEXT.fetch_add(1, Ordering::Relaxed) % allowed.len().max(1);
    if let Some(cpu) = allowed.get(turn) {
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
