//! REQUEST → CHALLENGE or NAK (LAP/1 1.4.2, 1.4.13).

use linewarden_protocol::verdict::Verdict::*;

use super::{Group, Record, group, record};
use crate::support::device::{A, B, UNKNOWN};
use crate::support::fixture::{TestFixture, real_now};
use crate::support::test_config::TestConfig;

fn request(w: &TestFixture) -> Vec<u8> {
    A.frame(false).udp(&w.request(A))
}

fn served() -> Vec<Record> {
    vec![
        record(
            "a known device gets the challenge of its row, IPv4",
            |w| w.pool(A, 7, 3),
            request,
            ReplyChallenge,
        ),
        record(
            "a known device gets the challenge of its row, IPv6",
            |w| w.pool(A, 7, 3),
            |w| A.frame(true).udp(&w.request(A)),
            ReplyChallenge,
        ),
        record(
            "a repeated REQUEST gets the same bytes",
            |w| {
                w.pool(A, 0, 1);
                let frame = request(w);
                let first = w.send_for_reply(&frame);
                assert_eq!(first, w.send_for_reply(&frame));
            },
            request,
            ReplyChallenge,
        ),
        record(
            "key mode: the challenge is zero",
            |w| w.key(A, 0),
            request,
            ReplyChallenge,
        ),
        record(
            "key mode at the highest number",
            |w| w.key(A, u32::MAX),
            request,
            ReplyChallenge,
        ),
        record(
            "a REQUEST of B from A's address",
            |w| {
                w.pool(A, 0, 2);
                w.pool(B, 5, 2);
            },
            |w| A.frame(false).udp(&w.request(B)),
            ReplyChallenge,
        ),
        record(
            "while the device's session is live",
            |w| {
                w.pool(A, 0, 3);
                w.open_bound(A, false);
            },
            request,
            ReplyChallenge,
        ),
        record(
            "after a refill of the empty line with higher rows",
            |w| {
                w.pool(A, 0, 1);
                w.open_bound(A, false);
                assert!(w.refill(A, 8, 2));
            },
            request,
            ReplyChallenge,
        ),
        record(
            "under a fresh value that is less than 16 s old",
            |w| {
                w.pool(A, 0, 2);
                w.advance(15);
            },
            request,
            ReplyChallenge,
        ),
        record(
            "of a device that was wiped and installed again in the same slot",
            |w| {
                w.pool(A, 3, 2);
                w.open_bound(A, false);
                w.wipe(A);
                w.sweep();
                w.pool(A, 9, 2);
            },
            request,
            ReplyChallenge,
        ),
    ]
}

fn refused() -> Vec<Record> {
    vec![
        record(
            "an unknown device",
            |w| w.pool(A, 0, 3),
            |w| A.frame(false).udp(&w.request(UNKNOWN)),
            DropUnknownDevice,
        ),
        record(
            "a wiped device",
            |w| {
                w.pool(A, 0, 3);
                w.wipe(A);
            },
            request,
            DropUnknownDevice,
        ),
        record(
            "a revoked device",
            |w| {
                w.pool(A, 0, 3);
                w.revoke(A);
            },
            request,
            DropRevoked,
        ),
        record(
            "a revoked device that has no row either",
            |w| {
                w.pool(A, 0, 1);
                w.open_bound(A, false);
                w.revoke(A);
            },
            request,
            DropRevoked,
        ),
        record(
            "a line that a winner is writing",
            |w| {
                w.pool(A, 0, 3);
                let response = A.frame(false).udp(&w.response(A).bytes(A));
                w.interrupted_win(A, &response);
            },
            request,
            DropBusy,
        ),
        record(
            "a line that a winner is writing, after the device was revoked",
            |w| {
                w.pool(A, 0, 3);
                let response = A.frame(false).udp(&w.response(A).bytes(A));
                w.interrupted_win(A, &response);
                w.revoke(A);
            },
            request,
            DropRevoked,
        ),
        record(
            "no row left",
            |w| {
                w.pool(A, 0, 1);
                w.open_bound(A, false);
            },
            request,
            ReplyNak,
        ),
        record(
            "no row left, IPv6",
            |w| {
                w.pool(A, 0, 1);
                w.open_bound(A, false);
            },
            |w| A.frame(true).udp(&w.request(A)),
            ReplyNak,
        ),
        record(
            "a line cleaned up after a crash",
            |w| {
                w.pool(A, 0, 3);
                let response = A.frame(false).udp(&w.response(A).bytes(A));
                w.interrupted_win(A, &response);
                w.recover();
            },
            request,
            ReplyNak,
        ),
        record(
            "the gateway is stopping",
            |w| {
                w.pool(A, 4, 3);
                w.set_stopping(true);
            },
            request,
            ReplyNak,
        ),
        record(
            "stopping, unknown device: no reply",
            |w| w.set_stopping(true),
            request,
            DropUnknownDevice,
        ),
        record(
            "the fresh value is older than 16 s",
            |w| {
                w.pool(A, 0, 3);
                w.advance(17);
            },
            request,
            DropStopped,
        ),
        record(
            "an unknown device, and a fresh value older than 16 s: the age is checked first",
            |w| w.advance(17),
            request,
            DropStopped,
        ),
        record(
            "served again after a new fresh value was drawn",
            |w| {
                w.pool(A, 0, 3);
                w.advance(100);
                let frame = request(w);
                assert_eq!(w.send(&frame), DropStopped);
                w.rotate_fresh();
            },
            request,
            ReplyChallenge,
        ),
    ]
}

/// Installs a device and spends its only row. Then waits until the current second is not about to end, because rate
/// limits count NAKs per second.
fn install_without_rows(w: &mut TestFixture) {
    w.pool(A, 0, 1);
    w.open_bound(A, false);
    while !(100..700).contains(&(real_now().monotonic_ms % 1000)) {
        std::thread::yield_now();
    }
}

fn two_naks(w: &mut TestFixture) {
    let frame = request(w);
    assert_eq!([w.send(&frame), w.send(&frame)], [ReplyNak; 2]);
}

fn limited_to_two_naks() -> Vec<Record> {
    vec![
        record(
            "the third NAK in a second, with a limit of two",
            |w| {
                install_without_rows(w);
                two_naks(w);
            },
            |w| A.frame(true).udp(&w.request(A)),
            DropNakLimit,
        ),
        record(
            "the first NAK of the next second",
            |w| {
                let second = real_now().monotonic_ms / 1000;
                while real_now().monotonic_ms / 1000 == second {
                    std::thread::yield_now();
                }
                install_without_rows(w);
                two_naks(w);
                let second = real_now().monotonic_ms / 1000;
                while real_now().monotonic_ms / 1000 == second {
                    std::thread::yield_now();
                }
                w.rotate_fresh();
                while !(100..700).contains(&(real_now().monotonic_ms % 1000)) {
                    std::thread::yield_now();
                }
            },
            request,
            ReplyNak,
        ),
    ]
}

fn limited_to_no_naks() -> Vec<Record> {
    vec![record(
        "a NAK, with a limit of zero",
        |w| {
            w.pool(A, 0, 1);
            w.open_bound(A, false);
        },
        request,
        DropNakLimit,
    )]
}

pub fn groups() -> Vec<Group> {
    let naks = |nak_per_s| TestConfig {
        nak_per_s,
        ..TestConfig::OFF
    };
    vec![
        group(
            TestConfig::OFF,
            [served(), refused()].into_iter().flatten().collect(),
        ),
        group(naks(2), limited_to_two_naks()),
        group(naks(0), limited_to_no_naks()),
    ]
}
