//! The node under a fake clock, against a registry and a data plane that fail at random, by seed.

mod chaos;
mod fleet;

use linewarden_dataplane::{Event, EventKind};
use linewarden_protocol::ids::{DeviceId, Mode, RowIndex};
use linewarden_registry::Revision;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use self::chaos::{Chaos, Shared};
use self::fleet::Fleet;
use super::{Node, RegistryState, Settings};
use crate::exchange::{Answer, Ask};
use crate::time::Clock;

const SETTINGS: Settings = Settings {
    reserve_block: 4,
    ring: 8,
    low_rows: 2,
    feed_poll_ms: 50,
};
const MS: u64 = 1_000_000;

/// A node, its registry and its data plane, moved on by one tick at a time.
struct World {
    node: Node,
    plane: Shared,
    fleet: Fleet,
    clock: Clock,
    rng: ChaCha8Rng,
    /// Answers under way.
    mail: Vec<Answer>,
}

impl World {
    fn new(seed: u64) -> Self {
        let (chaos, plane) = Chaos::new(seed, SETTINGS.ring, SETTINGS.low_rows);
        Self {
            node: Node::new(Box::new(chaos), SETTINGS).unwrap(),
            plane,
            fleet: Fleet::new(seed),
            clock: Clock {
                monotonic_ns: 1,
                boot_ns: 1,
            },
            rng: ChaCha8Rng::seed_from_u64(seed),
            mail: Vec::new(),
        }
    }

    fn pass(&mut self, ms: u64) {
        self.clock.monotonic_ns += ms * MS;
        self.clock.boot_ns += ms * MS;
        self.plane.lock().unwrap().now_ns = self.clock.monotonic_ns;
    }

    /// 10 ms pass, the registry answers or does not, the node ticks.
    fn tick(&mut self) {
        self.pass(10);
        for answer in std::mem::take(&mut self.mail) {
            self.node.answer(answer, self.clock);
        }
        let rng = &mut self.rng;
        let asks = self.node.tick(self.clock, &mut || Some(rng.random()));
        for ask in asks {
            let answer = match ask {
                Ask::Load => Answer::Chunk(self.fleet.load(SETTINGS.reserve_block)),
                Ask::Rows(wants) => Answer::Rows(self.fleet.rows(&wants)),
                Ask::Changes { since } => Answer::Changes(self.fleet.changes(since)),
            };
            self.mail.push(answer);
        }
    }

    fn ticks(&mut self, count: u32) {
        (0..count).for_each(|_| self.tick());
    }

    fn loaded(seed: u64, pool: u64, key: u64) -> Self {
        let mut world = Self::new(seed);
        (1..=pool).for_each(|id| world.fleet.enrol(DeviceId(id), Mode::Pool, 1000));
        (1..=key).for_each(|id| world.fleet.enrol(DeviceId(1000 + id), Mode::Key, 0));
        world.ticks(10);
        assert!(world.node.status().loaded);
        world
    }

    fn next_idx(&self, device: u64) -> RowIndex {
        let line = self.node.plane().status(DeviceId(device)).unwrap();
        line.commit.idx()
    }
}

#[test]
fn the_fleet_is_installed_with_a_block_of_rows_each() {
    let world = World::loaded(1, 5, 2);
    assert_eq!(world.node.status().devices, 7);
    assert_eq!(world.node.status().registry, RegistryState::Reachable);
    for device in 1..=5 {
        let line = world.node.plane().status(DeviceId(device)).unwrap();
        assert_eq!((line.rows_left, line.commit.idx()), (4, RowIndex(0)));
    }
    assert_eq!(
        world.fleet.floor(DeviceId(1)),
        4,
        "reserved before it was installed"
    );
    assert_eq!(
        world.fleet.floor(DeviceId(1001)),
        0,
        "nothing is spent in key mode"
    );
}

#[test]
fn spent_rows_are_replaced_before_they_run_out() {
    let mut world = World::loaded(2, 1, 0);
    for spent in 1..=200 {
        assert!(
            world.plane.lock().unwrap().win(DeviceId(1)),
            "row {spent} is there"
        );
        world.ticks(3);
    }
    assert_eq!(world.next_idx(1), RowIndex(200));
}

