//! PROOFs: every step of LAP/1 3.2.1. If several steps refuse a PROOF, the first one decides.

use linewarden_protocol::attest::Round;
use linewarden_protocol::ids::{GatewayId, RoundNumber};
use linewarden_protocol::verdict::Verdict::{self, *};

use super::{Group, MakePacket, Record, group, record};
use crate::support::device::{A, B, TestDevice, UNKNOWN};
use crate::support::fixture::TestFixture;
use crate::support::fixture::attest::{key, proof, round};
use crate::support::test_config::{TestConfig, devices_with_one_home};

/// Device A is a prover with configuration 1 in period 4, and round 1 is open.
fn set_up(w: &mut TestFixture) {
    assert!(w.install_prover(A, 4, 1, None));
    assert!(w.open_round(round(4, 1), false));
}

/// The PROOF of a device that runs configuration `runs`, from the device's own address.
fn proof_from(device: TestDevice, round: Round, runs: u8, v6: bool) -> MakePacket {
    Box::new(move |_| device.frame(v6).udp(&proof(device, &round, runs)))
}

fn case(
    description: &str,
    setup: impl Fn(&mut TestFixture) + 'static,
    packet: MakePacket,
    verdict: Verdict,
) -> Record {
    let full_setup = move |w: &mut TestFixture| {
        set_up(w);
        setup(w);
    };
    record(description, full_setup, packet, verdict)
}

/// The valid PROOF with one byte changed.
fn modified(index: usize) -> MakePacket {
    Box::new(move |_| {
        let mut message = proof(A, &round(4, 1), 1);
        message[index] ^= 0x20;
        A.frame(false).udp(&message)
    })
}

fn nothing(_: &mut TestFixture) {}

fn verdicts() -> Vec<Record> {
    let valid_proof = || proof_from(A, round(4, 1), 1, false);
    let prove = |w: &mut TestFixture| assert_eq!(w.send(&proof_from(A, round(4, 1), 1, false)(w)), ProofOk);
    vec![
        case("the valid proof", nothing, valid_proof(), ProofOk),
        case("over IPv6", nothing, proof_from(A, round(4, 1), 1, true), ProofOk),
        case("the valid proof, repeated", prove, valid_proof(), DropProved),
        case(
            "an invalid proof after the valid one",
            prove,
            proof_from(A, round(4, 1), 2, false),
            DropProved,
        ),
        case(
            "of another configuration",
            nothing,
            proof_from(A, round(4, 1), 2, false),
            DropProof,
        ),
        case("with a modified proof", nothing, modified(50), DropProof),
        case(
            "of a device that is not a prover",
            nothing,
            proof_from(B, round(4, 1), 1, false),
            DropUnknownProver,
        ),
        case(
            "of a future round",
            nothing,
            proof_from(A, round(4, 2), 1, false),
            DropRound,
        ),
        case("under another nonce", nothing, modified(24), DropRound),
        case("of another gateway", nothing, modified(16), DropGateway),
        case("with a flag", nothing, modified(5), DropFlags),
        case("of another suite", nothing, modified(4), DropSuite),
        case("with a wrong length field", nothing, modified(7), DropLength),
        case(
            "for a round of another gateway, relayed to this gateway",
            nothing,
            Box::new(|_| {
                let other_round = Round {
                    gateway: GatewayId(78),
                    ..round(4, 1)
                };
                let proof = key(A, GatewayId(78), 4, 1).prove(&other_round);
                let message = round(4, 1).proof_message(A.id(), proof);
                A.frame(false).udp(zerocopy::IntoBytes::as_bytes(&message))
            }),
            DropProof,
        ),
        case(
            "after the round has expired",
            |w| assert!(w.open_round(round(4, 2), true)),
            proof_from(A, round(4, 2), 1, false),
            DropLate,
        ),
        case(
            "of an unknown prover after the round has expired",
            |w| assert!(w.open_round(round(4, 2), true)),
            proof_from(UNKNOWN, round(4, 2), 1, false),
            DropLate,
        ),
        case(
            "of a prover that was wiped",
            |w| w.wipe_prover(A),
            valid_proof(),
            DropUnknownProver,
        ),
    ]
}

