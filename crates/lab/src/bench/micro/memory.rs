//! The memory latency of the machine: the lower bound of all measurements in random order.

use std::hint::black_box;
use std::time::Instant;

use rand::SeedableRng as _;
use rand::seq::SliceRandom as _;
use rand_chacha::ChaCha8Rng;

use crate::bench::Row;

/// Measures the latency of one memory access: dependent loads of random cache lines in 128 MiB of 4 KiB pages, the page
/// size of BPF arrays. This latency is a lower bound of `1m_random`.
#[must_use]
pub fn row() -> Row {
    const LINES: usize = 2 << 20;
    let mut order: Vec<u32> = (0..LINES as u32).collect();
    order.shuffle(&mut ChaCha8Rng::seed_from_u64(2));
    // Sixteen words are one cache line; the first word is the number of the next line.
    let mut memory = vec![0u32; LINES * 16];
    advise_small_pages(&memory);
    for (index, next) in order.iter().zip(order.iter().cycle().skip(1)) {
        if let Some(word) = memory.get_mut(*index as usize * 16) {
            *word = *next;
        }
    }
    let mut best = f64::MAX;
    for _ in 0..3 {
        let mut index = 0u32;
        let start = Instant::now();
        for _ in 0..500_000 {
            index = memory.get(index as usize * 16).copied().unwrap_or(0);
        }
        best = best.min(start.elapsed().as_nanos() as f64 / 500_000.0);
        black_box(index);
    }
    Row::fact("machine.memory_trip_ns", best, "ns")
}

fn advise_small_pages(memory: &[u32]) {
    let start = memory.as_ptr().addr().next_multiple_of(4096);
    let end = (memory.as_ptr().addr() + size_of_val(memory)) & !4095;
    // SAFETY: whole pages inside the allocation of `memory`; the advice changes no contents.
    unsafe {
        libc::madvise(
            start as *mut libc::c_void,
            end.saturating_sub(start),
            libc::MADV_NOHUGEPAGE,
        )
    };
}