#[test]
fn a_pool_that_is_used_up_is_told_once_and_served_again_after_new_enrolment() {
    let mut world = World::new(3);
    world.fleet.enrol(DeviceId(1), Mode::Pool, 6);
    world.ticks(10);
    for _ in 0..6 {
        assert!(world.plane.lock().unwrap().win(DeviceId(1)));
        world.ticks(5);
    }
    assert!(!world.plane.lock().unwrap().win(DeviceId(1)));
    assert_eq!(world.node.status().exhausted, 1);
    let asked = world.fleet.row_questions;
    world.ticks(100);
    assert_eq!(world.fleet.row_questions, asked, "no use in asking again");

    world.fleet.enrol(DeviceId(1), Mode::Pool, 100);
    world.ticks(20);
    assert_eq!(world.node.status().exhausted, 0);
    assert!(world.plane.lock().unwrap().win(DeviceId(1)));
    assert_eq!(world.next_idx(1), RowIndex(7), "no number is used twice");
}

#[test]
fn a_revocation_arrives_within_a_poll_and_two_ticks_and_the_keys_go_later() {
    let mut world = World::loaded(4, 2, 0);
    world.fleet.revoke(DeviceId(1));
    world.ticks(7);
    assert!(world.plane.lock().unwrap().is_revoked(DeviceId(1)));
    assert!(!world.plane.lock().unwrap().is_revoked(DeviceId(2)));
    assert_eq!((world.node.status().devices, world.node.status().revoked), (1, 1));
    world.pass(66_000);
    world.ticks(2);
    assert!(world.node.plane().status(DeviceId(1)).is_none(), "wiped");
}

#[test]
fn a_device_revoked_while_the_fleet_is_read_is_never_installed() {
    let mut world = World::new(5);
    (1..=40).for_each(|id| world.fleet.enrol(DeviceId(id), Mode::Pool, 10));
    world.tick();
    // The first part is read. A device of the third is revoked; the feed tells so before that part comes, which was
    // read earlier.
    world.fleet.revoke(DeviceId(35));
    world.fleet.keep_in_walk(DeviceId(35));
    world.ticks(20);
    assert!(world.node.status().loaded);
    assert!(world.node.plane().status(DeviceId(35)).is_none());
    assert_eq!(world.node.status().devices, 39);
}

#[test]
fn devices_enrolled_later_arrive_by_the_feed() {
    let mut world = World::loaded(6, 1, 0);
    world.fleet.enrol(DeviceId(77), Mode::Pool, 10);
    world.fleet.enrol(DeviceId(78), Mode::Key, 0);
    world.ticks(15);
    assert_eq!(world.node.status().devices, 3);
    assert!(world.plane.lock().unwrap().win(DeviceId(77)));
}

#[test]
fn new_credentials_end_the_old_ones_also_when_the_line_is_busy() {
    let mut world = World::loaded(7, 1, 0);
    world.plane.lock().unwrap().busy_for = 5;
    world.fleet.enrol(DeviceId(1), Mode::Key, 0);
    world.ticks(30);
    let line = world.node.plane().status(DeviceId(1)).unwrap();
    assert!(line.commit.is_key_mode());
    assert!(!line.commit.is_revoked());
    assert_eq!(world.node.status().devices, 1);
}

#[test]
fn rows_of_old_credentials_that_arrive_late_are_not_taken() {
    let mut world = World::loaded(15, 1, 0);
    let device = DeviceId(1);
    while world.fleet.row_questions == 0 {
        assert!(world.plane.lock().unwrap().win(device));
        world.tick();
    }
    // The answer with rows of the old credentials is under way; before it arrives, the feed tells of new ones.
    world.fleet.enrol(device, Mode::Pool, 1000);
    let changes = world.fleet.changes(Revision::ZERO);
    world.node.answer(Answer::Changes(changes), world.clock);
    world.ticks(20);
    let key = world.plane.lock().unwrap().key_of(device);
    assert_eq!(key, Some(world.fleet.key_of(device)));
}

#[test]
fn rows_for_a_busy_line_are_offered_again_at_the_next_tick() {
    let mut world = World::loaded(16, 1, 0);
    world.plane.lock().unwrap().busy_for = 3;
    (0..4).for_each(|_| assert!(world.plane.lock().unwrap().win(DeviceId(1))));
    world.ticks(8);
    assert!(world.plane.lock().unwrap().win(DeviceId(1)));
}

