//! Tickets: which get a response, and which are rejected.

use linewarden_controller::{Controller, Policy, RelayContext};
use linewarden_protocol::ids::{DeviceId, GatewayId, Mode, RowIndex, Suite};
use linewarden_protocol::keys::{RowKey, SessionKey};
use linewarden_protocol::nonce::RowStatement;
use linewarden_protocol::pair::Role;
use linewarden_protocol::ticket::{
    self, BODY_BYTES_MAX, Direction, EnrollmentState, Kind, MESSAGE_BYTES_MAX, NewRow, Outcome, PairResponse,
    PlaintextBuffer, RelayAuth, SealedTicket, TicketHeader, TicketRoot, TicketSession,
};
use linewarden_registry::{Credentials, DeviceRecord, LeaseRequest, MasterKey, PoolRow, Registry};

const POOL_DEVICE: DeviceId = DeviceId(0xd1);
const KEY_DEVICE: DeviceId = DeviceId(0xd2);
const GATEWAY_1: GatewayId = GatewayId(1);
const GATEWAY_2: GatewayId = GatewayId(2);

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

/// A site where gateway 1 has leases of both devices: of the pool, rows 0 to 3.
async fn site() -> (Registry, Controller) {
    let registry = Registry::in_memory(&MasterKey::from_bytes([1; 32]))
        .await
        .unwrap();
    let row = |idx| PoolRow {
        challenge: [1; 8],
        row_key: row_key(POOL_DEVICE, idx),
    };
    let pool = Credentials::pool((0..8).map(row).collect());
    registry.enroll(record(POOL_DEVICE, pool)).await.unwrap();
    registry
        .enroll(record(KEY_DEVICE, Credentials::Key(row_key(KEY_DEVICE, 0))))
        .await
        .unwrap();
    let fencing_token = registry.register_gateway(GATEWAY_1, 1).await.unwrap();
    let lease_request = |device| LeaseRequest {
        device,
        epoch: 0,
        from: RowIndex(0),
        received: RowIndex(0),
        hold_rows: 4,
        spendable_rows: 4,
        statement: RowStatement::default(),
    };
    for granted in registry
        .lease(
            &fencing_token,
            &[lease_request(POOL_DEVICE), lease_request(KEY_DEVICE)],
        )
        .await
        .unwrap()
    {
        drop(granted.unwrap());
    }
    let controller = Controller::new(registry.clone(), Policy::default());
    (registry, controller)
}

/// A device with a session, which seals tickets.
struct Device {
    header: TicketHeader,
    root: TicketRoot,
}

impl Device {
    fn new(device: DeviceId, idx: u32) -> Self {
        let session = TicketSession {
            suite: Suite::SipHash128,
            device,
            gateway: GATEWAY_1,
            idx: RowIndex(idx),
            response_tag: [0x11; 16],
        };
        let row = if device == KEY_DEVICE { 0 } else { idx };
        Self {
            root: TicketRoot::derive(&row_key(device, row), &session),
            header: TicketHeader {
                kind: Kind::Status,
                direction: Direction::Up,
                session,
                number: 1,
                nonce: [7; 16],
            },
        }
    }

    fn sealed_ticket(&self, kind: Kind, number: u64, body: &[u8]) -> Vec<u8> {
        let header = TicketHeader {
            kind,
            number,
            ..self.header
        };
        let mut out = [0; MESSAGE_BYTES_MAX];
        // The controller cannot check the session key; the gateway has checked it.
        let key = SessionKey::from_bytes([6; 16]);
        let relay_auth = RelayAuth { key: &key, serial: 1 };
        let nonce = [number as u8; 24];
        let length = ticket::seal_request(&self.root, &header, &relay_auth, nonce, body, &mut out).unwrap();
        out[..length].to_vec()
    }

    fn status(&self) -> Vec<u8> {
        self.sealed_ticket(Kind::Status, 0, b"")
    }

    fn open_response(&self, response: &[u8]) -> EnrollmentState {
        let sealed = SealedTicket::parse(response).unwrap();
        assert_eq!(sealed.header().direction, Direction::Down);
        assert_eq!(sealed.header().nonce, self.header.nonce);
        EnrollmentState::parse(sealed.open(&self.root, &mut PlaintextBuffer::default()).unwrap()).unwrap()
    }
}

