//! The ticket relay in a flood: junk with a device's id and address does not delay the device's tickets.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use linewarden_gateway::{TicketRelay, TicketSockets};
use linewarden_protocol::device::Session;
use linewarden_protocol::ids::{DeviceId, Mode, Suite};
use linewarden_protocol::ticket::{
    self, Direction, Kind, MESSAGE_BYTES_MAX, RelayAuth, SealedTicket, TicketHeader, TicketSession,
};
use linewarden_registry::Credentials;
use rustix::net::sockopt::socket_recv_buffer_size;

use crate::site::{GATEWAY, Site, TIMEOUT, TestDevice, pool, record, row_key};

const VICTIM: DeviceId = DeviceId(0xd1);
const HOSTILE: DeviceId = DeviceId(0xd2);
/// Junk tickets per second. The test prints how many junk tickets it has sent.
const JUNK_PER_S: u32 = 1_000;
/// Junk tickets between two tickets of the victim.
const JUNK_BETWEEN: u32 = 100;
/// Interval between two copies of a ticket.
const COPY_INTERVAL: Duration = Duration::from_millis(100);

fn ticket_header(client: &TestDevice, nonce: u8) -> TicketHeader {
    let session = client.device.session().unwrap();
    TicketHeader {
        kind: Kind::Status,
        direction: Direction::Up,
        session: TicketSession {
            suite: Suite::SipHash128,
            device: client.device.config().device,
            gateway: GATEWAY,
            idx: session.idx,
            response_tag: *session.response_tag(),
        },
        number: 0,
        nonce: [nonce; 16],
    }
}

fn sealed_ticket(session: &Session, header: &TicketHeader, serial: u64) -> Vec<u8> {
    let mut out = vec![0; MESSAGE_BYTES_MAX];
    let relay_auth = RelayAuth {
        key: session.key(),
        serial,
    };
    let nonce = [serial as u8; 24];
    let length =
        ticket::seal_request(session.ticket_root(), header, &relay_auth, nonce, b"", &mut out).unwrap();
    out.truncate(length);
    out
}

/// Repeats a ticket until its response arrives; returns false if no response arrives within [`TIMEOUT`].
fn gets_response(socket: &UdpSocket, relay: SocketAddr, ticket: &[u8], nonce: u8) -> bool {
    let mut buffer = [0; MESSAGE_BYTES_MAX];
    let deadline = Instant::now() + TIMEOUT;
    while Instant::now() < deadline {
        socket.send_to(ticket, relay).unwrap();
        while let Ok((length, _)) = socket.recv_from(&mut buffer) {
            if SealedTicket::parse(&buffer[..length])
                .is_ok_and(|response| response.header().nonce == [nonce; 16])
            {
                return true;
            }
        }
    }
    false
}

/// Ends the flood, also after a failed assertion.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns junk of five kinds: a ticket of the hostile device's own session, a ticket with the victim's id and another
/// session, a ticket with the victim's header and a wrong proof, an older ticket of the victim, and a copy of the
/// victim's newest ticket.
fn junk(number: u64, hostile_ticket: &[u8], victim_tickets: &[Vec<u8>]) -> Vec<u8> {
    let newest = victim_tickets.last().unwrap();
    let mut message = match number % 5 {
        0 => return hostile_ticket.to_vec(),
        3 => return victim_tickets[0].clone(),
        4 => return newest.clone(),
        _ => newest.clone(),
    };
    let index = if number % 5 == 1 { 30 } else { message.len() - 1 };
    message[index] ^= 1 + (number % 200) as u8;
    message
}

