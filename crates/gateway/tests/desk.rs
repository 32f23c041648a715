//! The desk under a flood: junk in a device's name and from its address keeps none of its tickets from the controller.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod site;

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use linewarden_controller::{Controller, Policy};
use linewarden_gateway::{Desk, DeskSockets};
use linewarden_protocol::device::Session;
use linewarden_protocol::ids::{DeviceId, Mode, Suite};
use linewarden_protocol::ticket::{
    self, Carriage, Direction, Head, Kind, MESSAGE_BYTES_MAX, Opening, Sealed,
};
use linewarden_registry::Credentials;
use rustix::net::sockopt::socket_recv_buffer_size;

use self::site::{Client, GATEWAY, LONG, Site, pool, record, row_key};

const VICTIM: DeviceId = DeviceId(0xd1);
const HOSTILE: DeviceId = DeviceId(0xd2);
/// Junk tickets a second. The sender keeps that pace; how many there were is printed.
const JUNK_PER_S: u32 = 1_000;
/// Between two questions of the victim.
const JUNK_BETWEEN: u32 = 100;
/// Between two copies of a question.
const COPY: Duration = Duration::from_millis(100);

fn head(client: &Client, nonce: u8) -> Head {
    let session = client.device.session().unwrap();
    Head {
        kind: Kind::Status,
        direction: Direction::Up,
        opening: Opening {
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

fn question(session: &Session, head: &Head, serial: u64) -> Vec<u8> {
    let mut out = vec![0; MESSAGE_BYTES_MAX];
    let carriage = Carriage {
        key: session.key(),
        serial,
    };
    let nonce = [serial as u8; 24];
    let length = ticket::seal_question(session.ticket(), head, &carriage, nonce, b"", &mut out).unwrap();
    out.truncate(length);
    out
}

/// Repeats a question until its answer comes. A device that is locked out gets none, however often it asks.
fn is_answered(socket: &UdpSocket, desk: SocketAddr, question: &[u8], nonce: u8) -> bool {
    let mut buffer = [0; MESSAGE_BYTES_MAX];
    let until = Instant::now() + LONG;
    while Instant::now() < until {
        socket.send_to(question, desk).unwrap();
        while let Ok((length, _)) = socket.recv_from(&mut buffer) {
            if Sealed::parse(&buffer[..length]).is_ok_and(|answer| answer.head().nonce == [nonce; 16]) {
                return true;
            }
        }
    }
    false
}

/// Ends the flood, also where an assertion fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The forms of junk: of the hostile device's own session, in the victim's name with another session, with the victim's own head
/// and a wrong proof, an older ticket of the victim's again, and the newest one again.
fn junk(number: u64, hostile: &[u8], victims: &[Vec<u8>]) -> Vec<u8> {
    let newest = victims.last().unwrap();
    let mut made = match number % 5 {
        0 => return hostile.to_vec(),
        3 => return victims[0].clone(),
        4 => return newest.clone(),
        _ => newest.clone(),
    };
    let at = if number % 5 == 1 { 30 } else { made.len() - 1 };
    made[at] ^= 1 + (number % 200) as u8;
    made
}

/// A desk that is opened anew over sessions that go on forwards no request that an earlier one has seen a newer one of: a recorded one
/// would count against the device. The newest, which may not have been answered yet, and further ones are.
#[test]
fn a_desk_that_is_opened_anew_knows_which_requests_are_old() {
    let site = Site::new(vec![record(VICTIM, pool(VICTIM, 8))]);
    let gateway = site.start();
    let controller = Controller::new(site.registry.clone(), Policy::default());
    let open = || {
        let port = UdpSocket::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let sockets = DeskSockets::bind(&site.config.local, port).unwrap();
        let desk = Desk::open(sockets, gateway.plane_handle(), controller.clone(), GATEWAY).unwrap();
        (desk, SocketAddr::new(site.config.local[0], port))
    };
    let mut victim = Client::new(VICTIM, Mode::Pool, site.address());
    assert!(victim.authenticate(LONG).is_some());
    let session = victim.device.session().unwrap();
    let questions: Vec<Vec<u8>> = (1..=6)
        .map(|serial| question(session, &head(&victim, serial as u8), serial))
        .collect();
    let socket = UdpSocket::bind((victim.address, 0)).unwrap();
    let (desk, at) = open();
    for nonce in 1..=4 {
        assert!(
            is_answered(&socket, at, &questions[nonce - 1], nonce as u8),
            "{nonce}"
        );
    }
    assert_eq!(desk.close().limited, 0);

    let (desk, at) = open();
    // An attacker has recorded them.
    for question in &questions[..3] {
        socket.send_to(question, at).unwrap();
    }
    for nonce in 4..=6 {
        assert!(
            is_answered(&socket, at, &questions[nonce - 1], nonce as u8),
            "{nonce}"
        );
    }
    let counts = desk.close();
    assert_eq!((counts.limited, counts.silent), (3, 0), "{counts:?}");
}

/// Requests that arrive together are admitted before any of them is forwarded: the reply to one must not become the reply to a newer one,
/// to which the controller has not replied, and copies of one request get one reply.
#[test]
fn requests_of_one_batch_keep_their_own_replies() {
    let site = Site::new(vec![
        record(VICTIM, pool(VICTIM, 8)),
        record(HOSTILE, Credentials::Key(row_key(HOSTILE, 0))),
    ]);
    let gateway = site.start();
    let controller = Controller::new(site.registry.clone(), Policy::default());
    let mut victim = Client::new(VICTIM, Mode::Pool, site.address());
    let mut other = Client::new(HOSTILE, Mode::Key, site.address());
    assert!(victim.authenticate(LONG).is_some() && other.authenticate(LONG).is_some());
    let session = victim.device.session().unwrap();
    let socket = UdpSocket::bind((victim.address, 0)).unwrap();
    socket.set_read_timeout(Some(LONG)).unwrap();
    // What was sent before the desk is opened is one batch.
    let open = |batch: &[&[u8]]| {
        let probe = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = probe.local_addr().unwrap().port();
        drop(probe);
        let at = SocketAddr::new(site.config.local[0], port);
        let sockets = DeskSockets::bind(&site.config.local, port).unwrap();
        for question in batch {
            socket.send_to(question, at).unwrap();
        }
        let desk = Desk::open(sockets, gateway.plane_handle(), controller.clone(), GATEWAY).unwrap();
        (desk, at)
    };
    let settled = |replies: u64| {
        let began = Instant::now();
        loop {
            let counts = gateway.status().tickets.unwrap_or_default();
            if counts.answered + counts.silent == replies {
                return (counts.answered, counts.silent);
            }
            assert!(began.elapsed() < LONG, "{counts:?}");
            std::thread::yield_now();
        }
    };
    let mut buffer = [0; MESSAGE_BYTES_MAX];
    let mut reply = || {
        let (length, _) = socket.recv_from(&mut buffer).unwrap();
        buffer[..length].to_vec()
    };

    let first = question(session, &head(&victim, 1), 1);
    // The controller cannot decrypt the second one and sends no reply.
    let carriage = Carriage {
        key: session.key(),
        serial: 2,
    };
    let mut second = vec![0; MESSAGE_BYTES_MAX];
    let root = other.device.session().unwrap().ticket();
    let length =
        ticket::seal_question(root, &head(&victim, 2), &carriage, [2; 24], b"", &mut second).unwrap();
    second.truncate(length);
    let (desk, at) = open(&[&first, &second]);
    assert_eq!(settled(2), (1, 1));
    assert_eq!(Sealed::parse(&reply()).unwrap().head().nonce, [1; 16]);
    socket.send_to(&second, at).unwrap();
    assert_eq!(
        settled(3),
        (1, 2),
        "the second one has the reply to the first one"
    );
    drop(desk);

    let third = question(session, &head(&victim, 3), 3);
    let (desk, _) = open(&[&third, &third]);
    assert_eq!(settled(2), (2, 0));
    assert_eq!(reply(), reply(), "the controller has replied to each copy");
    drop(desk);
}

#[test]
fn a_device_is_answered_while_junk_comes_from_its_address_and_in_its_name() {
    let site = Site::new(vec![
        record(VICTIM, pool(VICTIM, 8)),
        record(HOSTILE, Credentials::Key(row_key(HOSTILE, 0))),
    ]);
    let gateway = site.start();
    let port = UdpSocket::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let sockets = DeskSockets::bind(&site.config.local, port).unwrap();
    let controller = Controller::new(site.registry.clone(), Policy::default());
    let desk = Desk::open(sockets, gateway.plane_handle(), controller, GATEWAY).unwrap();
    let desk_at = SocketAddr::new(site.config.local[0], port);

    let mut victim = Client::new(VICTIM, Mode::Pool, site.address());
    let mut hostile = Client::new(HOSTILE, Mode::Key, site.address());
    assert!(victim.authenticate(LONG).is_some() && hostile.authenticate(LONG).is_some());
    let session = victim.device.session().unwrap();
    let of_hostile = question(hostile.device.session().unwrap(), &head(&hostile, 99), 1);
    let questions: Vec<Vec<u8>> = (1..=20)
        .map(|serial| question(session, &head(&victim, serial as u8), serial))
        .collect();

    let socket = UdpSocket::bind((victim.address, 0)).unwrap();
    socket.set_read_timeout(Some(COPY)).unwrap();
    let forger = UdpSocket::bind((victim.address, 0)).unwrap();
    let (over, asked) = (AtomicBool::new(false), AtomicU64::new(0));
    let (sender, under_way) = std::sync::mpsc::channel();
    let (answered, sent) = std::thread::scope(|scope| {
        let flood = scope.spawn(|| {
            let sender = sender;
            let began = Instant::now();
            let mut sent = 0u32;
            while !over.load(Ordering::Relaxed) {
                let seen = asked.load(Ordering::Relaxed) as usize;
                while f64::from(sent) < began.elapsed().as_secs_f64() * f64::from(JUNK_PER_S) {
                    let made = junk(u64::from(sent), &of_hostile, &questions[..=seen]);
                    let _ = forger.send_to(&made, desk_at);
                    sent += 1;
                    if sent.is_multiple_of(JUNK_BETWEEN) {
                        let _ = sender.send(());
                    }
                }
                std::thread::yield_now();
            }
            sent
        });
        let ends = Ends(&over);
        let answered = questions.iter().enumerate().take_while(|(at, question)| {
            under_way.recv().unwrap();
            asked.store(*at as u64, Ordering::Relaxed);
            is_answered(&socket, desk_at, question, 1 + *at as u8)
        });
        let answered = answered.count();
        drop(ends);
        (answered, flood.join().unwrap())
    });
    let counts = desk.close();
    println!("{answered} of 20 answered under {sent} junk tickets: {counts:?}");
    assert_eq!(answered, 20, "{counts:?}");
    assert!(sent >= 20 * JUNK_BETWEEN, "{sent}");
    assert!(counts.strange > 0 && counts.limited > 0);
}

/// More tickets than the sockets hold: those that the kernel drops are in the gateway's status, and with the others they are all that came.
#[test]
fn tickets_that_the_kernel_drops_are_counted() {
    let site = Site::new(Vec::new());
    let gateway = site.start();
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = sender.local_addr().unwrap().port();
    drop(sender);
    let sockets = DeskSockets::bind(&site.config.local, port).unwrap();
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    // A datagram takes more than 256 B of a receive buffer.
    let sent = socket_recv_buffer_size(&sender).unwrap() as u64 / 256;
    for _ in 0..sent {
        sender
            .send_to(&[0; 64], SocketAddr::new(site.config.local[0], port))
            .unwrap();
    }
    let controller = Controller::new(site.registry.clone(), Policy::default());
    let desk = Desk::open(sockets, gateway.plane_handle(), controller, GATEWAY).unwrap();
    let began = Instant::now();
    let counts = loop {
        let counts = gateway.status().tickets.unwrap_or_default();
        if counts.strange + counts.kernel_drops == sent {
            break counts;
        }
        assert!(began.elapsed() < LONG, "{counts:?}");
        std::thread::yield_now();
    };
    assert!(counts.strange > 0 && counts.kernel_drops > 0, "{counts:?}");
    assert_eq!(desk.close(), counts);
}
