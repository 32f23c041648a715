//! A fleet of provers for the benchmarks: random keys, rounds, and the PROOFs of all provers, which are computed in parallel.

use linewarden_dataplane::{Config, DataPlaneError, ProverSet};
use linewarden_forro::{Backend, Matrix, R14, blocks};
use linewarden_protocol::attest::{PeriodStart, ProofKey, Round};
use linewarden_protocol::gateway::{OpenRound, ProverKeys};
use linewarden_protocol::ids::{DeviceId, Period, RoundNumber};
use linewarden_protocol::time::Monotonic;
use linewarden_protocol::wire::PROOF_BYTES;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use zerocopy::IntoBytes as _;

use crate::bench::keys;
use crate::clock::monotonic_ns;

/// The key period of all benchmarks.
const START: PeriodStart = PeriodStart {
    period: Period(1),
    salt: [0x5a; 8],
};
/// Timeout of a round, ms: longer than any benchmark.
const ROUND_MS: u64 = 1 << 32;

/// Provers with their ids and keys.
pub struct ProverFleet {
    provers: Vec<(DeviceId, ProofKey)>,
    last_round: u32,
}

impl ProverFleet {
    /// Creates `provers` provers; every run creates the same provers.
    #[must_use]
    pub fn new(provers: u32) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(u64::from(provers));
        let provers = (0..provers).map(|_| (DeviceId(rng.random()), ProofKey::from_bytes(rng.random())));
        Self {
            provers: provers.collect(),
            last_round: 0,
        }
    }

    /// A gateway configuration with space for all provers of the fleet.
    #[must_use]
    pub fn config(&self) -> Config {
        Config {
            provers: u32::try_from(self.provers.len()).unwrap_or(u32::MAX),
            ..keys::config(16, 2)
        }
    }

    /// Installs all provers in another order than their PROOFs, so that the CPU cannot predict the next prover.
    ///
    /// # Errors
    /// The data plane rejected a prover.
    pub fn install(&self, provers: &mut dyn ProverSet) -> Result<(), DataPlaneError> {
        let mut order: Vec<_> = self.provers.iter().collect();
        order.sort_by_key(|(device, _)| device.0);
        order.into_iter().try_for_each(|(device, key)| {
            let keys = ProverKeys {
                current: key.clone(),
                alternate: None,
            };
            provers
                .install(*device, START.period, &keys)
                .map_err(DataPlaneError::from)
        })
    }

    /// Returns the next round.
    pub fn next_round(&mut self) -> Round {
        self.last_round += 1;
        Round {
            gateway: keys::GATEWAY_ID,
            number: RoundNumber(self.last_round),
            nonce: u64::from(self.last_round)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .to_be_bytes(),
            start: START,
        }
    }

    /// The PROOFs of all provers in a round.
    #[must_use]
    pub fn proofs(&self, round: &Round) -> Vec<[u8; PROOF_BYTES]> {
        let matrices: Vec<Matrix> = self.provers.iter().map(|(_, key)| key.matrix(round)).collect();
        let mut proofs = vec![[0; 64]; matrices.len()];
        blocks::<R14>(Backend::widest(), &matrices, &mut proofs);
        let message = |((device, _), proof): (&(DeviceId, ProofKey), [u8; 64])| {
            let mut bytes = [0; PROOF_BYTES];
            let message = round.proof_message(*device, proof);
            bytes.copy_from_slice(message.as_bytes());
            bytes
        };
        self.provers.iter().zip(proofs).map(message).collect()
    }
}

/// Opens a round.
///
/// # Errors
/// The data plane rejected the round.
pub fn open_round(provers: &mut dyn ProverSet, round: Round) -> Result<(), DataPlaneError> {
    let now_ms = monotonic_ns() / 1_000_000;
    let open = OpenRound {
        round,
        started: Monotonic(now_ms),
        deadline: Monotonic(now_ms + ROUND_MS),
    };
    Ok(provers.open_round(&open)?)
}
