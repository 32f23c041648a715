//! `p4dra-classic`: every step of LAP/1 3.1.2. If several steps refuse a frame, the first one decides.

use linewarden_protocol::classic::p4dra::{Message, Round, operation};
use linewarden_protocol::verdict::Verdict::{self, *};

use super::fixture::{ClassicFixture, P4DRA_PROVERS, Served};
use super::p4dra_frames::{frame, id, key, reply, tagged};
use super::{Group, Record, record};
use crate::support::device::{A, B, TestDevice, UNKNOWN};

/// Opens two new rounds.
fn open_two_rounds(w: &mut ClassicFixture) {
    w.open_new_round();
    w.open_new_round();
}

/// A record for which two rounds are open.
fn in_two_rounds(
    description: &str,
    packet: impl Fn(&ClassicFixture) -> Vec<u8> + 'static,
    verdict: Verdict,
) -> Record {
    record(description, open_two_rounds, packet, verdict)
}

/// The valid proof of A in the running round, with changes.
fn modified(description: &str, change: impl Fn(&mut Vec<u8>) + 'static, verdict: Verdict) -> Record {
    in_two_rounds(
        description,
        move |w| {
            let mut frame = reply(A, &w.round_ago(0), 1);
            change(&mut frame);
            frame
        },
        verdict,
    )
}

fn proofs() -> Vec<Record> {
    let last_prover = TestDevice(P4DRA_PROVERS);
    vec![
        in_two_rounds(
            "the running round",
            |w| reply(A, &w.round_ago(0), 1),
            ReplyP4draVerified,
        ),
        in_two_rounds(
            "the previous round",
            |w| reply(A, &w.round_ago(1), 1),
            ReplyP4draVerified,
        ),
        in_two_rounds(
            "another prover",
            move |w| reply(last_prover, &w.round_ago(0), 1),
            ReplyP4draVerified,
        ),
        record(
            "the round before the previous one",
            |w| {
                open_two_rounds(w);
                w.open_new_round();
            },
            |w| reply(A, &w.round_ago(2), 1),
            DropP4draRound,
        ),
        record(
            "a round is accepted although it was opened twice",
            |w| {
                open_two_rounds(w);
                assert!(!w.open_round(w.round_ago(0)) && !w.open_round(w.round_ago(1)));
            },
            |w| reply(A, &w.round_ago(1), 1),
            ReplyP4draVerified,
        ),
        in_two_rounds(
            "r and n swapped",
            |w| {
                let Round { r, n } = w.round_ago(0);
                reply(A, &Round { r: n, n: r }, 1)
            },
            DropP4draRound,
        ),
        in_two_rounds(
            "r of one round, n of the other",
            |w| {
                let (r, n) = (w.round_ago(0).r, w.round_ago(1).n);
                reply(A, &Round { r, n }, 1)
            },
            DropP4draRound,
        ),
        in_two_rounds(
            "a round of zeros, like unused memory",
            |_| reply(A, &Round { r: [0; 8], n: [0; 8] }, 1),
            DropP4draRound,
        ),
        in_two_rounds(
            "an unknown device",
            |w| reply(UNKNOWN, &w.round_ago(0), 1),
            DropP4draProver,
        ),
        in_two_rounds(
            "an unknown device in an expired round",
            |_| reply(UNKNOWN, &Round { r: [9; 8], n: [9; 8] }, 1),
            DropP4draRound,
        ),
        in_two_rounds(
            "another configuration",
            |w| reply(A, &w.round_ago(0), 2),
            DropP4draProof,
        ),
        in_two_rounds(
            "the proof of the other round",
            |w| {
                let mut frame = reply(A, &w.round_ago(0), 1);
                frame[47..].copy_from_slice(&reply(A, &w.round_ago(1), 1)[47..]);
                frame
            },
            DropP4draProof,
        ),
        in_two_rounds(
            "another prover's proof",
            |w| {
                let mut frame = reply(A, &w.round_ago(0), 1);
                frame[47..].copy_from_slice(&reply(B, &w.round_ago(0), 1)[47..]);
                frame
            },
            DropP4draProof,
        ),
        record(
            "the valid proof twice",
            |w| {
                open_two_rounds(w);
                let frame = reply(A, &w.round_ago(0), 1);
                assert_eq!(w.send(&frame), ReplyP4draVerified);
            },
            |w| reply(A, &w.round_ago(0), 1),
            DropP4draProved,
        ),
        record(
            "a wrong proof after the valid one",
            |w| {
                open_two_rounds(w);
                let frame = reply(A, &w.round_ago(0), 1);
                assert_eq!(w.send(&frame), ReplyP4draVerified);
            },
            |w| reply(A, &w.round_ago(0), 2),
            DropP4draProved,
        ),
        record(
            "the valid proof after a wrong one",
            |w| {
                open_two_rounds(w);
                let frame = reply(A, &w.round_ago(0), 2);
                assert_eq!(w.send(&frame), DropP4draProof);
            },
            |w| reply(A, &w.round_ago(0), 1),
            ReplyP4draVerified,
        ),
        record(
            "a device that was ok in this round, after the next round was opened",
            |w| {
                open_two_rounds(w);
                let frame = reply(A, &w.round_ago(0), 1);
                assert_eq!(w.send(&frame), ReplyP4draVerified);
                w.open_new_round();
            },
            |w| reply(A, &w.round_ago(0), 1),
            ReplyP4draVerified,
        ),
    ]
}

