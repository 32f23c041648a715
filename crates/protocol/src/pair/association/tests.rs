//! Two sides and an attacker between them who stores, repeats and forges messages; time is an argument.

use alloc::vec;
use alloc::vec::Vec;

use super::super::Kind;
use super::*;

const A: DeviceId = DeviceId(0xa1);
const B: DeviceId = DeviceId(0xb2);
const LIFETIME_MS: u64 = 300_000;

type Message = (Path, Vec<u8>);

fn path(host: u8) -> Path {
    Path {
        address: SocketAddr::from(([10, 0, 0, host], 20_553)),
        sealed: false,
    }
}

/// Unique numbers in place of random numbers.
#[derive(Default)]
struct RandomSource(u64);

impl RandomSource {
    fn next(&mut self) -> Option<[u8; 16]> {
        self.0 += 1;
        let mut nonce = [0; 16];
        nonce[..8].copy_from_slice(&self.0.to_be_bytes());
        Some(nonce)
    }
}

/// The initiator, at 10.0.0.1, and the responder, at 10.0.0.2.
struct TestNetwork {
    a: Association,
    b: Association,
    random: RandomSource,
    now_ms: u64,
}

impl TestNetwork {
    fn new() -> Self {
        let mut network = Self {
            a: Association::new(A, B),
            b: Association::new(B, A),
            random: RandomSource::default(),
            now_ms: 1_000,
        };
        network.distribute_key(1, LIFETIME_MS);
        network
    }

    /// The controller gives a key to both sides.
    fn distribute_key(&mut self, id: u8, until_ms: u64) {
        for (side, role, peer_path) in [
            (&mut self.a, Role::Initiator, path(2)),
            (&mut self.b, Role::Responder, path(1)),
        ] {
            side.set_key(pairing(id), role, until_ms, Some(peer_path.address));
        }
    }

    fn restart_b(&mut self) {
        self.b = Association::new(B, A);
        self.b
            .set_key(pairing(1), Role::Responder, LIFETIME_MS, Some(path(1).address));
    }

    fn a_sends(&mut self) -> Vec<Message> {
        drain(&mut self.a, self.now_ms, &mut self.random)
    }

    fn b_sends(&mut self) -> Vec<Message> {
        drain(&mut self.b, self.now_ms, &mut self.random)
    }

    /// Host 10.0.0.`host` sends the message to the responder; returns its payload.
    fn b_receives(&mut self, host: u8, message: &[u8]) -> Option<Vec<u8>> {
        let (mut message, random) = (message.to_vec(), &mut self.random);
        let payload = self
            .b
            .receive(&mut message, path(host), self.now_ms, &mut || random.next());
        payload.map(<[u8]>::to_vec)
    }

    fn a_receives(&mut self, host: u8, message: &[u8]) -> Option<Vec<u8>> {
        let (mut message, random) = (message.to_vec(), &mut self.random);
        let payload = self
            .a
            .receive(&mut message, path(host), self.now_ms, &mut || random.next());
        payload.map(<[u8]>::to_vec)
    }

    /// Delivers all messages until there are no more; returns the sent messages.
    fn deliver_all(&mut self) -> Vec<Message> {
        let mut sent = Vec::new();
        loop {
            let (from_a, from_b) = (self.a_sends(), self.b_sends());
            if from_a.is_empty() && from_b.is_empty() {
                return sent;
            }
            from_a
                .iter()
                .for_each(|(_, message)| drop(self.b_receives(1, message)));
            from_b
                .iter()
                .for_each(|(_, message)| drop(self.a_receives(2, message)));
            sent.extend(from_a.into_iter().chain(from_b));
            assert!(sent.len() < 1_000, "the exchange does not end");
        }
    }

    /// Sends a payload from A; returns whether it reaches B.
    fn reaches_b(&mut self) -> bool {
        match sealed(&mut self.a, b"up", self.now_ms) {
            Some((_, message)) => self.b_receives(1, &message).as_deref() == Some(b"up"),
            None => false,
        }
    }

    fn reaches_a(&mut self) -> bool {
        match sealed(&mut self.b, b"down", self.now_ms) {
            Some((_, message)) => self.a_receives(2, &message).as_deref() == Some(b"down"),
            None => false,
        }
    }