#[test]
fn a_registry_that_forgot_its_marks_gives_no_row_a_second_time() {
    let mut world = World::loaded(17, 1, 0);
    let spend = |world: &mut World| {
        let asked = world.fleet.row_questions;
        for _ in 0..80 {
            // The data plane refuses numbers that it has seen.
            assert!(world.plane.lock().unwrap().win(DeviceId(1)));
            world.ticks(3);
        }
        world.fleet.row_questions - asked
    };
    let usual = spend(&mut world);
    world.fleet.forget_mark(DeviceId(1));
    assert_eq!(spend(&mut world), usual, "it tells the registry where to go on");
    assert_eq!(world.next_idx(1), RowIndex(160));
}

#[test]
fn a_revocation_is_remembered_as_long_as_the_fleet_is_read() {
    let mut world = World::new(18);
    (1..=40).for_each(|id| world.fleet.enrol(DeviceId(id), Mode::Pool, 10));
    world.tick();
    world.fleet.revoke(DeviceId(35));
    world.fleet.keep_in_walk(DeviceId(35));
    world.tick();
    // The feed has told; the rest of the walk takes longer than revoked devices are kept.
    world.fleet.down = true;
    world.tick();
    world.pass(66_000);
    world.ticks(2);
    world.fleet.down = false;
    world.pass(6_000);
    world.ticks(20);
    assert!(world.node.status().loaded);
    assert!(world.node.plane().status(DeviceId(35)).is_none());
}

#[test]
fn without_the_registry_it_goes_on_with_what_it_has_and_then_catches_up() {
    let mut world = World::loaded(8, 1, 0);
    world.fleet.down = true;
    world.ticks(20);
    assert!(matches!(world.node.status().registry, RegistryState::Lost { .. }));
    for _ in 0..4 {
        assert!(world.plane.lock().unwrap().win(DeviceId(1)));
        world.ticks(2);
    }
    assert!(!world.plane.lock().unwrap().win(DeviceId(1)));
    let asked = world.fleet.questions;
    world.ticks(100);
    assert!(world.fleet.questions < asked + 30, "it asks less and less often");

    world.fleet.down = false;
    world.fleet.revoke(DeviceId(1));
    world.fleet.enrol(DeviceId(2), Mode::Pool, 10);
    world.ticks(600);
    assert_eq!(world.node.status().registry, RegistryState::Reachable);
    assert!(world.plane.lock().unwrap().is_revoked(DeviceId(1)));
    assert!(world.plane.lock().unwrap().win(DeviceId(2)));
}

#[test]
fn lost_events_are_made_up_for() {
    let mut world = World::loaded(9, 3, 0);
    world.plane.lock().unwrap().lose_events = true;
    for device in 1..=3 {
        (0..4).for_each(|_| assert!(world.plane.lock().unwrap().win(DeviceId(device))));
    }
    world.plane.lock().unwrap().lose_events = false;
    world.ticks(20);
    assert!(
        !world.plane.lock().unwrap().win(DeviceId(1)),
        "nobody has heard of it"
    );
    world.pass(5_000);
    world.ticks(20);
    for device in 1..=3 {
        assert!(world.plane.lock().unwrap().win(DeviceId(device)));
    }
}

#[test]
fn a_full_data_plane_takes_waiting_devices_when_there_is_room() {
    let mut world = World::new(10);
    world.plane.lock().unwrap().slots = 2;
    (1..=3).for_each(|id| world.fleet.enrol(DeviceId(id), Mode::Pool, 10));
    world.ticks(10);
    assert_eq!((world.node.status().devices, world.node.status().no_room), (2, 1));
    let installed = DeviceId(
        (1..=3)
            .find(|id| world.node.plane().status(DeviceId(*id)).is_some())
            .unwrap(),
    );
    world.fleet.revoke(installed);
    world.ticks(10);
    world.pass(66_000);
    world.ticks(2);
    world.pass(5_000);
    world.ticks(2);
    assert_eq!((world.node.status().devices, world.node.status().no_room), (2, 0));
}

#[test]
fn fresh_is_drawn_twice_at_the_start_every_eight_seconds_and_twice_after_a_suspend() {
    let mut world = World::loaded(11, 1, 0);
    let drawn = |world: &World| world.plane.lock().unwrap().fresh.len();
    assert_eq!(drawn(&world), 2);
    world.ticks(850);
    assert_eq!(drawn(&world), 3);
    world.clock.boot_ns += 60_000 * MS;
    world.tick();
    assert_eq!(drawn(&world), 5);
    let fresh = world.plane.lock().unwrap().fresh.clone();
    assert!(fresh.iter().all(|(value, _)| *value != [0; 8]));
    assert_eq!(fresh.last().unwrap().1, world.clock.monotonic_ns);
}

