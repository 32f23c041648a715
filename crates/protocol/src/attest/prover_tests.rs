//! The device's role: who may ask what, what is repeated, and what a lying gateway can spoil.

use std::vec::Vec;

use super::*;
use crate::attest::{AttestationKey, ConfigurationHash};

extern crate std;

const DEVICE: DeviceId = DeviceId(0xd1);
const HOME: GatewayId = GatewayId(7);
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

/// The whole way of a request; how often a key of a period was asked for.
struct Device {
    prover: Prover,
    measured: u32,
}

impl Device {
    fn new(period: u64) -> Self {
        Self {
            prover: Prover::new(DEVICE, Period(period)),
            measured: 0,
        }
    }

    fn in_session(&mut self, round: &Round) -> Result<Vec<u8>, Refusal> {
        let message = round.request(DEVICE, &session());
        let screened = self.prover.screen(message.as_bytes(), true)?;
        let asked = screened.verify(Some(AskedBy::Session(&session())))?;
        Ok(self.proof(asked))
    }

    fn without_session(&mut self, round: &Round) -> Result<Vec<u8>, Refusal> {
        let key = k().for_requests(DEVICE, round.gateway, round.start.period);
        let message = round.request_without_session(DEVICE, &key);
        let screened = self.prover.screen(message.as_bytes(), false)?;
        let (gateway, period) = screened.asks();
        let key = k().for_requests(DEVICE, gateway, period);
        let asked = screened.verify(Some(AskedBy::Request(&key)))?;
        Ok(self.proof(asked))
    }

    fn proof(&mut self, asked: Asked) -> Vec<u8> {
        let answer = match self.prover.answer(asked) {
            Answer::Period(start, asked) => {
                self.measured += 1;
                let key = k().for_period(DEVICE, &start, &H);
                self.prover.begin(&asked, &key);
                self.prover.answer(asked)
            }
            proof @ Answer::Proof(_) => proof,
        };
        answer.bytes().unwrap().to_vec()
    }
}

fn expected(round: &Round) -> Vec<u8> {
    let key = k()
        .for_period(DEVICE, &round.start, &H)
        .for_gateway(round.gateway);
    round.answer(DEVICE, key.prove(round)).as_bytes().to_vec()
}

#[test]
fn a_tagged_request_gets_the_proof_and_the_same_one_again() {
    let mut device = Device::new(5);
    let first = round(HOME, 5, 1);
    assert_eq!(device.in_session(&first), Ok(expected(&first)));
    assert_eq!(device.in_session(&first), Ok(expected(&first)), "it was lost");
    let second = round(HOME, 5, 2);
    assert_eq!(device.without_session(&second), Ok(expected(&second)));
    assert_eq!(device.measured, 1, "one period, one measurement");
}

#[test]
fn rounds_go_up_over_periods_and_have_one_nonce() {
    let mut device = Device::new(5);
    device.in_session(&round(HOME, 5, 4)).unwrap();
    let other = Round {
        nonce: [9; 8],
        ..round(HOME, 5, 4)
    };
    assert_eq!(device.in_session(&other), Err(Refusal::OtherNonce));
    assert_eq!(device.in_session(&round(HOME, 5, 3)), Err(Refusal::RoundOver));
    assert_eq!(device.in_session(&round(HOME, 6, 3)), Err(Refusal::RoundOver));
    assert!(device.in_session(&round(HOME, 6, 5)).is_ok());
}

#[test]
fn a_period_is_not_proven_again_once_it_is_over_nor_under_two_salts() {
    let mut device = Device::new(5);
    device.in_session(&round(HOME, 6, 1)).unwrap();
    assert_eq!(device.in_session(&round(HOME, 5, 2)), Err(Refusal::PeriodOver));
    let mut salted = round(HOME, 6, 2);
    salted.start.salt = [0xaa; 8];
    assert_eq!(device.in_session(&salted), Err(Refusal::OtherSalt));
}

