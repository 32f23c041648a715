//! The classic profiles (docs/protocols.md 2 and 3.1): the protocols of published papers, which are insecure. No gateway
//! runs this module; the lab measures the profiles with it.
//!
//! | module | contents |
//! |---|---|
//! | [`mod@bench`] | benches of the profiles in eBPF |
//! | [`host`] | `classic-iot` and `classic-uav` on UDP sockets |
//! | [`p4dra`] | `p4dra-classic`: rounds, and verification in memory |
//! | [`xdp`] | all profiles in eBPF (`bpf/bench_papers.bpf.c`) |

pub mod bench;
pub mod host;
mod layout;
pub mod p4dra;
#[cfg(test)]
mod tests;
mod verifier;
pub mod xdp;

use std::sync::atomic::Ordering::Relaxed;

use linewarden_protocol::classic::rng::SplitMix64;

pub use self::verifier::ClassicVerifier;

use self::layout::ClassicCrp;
use crate::config::ConfigError;
use crate::store::wire_word;

/// A profile with challenge-response pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClassicProfile {
    /// One CRP per challenge, in order.
    Iot,
    /// Two CRPs per challenge, picked at random.
    Uav,
}

/// The profile and its CRPs. All responses have the same size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Classic {
    /// The protocol that is served.
    pub profile: ClassicProfile,
    /// UDP port on which the profile is served.
    pub port: u16,
    /// Response size, bytes: 8, 16 or 32.
    pub response_bytes: usize,
    /// CRPs of each identifier; the first element belongs to identifier 1. Every identifier has the same number of
    /// CRPs.
    pub crps: Vec<Vec<(u32, Vec<u8>)>>,
    /// Seed of the profile's random numbers.
    pub seed: u64,
}

impl Classic {
    /// Checks all fields.
    ///
    /// # Errors
    /// The first invalid field.
    pub fn check(&self) -> Result<(), ConfigError> {
        let refuse = |field, value: String, hint| Err(ConfigError::Field { field, value, hint });
        if self.port == 0 {
            return refuse("classic.port", self.port.to_string(), "a UDP port of its own");
        }
        if ![8, 16, 32].contains(&self.response_bytes) {
            let value = self.response_bytes.to_string();
            return refuse("classic.response_bytes", value, "8, 16 or 32");
        }
        let rows = self.rows();
        if rows < 2 || self.crps.iter().any(|crps| crps.len() != rows) {
            let hint = "at least 2, and the same number for every identifier";
            return refuse("classic.crps", rows.to_string(), hint);
        }
        let fits = |crp: &(u32, Vec<u8>)| crp.1.len() == self.response_bytes;
        if !self.crps.iter().flatten().all(fits) {
            let hint = "every response must have response_bytes bytes";
            return refuse("classic.crps", "response".into(), hint);
        }
        Ok(())
    }

    /// Number of CRPs of each identifier.
    fn rows(&self) -> usize {
        self.crps.first().map_or(0, Vec::len)
    }
}

/// Slicing-by-16 tables of the reflected CRC-32 (IEEE 802.3): `t[k][b]` is byte `b` followed by `k` zero bytes.
fn crc_tables() -> [[u32; 256]; 16] {
    let mut tables = [[0u32; 256]; 16];
    let mut previous: [u32; 256] = std::array::from_fn(|byte| {
        (0..8).fold(byte as u32, |crc, _| {
            if crc & 1 == 1 {
                (crc >> 1) ^ 0xedb8_8320
            } else {
                crc >> 1
            }
        })
    });
    let first = previous;
    for table in &mut tables {
        *table = previous;
        previous = previous.map(|crc| (crc >> 8) ^ first.get((crc & 0xff) as usize).copied().unwrap_or(0));
    }
    tables
}

/// The CRC-32 register after `bytes`, before its final inversion.
fn crc_register(bytes: &[u8]) -> u32 {
    bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            if crc & 1 == 1 {
                (crc >> 1) ^ 0xedb8_8320
            } else {
                crc >> 1
            }
        })
    })
}

/// Writes all CRPs in the format that the packet paths read.
fn store_crps(cells: &[ClassicCrp], classic: &Classic) {
    for (cell, (challenge, response)) in cells.iter().zip(classic.crps.iter().flatten()) {
        cell.challenge.store(challenge.to_be(), Relaxed);
        cell.crc.store(crc_register(response), Relaxed);
        for (word, bytes) in cell.response.iter().zip(response.chunks_exact(8)) {
            word.store(wire_word(bytes.try_into().unwrap_or_default()), Relaxed);
        }
    }
}

/// The SplitMix64 state of CPU (eBPF) or thread (UDP sockets) number `index` for `seed`.
#[must_use]
pub fn rng_state(seed: u64, index: u64) -> u64 {
    SplitMix64::from_state(seed ^ index.wrapping_mul(0xd134_2543_de82_ef95)).draw()
}
