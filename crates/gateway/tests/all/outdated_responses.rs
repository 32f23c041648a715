//! Responses of the controller that no longer describe the leases of the gateway: the controller has handled another request,
//! or has revoked the leases, meanwhile.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use linewarden_gateway::{Clock, Node};
use linewarden_protocol::device::Output;
use linewarden_protocol::gateway::Row;
use linewarden_protocol::ids::{DeviceId, Mode, RowIndex, Suite};
use linewarden_protocol::keys::AuthKey;
use linewarden_protocol::wire::{self, Message, Response, message_type};
use linewarden_types::{
    AdmissionResponse, Change, Changes, ControllerRequest, ControllerResponse, GatewayTrustState, LeaseChunk,
    LeasedCursor, LinkError, Provision, RefusalReason, Revision, RowRefusal, TrustStatus,
};
use zerocopy::IntoBytes as _;

use crate::site::{GATEWAY, TIMEOUT, TestDevice, config, host_node, row_key};

const DEVICES: [DeviceId; 4] = [DeviceId(1), DeviceId(2), DeviceId(3), DeviceId(4)];
/// The result of every draw of random bytes.
const FRESH: [u8; 8] = [7; 8];
/// Number of the first row of each lease.
const FIRST: u32 = 23;

/// A node; the test takes the role of the controller. Only the registration and the feed are answered automatically.
struct ResumingNode {
    node: Node,
    address: SocketAddr,
}

impl ResumingNode {
    fn new() -> Self {
        let config = config();
        Self {
            node: host_node(&config),
            address: SocketAddr::new(config.local[0], config.lap_port),
        }
    }

    /// Ticks the node until it has sent a request for which `is_awaited` returns `true`.
    fn run_until(&mut self, is_awaited: impl Fn(&ControllerRequest) -> bool) {
        let deadline = Instant::now() + TIMEOUT;
        let mut is_sent = false;
        while !is_sent {
            assert!(
                Instant::now() < deadline,
                "the request was not sent: {:?}",
                self.node.data_plane_mut().counters()
            );
            for request in self.node.tick(Clock::now(), &mut || Some(FRESH)) {
                is_sent |= is_awaited(&request);
                match request {
                    ControllerRequest::Register => self.respond(ControllerResponse::Register(Ok(1))),
                    ControllerRequest::ListChanges(_) => self.respond(enrollments()),
                    _ => {}
                }
            }
        }
    }

    fn respond(&mut self, response: ControllerResponse) {
        self.node.handle_response(response, Clock::now(), 0);
    }

    fn resume(&mut self, device: DeviceId, is_last: bool) {
        self.respond(ControllerResponse::ResumeLeases(Ok(LeaseChunk {
            provisions: vec![provision(device)],
            damaged: Vec::new(),
            progress: (1, 1),
            is_last,
            cursor: LeasedCursor::default(),
        })));
    }

    /// Answers a read of the feed with this state of trust.
    fn set_trust(&mut self, state: GatewayTrustState) {
        let trust_status = TrustStatus {
            nonce: None,
            state,
            fencing_token: None,
        };
        self.respond(ControllerResponse::ListChanges(Ok((
            no_changes(),
            Some(trust_status),
        ))));
    }

    fn is_installed(&mut self, device: DeviceId) -> bool {
        self.node.data_plane_mut().status(device).is_some()
    }

    /// Sends the device's REQUEST, or a RESPONSE without a preceding CHALLENGE, and waits until the node has sent the
    /// message to the controller.
    fn send(&mut self, device: DeviceId, kind: u8) {
        let mut client = TestDevice::new(device, Mode::Pool, self.address);
        let Output::Transmit(request) = client.device.start([9; 16], 0).unwrap() else {
            panic!("a device sends a REQUEST first");
        };
        let Ok(Message::Request(sent)) = wire::parse(&request) else {
            panic!("{request:?}");
        };
        let mut header = sent.header;
        header.kind = kind;
        let response = Response {
            header,
            nonce: sent.nonce,
            idx: FIRST.into(),
            gateway_id: GATEWAY.0.into(),
            fresh: FRESH,
            tag: [0; 16],
        };
        let message = match kind {
            message_type::RESPONSE => response.as_bytes(),
            _ => request.as_bytes(),
        };
        client.socket.send(message).unwrap();
        self.run_until(|request| matches!(request, ControllerRequest::AdmitDevices(_)));
    }
}

/// A part of the feed that reports every device as enrolled.
fn enrollments() -> ControllerResponse {
    let change = |device| Change {
        device,
        revision: Revision(device.0),
        active: true,
        epoch: 0,
    };
    let changes = Changes {
        changes: DEVICES.map(change).to_vec(),
        ..no_changes()
    };
    ControllerResponse::ListChanges(Ok((changes, None)))
}