fn frames() -> Vec<Record> {
    let mut records = vec![
        modified("to a group", |frame| frame[0] |= 1, DropUnanswerable),
        modified("from a group", |frame| frame[6] |= 1, DropUnanswerable),
        modified(
            "to the broadcast address, and malformed",
            |frame| {
                frame[..6].fill(0xff);
                frame.truncate(20);
            },
            DropUnanswerable,
        ),
        modified(
            "no bytes after the type",
            |frame| frame.truncate(14),
            DropP4draMalformed,
        ),
        modified(
            "one byte too short",
            |frame| frame.truncate(110),
            DropP4draMalformed,
        ),
        modified("one byte too long", |frame| frame.push(0), DropP4draMalformed),
        modified("1500 B", |frame| frame.resize(1500, 0), DropP4draMalformed),
    ];
    for tags in 1..=2 {
        records.push(in_two_rounds(
            &format!("behind {tags} VLAN tags"),
            move |w| tagged(&reply(A, &w.round_ago(0), 1), tags),
            ReplyP4draVerified,
        ));
        records.push(in_two_rounds(
            &format!("behind {tags} VLAN tags, and wrong"),
            move |w| tagged(&reply(A, &w.round_ago(0), 2), tags),
            DropP4draProof,
        ));
    }
    for (operation, length) in [
        (6, 97),
        (255, 97),
        (operation::REQUEST, 97),
        (operation::SETUP, 97),
    ]
    .into_iter()
    .chain([16, 47].into_iter().flat_map(|length| [(0, length), (1, length)]))
    .chain([
        (3, 161),
        (3, 163),
        (4, 160),
        (4, 162),
        (4, 97),
        (5, 64),
        (5, 66),
        (2, 161),
        (2, 17),
    ]) {
        records.push(modified(
            &format!("operation {operation} of {length} B"),
            move |frame| {
                frame.resize(14 + length, 0);
                frame[14] = operation;
            },
            DropP4draMalformed,
        ));
    }
    records
}

/// Frames that the published switch accepts from any port, although attackers can misuse them for forged results or
/// amplification.
fn misusable() -> Vec<Record> {
    let case = |description: &str, make: fn(Round) -> Message| {
        in_two_rounds(
            description,
            move |w| frame(A, &make(w.round_ago(0))),
            DropP4draOperation,
        )
    };
    let mut records = vec![
        case("START", Message::Start),
        case("REQUEST", Message::Request),
        case("SETUP", |_| Message::Setup(key(A), id(A))),
        case("VERIFIED with any V = P", |round| {
            Message::Verified(round, id(A), [7; 64], [7; 64])
        }),
        case("VERIFIED of an unknown prover", |round| {
            Message::Verified(round, id(UNKNOWN), [7; 64], [7; 64])
        }),
        case("VERIFIED of a round that does not exist", |_| {
            let unopened = Round { r: [9; 8], n: [9; 8] };
            Message::Verified(unopened, id(A), [7; 64], [7; 64])
        }),
        in_two_rounds(
            "VERIFIED, as in the reply to the valid proof",
            |w| {
                let valid_frame = reply(A, &w.round_ago(0), 1);
                let mut forged = valid_frame.clone();
                forged[14] = operation::VERIFIED;
                forged.extend(&valid_frame[47..]);
                forged
            },
            DropP4draOperation,
        ),
    ];
    for quarter_rounds in [0, 1, 55, 56, 57, 255] {
        records.push(in_two_rounds(
            &format!("CALCULATING after {quarter_rounds} quarter rounds"),
            move |w| {
                frame(
                    A,
                    &Message::Calculating(w.round_ago(0), id(A), quarter_rounds, [3; 16], [7; 64]),
                )
            },
            DropP4draOperation,
        ));
    }
    for length in [17, 18, 45, 46] {
        records.push(in_two_rounds(
            &format!("REQUEST padded to {length} B"),
            move |w| {
                let mut padded = frame(A, &Message::Request(w.round_ago(0)));
                padded.resize(14 + length, 0x5a);
                padded
            },
            DropP4draOperation,
        ));
    }
    records
}

/// Frames of other Ethernet types.
fn other_types() -> Vec<Record> {
    let mut records: Vec<Record> = [0x1233u16, 0x1235, 0x3412, 0x5241, 0x88b5]
        .into_iter()
        .map(|ether_type| {
            modified(
                &format!("type {ether_type:#06x}"),
                move |frame| frame[12..14].copy_from_slice(&ether_type.to_be_bytes()),
                PassForeign,
            )
        })
        .collect();
    records.push(in_two_rounds(
        "behind three VLAN tags",
        |w| tagged(&reply(A, &w.round_ago(0), 1), 3),
        PassForeign,
    ));
    records
}

pub fn groups() -> Vec<Group> {
    let served = Served::P4dra;
    [proofs(), frames(), misusable(), other_types()]
        .map(|records| Group { served, records })
        .into()
}
