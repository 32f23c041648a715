//! PROOFs at the gateway: every check of LAP/1 3.2.1, in its order, and forged, replayed and late proofs.

use alloc::vec::Vec;
use zerocopy::IntoBytes as _;

use super::support::{GATEWAY, TestDevice as Device, altered, gateway_endpoint};
use crate::attest::{AttestationKey, ConfigurationHash, PeriodStart, ProofKey, Round};
use crate::frame::Meta;
use crate::gateway::{
    Configuration, Gateway, GatewayConfig, OpenRound, ProofRecord, ProverKeys, ProvisionError,
};
use crate::ids::{DeviceId, GatewayId, Mode, Period, RoundNumber};
use crate::time::{Monotonic, Now};
use crate::verdict::Verdict;

const DEVICE: DeviceId = DeviceId(0x1001);
const H: ConfigurationHash = ConfigurationHash([1; 32]);
const OTHER_H: ConfigurationHash = ConfigurationHash([2; 32]);
const START: PeriodStart = PeriodStart {
    period: Period(5),
    salt: [5; 8],
};

fn k(device: DeviceId) -> AttestationKey {
    let mut bytes = [0x77; 32];
    bytes[..8].copy_from_slice(&device.0.to_be_bytes());
    AttestationKey::from_bytes(bytes)
}

fn key(device: DeviceId, start: &PeriodStart, h: &ConfigurationHash) -> ProofKey {
    k(device).for_period(device, start, h).for_gateway(GATEWAY)
}

fn keys(device: DeviceId, start: &PeriodStart) -> ProverKeys {
    ProverKeys {
        current: key(device, start, &H),
        alternate: None,
    }
}

fn round(number: u32) -> Round {
    Round {
        gateway: GATEWAY,
        number: RoundNumber(number),
        nonce: [number as u8; 8],
        start: START,
    }
}

struct AttestFixture {
    gateway: Gateway,
    now: Now,
}

impl AttestFixture {
    /// A gateway with one prover, in its first round, which lasts 1000 ms.
    fn new() -> Self {
        let config = GatewayConfig {
            provers_max: 2,
            ..GatewayConfig::new(GATEWAY, &[gateway_endpoint().ip])
        };
        let mut fixture = Self {
            gateway: Gateway::new(config),
            now: Now::default().plus_ms(10_000),
        };
        fixture
            .gateway
            .install_prover(DEVICE, START.period, keys(DEVICE, &START))
            .unwrap();
        fixture.open(round(1));
        fixture
    }

    fn open(&mut self, round: Round) {
        let started = self.now.monotonic();
        let open = OpenRound {
            round,
            started,
            deadline: Monotonic(started.0 + 1000),
        };
        self.gateway.open_round(open).unwrap();
    }

    fn verdict(&mut self, message: &[u8]) -> Verdict {
        let from = Device::new(1, Mode::Pool).endpoint;
        let meta = Meta {
            src_ip: [0; 16],
            dst_ip: [0; 16],
            dst_mac: [0; 6],
            src_mac: from.mac,
            src_port: from.port,
            dst_port: 0,
            ingress: 0,
            vlans: [0; 2],
        };
        let mut payload = message.to_vec();
        let verdict = self.gateway.handle_payload(self.now, &meta, &mut payload);
        assert_eq!(payload, message, "a PROOF gets no reply");
        verdict
    }
}

/// Returns the correct PROOF of a device with configuration h.
fn proof(round: &Round, h: &ConfigurationHash) -> Vec<u8> {
    let proof = key(DEVICE, &round.start, h).prove(round);
    round.proof_message(DEVICE, proof).as_bytes().to_vec()
}