fn rounds_and_periods() -> Vec<Record> {
    vec![
        case(
            "of the previous round",
            |w| assert!(w.open_round(round(4, 2), false)),
            proof_from(A, round(4, 1), 1, false),
            ProofOk,
        ),
        case(
            "of the round before the previous round",
            |w| {
                assert!(w.open_round(round(4, 2), false));
                assert!(w.open_round(round(4, 3), false));
            },
            proof_from(A, round(4, 1), 1, false),
            DropRound,
        ),
        case(
            "in the next period, whose key was installed ahead",
            |w| {
                assert!(w.install_prover(A, 5, 1, None));
                assert!(w.open_round(round(5, 2), false));
            },
            proof_from(A, round(5, 2), 1, false),
            ProofOk,
        ),
        case(
            "in the next period under the old key",
            |w| {
                assert!(w.install_prover(A, 5, 1, None));
                assert!(w.open_round(round(5, 2), false));
            },
            Box::new(|_| {
                let proof = key(A, round(5, 2).gateway, 4, 1).prove(&round(5, 2));
                let message = round(5, 2).proof_message(A.id(), proof);
                A.frame(false).udp(zerocopy::IntoBytes::as_bytes(&message))
            }),
            DropProof,
        ),
        case(
            "of a prover without a key of the period",
            |w| {
                assert!(w.install_prover(B, 5, 1, None));
                assert!(w.open_round(round(5, 2), false));
            },
            proof_from(A, round(5, 2), 1, false),
            DropNoKey,
        ),
        case(
            "of a period whose keys were replaced by those of later periods",
            |w| assert!(w.install_prover(B, 6, 1, None)),
            proof_from(A, round(4, 1), 1, false),
            DropNoKey,
        ),
        case(
            "in a later period, after a period without a key",
            |w| {
                assert!(w.install_prover(B, 6, 1, None));
                assert!(w.install_prover(A, 6, 1, None));
                assert!(w.open_round(round(6, 2), false));
            },
            proof_from(A, round(6, 2), 1, false),
            ProofOk,
        ),
        case(
            "of the configuration that is being rolled out",
            |w| assert!(w.install_prover(A, 4, 1, Some(2))),
            proof_from(A, round(4, 1), 2, false),
            ProofOk,
        ),
        case(
            "of the current configuration during a roll-out",
            |w| assert!(w.install_prover(A, 4, 1, Some(2))),
            proof_from(A, round(4, 1), 1, false),
            ProofOk,
        ),
        case(
            "of neither configuration",
            |w| assert!(w.install_prover(A, 4, 1, Some(2))),
            proof_from(A, round(4, 1), 3, false),
            DropProof,
        ),
        case(
            "of a configuration that is no longer rolled out",
            |w| {
                assert!(w.install_prover(A, 4, 1, Some(2)));
                assert!(w.install_prover(A, 4, 1, None));
            },
            proof_from(A, round(4, 1), 2, false),
            DropProof,
        ),
        case(
            "a round of a period without keys is refused",
            |w| assert!(!w.open_round(round(7, 2), false)),
            proof_from(A, round(4, 1), 1, false),
            ProofOk,
        ),
        case(
            "a round that was open cannot be opened again with another nonce",
            |w| {
                let same_number = Round {
                    nonce: [9; 8],
                    ..round(4, 1)
                };
                assert!(!w.open_round(same_number, false));
            },
            proof_from(A, round(4, 1), 1, false),
            ProofOk,
        ),
        case(
            "a round with a number below that of the latest round cannot be opened",
            |w| {
                assert!(w.open_round(round(4, 3), false));
                assert!(!w.open_round(round(4, 2), false));
            },
            proof_from(A, round(4, 2), 1, false),
            DropRound,
        ),
        case(
            "round 0 cannot be opened",
            |w| assert!(!w.open_round(round(4, 0), false)),
            proof_from(A, round(4, 1), 1, false),
            ProofOk,
        ),
        case(
            "of the round with the highest possible number",
            |w| {
                assert!(w.open_round(
                    Round {
                        number: RoundNumber(u32::MAX),
                        ..round(4, 2)
                    },
                    false
                ))
            },
            proof_from(
                A,
                Round {
                    number: RoundNumber(u32::MAX),
                    ..round(4, 2)
                },
                1,
                false,
            ),
            ProofOk,
        ),
    ]
}

/// More provers with the same home than the home has places for.
fn shared_home() -> Vec<Record> {
    let devices = || devices_with_one_home(64);
    let install = move |w: &mut TestFixture| {
        devices()
            .into_iter()
            .for_each(|device| assert!(w.install_prover(device, 4, 1, None)));
        assert!(w.open_round(round(4, 1), false));
    };
    let valid_proof = |device: TestDevice| proof_from(device, round(4, 1), 1, false);
    let mut records: Vec<Record> = devices_with_one_home(64)
        .into_iter()
        .map(|device| {
            record(
                "of one of many provers with the same home",
                install,
                valid_proof(device),
                ProofOk,
            )
        })
        .collect();
    let outside_home = devices_with_one_home(64)[5];
    records.push(record(
        "of a prover outside its home that was wiped and installed again",
        move |w| {
            install(w);
            w.wipe_prover(outside_home);
            assert!(w.install_prover(outside_home, 4, 1, None));
        },
        valid_proof(outside_home),
        ProofOk,
    ));
    records
}

pub fn groups() -> Vec<Group> {
    let full = record(
        "after the installation of one prover too many was refused",
        |w| {
            set_up(w);
            (2..257).for_each(|n| assert!(w.install_prover(TestDevice(n), 4, 1, None)));
            assert!(!w.install_prover(TestDevice(300), 4, 1, None));
        },
        proof_from(A, round(4, 1), 1, false),
        ProofOk,
    );
    vec![
        group(TestConfig::ATTESTING, verdicts()),
        group(TestConfig::ATTESTING, rounds_and_periods()),
        group(TestConfig::ATTESTING, shared_home()),
        group(TestConfig::ATTESTING, vec![full]),
        group(
            TestConfig {
                provers: 16,
                ..TestConfig::BOUND
            },
            verdicts(),
        ),
        group(
            TestConfig {
                provers: 16,
                ..TestConfig::SEALED
            },
            verdicts(),
        ),
    ]
}