    /// Advances to `until_ms`, from one deadline to the next.
    fn run(&mut self, until_ms: u64) -> Vec<Message> {
        let mut sent = self.deliver_all();
        while let Some(next_ms) = [self.a.deadline(), self.b.deadline()].into_iter().flatten().min()
            && next_ms <= until_ms
        {
            assert!(next_ms >= self.now_ms, "a deadline was missed");
            self.now_ms = next_ms;
            sent.extend(self.deliver_all());
        }
        self.now_ms = until_ms;
        sent
    }
}

fn pairing(id: u8) -> Pairing {
    Pairing {
        id: [id; 16],
        key: [id ^ 0xff; 32],
    }
}

fn drain(side: &mut Association, now_ms: u64, random: &mut RandomSource) -> Vec<Message> {
    let mut out = [0; 200];
    let mut messages = Vec::new();
    while let Some((path, length)) = side.poll(now_ms, &mut || random.next(), &mut out) {
        messages.push((path, out[..length].to_vec()));
        assert!(messages.len() < 100, "the exchange does not end");
    }
    messages
}

fn sealed(side: &mut Association, payload: &[u8], now_ms: u64) -> Option<Message> {
    let mut out = vec![0; 200];
    let (path, length) = side.seal(payload, now_ms, &mut out)?;
    out.truncate(length);
    Some((path, out))
}

fn is_kind(message: &[u8], kind: Kind) -> bool {
    message[3] == kind as u8
}

fn count(messages: &[Message], kind: Kind) -> usize {
    messages
        .iter()
        .filter(|(_, message)| is_kind(message, kind))
        .count()
}

#[test]
fn a_handshake_opens_both_sides_and_costs_four_messages() {
    let mut network = TestNetwork::new();
    let sent = network.deliver_all();
    assert!(network.a.is_open() && network.b.is_open());
    assert_eq!((count(&sent, Kind::Hello), count(&sent, Kind::Welcome)), (1, 1));
    assert_eq!(count(&sent, Kind::Data), 2, "one request, one reply");
    assert!(network.reaches_b() && network.reaches_a());
}

/// Replays the recorded HELLOs of the current and of an earlier handshake at every moment.
#[test]
fn a_repeated_hello_does_not_disturb_a_handshake() {
    let mut network = TestNetwork::new();
    let earlier = network.a_sends().remove(0).1;
    // The initiator restarts and starts a handshake under the same key: two HELLOs are known.
    network.a = Association::new(A, B);
    network.distribute_key(1, LIFETIME_MS);
    let (_, hello) = network.a_sends().remove(0);
    for _ in 0..40 {
        network.now_ms += 50;
        for replayed in [&earlier, &hello] {
            assert_eq!(network.b_receives(66, replayed), None);
            network.b_sends();
        }
    }
    network.now_ms += 50;
    for replayed in [&earlier, &hello] {
        network.b_receives(66, replayed);
        network.b_sends();
    }
    // At the same moment the initiator sends its own copy.
    network.b_receives(1, &hello);
    let (to, welcome) = network.b_sends().remove(0);
    assert_eq!(to, path(1));
    for replayed in [&earlier, &hello, &earlier] {
        network.now_ms += 50;
        network.b_receives(66, replayed);
        network.b_sends();
    }
    network.a_receives(2, &welcome);
    assert!(network.a.is_open());
    let (_, first) = network.a_sends().remove(0);
    assert_eq!(network.b_receives(1, &first).as_deref(), Some(&b""[..]));
    assert!(network.b.is_open());
    for replayed in [&earlier, &hello] {
        network.b_receives(66, replayed);
    }
    assert!(network.reaches_b() && network.reaches_a());
    // The HELLO of the session itself gets no reply any more.
    network.b_sends();
    network.now_ms += 1_000;
    network.b_receives(66, &hello);
    assert_eq!(network.b_sends(), []);
}