/// A relay is closed while sessions run, and another relay is opened. The second relay rejects tickets older than the
/// newest ticket that the first relay forwarded. Otherwise recorded tickets would use up the device's rate limit. The
/// second relay forwards this newest ticket, which may have no response yet, and later tickets.
#[test]
fn a_reopened_relay_rejects_old_tickets() {
    let site = Site::new(vec![record(VICTIM, pool(VICTIM, 8))]);
    let controller = site.controller(|controller| controller);
    let gateway = site.start_over(controller.clone());
    let open = || {
        let port = UdpSocket::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let sockets = TicketSockets::bind(&site.config.local, port).unwrap();
        let relay =
            TicketRelay::open(sockets, gateway.data_plane_handle(), controller.clone(), GATEWAY).unwrap();
        (relay, SocketAddr::new(site.config.local[0], port))
    };
    let mut victim = TestDevice::new(VICTIM, Mode::Pool, site.address());
    assert!(victim.authenticate(TIMEOUT).is_some());
    let session = victim.device.session().unwrap();
    let tickets: Vec<Vec<u8>> = (1..=6)
        .map(|serial| sealed_ticket(session, &ticket_header(&victim, serial as u8), serial))
        .collect();
    let socket = UdpSocket::bind((victim.address, 0)).unwrap();
    let (relay, relay_address) = open();
    for nonce in 1..=4 {
        assert!(
            gets_response(&socket, relay_address, &tickets[nonce - 1], nonce as u8),
            "{nonce}"
        );
    }
    assert_eq!(relay.close().rate_limited, 0);

    let (relay, relay_address) = open();
    // An attacker replays recorded tickets.
    for ticket in &tickets[..3] {
        socket.send_to(ticket, relay_address).unwrap();
    }
    for nonce in 4..=6 {
        assert!(
            gets_response(&socket, relay_address, &tickets[nonce - 1], nonce as u8),
            "{nonce}"
        );
    }
    let counts = relay.close();
    assert_eq!((counts.rate_limited, counts.rejected), (3, 0), "{counts:?}");
}

/// Tickets that arrive together are admitted before any of these tickets is relayed. A newer ticket must not get the
/// response to an older ticket, and copies of a ticket get the same response.
#[test]
fn requests_of_one_batch_keep_their_own_replies() {
    let site = Site::new(vec![
        record(VICTIM, pool(VICTIM, 8)),
        record(HOSTILE, Credentials::Key(row_key(HOSTILE, 0))),
    ]);
    let controller = site.controller(|controller| controller);
    let gateway = site.start_over(controller.clone());
    let mut victim = TestDevice::new(VICTIM, Mode::Pool, site.address());
    let mut other_client = TestDevice::new(HOSTILE, Mode::Key, site.address());
    assert!(victim.authenticate(TIMEOUT).is_some() && other_client.authenticate(TIMEOUT).is_some());
    let session = victim.device.session().unwrap();
    let socket = UdpSocket::bind((victim.address, 0)).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    // Tickets sent before the relay is opened are one batch.
    let open = |batch: &[&[u8]]| {
        let probe = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = probe.local_addr().unwrap().port();
        drop(probe);
        let relay_address = SocketAddr::new(site.config.local[0], port);
        let sockets = TicketSockets::bind(&site.config.local, port).unwrap();
        for ticket in batch {
            socket.send_to(ticket, relay_address).unwrap();
        }
        let relay =
            TicketRelay::open(sockets, gateway.data_plane_handle(), controller.clone(), GATEWAY).unwrap();
        (relay, relay_address)
    };
    let counts_after = |replies: u64| {
        let started = Instant::now();
        loop {
            let counts = gateway.status().tickets.unwrap_or_default();
            if counts.answered + counts.rejected == replies {
                return (counts.answered, counts.rejected);
            }
            assert!(started.elapsed() < TIMEOUT, "{counts:?}");
            std::thread::yield_now();
        }
    };
    let mut buffer = [0; MESSAGE_BYTES_MAX];
    let mut reply = || {
        let (length, _) = socket.recv_from(&mut buffer).unwrap();
        buffer[..length].to_vec()
    };

    let first = sealed_ticket(session, &ticket_header(&victim, 1), 1);
    // The controller cannot decrypt the second ticket and sends no response.
    let relay_auth = RelayAuth {
        key: session.key(),
        serial: 2,
    };
    let mut second = vec![0; MESSAGE_BYTES_MAX];
    let root = other_client.device.session().unwrap().ticket_root();
    let length = ticket::seal_request(
        root,
        &ticket_header(&victim, 2),
        &relay_auth,
        [2; 24],
        b"",
        &mut second,
    )
    .unwrap();
    second.truncate(length);
    let (relay, relay_address) = open(&[&first, &second]);
    assert_eq!(counts_after(2), (1, 1));
    assert_eq!(SealedTicket::parse(&reply()).unwrap().header().nonce, [1; 16]);
    socket.send_to(&second, relay_address).unwrap();
    assert_eq!(
        counts_after(3),
        (1, 2),
        "the second ticket gets no response to the first ticket"
    );
    drop(relay);

    let third = sealed_ticket(session, &ticket_header(&victim, 3), 3);
    let (relay, _) = open(&[&third, &third]);
    assert_eq!(counts_after(2), (2, 0));
    assert_eq!(reply(), reply(), "both copies get the same response");
    drop(relay);
}