/// One scenario for each verdict of this file.
pub fn reach(verdict: Verdict) -> Verdict {
    let mut fixture = AttestFixture::new();
    let valid = proof(&round(1), &H);
    match verdict {
        Verdict::DropUnsupportedType => {
            fixture.gateway = Gateway::new(GatewayConfig::new(GATEWAY, &[]));
            fixture.verdict(&valid)
        }
        Verdict::ProofOk => fixture.verdict(&valid),
        Verdict::DropRound => fixture.verdict(&proof(&round(2), &H)),
        Verdict::DropLate => {
            fixture.now = fixture.now.plus_ms(1001);
            fixture.verdict(&valid)
        }
        Verdict::DropUnknownProver => fixture.verdict(&altered(&valid, 15, &[9])),
        Verdict::DropProved => {
            fixture.verdict(&valid);
            fixture.verdict(&valid)
        }
        Verdict::DropNoKey => {
            let later = Period(START.period.0 + 2);
            let other = DeviceId(DEVICE.0 + 1);
            fixture
                .gateway
                .install_prover(other, later, keys(other, &START))
                .unwrap();
            fixture.verdict(&valid)
        }
        _ => fixture.verdict(&altered(&valid, 95, &[valid[95] ^ 1])),
    }
}

#[test]
fn a_proof_for_another_gateway_is_rejected() {
    let mut fixture = AttestFixture::new();
    let other_gateway_keys = k(DEVICE).for_period(DEVICE, &START, &H).for_gateway(GatewayId(8));
    let forged = round(1).proof_message(DEVICE, other_gateway_keys.prove(&round(1)));
    assert_eq!(fixture.verdict(forged.as_bytes()), Verdict::DropProof);
    let other_round = Round {
        gateway: GatewayId(8),
        ..round(1)
    };
    let foreign = other_round.proof_message(DEVICE, other_gateway_keys.prove(&other_round));
    assert_eq!(fixture.verdict(foreign.as_bytes()), Verdict::DropGateway);
}