#[test]
fn the_same_hello_gets_the_same_welcome_at_most_every_50_ms() {
    let mut network = TestNetwork::new();
    let (_, hello) = network.a_sends().remove(0);
    network.b_receives(1, &hello);
    let first = network.b_sends();
    let mut replies = 0;
    for _ in 0..1_000 {
        network.now_ms += 1;
        network.b_receives(66, &hello);
        for (to, welcome) in network.b_sends() {
            assert_eq!((to, &welcome), (path(66), &first[0].1));
            replies += 1;
        }
    }
    assert_eq!(replies, 20);
}

#[test]
fn more_hellos_than_are_remembered_do_not_replace_the_newest() {
    let mut network = TestNetwork::new();
    let hellos: Vec<Vec<u8>> = (0..2 * OFFERS_MAX)
        .map(|_| {
            network.now_ms += 1;
            network.a = Association::new(A, B);
            network.distribute_key(1, LIFETIME_MS);
            let (_, hello) = network.a_sends().remove(0);
            network.b_receives(1, &hello);
            hello
        })
        .collect();
    let (_, welcome) = network.b_sends().remove(0);
    network.now_ms += 1;
    // Replays all but one of the remembered HELLOs.
    for hello in &hellos[..OFFERS_MAX - 1] {
        network.b_receives(66, hello);
    }
    network.a_receives(2, &welcome);
    let (_, first) = network.a_sends().remove(0);
    assert!(network.b_receives(1, &first).is_some());
    assert!(network.reaches_b());
}

#[test]
fn recorded_messages_are_useless_later() {
    let mut network = TestNetwork::new();
    let mut recorded: Vec<Message> = network.deliver_all();
    for _ in 0..5 {
        recorded.extend(sealed(&mut network.a, b"x", network.now_ms));
        let (_, message) = recorded.last().unwrap().clone();
        assert!(network.b_receives(1, &message).is_some());
    }
    network.restart_b();
    for (_, message) in &recorded {
        assert_eq!(network.b_receives(1, message), None);
        assert_eq!(network.a_receives(2, message), None);
    }
    assert!(!network.b.is_open(), "the restarted side has no session");
    assert!(
        network.a.is_open(),
        "the session of the side that did not restart stays"
    );
}

#[test]
fn forged_messages_change_nothing() {
    let mut network = TestNetwork::new();
    let (_, hello) = network.a_sends().remove(0);
    let mut forged = hello.clone();
    forged[60] ^= 1;
    for _ in 0..1_000 {
        forged[40] = forged[40].wrapping_add(1);
        network.b_receives(66, &forged);
    }
    assert_eq!(network.b_sends(), []);
    // At the same moment the genuine HELLO gets a reply.
    network.b_receives(1, &hello);
    assert_eq!(network.b_sends().len(), 1);
    network.run(network.now_ms + 200);
    let (_, mut data) = sealed(&mut network.a, b"x", network.now_ms).unwrap();
    data[35] ^= 1;
    assert_eq!(network.b_receives(66, &data), None);
    data[35] ^= 1;
    assert!(network.b_receives(1, &data).is_some());
    assert_eq!(sealed(&mut network.b, b"y", network.now_ms).unwrap().0, path(1));
}

#[test]
fn a_restarted_responder_gets_a_new_hello_within_ten_seconds() {
    for sends_payload in [false, true] {
        let mut network = TestNetwork::new();
        network.run(100_000);
        network.restart_b();
        assert!(!network.reaches_a(), "there is no session to send in");
        if sends_payload {
            assert!(!network.reaches_b());
        }
        let until_ms = network.now_ms + PEER_TIMEOUT_MS;
        network.run(until_ms);
        assert!(network.b.is_open());
        assert!(network.reaches_a() && network.reaches_b());
    }
}

#[test]
fn an_idle_pair_is_probed_without_a_new_handshake() {
    let mut network = TestNetwork::new();
    network.deliver_all();
    let sent = network.run(LIFETIME_MS - 1);
    assert_eq!(count(&sent, Kind::Hello), 0);
    let seconds = usize::try_from(LIFETIME_MS / 1_000).unwrap();
    assert!(count(&sent, Kind::Data) <= seconds / 2, "{}", sent.len());
    // The same holds if only one side sends payloads: each reply to a request shows that the peer is active.
    let mut network = TestNetwork::new();
    network.deliver_all();
    for second in 2..200 {
        let sent = network.run(second * 1_000);
        assert_eq!(count(&sent, Kind::Hello), 0);
        assert!(network.reaches_b());
    }
}

