//! Forró14 compared with ChaCha20 on the host, each with the widest vector instructions that its crate supports on this CPU.
//!
//! Forró14 performs 672 operations of 32 bits on a block (56 quarter rounds of 12), ChaCha20 960 (80 of 12). By operations alone,
//! Forró14 would have 1.43 times the throughput. But its operations form one chain of dependencies, so several blocks must be
//! computed in parallel to use the CPU fully.

use std::hint::black_box;
use std::time::Instant;

use chacha20::ChaCha20;
use chacha20::cipher::{KeyIvInit as _, StreamCipher, StreamCipherSeek};
use linewarden_forro::{Backend, Forro14};

use super::Size;
use crate::bench::Row;
use crate::bench::scale::Progress;

/// Bytes of a message.
const MESSAGE_BYTES: usize = 16 * 1024;
/// Operations of 32 bits on a block.
const FORRO14_OPERATIONS: f64 = 56.0 * 12.0;
const CHACHA20_OPERATIONS: f64 = 80.0 * 12.0;

/// Adds the rows of this part: both throughputs and their ratio.
pub fn rows(size: &Size, progress: Progress<'_>, rows: &mut Vec<Row>) {
    progress("comparing Forró14 with ChaCha20 on the host", None);
    let mut forro = Forro14::new(&[1; 32].into(), &[2; 8].into());
    let mut chacha = ChaCha20::new(&[1; 32].into(), &[2; 12].into());
    let (mut forro_ns, mut chacha_ns) = (f64::MAX, f64::MAX);
    // Both ciphers run alternately, so that other work of the machine affects both.
    for _ in 0..size.runs {
        forro_ns = forro_ns.min(ns_per_byte(&mut forro, size.messages));
        chacha_ns = chacha_ns.min(ns_per_byte(&mut chacha, size.messages));
    }
    rows.push(Row::fact("stream.forro14.gb_per_s", 1.0 / forro_ns, "GB/s"));
    rows.push(Row::fact("stream.chacha20.gb_per_s", 1.0 / chacha_ns, "GB/s"));
    let lanes = Backend::widest().lanes();
    rows.push(Row::fact("stream.forro14.lanes", lanes as f64, "blocks"));
    rows.push(Row::fact(
        "forro14_over_chacha20.operations_limit",
        CHACHA20_OPERATIONS / FORRO14_OPERATIONS,
        "ratio",
    ));
    rows.push(Row::higher(
        "forro14_over_chacha20.throughput",
        chacha_ns / forro_ns,
        "ratio",
        None,
    ));
}

/// Encrypts one message after another in place, each from the beginning of the keystream. Returns ns per byte.
fn ns_per_byte<C: StreamCipher + StreamCipherSeek>(cipher: &mut C, messages: u32) -> f64 {
    let mut message = vec![0; MESSAGE_BYTES];
    let start = Instant::now();
    for _ in 0..messages {
        cipher.seek(0u32);
        cipher.apply_keystream(black_box(&mut message));
    }
    let bytes = f64::from(messages) * MESSAGE_BYTES as f64;
    start.elapsed().as_nanos() as f64 / bytes
}