fn no_changes() -> Changes {
    Changes {
        up_to_revision: Revision(4),
        changes: Vec::new(),
        newer_sessions: Vec::new(),
        has_more: false,
    }
}

fn provision(device: DeviceId) -> Provision {
    let row = |idx| Row {
        challenge: [1; 8],
        auth_key: AuthKey::derive(
            &row_key(device, idx),
            Suite::SipHash128,
            Mode::Pool,
            RowIndex(idx),
            GATEWAY,
        ),
    };
    Provision {
        device,
        mode: Mode::Pool,
        epoch: 0,
        first: RowIndex(FIRST),
        rows: (FIRST..FIRST + 4).map(row).collect(),
        mark: RowIndex(FIRST),
    }
}

/// If the rows were installed, the gateway would use rows that the registry may lease to another gateway: the admission has
/// moved the lease after the controller had read the chunk.
#[test]
fn a_device_whose_response_was_sent_gets_no_resumed_rows() {
    let [admitted, refused, requesting, silent] = DEVICES;
    let mut node = ResumingNode::new();
    node.run_until(|request| matches!(request, ControllerRequest::ResumeLeases(_)));
    node.send(admitted, message_type::RESPONSE);
    node.respond(ControllerResponse::AdmitDevices(Err(LinkError::Failed(
        "the response was lost".to_owned(),
    ))));
    node.resume(admitted, false);
    node.run_until(|request| matches!(request, ControllerRequest::ResumeLeases(_)));
    node.send(refused, message_type::RESPONSE);
    node.respond(ControllerResponse::AdmitDevices(Ok(vec![
        AdmissionResponse::NoResponse,
    ])));
    node.send(requesting, message_type::REQUEST);
    for device in [admitted, refused, requesting] {
        node.resume(device, false);
    }
    node.resume(silent, true);
    let is_installed = [admitted, refused, requesting, silent].map(|device| node.is_installed(device));
    assert_eq!(is_installed, [false, false, true, true]);
}

/// A part of the leases that was read before the controller revoked them, and that arrives after the gateway is trusted again.
#[test]
fn rows_of_revoked_leases_are_not_installed() {
    let [device, ..] = DEVICES;
    let mut node = ResumingNode::new();
    node.run_until(|request| matches!(request, ControllerRequest::ResumeLeases(_)));
    node.set_trust(GatewayTrustState::Untrusted {
        reason: "a program differs".to_owned(),
    });
    node.set_trust(GatewayTrustState::Trusted);
    node.resume(device, true);
    assert!(!node.is_installed(device));
    node.run_until(|request| matches!(request, ControllerRequest::ResumeLeases(_)));
    node.resume(device, true);
    assert!(node.is_installed(device));
}

#[test]
fn a_device_without_a_lease_is_removed() {
    let [device, ..] = DEVICES;
    let mut node = ResumingNode::new();
    node.run_until(|request| matches!(request, ControllerRequest::ResumeLeases(_)));
    node.resume(device, true);
    let mut client = TestDevice::new(device, Mode::Pool, node.address);
    std::thread::scope(|scope| {
        scope.spawn(|| client.authenticate(Duration::from_millis(500)));
        node.run_until(|request| matches!(request, ControllerRequest::ExtendLeases(_)));
    });
    let refusal = RowRefusal {
        device,
        reason: RefusalReason::NotHeld,
    };
    node.respond(ControllerResponse::ExtendLeases(Ok((Vec::new(), vec![refusal]))));
    assert!(!node.is_installed(device));
}

/// Whichever request shows the restore, the rows are removed, since the registry may lease them to another gateway.
#[test]
fn a_restored_registry_ends_all_leases() {
    let [device, unknown, ..] = DEVICES;
    let restored = || LinkError::RegistryRestored("restored".to_owned());
    for is_admission in [true, false] {
        let mut node = ResumingNode::new();
        node.run_until(|request| matches!(request, ControllerRequest::ResumeLeases(_)));
        node.resume(device, true);
        assert!(node.is_installed(device));
        if is_admission {
            node.send(unknown, message_type::RESPONSE);
            node.respond(ControllerResponse::AdmitDevices(Err(restored())));
        } else {
            let mut client = TestDevice::new(device, Mode::Pool, node.address);
            std::thread::scope(|scope| {
                scope.spawn(|| client.authenticate(Duration::from_millis(500)));
                node.run_until(|request| matches!(request, ControllerRequest::ExtendLeases(_)));
            });
            node.respond(ControllerResponse::ExtendLeases(Err(restored())));
        }
        assert!(!node.is_installed(device), "admission: {is_admission}");
        node.run_until(|request| matches!(request, ControllerRequest::Register));
        node.run_until(|request| matches!(request, ControllerRequest::ResumeLeases(_)));
        node.resume(device, true);
        assert!(node.is_installed(device));
    }
}
