//! The role of the device: accepted requests, repeated requests, and the limits of a malicious gateway.

use std::vec::Vec;

use super::*;
use crate::attest::{AttestationKey, ConfigurationHash};

extern crate std;

const DEVICE: DeviceId = DeviceId(0xd1);
const GATEWAY: GatewayId = GatewayId(7);
const H: ConfigurationHash = ConfigurationHash([3; 32]);

fn k() -> AttestationKey {
    AttestationKey::from_bytes([0x42; 32])
}

fn session() -> SessionKey {
    SessionKey::from_bytes([0x51; 16])
}

fn round(gateway: GatewayId, period: u64, number: u32) -> Round {
    Round {
        gateway,
        number: RoundNumber(number),
        nonce: [number as u8; 8],
        start: PeriodStart {
            period: Period(period),
            salt: [period as u8; 8],
        },
    }
}

/// A prover with its keys, and the number of period keys that it needed.
struct Device {
    prover: Prover,
    measurements: u32,
}

impl Device {
    fn new(period: u64) -> Self {
        Self {
            prover: Prover::new(DEVICE, Period(period)),
            measurements: 0,
        }
    }

    fn prove_in_session(&mut self, round: &Round) -> Result<Vec<u8>, Refusal> {
        let message = round.request(DEVICE, &session());
        let screened = self.prover.screen(message.as_bytes(), true)?;
        let request = screened.verify(Some(RequestTagKey::Session(&session())))?;
        Ok(self.proof(request))
    }

    fn prove_without_session(&mut self, round: &Round) -> Result<Vec<u8>, Refusal> {
        let key = k().for_requests(DEVICE, round.gateway, round.start.period);
        let message = round.request_without_session(DEVICE, &key);
        let screened = self.prover.screen(message.as_bytes(), false)?;
        let (gateway, period) = screened.gateway_and_period();
        let key = k().for_requests(DEVICE, gateway, period);
        let request = screened.verify(Some(RequestTagKey::Request(&key)))?;
        Ok(self.proof(request))
    }

    fn proof(&mut self, request: VerifiedRequest) -> Vec<u8> {
        let outcome = match self.prover.respond(request) {
            ProofOutcome::MeasurementNeeded(start, request) => {
                self.measurements += 1;
                let key = k().for_period(DEVICE, &start, &H);
                self.prover.begin_period(&request, &key);
                self.prover.respond(request)
            }
            proof @ ProofOutcome::Proof(_) => proof,
        };
        outcome.bytes().unwrap().to_vec()
    }
}

fn expected(round: &Round) -> Vec<u8> {
    let key = k()
        .for_period(DEVICE, &round.start, &H)
        .for_gateway(round.gateway);
    round.proof_message(DEVICE, key.prove(round)).as_bytes().to_vec()
}

#[test]
fn repeated_tagged_requests_receive_the_same_proof() {
    let mut device = Device::new(5);
    let first = round(GATEWAY, 5, 1);
    assert_eq!(device.prove_in_session(&first), Ok(expected(&first)));
    assert_eq!(
        device.prove_in_session(&first),
        Ok(expected(&first)),
        "a repeated request gets the same proof"
    );
    let second = round(GATEWAY, 5, 2);
    assert_eq!(device.prove_without_session(&second), Ok(expected(&second)));
    assert_eq!(device.measurements, 1, "one period, one measurement");
}

#[test]
fn round_numbers_increase_across_periods_and_have_one_nonce() {
    let mut device = Device::new(5);
    device.prove_in_session(&round(GATEWAY, 5, 4)).unwrap();
    let other_nonce = Round {
        nonce: [9; 8],
        ..round(GATEWAY, 5, 4)
    };
    assert_eq!(device.prove_in_session(&other_nonce), Err(Refusal::OtherNonce));
    assert_eq!(
        device.prove_in_session(&round(GATEWAY, 5, 3)),
        Err(Refusal::StaleRound)
    );
    assert_eq!(
        device.prove_in_session(&round(GATEWAY, 6, 3)),
        Err(Refusal::StaleRound)
    );
    assert!(device.prove_in_session(&round(GATEWAY, 6, 5)).is_ok());
}

#[test]
fn a_period_is_not_proven_after_a_later_period_or_with_two_salts() {
    let mut device = Device::new(5);
    device.prove_in_session(&round(GATEWAY, 6, 1)).unwrap();
    assert_eq!(
        device.prove_in_session(&round(GATEWAY, 5, 2)),
        Err(Refusal::StalePeriod)
    );
    let mut salted = round(GATEWAY, 6, 2);
    salted.start.salt = [0xaa; 8];
    assert_eq!(device.prove_in_session(&salted), Err(Refusal::OtherSalt));
}

