//! Packets from memory through a switch and into memory: no system call, one core.

use std::hint::black_box;
use std::time::{Duration, Instant};

use linewarden_switch::engine::Sink;
use linewarden_switch::exec::{Fault, RandomSource};
use linewarden_switch::ports::BURST_FRAMES;
use linewarden_switch::switch::Worker;

use crate::bench::BenchError;

/// Longest frame that can be sent.
const FRAME_BYTES_MAX: usize = 2048;

/// Where packets go: each is copied over the one before, as a port copies it into its ring.
pub struct Output {
    frame: Box<[u8; FRAME_BYTES_MAX]>,
    length: usize,
    /// Packets that have left.
    pub sent: u64,
    /// Packets that began again.
    pub again: u64,
}

impl Default for Output {
    fn default() -> Self {
        Self {
            frame: Box::new([0; FRAME_BYTES_MAX]),
            length: 0,
            sent: 0,
            again: 0,
        }
    }
}

impl Output {
    /// The last packet.
    #[must_use]
    pub fn last(&self) -> &[u8] {
        self.frame.get(..self.length).unwrap_or_default()
    }
}

impl Sink for Output {
    fn send(&mut self, _port: u32, headers: &[u8], payload: &[u8]) {
        let (head, length) = (headers.len(), headers.len() + payload.len());
        if let Some(to) = self.frame.get_mut(..length) {
            let (to_head, to_payload) = to.split_at_mut(head);
            to_head.copy_from_slice(headers);
            to_payload.copy_from_slice(payload);
            black_box(&mut *to);
            self.length = length;
            self.sent += 1;
        }
    }

    fn digest(&mut self, _number: u32, _values: Vec<Vec<u8>>) {}

    fn fault(&mut self, _fault: Fault) {}

    fn dropped(&mut self) {}

    fn again(&mut self) {
        self.again += 1;
    }
}

/// No program that is measured here asks for random numbers.
struct NoRandom;

impl RandomSource for NoRandom {
    fn between(&mut self, low: u64, _high: u64) -> u64 {
        low
    }
}

/// Takes so many packets through a switch, these frames over and over, in bursts as ports hand them out.
pub fn pass(worker: &mut Worker, frames: &[Vec<u8>], packets: u32, output: &mut Output) -> Duration {
    let mut left = packets as usize;
    let start = Instant::now();
    while left > 0 {
        for burst in frames.chunks(BURST_FRAMES) {
            let burst = burst.get(..left.min(burst.len())).unwrap_or(burst);
            worker.batch(0, |taking| {
                for frame in burst {
                    taking.packet(0, black_box(frame), &mut NoRandom, output);
                }
            });
            left -= burst.len();
        }
    }
    start.elapsed()
}

/// The same, ns a packet, all of which must leave.
///
/// # Errors
/// Packets that did not leave.
pub fn ns_per_packet(worker: &mut Worker, frames: &[Vec<u8>], packets: u32) -> Result<f64, BenchError> {
    let mut output = Output::default();
    let elapsed = pass(worker, frames, packets, &mut output);
    if output.sent != u64::from(packets) {
        let text = format!("{} packets left of {packets}", output.sent);
        return Err(BenchError::Contradiction(text));
    }
    Ok(elapsed.as_nanos() as f64 / f64::from(packets))
}

/// Copies so many packets as [`Output`] does, and nothing else; ns a packet.
#[must_use]
pub fn copy_ns(frames: &[Vec<u8>], packets: u32) -> f64 {
    let mut output = Output::default();
    let start = Instant::now();
    for frame in frames.iter().cycle().take(packets as usize) {
        output.send(0, &[], black_box(frame));
    }
    start.elapsed().as_nanos() as f64 / f64::from(packets)
}