fn relay_context(now_s: u64) -> RelayContext<'static> {
    RelayContext {
        aead_nonce: [9; 24],
        now_s,
        locate: &|device| (device == KEY_DEVICE).then_some([0x7f; 16]),
    }
}

async fn send_ticket(controller: &Controller, message: &[u8]) -> Option<Vec<u8>> {
    controller
        .handle_ticket(GATEWAY_1, message, &relay_context(100))
        .await
        .unwrap()
}

fn rows(first: u32, count: u32) -> Vec<u8> {
    let rows: Vec<NewRow> = (0..count)
        .map(|n| NewRow {
            challenge: [2; 8],
            row_key: row_key(POOL_DEVICE, first + n),
        })
        .collect();
    let mut buffer = [0; BODY_BYTES_MAX];
    ticket::write_rows(0, RowIndex(first), &rows, &mut buffer)
        .unwrap()
        .to_vec()
}

#[tokio::test]
async fn each_ticket_adds_rows_to_a_pool_once() {
    let (_, controller) = site().await;
    let device = Device::new(POOL_DEVICE, 3);
    let state = device.open_response(&send_ticket(&controller, &device.status()).await.unwrap());
    let expected = EnrollmentState {
        outcome: Outcome::Done,
        mode: Mode::Pool,
        epoch: 0,
        rows_end: RowIndex(8),
        rows_left: 4,
        number: 0,
    };
    assert_eq!(state, expected);
    let message = device.sealed_ticket(Kind::Rows, 1, &rows(8, 43));
    for outcome in [Outcome::Done, Outcome::StaleNumber, Outcome::StaleNumber] {
        let state = device.open_response(&send_ticket(&controller, &message).await.unwrap());
        assert_eq!(
            (state.outcome, state.rows_end, state.number),
            (outcome, RowIndex(51), 1)
        );
    }
    let wrong_position = device.sealed_ticket(Kind::Rows, 2, &rows(50, 1));
    let state = device.open_response(&send_ticket(&controller, &wrong_position).await.unwrap());
    assert_eq!((state.outcome, state.number), (Outcome::OutOfSequence, 1));
}

#[tokio::test]
async fn tickets_of_an_old_session_get_no_response_after_a_key_change() {
    let (registry, controller) = site().await;
    let device = Device::new(KEY_DEVICE, 5);
    let mut buffer = [0; BODY_BYTES_MAX];
    let body = ticket::write_key(0, &RowKey::from_bytes([4; 16]), &mut buffer).unwrap();
    let message = device.sealed_ticket(Kind::Key, 1, body);
    let state = device.open_response(&send_ticket(&controller, &message).await.unwrap());
    assert_eq!(
        (state.outcome, state.epoch, state.mode),
        (Outcome::Done, 1, Mode::Key)
    );
    assert_eq!(send_ticket(&controller, &message).await, None);
    assert_eq!(send_ticket(&controller, &device.status()).await, None);
    let device_record = registry.load(KEY_DEVICE).await.unwrap();
    assert_eq!(
        device_record.credentials,
        Credentials::Key(RowKey::from_bytes([4; 16]))
    );
}

#[tokio::test]
async fn only_the_device_of_a_session_at_this_gateway_gets_a_response() {
    let (registry, controller) = site().await;
    let device = Device::new(POOL_DEVICE, 3);
    let valid = device.status();
    assert!(send_ticket(&controller, &valid).await.is_some());
    assert_eq!(
        controller
            .handle_ticket(GATEWAY_2, &valid, &relay_context(100))
            .await
            .unwrap(),
        None
    );
    // A row that was never leased to the gateway.
    assert_eq!(
        send_ticket(&controller, &Device::new(POOL_DEVICE, 4).status()).await,
        None
    );
    assert_eq!(
        send_ticket(&controller, &Device::new(POOL_DEVICE, 99).status()).await,
        None
    );
    assert_eq!(
        send_ticket(&controller, &Device::new(DeviceId(1), 0).status()).await,
        None
    );
    // A ticket without the row key, as a gateway could make one.
    let mut forger = Device::new(POOL_DEVICE, 3);
    forger.root = TicketRoot::derive(&RowKey::from_bytes([1; 16]), &forger.header.session);
    assert_eq!(send_ticket(&controller, &forger.status()).await, None);
    // A response that is sent back.
    let response = send_ticket(&controller, &valid).await.unwrap();
    assert_eq!(send_ticket(&controller, &response).await, None);
    assert_eq!(send_ticket(&controller, b"").await, None);
    // The body is not of the stated kind.
    let mismatched = device.sealed_ticket(Kind::Key, 1, b"short");
    assert_eq!(send_ticket(&controller, &mismatched).await, None);
    registry.revoke(POOL_DEVICE, "", 1).await.unwrap();
    assert_eq!(send_ticket(&controller, &valid).await, None);
}