#[test]
fn without_a_session_the_controller_confirms_periods() {
    let mut device = Device::new(5);
    assert_eq!(
        device.prove_without_session(&round(GATEWAY, 4, 1)),
        Err(Refusal::StalePeriod)
    );
    assert!(device.prove_without_session(&round(GATEWAY, 6, 1)).is_ok());
    assert_eq!(device.prover.period(), Period(6));
    device.prover.advance_period(Period(20));
    assert!(device.prove_without_session(&round(GATEWAY, 21, 3)).is_ok());
    // The device was off or in quarantine for years and accepts requests again.
    assert!(device.prove_without_session(&round(GATEWAY, 9_000, 4)).is_ok());
    assert_eq!(device.prover.period(), Period(9_000));
}

#[test]
fn expected_periods_are_distinguished_from_others() {
    let device = Device::new(5);
    let is_expected = |period| {
        let request = round(GATEWAY, period, 1).request(DEVICE, &session());
        let screened = device.prover.screen(request.as_bytes(), false);
        screened.unwrap().is_expected()
    };
    assert!(is_expected(5) && is_expected(6));
    assert!(!is_expected(7) && !is_expected(u64::MAX));
}

#[test]
fn a_malicious_gateway_in_a_session_affects_only_its_own_periods() {
    let mut device = Device::new(5);
    let malicious_gateway = GatewayId(13);
    assert!(
        device
            .prove_in_session(&round(malicious_gateway, u64::MAX, u32::MAX))
            .is_ok()
    );
    assert_eq!(device.prover.period(), Period(5));
    assert!(device.prove_without_session(&round(GATEWAY, 5, 1)).is_ok());
    assert!(device.prove_in_session(&round(GATEWAY, 6, 2)).is_ok());
    assert_eq!(
        device.prove_without_session(&round(malicious_gateway, 6, 1)),
        Err(Refusal::StalePeriod)
    );
}

#[test]
fn a_fifth_gateway_replaces_the_least_recently_used_gateway() {
    let mut device = Device::new(5);
    for gateway in 1..=4 {
        device.prove_in_session(&round(GatewayId(gateway), 5, 1)).unwrap();
    }
    device.prove_in_session(&round(GatewayId(1), 5, 2)).unwrap();
    device.prove_in_session(&round(GatewayId(5), 5, 1)).unwrap();
    assert_eq!(device.measurements, 5);
    device.prove_in_session(&round(GatewayId(1), 5, 3)).unwrap();
    assert_eq!(device.measurements, 5, "state of this gateway is kept");
    device.prove_in_session(&round(GatewayId(2), 5, 2)).unwrap();
    assert_eq!(device.measurements, 6, "state of this gateway was dropped");
}

#[test]
fn each_refusal_is_reached() {
    let device = Device::new(5);
    let message = round(GATEWAY, 5, 1).request(DEVICE, &session());
    let screen = |message: &AttestRequest| device.prover.screen(message.as_bytes(), true).err();
    assert_eq!(
        device.prover.screen(&message.as_bytes()[..63], true).err(),
        Some(Refusal::Malformed)
    );
    let proof = expected(&round(GATEWAY, 5, 1));
    assert_eq!(device.prover.screen(&proof, true).err(), Some(Refusal::Malformed));
    let mut other_device = message;
    other_device.header.device_id.set(9);
    assert_eq!(screen(&other_device), Some(Refusal::OtherDevice));
    let mut zero = message;
    zero.round.set(0);
    assert_eq!(screen(&zero), Some(Refusal::RoundZero));
    let mut untagged = message;
    untagged.tag = [0; 16];
    assert_eq!(screen(&untagged), Some(Refusal::Untagged));
    let screened = device.prover.screen(message.as_bytes(), true).unwrap();
    assert_eq!(screened.verify(None).err(), Some(Refusal::NoKey));
    let key = k().for_requests(DEVICE, GATEWAY, Period(5));
    assert_eq!(
        screened.verify(Some(RequestTagKey::Request(&key))).err(),
        Some(Refusal::NoKey)
    );
    let other_key = SessionKey::from_bytes([1; 16]);
    assert_eq!(
        screened.verify(Some(RequestTagKey::Session(&other_key))).err(),
        Some(Refusal::WrongTag)
    );
}

#[test]
fn the_tag_covers_every_bit_of_a_request() {
    let device = Device::new(5);
    let message = round(GATEWAY, 5, 1).request(DEVICE, &session());
    for bit in 0..64 * 8 {
        let mut flipped = message.as_bytes().to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let outcome = device
            .prover
            .screen(&flipped, true)
            .and_then(|screened| screened.verify(Some(RequestTagKey::Session(&session()))));
        assert!(outcome.is_err(), "bit {bit}");
    }
}
