//! The gateway's record of the provers and rounds on the switch. The record contains no keys, except in pending updates.

use std::collections::HashMap;

use linewarden_p4runtime::entity::Update;
use linewarden_protocol::gateway::{Configuration, ProofRecord};
use linewarden_protocol::ids::{DeviceId, Period, RoundNumber};

use super::clock::ClockReading;
use super::device_table::Cells;
use super::location::{DeviceLocation, ProverLocations};

/// Number of bits of the time in a cell of `proved`. The higher bits are a flag for the alternate key and the round number.
pub(super) const PROVED_AT_BITS: u32 = 48;

const PROVED_ALTERNATE: u128 = 1 << PROVED_AT_BITS;

const PROVED_NUMBER_SHIFT: u32 = PROVED_AT_BITS + 1;

/// The switch has two lanes for keys, selected by the lowest bit of the period, and two lanes for rounds, selected by
/// the lowest bit of the round number.
pub(super) const LANES: u32 = 2;

/// An installed prover.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prover {
    /// Index of the prover's cells in the registers.
    pub cell: u32,
    /// Whether the switch holds the prover's keys, by lane of the period.
    pub has_keys: [bool; LANES as usize],
}

/// The newest round in a lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundState {
    pub number: RoundNumber,
    /// Start on the boot-time clock. The switch may have opened the round later.
    pub started_us: u64,
}

impl RoundState {
    pub fn proof_record(&self, value: u128, clock: &ClockReading) -> Option<ProofRecord> {
        let at_us = clock.boot_us((value & (PROVED_ALTERNATE - 1)) as u64);
        (value >> PROVED_NUMBER_SHIFT == u128::from(self.number.0)).then(|| ProofRecord {
            configuration: match value & PROVED_ALTERNATE {
                0 => Configuration::Current,
                _ => Configuration::Alternate,
            },
            elapsed_ms: u32::try_from(at_us.saturating_sub(self.started_us) / 1000).unwrap_or(u32::MAX),
        })
    }
}

/// The gateway's record of provers. The record contains no keys, except in pending updates.
#[derive(Debug)]
pub(super) struct ProverTable {
    pub provers: HashMap<DeviceId, Prover>,
    pub cells: Cells,
    /// The period of the keys in each lane.
    pub periods: [Option<Period>; LANES as usize],
    /// The newest round of each lane.
    pub rounds: [Option<RoundState>; LANES as usize],
    /// Number of the newest round; 0: no round was opened.
    pub last_round: RoundNumber,
    /// Locations of provers.
    pub locations: HashMap<DeviceId, ProverLocations>,
    /// Updates that are not yet written to the switch, in order.
    pub pending_updates: Vec<Update>,
}

impl ProverTable {
    pub fn new(provers: u32) -> Self {
        Self {
            provers: HashMap::new(),
            cells: Cells::new(provers),
            periods: [None; LANES as usize],
            rounds: [None; LANES as usize],
            last_round: RoundNumber(0),
            locations: HashMap::new(),
            pending_updates: Vec::new(),
        }
    }

    pub fn has(&self, device: DeviceId) -> bool {
        self.provers.contains_key(&device)
    }

    pub fn locations(&self, device: DeviceId) -> Option<&ProverLocations> {
        self.locations.get(&device)
    }

    pub fn record_session(&mut self, device: DeviceId, location: DeviceLocation) {
        self.locations.entry(device).or_default().record_session(location);
    }

    pub fn record_unverified(&mut self, device: DeviceId, location: DeviceLocation) {
        self.locations
            .entry(device)
            .or_default()
            .record_unverified(location);
    }

    pub fn round(&self, round: RoundNumber) -> Option<&RoundState> {
        let newest = self.rounds.get(lane(round.0.into()))?.as_ref();
        newest.filter(|newest| newest.number == round)
    }

    /// Frees the cells of provers that were wiped since the previous call.
    pub fn reclaim(&mut self) {
        self.cells.reclaim();
    }
}

pub(super) fn lane(number: u64) -> usize {
    usize::from(number & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_belongs_to_one_round_and_key_and_counts_time_from_the_start() {
        let round_state = RoundState {
            number: RoundNumber(0x8000_0001),
            started_us: 5_000,
        };
        let clock = ClockReading::default();
        let cell_value = |number: u128, alternate: u128, at_us: u128| number << 49 | alternate << 48 | at_us;
        assert_eq!(
            round_state.proof_record(cell_value(0x8000_0003, 0, 9_000), &clock),
            None
        );
        assert_eq!(round_state.proof_record(0, &clock), None);
        let proved = round_state
            .proof_record(cell_value(0x8000_0001, 1, 12_999), &clock)
            .unwrap();
        assert_eq!(
            (proved.configuration, proved.elapsed_ms),
            (Configuration::Alternate, 7)
        );
        // The clock reading took time, so the clocks differ.
        let early = round_state
            .proof_record(cell_value(0x8000_0001, 0, 4_000), &clock)
            .unwrap();
        assert_eq!(early.elapsed_ms, 0);
    }
}