#[test]
fn every_bit_of_a_proof_and_of_the_configuration_counts() {
    let mut fixture = AttestFixture::new();
    let valid = proof(&round(1), &H);
    for bit in 0..64 * 8 {
        let mut forged = valid.clone();
        forged[32 + bit / 8] ^= 1 << (bit % 8);
        assert_eq!(fixture.verdict(&forged), Verdict::DropProof, "bit {bit}");
    }
    for bit in 0..32 * 8 {
        let mut h = H;
        h.0[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(
            fixture.verdict(&proof(&round(1), &h)),
            Verdict::DropProof,
            "bit {bit} of h"
        );
    }
    assert_eq!(
        fixture.gateway.proof_record(DEVICE, RoundNumber(1)),
        None,
        "a wrong proof leaves no record"
    );
    assert_eq!(fixture.verdict(&valid), Verdict::ProofOk);
}

#[test]
fn no_later_message_changes_a_recorded_proof() {
    let mut fixture = AttestFixture::new();
    fixture.now = fixture.now.plus_ms(7);
    assert_eq!(fixture.verdict(&proof(&round(1), &H)), Verdict::ProofOk);
    assert_eq!(fixture.verdict(&proof(&round(1), &OTHER_H)), Verdict::DropProved);
    let ok = ProofRecord {
        configuration: Configuration::Current,
        elapsed_ms: 7,
    };
    assert_eq!(fixture.gateway.proof_record(DEVICE, RoundNumber(1)), Some(ok));
}

#[test]
fn only_two_rounds_are_open_at_a_time() {
    let mut fixture = AttestFixture::new();
    fixture.open(round(2));
    assert_eq!(fixture.verdict(&proof(&round(2), &H)), Verdict::ProofOk);
    assert_eq!(fixture.verdict(&proof(&round(1), &H)), Verdict::ProofOk);
    fixture.open(round(3));
    assert_eq!(fixture.verdict(&proof(&round(1), &H)), Verdict::DropRound);
    let renamed = Round {
        number: RoundNumber(3),
        ..round(2)
    };
    assert_eq!(
        fixture.verdict(&proof(&renamed, &H)),
        Verdict::DropRound,
        "another nonce"
    );
    assert_eq!(fixture.gateway.proof_record(DEVICE, RoundNumber(3)), None);
}

#[test]
fn two_configurations_are_valid_while_the_keys_of_both_are_installed() {
    let mut fixture = AttestFixture::new();
    let both_keys = ProverKeys {
        alternate: Some(key(DEVICE, &START, &OTHER_H)),
        ..keys(DEVICE, &START)
    };
    assert_eq!(fixture.verdict(&proof(&round(1), &OTHER_H)), Verdict::DropProof);
    fixture
        .gateway
        .install_prover(DEVICE, START.period, both_keys)
        .unwrap();
    assert_eq!(fixture.verdict(&proof(&round(1), &OTHER_H)), Verdict::ProofOk);
    let record = fixture.gateway.proof_record(DEVICE, RoundNumber(1)).unwrap();
    assert_eq!(record.configuration, Configuration::Alternate);
}

#[test]
fn the_keys_of_the_next_period_are_installed_beside_the_current_keys() {
    let mut fixture = AttestFixture::new();
    let next = PeriodStart {
        period: Period(6),
        salt: [6; 8],
    };
    fixture
        .gateway
        .install_prover(DEVICE, next.period, keys(DEVICE, &next))
        .unwrap();
    assert_eq!(fixture.verdict(&proof(&round(1), &H)), Verdict::ProofOk);
    let second = Round {
        start: next,
        ..round(2)
    };
    fixture.open(second);
    assert_eq!(
        fixture.verdict(&proof(&round(2), &H)),
        Verdict::DropProof,
        "the key of the old period"
    );
    assert_eq!(fixture.verdict(&proof(&second, &H)), Verdict::ProofOk);
}

#[test]
fn invalid_provers_and_rounds_are_rejected_without_a_change() {
    let mut fixture = AttestFixture::new();
    let zero_keys = ProverKeys {
        current: ProofKey::from_bytes([0; 32]),
        alternate: None,
    };
    let period = START.period;
    let gateway = &mut fixture.gateway;
    let result = gateway.install_prover(DEVICE, period, zero_keys);
    assert_eq!(result, Err(ProvisionError::UnusableProofKey(DEVICE)));
    let device_zero = DeviceId(0);
    assert_eq!(
        gateway.install_prover(device_zero, period, keys(device_zero, &START)),
        Err(ProvisionError::DeviceZero)
    );
    let (second, third) = (DeviceId(2), DeviceId(3));
    gateway
        .install_prover(second, period, keys(second, &START))
        .unwrap();
    assert_eq!(
        gateway.install_prover(third, period, keys(third, &START)),
        Err(ProvisionError::ProversFull(third))
    );
    assert!(gateway.remove_prover(second));
    gateway
        .install_prover(third, period, keys(third, &START))
        .unwrap();
    let unknown = OpenRound {
        round: Round {
            start: PeriodStart {
                period: Period(7),
                salt: [0; 8],
            },
            ..round(2)
        },
        started: Monotonic(0),
        deadline: Monotonic(u64::MAX),
    };
    assert_eq!(
        gateway.open_round(unknown),
        Err(ProvisionError::PeriodUnknown(Period(7)))
    );
    assert_eq!(fixture.verdict(&proof(&round(1), &H)), Verdict::ProofOk);
}

/// If round numbers could decrease, a proof of an old round could be used again.
#[test]
fn round_numbers_only_grow() {
    let mut fixture = AttestFixture::new();
    let open = |fixture: &mut AttestFixture, number, start| {
        fixture.gateway.open_round(OpenRound {
            round: Round {
                start,
                ..round(number)
            },
            started: Monotonic(0),
            deadline: Monotonic(u64::MAX),
        })
    };
    for number in [0, 1] {
        let expected = ProvisionError::RoundNotAbove(RoundNumber(number), RoundNumber(1));
        assert_eq!(open(&mut fixture, number, START), Err(expected));
    }
    let unknown = PeriodStart {
        period: Period(7),
        ..START
    };
    assert!(open(&mut fixture, 5, unknown).is_err());
    // A round that was not opened uses up no number.
    assert_eq!(open(&mut fixture, 5, START), Ok(()));
    assert_eq!(
        fixture.verdict(&proof(&round(1), &H)),
        Verdict::DropRound,
        "round 5 replaced round 1"
    );
    let expected = ProvisionError::RoundNotAbove(RoundNumber(4), RoundNumber(5));
    assert_eq!(open(&mut fixture, 4, START), Err(expected));
    fixture.gateway.reset_rounds();
    assert_eq!(fixture.verdict(&proof(&round(5), &H)), Verdict::DropRound);
    assert_eq!(open(&mut fixture, 1, START), Ok(()));
}