/// Requests a pair, and returns the response.
async fn request_pair(controller: &Controller, device: &Device, peer: DeviceId, now_s: u64) -> PairResponse {
    let message = device.sealed_ticket(Kind::Pair, 0, &peer.0.to_be_bytes());
    let response = controller
        .handle_ticket(GATEWAY_1, &message, &relay_context(now_s))
        .await
        .unwrap()
        .unwrap();
    let mut buffer = PlaintextBuffer::default();
    let body = SealedTicket::parse(&response)
        .unwrap()
        .open(&device.root, &mut buffer)
        .unwrap()
        .to_vec();
    PairResponse::parse(&body).unwrap()
}

#[tokio::test]
async fn a_pair_gets_one_key_at_a_time_in_two_roles_until_it_is_closed() {
    let (registry, controller) = site().await;
    let (a, b) = (Device::new(POOL_DEVICE, 3), Device::new(KEY_DEVICE, 5));
    assert_eq!(
        request_pair(&controller, &a, KEY_DEVICE, 100).await.pair,
        None,
        "the pair is not allowed yet"
    );
    assert!(registry.allow_pair(KEY_DEVICE, POOL_DEVICE).await.unwrap());
    assert!(!registry.allow_pair(POOL_DEVICE, KEY_DEVICE).await.unwrap());
    assert_eq!(
        request_pair(&controller, &a, DeviceId(9), 100).await.pair,
        None,
        "the pair is not allowed"
    );
    assert_eq!(
        request_pair(&controller, &a, POOL_DEVICE, 100).await.pair,
        None,
        "a device forms no pair with itself"
    );

    let response_a = request_pair(&controller, &a, KEY_DEVICE, 100).await;
    let response_b = request_pair(&controller, &b, POOL_DEVICE, 110).await;
    let ((key_a, role_a), (key_b, role_b)) = (response_a.pair.unwrap(), response_b.pair.unwrap());
    assert_eq!((role_a, role_b), (Role::Initiator, Role::Responder));
    assert!(key_a == key_b);
    assert_eq!((response_a.lifetime_s, response_b.lifetime_s), (300, 290));
    assert_eq!((response_a.addr, response_b.addr), ([0x7f; 16], [0; 16]));
    // A repeated request gets the same key. A request near the end of the key's lifetime gets a new key. A clock that
    // was set back does not prolong the lifetime of an old key.
    let (repeated, _) = request_pair(&controller, &a, KEY_DEVICE, 324).await.pair.unwrap();
    assert!(repeated == key_a);
    let (renewed, role) = request_pair(&controller, &b, POOL_DEVICE, 325)
        .await
        .pair
        .unwrap();
    assert!(renewed != key_a && renewed.id != key_a.id);
    assert_eq!(role, Role::Initiator, "the device that requested first");
    let (after_clock_change, _) = request_pair(&controller, &a, KEY_DEVICE, 50).await.pair.unwrap();
    assert!(after_clock_change != renewed);

    assert!(registry.disallow_pair(POOL_DEVICE, KEY_DEVICE).await.unwrap());
    assert!(!registry.disallow_pair(POOL_DEVICE, KEY_DEVICE).await.unwrap());
    assert_eq!(request_pair(&controller, &a, KEY_DEVICE, 100).await.pair, None);
    registry.allow_pair(POOL_DEVICE, KEY_DEVICE).await.unwrap();
    assert_eq!(
        registry.pairs_of(KEY_DEVICE).await.unwrap().remove(0).unwrap(),
        POOL_DEVICE
    );
    assert!(
        request_pair(&controller, &a, KEY_DEVICE, 100)
            .await
            .pair
            .is_some()
    );
    registry.revoke(KEY_DEVICE, "", 1).await.unwrap();
    assert_eq!(
        request_pair(&controller, &a, KEY_DEVICE, 100).await.pair,
        None,
        "the peer is revoked"
    );
    assert!(registry.allow_pair(POOL_DEVICE, KEY_DEVICE).await.is_err());
    assert!(registry.check().await.unwrap().is_empty());
}