#[test]
fn an_unreachable_peer_gets_a_hello_every_two_seconds_at_most() {
    let mut network = TestNetwork::new();
    network.deliver_all();
    let mut hellos = 0;
    while network.now_ms < 100_000 {
        network.now_ms += 10;
        hellos += count(&network.a_sends(), Kind::Hello);
    }
    assert!((40..60).contains(&hellos), "{hellos}");
}

#[test]
fn a_lost_first_message_is_repeated() {
    let mut network = TestNetwork::new();
    let (_, hello) = network.a_sends().remove(0);
    network.b_receives(1, &hello);
    let (_, welcome) = network.b_sends().remove(0);
    network.a_receives(2, &welcome);
    drop(network.a_sends());
    assert!(!network.b.is_open());
    network.run(network.now_ms + 200);
    assert!(network.b.is_open());
}

#[test]
fn a_key_expires_without_a_message_from_the_controller() {
    let mut network = TestNetwork::new();
    network.deliver_all();
    network.now_ms = LIFETIME_MS - 1;
    let late = sealed(&mut network.a, b"late", network.now_ms).unwrap().1;
    assert!(network.reaches_b() && network.reaches_a());
    network.now_ms = LIFETIME_MS;
    assert_eq!(network.b_receives(1, &late), None, "opened under an expired key");
    assert!(sealed(&mut network.a, b"x", network.now_ms).is_none());
    network.deliver_all();
    assert!(!network.a.is_open() && !network.b.is_open());
    assert_eq!((network.a.deadline(), network.b.deadline()), (None, None));
    assert!(!network.a.accepts_pair_id(&[1; 16]));
}

#[test]
fn a_new_key_replaces_a_key_that_is_still_valid() {
    let mut network = TestNetwork::new();
    network.deliver_all();
    network.now_ms = 230_000;
    // At first only the initiator has the new key.
    let (end_ms, peer) = (network.now_ms + LIFETIME_MS, Some(path(2).address));
    network.a.set_key(pairing(2), Role::Initiator, end_ms, peer);
    network.run(240_000);
    assert!(network.reaches_b() && network.reaches_a());
    network.distribute_key(2, end_ms);
    network.run(243_000);
    assert!(network.reaches_b() && network.reaches_a());
    network.run(400_000);
    assert!(network.a.is_open() && network.b.is_open());
    assert!(network.reaches_b() && network.reaches_a());
    // The roles may change with the key.
    network.a.set_key(pairing(3), Role::Responder, 700_000, None);
    network
        .b
        .set_key(pairing(3), Role::Initiator, 700_000, Some(path(1).address));
    network.run(600_000);
    assert!(network.reaches_b() && network.reaches_a());
}

#[test]
fn a_closed_pair_sends_and_accepts_nothing() {
    let mut network = TestNetwork::new();
    network.deliver_all();
    let (_, message) = sealed(&mut network.b, b"x", network.now_ms).unwrap();
    network.a.close();
    assert_eq!(network.a_receives(2, &message), None);
    assert!(sealed(&mut network.a, b"x", network.now_ms).is_none());
    assert_eq!((network.a_sends(), network.a.deadline()), (vec![], None));
}

#[test]
fn the_peer_is_where_its_newest_message_came_from() {
    let mut network = TestNetwork::new();
    network.deliver_all();
    let (_, older) = sealed(&mut network.b, b"1", network.now_ms).unwrap();
    let (_, newer) = sealed(&mut network.b, b"2", network.now_ms).unwrap();
    assert!(network.a_receives(3, &newer).is_some());
    assert!(
        network.a_receives(66, &older).is_some(),
        "a late message is opened"
    );
    assert_eq!(sealed(&mut network.a, b"x", network.now_ms).unwrap().0, path(3));
    // Replaying a WELCOME from elsewhere does not move the peer.
    let mut network = TestNetwork::new();
    let (_, hello) = network.a_sends().remove(0);
    network.b_receives(1, &hello);
    let (_, welcome) = network.b_sends().remove(0);
    network.a_receives(66, &welcome);
    assert_eq!(network.a_sends().remove(0).0, path(2));
}
