//! Two sides and somebody between them who keeps, repeats and forges; time is an argument.

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

/// Numbers that never come twice stand for random ones.
#[derive(Default)]
struct Source(u64);

impl Source {
    fn next(&mut self) -> Option<[u8; 16]> {
        self.0 += 1;
        let mut nonce = [0; 16];
        nonce[..8].copy_from_slice(&self.0.to_be_bytes());
        Some(nonce)
    }
}

/// The initiator, at 10.0.0.1, and the responder, at 10.0.0.2.
struct World {
    a: Association,
    b: Association,
    random: Source,
    now_ms: u64,
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            a: Association::new(A, B),
            b: Association::new(B, A),
            random: Source::default(),
            now_ms: 1_000,
        };
        world.tell(1, LIFETIME_MS);
        world
    }

    /// The controller tells both of a key.
    fn tell(&mut self, id: u8, until_ms: u64) {
        for (side, role, at) in [
            (&mut self.a, Role::Initiator, path(2)),
            (&mut self.b, Role::Responder, path(1)),
        ] {
            side.hold(pairing(id), role, until_ms, Some(at.address));
        }
    }

    fn restart_b(&mut self) {
        self.b = Association::new(B, A);
        self.b
            .hold(pairing(1), Role::Responder, LIFETIME_MS, Some(path(1).address));
    }

    fn a_sends(&mut self) -> Vec<Message> {
        drain(&mut self.a, self.now_ms, &mut self.random)
    }

    fn b_sends(&mut self) -> Vec<Message> {
        drain(&mut self.b, self.now_ms, &mut self.random)
    }

    /// Somebody at 10.0.0.`host` gives it to the responder; its payload.
    fn b_takes(&mut self, host: u8, message: &[u8]) -> Option<Vec<u8>> {
        let (mut message, random) = (message.to_vec(), &mut self.random);
        let taken = self
            .b
            .take(&mut message, path(host), self.now_ms, &mut || random.next());
        taken.map(<[u8]>::to_vec)
    }

    fn a_takes(&mut self, host: u8, message: &[u8]) -> Option<Vec<u8>> {
        let (mut message, random) = (message.to_vec(), &mut self.random);
        let taken = self
            .a
            .take(&mut message, path(host), self.now_ms, &mut || random.next());
        taken.map(<[u8]>::to_vec)
    }

    /// Carries everything, until nobody has anything to say; what was sent.
    fn settle(&mut self) -> Vec<Message> {
        let mut sent = Vec::new();
        loop {
            let (from_a, from_b) = (self.a_sends(), self.b_sends());
            if from_a.is_empty() && from_b.is_empty() {
                return sent;
            }
            from_a
                .iter()
                .for_each(|(_, message)| drop(self.b_takes(1, message)));
            from_b
                .iter()
                .for_each(|(_, message)| drop(self.a_takes(2, message)));
            sent.extend(from_a.into_iter().chain(from_b));
            assert!(sent.len() < 1_000, "they never come to an end");
        }
    }

    /// A program at A says something: whether B's hears it.
    fn b_hears(&mut self) -> bool {
        match sealed(&mut self.a, b"up", self.now_ms) {
            Some((_, message)) => self.b_takes(1, &message).as_deref() == Some(b"up"),
            None => false,
        }
    }

    fn a_hears(&mut self) -> bool {
        match sealed(&mut self.b, b"down", self.now_ms) {
            Some((_, message)) => self.a_takes(2, &message).as_deref() == Some(b"down"),
            None => false,
        }
    }

    /// Goes on until `until_ms`, from one deadline to the next.
    fn run(&mut self, until_ms: u64) -> Vec<Message> {
        let mut sent = self.settle();
        while let Some(next_ms) = [self.a.deadline(), self.b.deadline()].into_iter().flatten().min()
            && next_ms <= until_ms
        {
            assert!(next_ms >= self.now_ms, "a deadline that was not met");
            self.now_ms = next_ms;
            sent.extend(self.settle());
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

fn drain(side: &mut Association, now_ms: u64, random: &mut Source) -> Vec<Message> {
    let mut out = [0; 200];
    let mut messages = Vec::new();
    while let Some((path, length)) = side.poll(now_ms, &mut || random.next(), &mut out) {
        messages.push((path, out[..length].to_vec()));
        assert!(messages.len() < 100, "it never comes to an end");
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
    let mut world = World::new();
    let sent = world.settle();
    assert!(world.a.is_open() && world.b.is_open());
    assert_eq!((count(&sent, Kind::Hello), count(&sent, Kind::Welcome)), (1, 1));
    assert_eq!(count(&sent, Kind::Data), 2, "one that asks, one that answers");
    assert!(world.b_hears() && world.a_hears());
}

/// Whoever repeats a recorded HELLO at every moment, the one under way or one of before.
#[test]
fn a_repeated_hello_does_not_disturb_a_handshake() {
    let mut world = World::new();
    let earlier = world.a_sends().remove(0).1;
    // The initiator restarts and begins anew under the same key: two HELLOs are known.
    world.a = Association::new(A, B);
    world.tell(1, LIFETIME_MS);
    let (_, hello) = world.a_sends().remove(0);
    for _ in 0..40 {
        world.now_ms += 50;
        for replayed in [&earlier, &hello] {
            assert_eq!(world.b_takes(66, replayed), None);
            world.b_sends();
        }
    }
    world.now_ms += 50;
    for replayed in [&earlier, &hello] {
        world.b_takes(66, replayed);
        world.b_sends();
    }
    // In the same moment the initiator's own copy.
    world.b_takes(1, &hello);
    let (to, welcome) = world.b_sends().remove(0);
    assert_eq!(to, path(1));
    for replayed in [&earlier, &hello, &earlier] {
        world.now_ms += 50;
        world.b_takes(66, replayed);
        world.b_sends();
    }
    world.a_takes(2, &welcome);
    assert!(world.a.is_open());
    let (_, first) = world.a_sends().remove(0);
    assert_eq!(world.b_takes(1, &first).as_deref(), Some(&b""[..]));
    assert!(world.b.is_open());
    for replayed in [&earlier, &hello] {
        world.b_takes(66, replayed);
    }
    assert!(world.b_hears() && world.a_hears());
    // And the session's own HELLO is not even answered any more.
    world.b_sends();
    world.now_ms += 1_000;
    world.b_takes(66, &hello);
    assert_eq!(world.b_sends(), []);
}

#[test]
fn the_same_hello_gets_the_same_welcome_at_most_every_50_ms() {
    let mut world = World::new();
    let (_, hello) = world.a_sends().remove(0);
    world.b_takes(1, &hello);
    let first = world.b_sends();
    let mut answers = 0;
    for _ in 0..1_000 {
        world.now_ms += 1;
        world.b_takes(66, &hello);
        for (to, welcome) in world.b_sends() {
            assert_eq!((to, &welcome), (path(66), &first[0].1));
            answers += 1;
        }
    }
    assert_eq!(answers, 20);
}

#[test]
fn more_hellos_than_are_remembered_leave_the_newest_its_place() {
    let mut world = World::new();
    let hellos: Vec<Vec<u8>> = (0..2 * OFFERS_MAX)
        .map(|_| {
            world.now_ms += 1;
            world.a = Association::new(A, B);
            world.tell(1, LIFETIME_MS);
            let (_, hello) = world.a_sends().remove(0);
            world.b_takes(1, &hello);
            hello
        })
        .collect();
    let (_, welcome) = world.b_sends().remove(0);
    world.now_ms += 1;
    // Somebody brings back all but one of those that are remembered.
    for hello in &hellos[..OFFERS_MAX - 1] {
        world.b_takes(66, hello);
    }
    world.a_takes(2, &welcome);
    let (_, first) = world.a_sends().remove(0);
    assert!(world.b_takes(1, &first).is_some());
    assert!(world.b_hears());
}

#[test]
fn nothing_recorded_means_anything_later() {
    let mut world = World::new();
    let mut seen: Vec<Message> = world.settle();
    for _ in 0..5 {
        seen.extend(sealed(&mut world.a, b"x", world.now_ms));
        let (_, message) = seen.last().unwrap().clone();
        assert!(world.b_takes(1, &message).is_some());
    }
    world.restart_b();
    for (_, message) in &seen {
        assert_eq!(world.b_takes(1, message), None);
        assert_eq!(world.a_takes(2, message), None);
    }
    assert!(!world.b.is_open(), "the new one believes nobody");
    assert!(world.a.is_open(), "the old one is not talked out of it");
}

#[test]
fn forged_messages_change_nothing() {
    let mut world = World::new();
    let (_, hello) = world.a_sends().remove(0);
    let mut forged = hello.clone();
    forged[60] ^= 1;
    for _ in 0..1_000 {
        forged[40] = forged[40].wrapping_add(1);
        world.b_takes(66, &forged);
    }
    assert_eq!(world.b_sends(), []);
    // In the same moment the true one is answered.
    world.b_takes(1, &hello);
    assert_eq!(world.b_sends().len(), 1);
    world.run(world.now_ms + 200);
    let (_, mut data) = sealed(&mut world.a, b"x", world.now_ms).unwrap();
    data[35] ^= 1;
    assert_eq!(world.b_takes(66, &data), None);
    data[35] ^= 1;
    assert!(world.b_takes(1, &data).is_some());
    assert_eq!(sealed(&mut world.b, b"y", world.now_ms).unwrap().0, path(1));
}

#[test]
fn a_responder_that_restarts_is_greeted_again_within_ten_seconds() {
    for says_something in [false, true] {
        let mut world = World::new();
        world.run(100_000);
        world.restart_b();
        assert!(!world.a_hears(), "it has no session to say anything in");
        if says_something {
            assert!(!world.b_hears());
        }
        let until_ms = world.now_ms + SILENT_MS;
        world.run(until_ms);
        assert!(world.b.is_open());
        assert!(world.a_hears() && world.b_hears());
    }
}

#[test]
fn a_quiet_pair_is_asked_for_a_sign_of_life_and_never_greeted_again() {
    let mut world = World::new();
    world.settle();
    let sent = world.run(LIFETIME_MS - 1);
    assert_eq!(count(&sent, Kind::Hello), 0);
    let seconds = usize::try_from(LIFETIME_MS / 1_000).unwrap();
    assert!(count(&sent, Kind::Data) <= seconds / 2, "{}", sent.len());
    // Nor one in which only one side ever speaks: each answer to what asks for one is a sign of life.
    let mut world = World::new();
    world.settle();
    for second in 2..200 {
        let sent = world.run(second * 1_000);
        assert_eq!(count(&sent, Kind::Hello), 0);
        assert!(world.b_hears());
    }
}

#[test]
fn a_peer_that_is_gone_is_greeted_every_two_seconds_at_most() {
    let mut world = World::new();
    world.settle();
    let mut hellos = 0;
    while world.now_ms < 100_000 {
        world.now_ms += 10;
        hellos += count(&world.a_sends(), Kind::Hello);
    }
    assert!((40..60).contains(&hellos), "{hellos}");
}

#[test]
fn a_lost_first_message_is_repeated() {
    let mut world = World::new();
    let (_, hello) = world.a_sends().remove(0);
    world.b_takes(1, &hello);
    let (_, welcome) = world.b_sends().remove(0);
    world.a_takes(2, &welcome);
    drop(world.a_sends());
    assert!(!world.b.is_open());
    world.run(world.now_ms + 200);
    assert!(world.b.is_open());
}

#[test]
fn a_key_ends_when_its_time_is_over_though_the_controller_is_silent() {
    let mut world = World::new();
    world.settle();
    world.now_ms = LIFETIME_MS - 1;
    let late = sealed(&mut world.a, b"late", world.now_ms).unwrap().1;
    assert!(world.b_hears() && world.a_hears());
    world.now_ms = LIFETIME_MS;
    assert_eq!(world.b_takes(1, &late), None, "opened under a key that is over");
    assert!(sealed(&mut world.a, b"x", world.now_ms).is_none());
    world.settle();
    assert!(!world.a.is_open() && !world.b.is_open());
    assert_eq!((world.a.deadline(), world.b.deadline()), (None, None));
    assert!(!world.a.knows(&[1; 16]));
}

#[test]
fn a_new_key_takes_over_while_the_old_one_is_in_force() {
    let mut world = World::new();
    world.settle();
    world.now_ms = 230_000;
    // Only one of the two has it at first.
    let (end_ms, peer) = (world.now_ms + LIFETIME_MS, Some(path(2).address));
    world.a.hold(pairing(2), Role::Initiator, end_ms, peer);
    world.run(240_000);
    assert!(world.b_hears() && world.a_hears());
    world.tell(2, end_ms);
    world.run(243_000);
    assert!(world.b_hears() && world.a_hears());
    world.run(400_000);
    assert!(world.a.is_open() && world.b.is_open());
    assert!(world.b_hears() && world.a_hears());
    // The roles may change with the key.
    world.a.hold(pairing(3), Role::Responder, 700_000, None);
    world
        .b
        .hold(pairing(3), Role::Initiator, 700_000, Some(path(1).address));
    world.run(600_000);
    assert!(world.b_hears() && world.a_hears());
}

#[test]
fn a_closed_pair_says_and_takes_nothing() {
    let mut world = World::new();
    world.settle();
    let (_, message) = sealed(&mut world.b, b"x", world.now_ms).unwrap();
    world.a.close();
    assert_eq!(world.a_takes(2, &message), None);
    assert!(sealed(&mut world.a, b"x", world.now_ms).is_none());
    assert_eq!((world.a_sends(), world.a.deadline()), (vec![], None));
}

#[test]
fn the_peer_is_where_its_newest_message_came_from() {
    let mut world = World::new();
    world.settle();
    let (_, older) = sealed(&mut world.b, b"1", world.now_ms).unwrap();
    let (_, newer) = sealed(&mut world.b, b"2", world.now_ms).unwrap();
    assert!(world.a_takes(3, &newer).is_some());
    assert!(world.a_takes(66, &older).is_some(), "a late one is opened");
    assert_eq!(sealed(&mut world.a, b"x", world.now_ms).unwrap().0, path(3));
    // A WELCOME that somebody repeats from elsewhere moves nobody.
    let mut world = World::new();
    let (_, hello) = world.a_sends().remove(0);
    world.b_takes(1, &hello);
    let (_, welcome) = world.b_sends().remove(0);
    world.a_takes(66, &welcome);
    assert_eq!(world.a_sends().remove(0).0, path(2));
}
