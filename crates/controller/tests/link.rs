//! What a gateway gets from its controller, and what moves nothing.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::ops::Range;

use linewarden_controller::{
    Controller, Denial, Knock, Link, Policy, Provision, ROWS_HELD_MAX, Reception, Refusal, Want,
};
use linewarden_protocol::ids::{DeviceId, GatewayId, Mode, RowIndex, Suite};
use linewarden_protocol::keys::{AuthKey, RowKey};
use linewarden_protocol::nonce::Statement;
use linewarden_protocol::tag;
use linewarden_protocol::wire::{
    self, Challenge, Header, Message, Request, Response, message_type, nak_reason,
};
use linewarden_registry::{
    BootId, Credentials, DeviceRecord, MasterKey, Moment, PoolRow, Registry, RegistryError, Revision,
    Settlement,
};
use zerocopy::IntoBytes as _;

const SUITE: Suite = Suite::SipHash128;
const FRESH: [u8; 8] = [7; 8];
const POOL: DeviceId = DeviceId(0xd1);
const KEY: DeviceId = DeviceId(0xd2);
const STRANGER: DeviceId = DeviceId(0xd3);
const ONE: GatewayId = GatewayId(1);
const TWO: GatewayId = GatewayId(2);
const NOW: Moment = Moment {
    boot: BootId([1; 16]),
    ns: 1_000,
};

fn row_key(device: DeviceId, idx: u32) -> RowKey {
    let mut key = [0x5a; 16];
    key[..8].copy_from_slice(&device.0.to_be_bytes());
    key[8..12].copy_from_slice(&idx.to_be_bytes());
    RowKey::from_bytes(key)
}

fn record(device: DeviceId, credentials: Credentials) -> DeviceRecord {
    DeviceRecord {
        device,
        name: String::new(),
        suite: SUITE,
        enrolled_at_s: 0,
        puf_profile: String::new(),
        credentials,
    }
}

fn pool(device: DeviceId, rows: u32) -> DeviceRecord {
    let row = |idx| PoolRow {
        challenge: [(idx as u8).wrapping_add(1); 8],
        row_key: row_key(device, idx),
    };
    record(device, Credentials::pool((0..rows).map(row).collect()))
}

fn auth_key(device: DeviceId, idx: u32, gateway: GatewayId) -> AuthKey {
    let mode = if device == KEY { Mode::Key } else { Mode::Pool };
    let row = if device == KEY { 0 } else { idx };
    AuthKey::derive(&row_key(device, row), SUITE, mode, RowIndex(idx), gateway)
}

fn knock(message: &[u8]) -> Knock {
    Knock {
        message: message.try_into().unwrap(),
        loc: [0; 8],
    }
}

fn request(device: DeviceId) -> Knock {
    let request = Request {
        header: Header::new(message_type::REQUEST, SUITE, 0, device),
        nonce: [3; 16],
        reserved: [0; 32],
    };
    knock(request.as_bytes())
}

fn response(device: DeviceId, idx: u32, gateway: GatewayId) -> Knock {
    stating(device, idx, gateway, [3; 16])
}

fn refusing(unanswered_from: u32) -> [u8; 16] {
    let stated = Statement {
        unanswered_from: RowIndex(unanswered_from),
        has_refused: true,
    };
    stated.within([3; 16])
}

fn stating(device: DeviceId, idx: u32, gateway: GatewayId, nonce: [u8; 16]) -> Knock {
    let mut response = Response {
        header: Header::new(message_type::RESPONSE, SUITE, 0, device),
        nonce,
        idx: idx.into(),
        gateway_id: gateway.0.into(),
        fresh: FRESH,
        tag: [0; 16],
    };
    response.tag = tag::response(&auth_key(device, idx, gateway), &response, &[0; 8]);
    knock(response.as_bytes())
}

struct Site {
    registry: Registry,
    controller: Controller,
    link: Link,
}

impl Site {
    async fn new() -> Self {
        Self::with_rows(20).await
    }

