//! Provers and rounds, on the oracle and both data planes alike.

use linewarden_protocol::attest::{AttestationKey, ConfigurationHash, PeriodStart, ProofKey, Round};
use linewarden_protocol::gateway::{OpenRound, ProverKeys};
use linewarden_protocol::ids::{GatewayId, Period, RoundNumber};
use linewarden_protocol::time::Monotonic;
use zerocopy::IntoBytes as _;

use super::{World, real_now};
use crate::support::device::{Dev, GATEWAY};

/// How long a round lasts, ms: longer than any test.
const ROUND_MS: u64 = 1 << 24;
/// In what steps the time that a proof took is kept of such a round, ms.
const STEP_MS: u64 = ROUND_MS >> 13;
/// What a device runs, by a number.
pub fn h(number: u8) -> ConfigurationHash {
    ConfigurationHash([number; 32])
}

fn start(period: u64) -> PeriodStart {
    PeriodStart {
        period: Period(period),
        salt: period.wrapping_mul(0x9e37_79b9).to_be_bytes(),
    }
}

/// The round of that number in that period.
pub fn round(period: u64, number: u32) -> Round {
    Round {
        gateway: GATEWAY,
        number: RoundNumber(number),
        nonce: u64::from(number)
            .wrapping_mul(0x0123_4567_89ab_cdef)
            .to_be_bytes(),
        start: start(period),
    }
}

/// The key that a device's proofs to that gateway are under.
pub fn key(device: Dev, gateway: GatewayId, period: u64, runs: u8) -> ProofKey {
    let mut k = [0x33; 32];
    k[..8].copy_from_slice(&device.id().0.to_be_bytes());
    AttestationKey::from_bytes(k)
        .for_period(device.id(), &start(period), &h(runs))
        .for_gateway(gateway)
}

/// The PROOF of a device that runs that.
pub fn proof(device: Dev, round: &Round, runs: u8) -> Vec<u8> {
    let key = key(device, round.gateway, round.start.period.0, runs);
    round.answer(device.id(), key.prove(round)).as_bytes().to_vec()
}

impl World {
    /// Installs what a device may prove in a period; whether it was accepted.
    pub fn prover(&mut self, device: Dev, period: u64, current: u8, alternate: Option<u8>) -> bool {
        let keys = ProverKeys {
            current: key(device, GATEWAY, period, current),
            alternate: alternate.map(|runs| key(device, GATEWAY, period, runs)),
        };
        let (id, period) = (device.id(), Period(period));
        let is_ok = self.oracle.install_prover(id, period, keys.clone()).is_ok();
        self.each_plane(|plane, _| {
            let provers = plane.provers().unwrap();
            let result = provers.install(id, period, &keys);
            assert_eq!(result.is_ok(), is_ok, "{result:?}");
            provers.commit().unwrap();
        });
        if is_ok {
            self.provers.insert(device);
        }
        is_ok
    }

    pub fn wipe_prover(&mut self, device: Dev) {
        let was_here = self.oracle.wipe_prover(device.id());
        self.each_plane(|plane, _| {
            let provers = plane.provers().unwrap();
            assert_eq!(provers.wipe(device.id()), was_here);
            provers.commit().unwrap();
        });
        self.provers.remove(&device);
    }

    /// Opens a round, whose time is over already if `is_late`; whether it was accepted.
    pub fn open_round(&mut self, round: Round, is_late: bool) -> bool {
        let open = |now_ms: u64| OpenRound {
            round,
            started: Monotonic(now_ms - 5000),
            until: Monotonic(if is_late { now_ms - 1000 } else { now_ms + ROUND_MS }),
        };
        let (now, real) = (self.now().monotonic_ms, real_now().monotonic_ms);
        let is_ok = self.oracle.open_round(open(now)).is_ok();
        self.each_plane(|plane, at| {
            // `xdp` and the switch have clocks of their own.
            let open = open(if at == 0 { now } else { real });
            let result = plane.provers().unwrap().open_round(&open);
            assert_eq!(result.is_ok(), is_ok, "{result:?}");
        });
        if is_ok {
            self.rounds.push(round);
        }
        is_ok
    }

    /// The last round that was opened.
    pub fn last_round(&self) -> Option<Round> {
        self.rounds.last().copied()
    }

    pub(super) fn forget_provers(&mut self) {
        let provers: Vec<Dev> = self.provers.iter().copied().collect();
        provers.into_iter().for_each(|device| self.wipe_prover(device));
        self.oracle.forget_rounds();
        self.each_plane(|plane, _| plane.provers().into_iter().for_each(|held| held.forget_rounds()));
        self.rounds.clear();
    }

    /// Compares who is ok in the last rounds; times only roughly, for `xdp` has a clock of its own.
    pub(super) fn compare_provers(&mut self) {
        let rounds: Vec<RoundNumber> = self
            .rounds
            .iter()
            .rev()
            .take(3)
            .map(|round| round.number)
            .collect();
        let provers: Vec<Dev> = self.provers.iter().copied().collect();
        for (number, device) in rounds
            .iter()
            .flat_map(|number| provers.iter().map(|dev| (*number, *dev)))
        {
            let expected = self.oracle.proved(device.id(), number);
            let shift_ms = self.shift_ms;
            self.each_plane(|plane, at| {
                let got = plane.provers().unwrap().proved_of(&[device.id()], number);
                let got = got.unwrap().pop().unwrap();
                let configuration = |proved: Option<linewarden_protocol::gateway::Proved>| {
                    proved.map(|proved| proved.configuration)
                };
                assert_eq!(
                    configuration(got),
                    configuration(expected),
                    "{device:?} in round {number}"
                );
                if let (Some(got), Some(expected)) = (got, expected) {
                    let moved = if at == 0 { 0 } else { shift_ms };
                    let difference = got.elapsed_ms.abs_diff(expected.elapsed_ms);
                    assert!(u64::from(difference) <= moved + STEP_MS, "{got:?} {expected:?}");
                }
            });
        }
        let Some(number) = rounds.first().copied() else {
            return;
        };
        self.each_plane(|plane, _| {
            let held = plane.provers().unwrap();
            let listed = held.verdicts(number).unwrap();
            assert_eq!(listed.len(), provers.len(), "all provers are listed");
            let count = |proved: &mut dyn Iterator<Item = bool>| proved.filter(|is_ok| *is_ok).count();
            let ok = count(&mut listed.iter().map(|(_, proved)| proved.is_some()));
            let ids: Vec<_> = provers.iter().map(|dev| dev.id()).collect();
            let named = held.proved_of(&ids, number).unwrap();
            assert_eq!(ok, count(&mut named.iter().map(Option::is_some)));
        });
    }
}
