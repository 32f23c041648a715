//! Packets from memory through a switch into memory, without system calls, on one core.

use std::hint::black_box;
use std::time::{Duration, Instant};

use linewarden_switch::engine::Sink;
use linewarden_switch::exec::{Fault, RandomSource};
use linewarden_switch::ports::BURST_FRAMES;
use linewarden_switch::switch::Worker;

use crate::bench::BenchError;

/// Longest frame that can be sent.
const FRAME_BYTES_MAX: usize = 2048;

/// The output: each packet overwrites the previous packet, as a port copies packets into its ring.
pub struct Output {
    frame: Box<[u8; FRAME_BYTES_MAX]>,
    length: usize,
    /// Sent packets.
    pub sent: u64,
    /// Recirculated packets.
    pub recirculated: u64,
}

impl Default for Output {
    fn default() -> Self {
        Self {
            frame: Box::new([0; FRAME_BYTES_MAX]),
            length: 0,
            sent: 0,
            recirculated: 0,
        }
    }
}

impl Output {
    /// The packet that was sent last.
    #[must_use]
    pub fn last(&self) -> &[u8] {
        self.frame.get(..self.length).unwrap_or_default()
    }
}

impl Sink for Output {
    fn send(&mut self, _port: u32, headers: &[u8], payload: &[u8]) {
        let (head, length) = (headers.len(), headers.len() + payload.len());
        if let Some(target) = self.frame.get_mut(..length) {
            let (target_head, target_payload) = target.split_at_mut(head);
            target_head.copy_from_slice(headers);
            target_payload.copy_from_slice(payload);
            black_box(&mut *target);
            self.length = length;
            self.sent += 1;
        }
    }

    fn digest(&mut self, _number: u32, _values: Vec<Vec<u8>>) {}

    fn fault(&mut self, _fault: Fault) {}

    fn dropped(&mut self) {}

    fn extra_pass(&mut self) {
        self.recirculated += 1;
    }
}

/// The measured programs need no random numbers.
struct NoRandom;

impl RandomSource for NoRandom {
    fn between(&mut self, low: u64, _high: u64) -> u64 {
        low
    }
}

/// Sends `packets` packets through a switch in bursts, as ports deliver them; repeats `frames`. Returns the elapsed
/// time.
pub fn run_packets(worker: &mut Worker, frames: &[Vec<u8>], packets: u32, output: &mut Output) -> Duration {
    let mut remaining = packets as usize;
    let start = Instant::now();
    while remaining > 0 {
        for burst in frames.chunks(BURST_FRAMES) {
            let burst = burst.get(..remaining.min(burst.len())).unwrap_or(burst);
            worker.batch(0, |batch| {
                for frame in burst {
                    batch.packet(0, black_box(frame), &mut NoRandom, output);
                }
            });
            remaining -= burst.len();
        }
    }
    start.elapsed()
}

/// Time per packet, ns; checks that all packets are sent.
///
/// # Errors
/// Not all packets were sent.
pub fn ns_per_packet(worker: &mut Worker, frames: &[Vec<u8>], packets: u32) -> Result<f64, BenchError> {
    let mut output = Output::default();
    let elapsed = run_packets(worker, frames, packets, &mut output);
    if output.sent != u64::from(packets) {
        let text = format!("the switch sent {} of {packets} packets", output.sent);
        return Err(BenchError::InvalidMeasurement(text));
    }
    Ok(elapsed.as_nanos() as f64 / f64::from(packets))
}

/// Time per packet of the copy that [`Output`] makes, ns.
#[must_use]
pub fn copy_ns(frames: &[Vec<u8>], packets: u32) -> f64 {
    let mut output = Output::default();
    let start = Instant::now();
    for frame in frames.iter().cycle().take(packets as usize) {
        output.send(0, &[], black_box(frame));
    }
    start.elapsed().as_nanos() as f64 / f64::from(packets)
}