    async fn with_rows(rows: u32) -> Self {
        let registry = Registry::in_memory(&MasterKey::from_bytes([1; 32]))
            .await
            .unwrap();
        registry.enrol(pool(POOL, rows)).await.unwrap();
        registry
            .enrol(record(KEY, Credentials::Key(row_key(KEY, 0))))
            .await
            .unwrap();
        let policy = Policy {
            lease_rows: 6,
            mark_block: 4,
        };
        let controller = Controller::new(registry.clone(), policy);
        let link = controller.connect(ONE, 1).await.unwrap();
        Self {
            registry,
            controller,
            link,
        }
    }

    async fn receive(&self, knock: Knock) -> Reception {
        self.link.receive(&[knock], FRESH).await.unwrap().remove(0)
    }

    async fn admitted(&self, knock: Knock) -> Provision {
        match self.receive(knock).await {
            Reception::Admit(provision) => provision,
            other => panic!("{other:?}"),
        }
    }

    async fn is_silence(&self, knock: Knock) -> bool {
        matches!(self.receive(knock).await, Reception::Silence)
    }

    async fn floor(&self) -> u32 {
        self.registry.get(POOL).await.unwrap().idx_floor.0
    }
}

fn want(from: u32, received: u32, hold: u32) -> Want {
    Want {
        device: POOL,
        epoch: 0,
        from: RowIndex(from),
        received: RowIndex(received),
        hold,
        ahead: 4,
    }
}