#[test]
fn zero_or_no_randomness_draws_nothing_and_is_tried_again() {
    let mut world = World::new(12);
    world.node.tick(world.clock, &mut || Some([0; 8]));
    world.node.tick(world.clock, &mut || None);
    assert!(world.plane.lock().unwrap().fresh.is_empty());
    assert_eq!(world.node.status().draws_failed, 2);
    world.node.tick(world.clock, &mut || Some([7; 8]));
    assert_eq!(world.plane.lock().unwrap().fresh.len(), 2);
}

#[test]
fn closing_shuts_all_devices_out_and_tells_what_was_not_used() {
    let mut world = World::loaded(13, 3, 1);
    assert!(world.plane.lock().unwrap().win(DeviceId(2)));
    let mut unused = world.node.close();
    unused.sort_unstable();
    assert_eq!(
        unused,
        [
            (DeviceId(1), RowIndex(0)),
            (DeviceId(2), RowIndex(1)),
            (DeviceId(3), RowIndex(0)),
        ]
    );
    (1..=3).for_each(|id| assert!(!world.plane.lock().unwrap().win(DeviceId(id))));
    assert!(world.plane.lock().unwrap().stopping);
}

/// Everything fails now and then, devices authenticate, are enrolled, replaced and revoked; afterwards the world calms
/// down and everybody who may authenticate can. The data plane itself checks that no row is given twice.
#[test]
fn whatever_fails_at_random_no_row_is_given_twice_and_all_are_served_in_the_end() {
    for seed in 0..60 {
        let mut world = World::new(seed);
        (1..=30).for_each(|id| world.fleet.enrol(DeviceId(id), Mode::Pool, 400));
        world.plane.lock().unwrap().failing = true;
        world.fleet.failing = true;
        let mut next_id = 100;
        for _ in 0..1500 {
            match world.rng.random_range(0..200) {
                0 => {
                    next_id += 1;
                    world.fleet.enrol(DeviceId(next_id), Mode::Pool, 50);
                }
                1 => {
                    let device = DeviceId(world.rng.random_range(1..=30));
                    world.fleet.revoke(device);
                }
                2 => {
                    let device = DeviceId(world.rng.random_range(1..=30));
                    world.fleet.enrol(device, Mode::Pool, 600);
                }
                3 => world.pass(world_ms(seed)),
                _ => {}
            }
            let device = DeviceId(world.rng.random_range(1..=30));
            world.plane.lock().unwrap().win(device);
            world.tick();
        }
        world.plane.lock().unwrap().failing = false;
        world.fleet.failing = false;
        world.pass(10_000);
        world.ticks(20);
        world.pass(6_000);
        world.ticks(800);
        for device in world.fleet.active() {
            let key = world.plane.lock().unwrap().key_of(device);
            let expected = world.fleet.key_of(device);
            assert!(
                key.is_none_or(|key| key == expected),
                "seed {seed}, device {device}: old key"
            );
            let served = world.plane.lock().unwrap().win(device);
            assert!(
                served || world.fleet.is_used_up(device),
                "seed {seed}, device {device}"
            );
        }
        for device in world.fleet.revoked() {
            assert!(
                !world.plane.lock().unwrap().win(device),
                "seed {seed}, device {device}"
            );
        }
        let gap_ns = world.plane.lock().unwrap().longest_fresh_gap_ns();
        assert!(
            gap_ns <= 8_000 * MS + 10_000 * MS + 20 * MS,
            "seed {seed}: {gap_ns}"
        );
    }
}

fn world_ms(seed: u64) -> u64 {
    seed % 7 * 100
}

#[test]
fn events_of_unknown_devices_change_nothing() {
    let mut world = World::loaded(14, 1, 0);
    let before = world.node.status().clone();
    world.plane.lock().unwrap().events.push(Event {
        kind: EventKind::RowsOut,
        device: DeviceId(0xdead),
        idx: RowIndex(0),
        from: "192.0.2.1".parse().unwrap(),
        ingress: 1,
    });
    world.ticks(5);
    assert_eq!(*world.node.status(), before);
    assert!(world.fleet.changes(Revision::ZERO).is_ok());
}