#[test]
fn without_a_session_the_controller_vouches_for_periods() {
    let mut device = Device::new(5);
    assert_eq!(
        device.without_session(&round(HOME, 4, 1)),
        Err(Refusal::PeriodOver)
    );
    assert!(device.without_session(&round(HOME, 6, 1)).is_ok());
    assert_eq!(device.prover.period(), Period(6));
    device.prover.catch_up(Period(20));
    assert!(device.without_session(&round(HOME, 21, 3)).is_ok());
    // It was off for years, or in quarantine, and can be asked again.
    assert!(device.without_session(&round(HOME, 9_000, 4)).is_ok());
    assert_eq!(device.prover.period(), Period(9_000));
}

#[test]
fn what_is_expected_is_told_apart_from_what_anybody_may_ask() {
    let device = Device::new(5);
    let is_expected = |period| {
        let request = round(HOME, period, 1).request(DEVICE, &session());
        let screened = device.prover.screen(request.as_bytes(), false);
        screened.unwrap().is_expected()
    };
    assert!(is_expected(5) && is_expected(6));
    assert!(!is_expected(7) && !is_expected(u64::MAX));
}

#[test]
fn a_lying_gateway_in_a_session_spoils_only_its_own_periods() {
    let mut device = Device::new(5);
    let liar = GatewayId(13);
    assert!(device.in_session(&round(liar, u64::MAX, u32::MAX)).is_ok());
    assert_eq!(device.prover.period(), Period(5));
    assert!(device.without_session(&round(HOME, 5, 1)).is_ok());
    assert!(device.in_session(&round(HOME, 6, 2)).is_ok());
    assert_eq!(
        device.without_session(&round(liar, 6, 1)),
        Err(Refusal::PeriodOver)
    );
}

#[test]
fn one_gateway_too_many_takes_the_place_of_the_most_silent() {
    let mut device = Device::new(5);
    for gateway in 1..=4 {
        device.in_session(&round(GatewayId(gateway), 5, 1)).unwrap();
    }
    device.in_session(&round(GatewayId(1), 5, 2)).unwrap();
    device.in_session(&round(GatewayId(5), 5, 1)).unwrap();
    assert_eq!(device.measured, 5);
    device.in_session(&round(GatewayId(1), 5, 3)).unwrap();
    assert_eq!(device.measured, 5, "it is still known");
    device.in_session(&round(GatewayId(2), 5, 2)).unwrap();
    assert_eq!(device.measured, 6, "it was forgotten");
}

#[test]
fn each_refusal_is_reached() {
    let device = Device::new(5);
    let message = round(HOME, 5, 1).request(DEVICE, &session());
    let screen = |message: &AttestRequest| device.prover.screen(message.as_bytes(), true).err();
    assert_eq!(
        device.prover.screen(&message.as_bytes()[..63], true).err(),
        Some(Refusal::Malformed)
    );
    let proof = expected(&round(HOME, 5, 1));
    assert_eq!(device.prover.screen(&proof, true).err(), Some(Refusal::Malformed));
    let mut other = message;
    other.header.device_id.set(9);
    assert_eq!(screen(&other), Some(Refusal::OtherDevice));
    let mut zero = message;
    zero.round.set(0);
    assert_eq!(screen(&zero), Some(Refusal::RoundZero));
    let mut untagged = message;
    untagged.tag = [0; 16];
    assert_eq!(screen(&untagged), Some(Refusal::Untagged));
    let screened = device.prover.screen(message.as_bytes(), true).unwrap();
    assert_eq!(screened.verify(None).err(), Some(Refusal::NoKey));
    let key = k().for_requests(DEVICE, HOME, Period(5));
    assert_eq!(
        screened.verify(Some(AskedBy::Request(&key))).err(),
        Some(Refusal::NoKey)
    );
    let other = SessionKey::from_bytes([1; 16]);
    assert_eq!(
        screened.verify(Some(AskedBy::Session(&other))).err(),
        Some(Refusal::WrongTag)
    );
}

#[test]
fn every_bit_of_a_request_is_under_the_tag() {
    let device = Device::new(5);
    let message = round(HOME, 5, 1).request(DEVICE, &session());
    for bit in 0..64 * 8 {
        let mut bent = message.as_bytes().to_vec();
        bent[bit / 8] ^= 1 << (bit % 8);
        let outcome = device
            .prover
            .screen(&bent, true)
            .and_then(|screened| screened.verify(Some(AskedBy::Session(&session()))));
        assert!(outcome.is_err(), "bit {bit}");
    }
}
