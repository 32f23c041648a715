//! Tickets as the controller takes them: who is answered, and who meets silence.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use linewarden_controller::{Carrier, Controller, Policy};
use linewarden_protocol::ids::{DeviceId, GatewayId, Mode, RowIndex, Suite};
use linewarden_protocol::keys::{RowKey, SessionKey};
use linewarden_protocol::nonce::Statement;
use linewarden_protocol::pair::Role;
use linewarden_protocol::ticket::{
    self, BODY_BYTES_MAX, Carriage, Direction, Head, Kind, MESSAGE_BYTES_MAX, NewRow, Opening, Outcome,
    Paired, Room, Sealed, State, TicketRoot,
};
use linewarden_registry::{Credentials, DeviceRecord, LeaseRequest, MasterKey, PoolRow, Registry};

const POOL: DeviceId = DeviceId(0xd1);
const KEY: DeviceId = DeviceId(0xd2);
const ONE: GatewayId = GatewayId(1);
const TWO: GatewayId = GatewayId(2);

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
        suite: Suite::SipHash128,
        enrolled_at_s: 0,
        puf_profile: String::new(),
        credentials,
    }
}

/// Both devices hold leases of gateway 1: rows 0 to 3 of the pool.
async fn site() -> (Registry, Controller) {
    let registry = Registry::in_memory(&MasterKey::from_bytes([1; 32]))
        .await
        .unwrap();
    let row = |idx| PoolRow {
        challenge: [1; 8],
        row_key: row_key(POOL, idx),
    };
    let pool = Credentials::pool((0..8).map(row).collect());
    registry.enrol(record(POOL, pool)).await.unwrap();
    registry
        .enrol(record(KEY, Credentials::Key(row_key(KEY, 0))))
        .await
        .unwrap();
    let fence = registry.register_gateway(ONE, 1).await.unwrap();
    let wish = |device| LeaseRequest {
        device,
        epoch: 0,
        from: RowIndex(0),
        received: RowIndex(0),
        hold: 4,
        ahead: 4,
        stated: Statement::default(),
    };
    for granted in registry.lease(&fence, &[wish(POOL), wish(KEY)]).await.unwrap() {
        drop(granted.unwrap());
    }
    let controller = Controller::new(registry.clone(), Policy::default());
    (registry, controller)
}

/// A device with a session, and what it seals.
struct Device {
    head: Head,
    root: TicketRoot,
}

impl Device {
    fn new(device: DeviceId, idx: u32) -> Self {
        let opening = Opening {
            suite: Suite::SipHash128,
            device,
            gateway: ONE,
            idx: RowIndex(idx),
            response_tag: [0x11; 16],
        };
        let row = if device == KEY { 0 } else { idx };
        Self {
            root: TicketRoot::derive(&row_key(device, row), &opening),
            head: Head {
                kind: Kind::Status,
                direction: Direction::Up,
                opening,
                number: 1,
                nonce: [7; 16],
            },
        }
    }

    fn sealed(&self, kind: Kind, number: u64, body: &[u8]) -> Vec<u8> {
        let head = Head {
            kind,
            number,
            ..self.head
        };
        let mut out = [0; MESSAGE_BYTES_MAX];
        // The controller does not know the session's key: the gateway has looked at that.
        let key = SessionKey::from_bytes([6; 16]);
        let carriage = Carriage { key: &key, serial: 1 };
        let nonce = [number as u8; 24];
        let length = ticket::seal_question(&self.root, &head, &carriage, nonce, body, &mut out).unwrap();
        out[..length].to_vec()
    }

    fn status(&self) -> Vec<u8> {
        self.sealed(Kind::Status, 0, b"")
    }

    fn opened(&self, answer: &[u8]) -> State {
        let sealed = Sealed::parse(answer).unwrap();
        assert_eq!(sealed.head().direction, Direction::Down);
        assert_eq!(sealed.head().nonce, self.head.nonce);
        State::parse(sealed.open(&self.root, &mut Room::default()).unwrap()).unwrap()
    }
}

fn carrier(now_s: u64) -> Carrier<'static> {
    Carrier {
        aead_nonce: [9; 24],
        now_s,
        locate: &|device| (device == KEY).then_some([0x7f; 16]),
    }
}

async fn asked(controller: &Controller, message: &[u8]) -> Option<Vec<u8>> {
    controller.ticket(ONE, message, &carrier(100)).await.unwrap()
}

fn rows(first: u32, count: u32) -> Vec<u8> {
    let rows: Vec<NewRow> = (0..count)
        .map(|n| NewRow {
            challenge: [2; 8],
            row_key: row_key(POOL, first + n),
        })
        .collect();
    let mut room = [0; BODY_BYTES_MAX];
    ticket::write_rows(0, RowIndex(first), &rows, &mut room)
        .unwrap()
        .to_vec()
}

#[tokio::test]
async fn a_pool_grows_by_tickets_each_of_which_counts_once() {
    let (_, controller) = site().await;
    let device = Device::new(POOL, 3);
    let state = device.opened(&asked(&controller, &device.status()).await.unwrap());
    let wanted = State {
        outcome: Outcome::Done,
        mode: Mode::Pool,
        epoch: 0,
        rows_end: RowIndex(8),
        rows_left: 4,
        number: 0,
    };
    assert_eq!(state, wanted);
    let message = device.sealed(Kind::Rows, 1, &rows(8, 43));
    for outcome in [Outcome::Done, Outcome::OldNumber, Outcome::OldNumber] {
        let state = device.opened(&asked(&controller, &message).await.unwrap());
        assert_eq!(
            (state.outcome, state.rows_end, state.number),
            (outcome, RowIndex(51), 1)
        );
    }
    let misplaced = device.sealed(Kind::Rows, 2, &rows(50, 1));
    let state = device.opened(&asked(&controller, &misplaced).await.unwrap());
    assert_eq!((state.outcome, state.number), (Outcome::Misplaced, 1));
}