fn challenge(reception: &Reception) -> Challenge {
    let Reception::Challenge(bytes) = reception else {
        panic!("{reception:?}")
    };
    match wire::parse(&bytes[..]).unwrap() {
        Message::Challenge(challenge) => *challenge,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_request_gets_the_challenge_of_the_next_row_and_moves_nothing() {
    let site = Site::new().await;
    for _ in 0..3 {
        let challenge = challenge(&site.receive(request(POOL)).await);
        assert_eq!((challenge.idx.get(), challenge.gateway_id.get()), (0, 1));
        assert_eq!((challenge.challenge, challenge.fresh), ([1; 8], FRESH));
        let expected = tag::challenge(&auth_key(POOL, 0, ONE), &challenge, &[3; 16]);
        assert_eq!(challenge.tag, expected, "under the key of this gateway");
    }
    assert_eq!(challenge(&site.receive(request(KEY)).await).challenge, [0; 8]);
    assert_eq!(site.floor().await, 0);
    assert!(site.registry.leases_of(POOL).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_response_that_verifies_is_leased_rows_from_the_one_it_proved_on() {
    let site = Site::new().await;
    let provision = site.admitted(response(POOL, 0, ONE)).await;
    assert_eq!(
        (provision.device, provision.indices(), provision.mark.0),
        (POOL, 0..6, 4)
    );
    for (idx, row) in provision.indices().zip(&provision.rows) {
        assert_eq!(row.auth_key, auth_key(POOL, idx, ONE));
    }
    assert_eq!(site.floor().await, 6);
    // The answer was lost: the same again, and nothing more.
    let again = site.admitted(response(POOL, 0, ONE)).await;
    assert_eq!((again.indices(), again.mark.0), (0..6, 4));
    assert_eq!(site.floor().await, 6);
    let key = site.admitted(response(KEY, 0, ONE)).await;
    assert_eq!((key.mode, key.rows.len()), (Mode::Key, 1));
}

#[tokio::test]
async fn what_proves_nothing_meets_silence_and_moves_nothing() {
    let site = Site::new().await;
    let bent = |mut knock: Knock, at: usize| {
        knock.message[at] ^= 1;
        knock
    };
    for knock in [
        request(STRANGER),
        response(STRANGER, 0, ONE),
        response(POOL, 1, ONE),
        response(POOL, u32::MAX, ONE),
        response(POOL, 0, TWO),
        bent(response(POOL, 0, ONE), 63),
        bent(response(POOL, 0, ONE), 20),
        // Nothing that parses.
        bent(request(POOL), 0),
        // A type that gateways send.
        bent(request(POOL), 3),
        Knock {
            loc: [1; 8],
            ..response(POOL, 0, ONE)
        },
    ] {
        assert!(site.is_silence(knock.clone()).await, "{knock:?}");
    }
    site.registry.revoke(POOL, "lost", 1).await.unwrap();
    assert!(site.is_silence(request(POOL)).await);
    assert!(site.is_silence(response(POOL, 0, ONE)).await);
    assert_eq!(site.floor().await, 0);
}

#[tokio::test]
async fn one_device_does_not_disturb_the_others_of_a_question() {
    let site = Site::new().await;
    let knocks = [
        request(STRANGER),
        response(POOL, 0, ONE),
        response(POOL, 9, ONE),
        request(KEY),
        response(KEY, 0, ONE),
    ];
    let receptions = site.link.receive(&knocks, FRESH).await.unwrap();
    let kinds: Vec<u8> = receptions
        .iter()
        .map(|reception| match reception {
            Reception::Silence => 0,
            Reception::Challenge(_) => 1,
            Reception::Admit(_) => 2,
            Reception::Nak(_) => 3,
            Reception::NakByStatement(_) => 4,
        })
        .collect();
    assert_eq!(kinds, [0, 2, 0, 1, 2]);
}

/// A RESPONSE that comes twice in one question, as from another address, and once more in the next: one answer, and what it names is
/// free for no other gateway.
async fn expect_one_answer(site: &Site, knock: Knock, rows: Range<u32>) {
    let mut answers = Vec::new();
    for _ in 0..2 {
        let knocks = [knock.clone(), knock.clone()];
        answers.extend(site.link.receive(&knocks, FRESH).await.unwrap());
    }
    for answer in answers {
        let Reception::Admit(provision) = answer else {
            panic!("{answer:?}")
        };
        assert_eq!(
            (provision.indices(), provision.mark.0),
            (rows.clone(), rows.start + 4)
        );
    }
    let other = site.controller.connect(GatewayId(3), 1).await.unwrap();
    let next = challenge(&other.receive(&[request(POOL)], FRESH).await.unwrap()[0]);
    assert_eq!(next.idx.get(), rows.end);
}

#[tokio::test]
async fn copies_of_a_response_get_one_answer_after_a_refusal() {
    let site = Site::with_rows(60).await;
    let two = site.controller.connect(TWO, 1).await.unwrap();
    let _ = two.receive(&[response(POOL, 0, TWO)], FRESH).await.unwrap();
    expect_one_answer(&site, stating(POOL, 6, ONE, refusing(3)), 6..12).await;
}

/// Of two proofs of one device in one question the first is leased for.
#[tokio::test]
async fn of_two_proofs_in_one_question_one_moves_the_lease() {
    let site = Site::with_rows(60).await;
    let _ = site.admitted(response(POOL, 0, ONE)).await;
    let knocks = [
        stating(POOL, 6, ONE, refusing(5)),
        stating(POOL, 7, ONE, refusing(7)),
    ];
    let answers = site.link.receive(&knocks, FRESH).await.unwrap();
    let [Reception::Admit(provision), Reception::Silence] = &answers[..] else {
        panic!("{answers:?}")
    };
    assert_eq!(provision.indices(), 6..12);
    let leases = site.registry.leases_of(POOL).await.unwrap();
    assert_eq!((leases[0].rows.clone(), site.floor().await), (6..12, 12));
}

#[tokio::test]
async fn copies_of_a_response_get_one_answer_after_a_restore() {
    let site = Site::with_rows(60).await;
    let _ = site.admitted(response(POOL, 0, ONE)).await;
    let directory = tempfile::tempdir().unwrap();
    for stated in [0, 3, 9] {
        let path = directory.path().join(stated.to_string());
        site.registry.copy_to(&*path, |_| ()).await.unwrap();
        let registry = Registry::open(&path, &MasterKey::from_bytes([1; 32]))
            .await
            .unwrap();
        let controller = Controller::new(registry.clone(), site.controller.policy());
        let link = controller.connect(ONE, 1).await.unwrap();
        let restored = Site {
            registry,
            controller,
            link,
        };
        let nonce = Statement {
            unanswered_from: RowIndex(stated),
            has_refused: false,
        };
        // Above the last row that was answered or leased, and what two gateways may have of the rows behind it.
        let first = stated.max(6) + 12;
        let knock = stating(POOL, first, ONE, nonce.within([3; 16]));
        expect_one_answer(&restored, knock, first..first + 6).await;
    }
    // It has answered rows that this state does not know: none is left for it.
    let path = directory.path().join("shorter");
    site.registry.copy_to(&*path, |_| ()).await.unwrap();
    let registry = Registry::open(&path, &MasterKey::from_bytes([1; 32]))
        .await
        .unwrap();
    let link = Controller::new(registry, site.controller.policy())
        .connect(ONE, 1)
        .await
        .unwrap();
    let beyond = Statement {
        unanswered_from: RowIndex(70),
        has_refused: false,
    };
    for idx in [6, 18] {
        let knocks = [stating(POOL, idx, ONE, beyond.within([3; 16]))];
        let answers = link.receive(&knocks, FRESH).await.unwrap();
        assert!(matches!(answers[..], [Reception::Silence]), "{answers:?}");
    }
    let answers = link.receive(&[asking(beyond)], FRESH).await.unwrap();
    assert_eq!(rows_end_of_nak(&answers[0]), 60);
}

/// A REQUEST with that statement.
fn asking(stated: Statement) -> Knock {
    let request = Request {
        header: Header::new(message_type::REQUEST, SUITE, 0, POOL),
        nonce: stated.within([3; 16]),
        reserved: [0; 32],
    };
    knock(request.as_bytes())
}

/// The number after the last row, by a NAK that says that no row is left.
fn rows_end_of_nak(reception: &Reception) -> u32 {
    let (Reception::Nak(bytes) | Reception::NakByStatement(bytes)) = reception else {
        panic!("{reception:?}")
    };
    match wire::parse(&bytes[..]).unwrap() {
        Message::Nak(nak) => {
            assert_eq!(nak.reason, nak_reason::NO_ROWS);
            assert_eq!(nak.header.device(), POOL);
            nak.idx.get()
        }
        other => panic!("{other:?}"),
    }
}

/// Only a REQUEST gets a NAK: the sender of a RESPONSE that does not verify gets no reply.
#[tokio::test]
async fn a_device_without_rows_is_told_so_by_a_nak() {
    let site = Site::with_rows(6).await;
    let _ = site.admitted(response(POOL, 0, ONE)).await;
    let two = site.controller.connect(TWO, 1).await.unwrap();
    let answers = two
        .receive(&[request(POOL), response(POOL, 6, TWO)], FRESH)
        .await
        .unwrap();
    assert_eq!(rows_end_of_nak(&answers[0]), 6);
    assert!(matches!(answers[0], Reception::Nak(_)), "{answers:?}");
    assert!(matches!(answers[1], Reception::Silence), "{answers:?}");
    // Of another suite than the device's.
    let mut other_suite = request(POOL);
    other_suite.message[4] = 2;
    let answers = two.receive(&[other_suite], FRESH).await.unwrap();
    assert!(matches!(answers[0], Reception::Silence), "{answers:?}");
    site.registry.revoke(POOL, "lost", 1).await.unwrap();
    let answers = two.receive(&[request(POOL)], FRESH).await.unwrap();
    assert!(matches!(answers[0], Reception::Silence), "{answers:?}");
}

/// An attacker without a key can send a REQUEST, and change the statement in a recorded RESPONSE. Neither moves a row.
#[tokio::test]
async fn forged_statements_spend_no_row_and_move_no_mark() {
    let site = Site::with_rows(60).await;
    let two = site.controller.connect(TWO, 1).await.unwrap();
    let _ = two.receive(&[response(POOL, 0, TWO)], FRESH).await.unwrap();
    let before = (site.floor().await, site.registry.leases_of(POOL).await.unwrap());
    let rows = [
        0,
        1,
        5,
        6,
        7,
        30,
        59,
        60,
        61,
        1 << 20,
        (1 << 20) + 1,
        (1 << 31) - 1,
    ];
    for row in rows {
        for has_refused in [false, true] {
            let stated = Statement {
                unanswered_from: RowIndex(row),
                has_refused,
            };
            let reception = site.receive(asking(stated)).await;
            let expected = match (row, has_refused) {
                (7..=59, _) => Some(row),
                // No row is left above the last.
                (60, _) | (61..=0x10_0000, true) => None,
                // It says nothing of this pool.
                _ => Some(6),
            };
            match expected {
                Some(idx) => assert_eq!(challenge(&reception).idx.get(), idx, "{stated:?}"),
                None => {
                    assert_eq!(rows_end_of_nak(&reception), 60, "{stated:?}");
                    assert!(matches!(reception, Reception::NakByStatement(_)), "{stated:?}");
                }
            }
            // A recorded RESPONSE, with another statement.
            let mut altered = response(POOL, expected.unwrap_or(6), ONE);
            altered.message[16..32].copy_from_slice(&stated.within([9; 16]));
            assert!(site.is_silence(altered).await, "{stated:?}");
        }
    }
    let after = (site.floor().await, site.registry.leases_of(POOL).await.unwrap());
    assert_eq!(before, after);
    assert_eq!(site.admitted(response(POOL, 6, ONE)).await.indices(), 6..12);
}

#[tokio::test]
async fn another_gateway_gets_other_rows_and_other_keys() {
    let site = Site::new().await;
    let _ = site.admitted(response(POOL, 0, ONE)).await;
    let two = site.controller.connect(TWO, 1).await.unwrap();
    let first = challenge(&two.receive(&[request(POOL)], FRESH).await.unwrap()[0]);
    assert_eq!(first.idx.get(), 6);
    let answers = two.receive(&[response(POOL, 6, TWO)], FRESH).await.unwrap();
    let Reception::Admit(provision) = &answers[0] else {
        panic!("{answers:?}")
    };
    assert_eq!(provision.indices(), 6..12);
    assert_eq!(provision.rows[0].auth_key, auth_key(POOL, 6, TWO));
}

#[tokio::test]
async fn a_restart_takes_up_what_was_held_at_the_mark() {
    let site = Site::new().await;
    let _ = site.admitted(response(POOL, 0, ONE)).await;
    let _ = site.admitted(response(KEY, 0, ONE)).await;
    let link = site.controller.connect(ONE, 2).await.unwrap();
    let mut leases = link.held();
    let chunk = leases.next_chunk().await.unwrap();
    let mut held: Vec<_> = chunk
        .provisions
        .iter()
        .map(|provision| (provision.device, provision.indices(), provision.mark.0))
        .collect();
    held.sort_by_key(|(device, ..)| *device);
    assert_eq!(held[0], (POOL, 4..6, 4), "nothing may be spent yet");
    assert_eq!((held[1].0, held[1].1.len()), (KEY, 1));
    assert!(leases.next_chunk().await.unwrap().last);
    // The process before gets nothing, whatever it asks.
    fn old(error: impl Into<Denial>) -> bool {
        matches!(error.into(), Denial::Registry(RegistryError::OldFence { .. }))
    }
    assert!(old(site.link.receive(&[request(POOL)], FRESH).await.unwrap_err()));
    assert!(old(site.link.lease(&[want(0, 0, 6)]).await.unwrap_err()));
    assert!(old(site
        .link
        .changes(Revision::ZERO, Some(NOW))
        .await
        .unwrap_err()));
    assert!(old(site.link.settle(&[]).await.unwrap_err()));
    assert!(old(site.link.held().next_chunk().await.unwrap_err()));
}

#[tokio::test]
async fn more_rows_follow_and_the_end_is_told() {
    let site = Site::new().await;
    let _ = site.admitted(response(POOL, 0, ONE)).await;
    let (provisions, refused) = site.link.lease(&[want(3, 6, 12)]).await.unwrap();
    assert!(refused.is_empty());
    assert_eq!((provisions[0].indices(), provisions[0].mark.0), (6..15, 7));
    let (provisions, _) = site.link.lease(&[want(12, 15, 2)]).await.unwrap();
    assert_eq!(
        (provisions[0].rows.len(), provisions[0].mark.0),
        (0, 15),
        "the mark alone"
    );
    let (provisions, _) = site.link.lease(&[want(14, 15, 12)]).await.unwrap();
    assert_eq!(provisions[0].indices(), 15..20);
    let (provisions, refused) = site.link.lease(&[want(20, 20, 12)]).await.unwrap();
    assert!(provisions.is_empty());
    assert_eq!(refused[0].why, Refusal::Exhausted);
    site.registry.revoke(POOL, "", 1).await.unwrap();
    let (_, refused) = site.link.lease(&[want(20, 20, 12)]).await.unwrap();
    assert_eq!(refused[0].why, Refusal::Gone);
}

/// A gateway's word alone, by a stolen certificate say, takes no row of a device that was never there, and burns none.
#[tokio::test]
async fn of_a_device_that_never_came_a_gateway_gets_nothing_and_moves_nothing() {
    let site = Site::new().await;
    let _ = site.admitted(response(POOL, 0, ONE)).await;
    let before = site.registry.leases_of(POOL).await.unwrap();
    let two = site.controller.connect(TWO, 1).await.unwrap();
    for (from, received, hold) in [(0, 0, 6), (u32::MAX, u32::MAX, u32::MAX), (9, 9, 4)] {
        let (provisions, refused) = two.lease(&[want(from, received, hold)]).await.unwrap();
        assert!(provisions.is_empty());
        assert_eq!(refused[0].why, Refusal::NotHeld);
    }
    for device in [POOL, KEY] {
        for unused_from in [0, 6, u32::MAX] {
            let settlement = Settlement {
                device,
                epoch: 0,
                unused_from: RowIndex(unused_from),
                keep: false,
            };
            assert_eq!(two.settle(&[settlement]).await.unwrap(), 0);
        }
    }
    assert_eq!(site.registry.leases_of(POOL).await.unwrap(), before);
    assert!(site.registry.leases_of(KEY).await.unwrap().is_empty());
    assert_eq!(site.registry.get(KEY).await.unwrap().idx_floor.0, 0);
    assert_eq!(site.floor().await, 6);
}

/// Rows are bounded by what a data plane has room for, whatever is asked.
#[tokio::test]
async fn no_question_takes_more_rows_than_a_line_has_room_for() {
    let site = Site::with_rows(3 * ROWS_HELD_MAX).await;
    let _ = site.admitted(response(POOL, 0, ONE)).await;
    let (provisions, _) = site.link.lease(&[want(0, 6, u32::MAX)]).await.unwrap();
    assert_eq!(provisions[0].indices(), 6..ROWS_HELD_MAX);
    assert!(provisions[0].mark.0 <= ROWS_HELD_MAX);
}

#[tokio::test]
async fn what_was_given_back_is_proved_anew() {
    let site = Site::new().await;
    let _ = site.admitted(response(POOL, 0, ONE)).await;
    let settlement = Settlement {
        device: POOL,
        epoch: 0,
        unused_from: RowIndex(2),
        keep: false,
    };
    assert_eq!(site.link.settle(&[settlement]).await.unwrap(), 4);
    assert!(
        site.is_silence(response(POOL, 0, ONE)).await,
        "spent, or said to be"
    );
    let provision = site.admitted(response(POOL, 2, ONE)).await;
    assert_eq!(provision.indices(), 2..8);
}
