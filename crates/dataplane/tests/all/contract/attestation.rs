//! [`Attestation`](linewarden_dataplane::Attestation): provers and rounds. The PROOFs are compared with the oracle in
//! `records`.

use linewarden_dataplane::{DataPlane, ProverError};
use linewarden_protocol::gateway::{OpenRound, ProverKeys};
use linewarden_protocol::ids::{Period, RoundNumber};
use linewarden_protocol::time::Monotonic;

use super::with_each;
use crate::support::device::{A, B, GATEWAY};
use crate::support::fixture::attest::{key, round};
use crate::support::fixture::real_now;
use crate::support::test_config::TestConfig;

const PERIOD: u64 = 4;

fn open(data_plane: &mut dyn DataPlane, period: u64, number: u32) -> Result<(), ProverError> {
    let now_ms = real_now().monotonic_ms;
    data_plane.provers().unwrap().open_round(&OpenRound {
        round: round(period, number),
        started: Monotonic(now_ms),
        deadline: Monotonic(now_ms + 1000),
    })
}

fn install(data_plane: &mut dyn DataPlane) {
    let keys = ProverKeys {
        current: key(A, GATEWAY, PERIOD, 1),
        alternate: None,
    };
    let provers = data_plane.provers().unwrap();
    provers.install(A.id(), Period(PERIOD), &keys).unwrap();
    provers.commit().unwrap();
}

#[test]
fn a_data_plane_without_room_for_provers_does_not_attest() {
    with_each(TestConfig::OFF, |data_plane| {
        assert!(data_plane.provers().is_none())
    });
}

#[test]
fn round_numbers_increase_and_their_period_has_keys() {
    with_each(TestConfig::ATTESTING, |data_plane| {
        install(data_plane);
        assert_eq!(
            open(data_plane, PERIOD + 1, 1),
            Err(ProverError::PeriodUnknown(Period(PERIOD + 1)))
        );
        assert_eq!(open(data_plane, PERIOD, 7), Ok(()));
        assert_eq!(open(data_plane, PERIOD, 8), Ok(()), "two rounds are open");
        for number in [7, 8] {
            let result = open(data_plane, PERIOD, number);
            assert!(
                matches!(result, Err(ProverError::RoundNotAbove(..))),
                "{result:?}"
            );
        }
    });
}

#[test]
fn a_prover_has_no_result_before_its_proof() {
    with_each(TestConfig::ATTESTING, |data_plane| {
        install(data_plane);
        open(data_plane, PERIOD, 1).unwrap();
        let provers = data_plane.provers().unwrap();
        let results = provers.round_results_of(&[A.id(), B.id()], RoundNumber(1));
        assert_eq!(results, Ok(vec![None, None]));
        assert_eq!(provers.verdicts(RoundNumber(1)), Ok(vec![(A.id(), None)]));
        assert!(provers.wipe(A.id()) && !provers.wipe(A.id()));
        provers.commit().unwrap();
        assert_eq!(provers.verdicts(RoundNumber(1)), Ok(Vec::new()));
    });
}

#[test]
fn a_device_without_a_session_has_no_request_in_a_session() {
    with_each(TestConfig::ATTESTING, |data_plane| {
        install(data_plane);
        let requests = data_plane.session_requests(&[A.id(), B.id()], &round(PERIOD, 1), 1);
        assert!(requests.len() == 2 && requests.iter().all(Option::is_none));
        assert!(data_plane.session_request(A.id(), &round(PERIOD, 1), 1).is_none());
    });
}