#[tokio::test]
async fn with_a_new_key_the_old_sessions_tickets_meet_silence() {
    let (registry, controller) = site().await;
    let device = Device::new(KEY, 5);
    let mut room = [0; BODY_BYTES_MAX];
    let body = ticket::write_key(0, &RowKey::from_bytes([4; 16]), &mut room).unwrap();
    let message = device.sealed(Kind::Key, 1, body);
    let state = device.opened(&asked(&controller, &message).await.unwrap());
    assert_eq!(
        (state.outcome, state.epoch, state.mode),
        (Outcome::Done, 1, Mode::Key)
    );
    assert_eq!(asked(&controller, &message).await, None);
    assert_eq!(asked(&controller, &device.status()).await, None);
    let found = registry.load(KEY).await.unwrap();
    assert_eq!(found.credentials, Credentials::Key(RowKey::from_bytes([4; 16])));
}

#[tokio::test]
async fn whoever_is_not_the_device_in_a_session_of_this_gateway_meets_silence() {
    let (registry, controller) = site().await;
    let device = Device::new(POOL, 3);
    let good = device.status();
    assert!(asked(&controller, &good).await.is_some());
    assert_eq!(controller.ticket(TWO, &good, &carrier(100)).await.unwrap(), None);
    // Of a row that the gateway never had.
    assert_eq!(asked(&controller, &Device::new(POOL, 4).status()).await, None);
    assert_eq!(asked(&controller, &Device::new(POOL, 99).status()).await, None);
    assert_eq!(
        asked(&controller, &Device::new(DeviceId(1), 0).status()).await,
        None
    );
    // Without the row key: what a gateway can make.
    let mut forger = Device::new(POOL, 3);
    forger.root = TicketRoot::derive(&RowKey::from_bytes([1; 16]), &forger.head.opening);
    assert_eq!(asked(&controller, &forger.status()).await, None);
    // An answer, sent back.
    let answer = asked(&controller, &good).await.unwrap();
    assert_eq!(asked(&controller, &answer).await, None);
    assert_eq!(asked(&controller, b"").await, None);
    // A body of another form than its kind's.
    let odd = device.sealed(Kind::Key, 1, b"short");
    assert_eq!(asked(&controller, &odd).await, None);
    registry.revoke(POOL, "", 1).await.unwrap();
    assert_eq!(asked(&controller, &good).await, None);
}

/// What a device gets that asks for a pair.
async fn paired(controller: &Controller, device: &Device, peer: DeviceId, now_s: u64) -> Paired {
    let message = device.sealed(Kind::Pair, 0, &peer.0.to_be_bytes());
    let answer = controller
        .ticket(ONE, &message, &carrier(now_s))
        .await
        .unwrap()
        .unwrap();
    let mut room = Room::default();
    let body = Sealed::parse(&answer)
        .unwrap()
        .open(&device.root, &mut room)
        .unwrap()
        .to_vec();
    Paired::parse(&body).unwrap()
}

#[tokio::test]
async fn a_pair_gets_one_key_at_a_time_in_two_roles_until_it_is_closed() {
    let (registry, controller) = site().await;
    let (a, b) = (Device::new(POOL, 3), Device::new(KEY, 5));
    assert_eq!(paired(&controller, &a, KEY, 100).await.pair, None, "not allowed");
    assert!(registry.allow_pair(KEY, POOL).await.unwrap());
    assert!(!registry.allow_pair(POOL, KEY).await.unwrap());
    assert_eq!(
        paired(&controller, &a, DeviceId(9), 100).await.pair,
        None,
        "nobody"
    );
    assert_eq!(paired(&controller, &a, POOL, 100).await.pair, None, "itself");

    let at_a = paired(&controller, &a, KEY, 100).await;
    let at_b = paired(&controller, &b, POOL, 110).await;
    let ((key_a, role_a), (key_b, role_b)) = (at_a.pair.unwrap(), at_b.pair.unwrap());
    assert_eq!((role_a, role_b), (Role::Initiator, Role::Responder));
    assert!(key_a == key_b);
    assert_eq!((at_a.lifetime_s, at_b.lifetime_s), (300, 290));
    assert_eq!((at_a.addr, at_b.addr), ([0x7f; 16], [0; 16]));
    // Asked again it is the same, near its end a new one; a clock that was set back makes no old one last.
    let (same, _) = paired(&controller, &a, KEY, 324).await.pair.unwrap();
    assert!(same == key_a);
    let (later, role) = paired(&controller, &b, POOL, 325).await.pair.unwrap();
    assert!(later != key_a && later.id != key_a.id);
    assert_eq!(role, Role::Initiator, "who asked first");
    let (back, _) = paired(&controller, &a, KEY, 50).await.pair.unwrap();
    assert!(back != later);

    assert!(registry.close_pair(POOL, KEY).await.unwrap());
    assert!(!registry.close_pair(POOL, KEY).await.unwrap());
    assert_eq!(paired(&controller, &a, KEY, 100).await.pair, None);
    registry.allow_pair(POOL, KEY).await.unwrap();
    assert_eq!(registry.pairs_of(KEY).await.unwrap().remove(0).unwrap(), POOL);
    assert!(paired(&controller, &a, KEY, 100).await.pair.is_some());
    registry.revoke(KEY, "", 1).await.unwrap();
    assert_eq!(
        paired(&controller, &a, KEY, 100).await.pair,
        None,
        "the peer is revoked"
    );
    assert!(registry.allow_pair(POOL, KEY).await.is_err());
    assert!(registry.check().await.unwrap().is_empty());
}