#[test]
fn a_device_gets_responses_during_a_flood_with_its_address_and_id() {
    let site = Site::new(vec![
        record(VICTIM, pool(VICTIM, 8)),
        record(HOSTILE, Credentials::Key(row_key(HOSTILE, 0))),
    ]);
    let controller = site.controller(|controller| controller);
    let gateway = site.start_over(controller.clone());
    let port = UdpSocket::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let sockets = TicketSockets::bind(&site.config.local, port).unwrap();
    let relay = TicketRelay::open(sockets, gateway.data_plane_handle(), controller, GATEWAY).unwrap();
    let relay_address = SocketAddr::new(site.config.local[0], port);

    let mut victim = TestDevice::new(VICTIM, Mode::Pool, site.address());
    let mut hostile = TestDevice::new(HOSTILE, Mode::Key, site.address());
    assert!(victim.authenticate(TIMEOUT).is_some() && hostile.authenticate(TIMEOUT).is_some());
    let session = victim.device.session().unwrap();
    let hostile_ticket = sealed_ticket(hostile.device.session().unwrap(), &ticket_header(&hostile, 99), 1);
    let tickets: Vec<Vec<u8>> = (1..=20)
        .map(|serial| sealed_ticket(session, &ticket_header(&victim, serial as u8), serial))
        .collect();

    let socket = UdpSocket::bind((victim.address, 0)).unwrap();
    socket.set_read_timeout(Some(COPY_INTERVAL)).unwrap();
    let forger = UdpSocket::bind((victim.address, 0)).unwrap();
    let (stop, newest_ticket) = (AtomicBool::new(false), AtomicU64::new(0));
    let (junk_batch_sender, junk_batches) = std::sync::mpsc::channel();
    let (responses, sent) = std::thread::scope(|scope| {
        let flood = scope.spawn(|| {
            let junk_batch_sender = junk_batch_sender;
            let started = Instant::now();
            let mut sent = 0u32;
            while !stop.load(Ordering::Relaxed) {
                let newest = newest_ticket.load(Ordering::Relaxed) as usize;
                while f64::from(sent) < started.elapsed().as_secs_f64() * f64::from(JUNK_PER_S) {
                    let message = junk(u64::from(sent), &hostile_ticket, &tickets[..=newest]);
                    let _ = forger.send_to(&message, relay_address);
                    sent += 1;
                    if sent.is_multiple_of(JUNK_BETWEEN) {
                        let _ = junk_batch_sender.send(());
                    }
                }
                std::thread::yield_now();
            }
            sent
        });
        let guard = StopOnDrop(&stop);
        let responses = tickets.iter().enumerate().take_while(|(index, ticket)| {
            junk_batches.recv().unwrap();
            newest_ticket.store(*index as u64, Ordering::Relaxed);
            gets_response(&socket, relay_address, ticket, 1 + *index as u8)
        });
        let responses = responses.count();
        drop(guard);
        (responses, flood.join().unwrap())
    });
    let counts = relay.close();
    println!("{responses} of 20 responses during {sent} junk tickets: {counts:?}");
    assert_eq!(responses, 20, "{counts:?}");
    assert!(sent >= 20 * JUNK_BETWEEN, "{sent}");
    assert!(counts.unknown > 0 && counts.rate_limited > 0);
}

/// More tickets than the sockets can buffer: the kernel's drops are in the gateway's status, and all tickets are
/// counted.
#[test]
fn tickets_that_the_kernel_drops_are_counted() {
    let site = Site::new(Vec::new());
    let controller = site.controller(|controller| controller);
    let gateway = site.start_over(controller.clone());
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = sender.local_addr().unwrap().port();
    drop(sender);
    let sockets = TicketSockets::bind(&site.config.local, port).unwrap();
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    // A datagram takes more than 256 B of a receive buffer.
    let sent = socket_recv_buffer_size(&sender).unwrap() as u64 / 256;
    for _ in 0..sent {
        sender
            .send_to(&[0; 64], SocketAddr::new(site.config.local[0], port))
            .unwrap();
    }
    let relay = TicketRelay::open(sockets, gateway.data_plane_handle(), controller, GATEWAY).unwrap();
    let started = Instant::now();
    let counts = loop {
        let counts = gateway.status().tickets.unwrap_or_default();
        if counts.unknown + counts.kernel_drops == sent {
            break counts;
        }
        assert!(started.elapsed() < TIMEOUT, "{counts:?}");
        std::thread::yield_now();
    };
    assert!(counts.unknown > 0 && counts.kernel_drops > 0, "{counts:?}");
    assert_eq!(relay.close(), counts);
}
