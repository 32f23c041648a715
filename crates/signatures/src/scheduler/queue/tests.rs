use std::collections::HashMap;

use super::super::job::{Meta, Source};
use super::super::testing::{Dice, seeds};
use super::*;

/// The lane time of each job.
const COST: Span = Span::from_nanos(7);
const CLASSES: [Class; 3] = [Class::RSA_VERIFY, Class::P256_VERIFY, Class::RA_SIGN];

fn is_of(ticket: &Ticket, share: Share) -> bool {
    match share {
        Share::Known => !ticket.stranger,
        Share::Strangers => ticket.stranger,
        Share::Both => true,
    }
}

/// Room for jobs whose work does not matter.
fn room(jobs: usize) -> Room {
    Room::of_jobs(jobs)
}

/// What a batch has taken.
#[derive(Default)]
struct Taken {
    numbers: Vec<u64>,
    work: u64,
}

impl Taken {
    fn add(&mut self, ticket: &Ticket, room: Room) -> bool {
        let work = self.work + u64::from(ticket.meta.work);
        let fits = self.numbers.len() < room.jobs && (self.numbers.is_empty() || work <= room.work);
        if fits {
            self.numbers.push(ticket.number);
            self.work = work;
        }
        fits
    }
}

/// The queue's rules said once more, one job after the other through a plain list.
struct Model {
    limits: QueueLimits,
    waiting: Vec<Ticket>,
    returned: Vec<Ticket>,
    /// When a source's count of a rank last changed.
    changed: HashMap<(Source, (u8, u8)), u64>,
    clock: u64,
}

/// Immediate before known before strangers; then known by level, and immediate by who they are of.
fn rank(ticket: &Ticket) -> (u8, u8) {
    match (ticket.level.number(), ticket.stranger) {
        (0, stranger) => (0, u8::from(stranger)),
        (level, false) => (1, level),
        (_, true) => (2, 0),
    }
}

impl Model {
    fn new(limits: QueueLimits) -> Self {
        Self {
            limits,
            waiting: Vec::new(),
            returned: Vec::new(),
            changed: HashMap::new(),
            clock: 0,
        }
    }

    fn touch(&mut self, ticket: &Ticket) {
        self.clock += 1;
        self.changed
            .insert((ticket.meta.source, rank(ticket)), self.clock);
    }

    fn leave(&mut self, number: u64) -> Ticket {
        let at = self
            .waiting
            .iter()
            .position(|ticket| ticket.number == number)
            .unwrap();
        let ticket = self.waiting.remove(at);
        self.touch(&ticket);
        ticket
    }

    fn push(&mut self, ticket: Ticket, now: Time) -> Vec<(u64, Shed)> {
        let same = self
            .waiting
            .iter()
            .filter(|other| other.meta.source == ticket.meta.source);
        if same.count() >= self.limits.share_max {
            return vec![(ticket.number, Shed::SourceShare)];
        }
        self.waiting.push(ticket);
        self.touch(&ticket);
        let mut shed = Vec::new();
        if self.waiting.len() + self.returned.len() > self.limits.capacity {
            shed = self.purge(now);
            while self.waiting.len() + self.returned.len() > self.limits.capacity && !self.waiting.is_empty()
            {
                let victim = self.victim();
                self.leave(victim);
                shed.push((victim, Shed::QueueFull));
            }
        }
        shed
    }

    fn victim(&self) -> u64 {
        let last = self.waiting.iter().map(rank).max().unwrap();
        let of_rank = || self.waiting.iter().filter(move |ticket| rank(ticket) == last);
        let count = |source| of_rank().filter(|ticket| ticket.meta.source == source).count();
        let order = |ticket: &&Ticket| {
            let source = ticket.meta.source;
            (count(source), self.changed[&(source, last)], ticket.number)
        };
        of_rank().max_by_key(order).unwrap().number
    }

    fn purge(&mut self, now: Time) -> Vec<(u64, Shed)> {
        let mut due: Vec<_> = self
            .waiting
            .iter()
            .filter(|ticket| ticket.meta.expires <= now)
            .copied()
            .collect();
        due.sort_by_key(|ticket| (ticket.meta.expires, ticket.number));
        due.iter()
            .map(|ticket| (self.leave(ticket.number).number, Shed::Expired))
            .collect()
    }

    fn counts_as(&self, ticket: &Ticket, now: Time) -> u8 {
        let waited = now.since(ticket.meta.arrived).as_nanos() / self.limits.age_step.as_nanos();
        ticket.level.number().saturating_sub(waited.min(7) as u8).max(1)
    }

    fn take(&mut self, class: Class, share: Share, room: Room, now: Time) -> Vec<u64> {
        let next = |model: &Self| {
            let mine = model
                .waiting
                .iter()
                .filter(|ticket| ticket.meta.class == class && is_of(ticket, share));
            // Only the first of each level, of known senders and of strangers, can be next.
            let fronts = mine
                .filter(|ticket| !ticket.level.is_immediate())
                .filter(|ticket| {
                    !model.waiting.iter().any(|other| {
                        (other.meta.class, other.level, other.stranger)
                            == (class, ticket.level, ticket.stranger)
                            && other.number < ticket.number
                    })
                });
            fronts
                .min_by_key(|ticket| (model.counts_as(ticket, now), ticket.number))
                .copied()
        };
        let mut taken = Taken::default();
        while let Some(ticket) = next(self)
            && taken.add(&ticket, room)
        {
            self.leave(ticket.number);
        }
        taken.numbers
    }

    fn take_returned(
        &mut self,
        class: Class,
        immediate: bool,
        room: Room,
        now: Time,
    ) -> (Taken, Vec<(u64, Shed)>) {
        let (mut taken, mut shed) = (Taken::default(), Vec::new());
        while taken.numbers.len() < room.jobs
            && let Some(at) = self
                .returned
                .iter()
                .position(|ticket| ticket.meta.class == class && ticket.level.is_immediate() == immediate)
        {
            let ticket = self.returned[at];
            if ticket.meta.expires <= now {
                shed.push((ticket.number, Shed::Expired));
            } else if !taken.add(&ticket, room) {
                break;
            }
            self.returned.remove(at);
        }
        (taken, shed)
    }

    fn take_immediate(
        &mut self,
        class: Class,
        share: Share,
        room: Room,
        now: Time,
    ) -> (Vec<u64>, Vec<(u64, Shed)>) {
        let (mut taken, shed) = match share {
            Share::Known => self.take_returned(class, true, room, now),
            _ => Default::default(),
        };
        while let Some(first) = self
            .waiting
            .iter()
            .find(|ticket| ticket.meta.class == class && ticket.level.is_immediate() && is_of(ticket, share))
            .copied()
            && taken.add(&first, room)
        {
            self.leave(first.number);
        }
        (taken.numbers, shed)
    }

    fn put_back(&mut self, tickets: &[Ticket]) -> Vec<(u64, Shed)> {
        let mut shed = Vec::new();
        let mut back = Vec::new();
        for mut ticket in tickets.iter().copied() {
            ticket.attempts += 1;
            if ticket.attempts > self.limits.attempts_max {
                shed.push((ticket.number, Shed::LanesFailed));
            } else {
                back.push(ticket);
            }
        }
        shed.reverse();
        back.append(&mut self.returned);
        self.returned = back;
        shed
    }
}

struct Pair {
    queue: Queue<u64>,
    model: Model,
    now: Time,
    number: u64,
    taken: Vec<Batch<u64>>,
}

impl Pair {
    fn new(limits: QueueLimits) -> Self {
        let now = Time::from_nanos(1_000);
        Self {
            queue: Queue::new(limits),
            model: Model::new(limits),
            now,
            number: 0,
            taken: Vec::new(),
        }
    }

    fn push(&mut self, class: Class, level: u8, source: u64, expires_in: Option<u64>) -> Vec<(u64, Shed)> {
        let level = Priority::new(level);
        let mut meta = Meta::new(class, level, Source(source), self.now);
        meta.expires = expires_in.map_or(Time::NEVER, |span| self.now + Span::from_nanos(span));
        self.push_as(meta, false)
    }

    fn push_as(&mut self, meta: Meta, stranger: bool) -> Vec<(u64, Shed)> {
        self.number += 1;
        let ticket = Ticket {
            meta,
            number: self.number,
            level: meta.priority,
            attempts: 0,
            stranger,
            cost: COST,
        };
        let mut shed = Vec::new();
        self.queue.push(ticket, self.number, self.now, &mut shed);
        let shed = reasons(shed);
        assert_eq!(shed, self.model.push(ticket, self.now), "pushing {}", self.number);
        self.same();
        shed
    }

    fn take(&mut self, class: Class, count: usize) -> Vec<u64> {
        self.take_of(class, Share::Both, room(count))
    }

    fn take_of(&mut self, class: Class, share: Share, room: Room) -> Vec<u64> {
        let mut batch = Batch::new(class);
        self.queue.take(class, share, room, self.now, &mut batch);
        assert_eq!(batch.payloads, self.model.take(class, share, room, self.now));
        self.keep(batch)
    }

    fn take_immediate(&mut self, class: Class, share: Share, room: Room) -> Vec<u64> {
        let (mut batch, mut shed) = (Batch::new(class), Vec::new());
        self.queue
            .take_immediate(class, share, room, self.now, &mut batch, &mut shed);
        let expected = self.model.take_immediate(class, share, room, self.now);
        assert_eq!((batch.payloads.clone(), reasons(shed)), expected);
        self.keep(batch)
    }

    fn take_returned(&mut self, class: Class, room: Room) -> Vec<u64> {
        let (mut batch, mut shed) = (Batch::new(class), Vec::new());
        self.queue
            .take_returned(class, false, room, self.now, &mut batch, &mut shed);
        let (taken, expected) = self.model.take_returned(class, false, room, self.now);
        assert_eq!((&batch.payloads, reasons(shed)), (&taken.numbers, expected));
        self.keep(batch)
    }

    fn keep(&mut self, batch: Batch<u64>) -> Vec<u64> {
        self.same();
        assert!(
            batch
                .tickets
                .iter()
                .map(|ticket| ticket.number)
                .eq(batch.payloads.iter().copied())
        );
        let numbers = batch.payloads.clone();
        self.taken.push(batch);
        numbers
    }

    fn lose(&mut self, at: usize) -> Vec<(u64, Shed)> {
        let mut batch = self.taken.swap_remove(at);
        let expected = self.model.put_back(&batch.tickets);
        let mut shed = Vec::new();
        self.queue.put_back(&mut batch, &mut shed);
        let shed = reasons(shed);
        assert_eq!(shed, expected);
        self.same();
        shed
    }

    fn purge(&mut self) {
        let mut shed = Vec::new();
        self.queue.purge(self.now, &mut shed);
        assert_eq!(reasons(shed), self.model.purge(self.now));
        self.same();
    }

    fn same(&self) {
        let immediate = |tickets: &[Ticket]| {
            tickets
                .iter()
                .filter(|ticket| ticket.level.is_immediate())
                .count()
        };
        let (waiting, returned) = (&self.model.waiting, &self.model.returned);
        assert_eq!(self.queue.immediate(), immediate(waiting) + immediate(returned));
        assert_eq!(self.queue.len(), waiting.len() + returned.len());
        for class in CLASSES {
            let mine = waiting
                .iter()
                .filter(|ticket| ticket.meta.class == class && !ticket.level.is_immediate());
            assert_eq!(self.queue.waiting(class), mine.count());
        }
        let strangers = self.model.waiting.iter().filter(|ticket| ticket.stranger).count() as u64;
        assert_eq!(self.queue.strangers_cost(), COST.times(strangers));
        let others = |stranger| {
            let mut waiting = self.model.waiting.iter();
            waiting.any(|ticket| !ticket.level.is_immediate() && ticket.stranger == stranger)
        };
        assert_eq!(self.queue.both_wait(), others(false) && others(true));
    }
}

fn reasons(shed: Vec<Dropped<u64>>) -> Vec<(u64, Shed)> {
    shed.into_iter()
        .map(|dropped| (dropped.job.payload, dropped.why))
        .collect()
}

const LIMITS: QueueLimits = QueueLimits {
    capacity: 8,
    share_max: 4,
    age_step: Span::from_nanos(100),
    attempts_max: 2,
};

fn step(pair: &mut Pair, dice: &mut Dice, seen: &mut [u32; Shed::COUNT]) {
    let class = CLASSES[dice.below(3) as usize];
    let shed = match dice.below(13) {
        0..=6 => {
            let level = if dice.one_in(3) { 0 } else { dice.below(8) as u8 };
            let mut meta = Meta::new(class, Priority::new(level), Source(dice.below(4)), pair.now);
            meta.work = dice.below(4_000) as u32;
            if dice.one_in(3) {
                meta.expires = pair.now + Span::from_nanos(dice.below(900));
            }
            pair.push_as(meta, dice.one_in(2))
        }
        7..=9 => {
            let room = Room {
                jobs: dice.below(5) as usize,
                work: dice.below(6_000),
            };
            match dice.below(7) {
                0..=2 => pair.take_of(
                    class,
                    [Share::Known, Share::Strangers, Share::Both][dice.below(3) as usize],
                    room,
                ),
                3 => pair.take_immediate(class, Share::Known, room),
                4 => pair.take_immediate(class, Share::Strangers, room),
                _ => pair.take_returned(class, room),
            };
            Vec::new()
        }
        10..=11 if !pair.taken.is_empty() => {
            let last = pair.taken.len() - 1;
            pair.lose(if dice.one_in(4) {
                dice.below(last as u64 + 1) as usize
            } else {
                last
            })
        }
        _ => {
            pair.now = pair.now + Span::from_nanos(dice.below(300));
            if dice.one_in(2) {
                pair.purge();
            }
            Vec::new()
        }
    };
    shed.iter().for_each(|(_, why)| seen[*why as usize] += 1);
}

#[test]
fn it_does_what_a_plain_list_does() {
    let seen = std::cell::RefCell::new([0; Shed::COUNT]);
    seeds(600, |seed, dice| {
        let limits = QueueLimits {
            capacity: 1 + dice.below(12) as usize,
            share_max: 1 + dice.below(6) as usize,
            ..LIMITS
        };
        let mut pair = Pair::new(limits);
        // Short runs first: the first seed that fails is easy to read.
        for _ in 0..20 + seed {
            step(&mut pair, dice, &mut seen.borrow_mut());
        }
        let mut jobs = Vec::new();
        let waiting = pair.queue.len();
        pair.queue.drain(&mut jobs);
        assert_eq!((jobs.len(), pair.queue.len()), (waiting, 0));
    });
    if std::env::var_os("LINEWARDEN_SEED").is_none() {
        for why in [
            Shed::Expired,
            Shed::SourceShare,
            Shed::QueueFull,
            Shed::LanesFailed,
        ] {
            assert!(seen.borrow()[why as usize] > 50, "{why} hardly happened");
        }
    }
}

#[test]
fn the_order_of_shedding() {
    let mut pair = Pair::new(QueueLimits {
        capacity: 6,
        share_max: 4,
        ..LIMITS
    });
    let class = Class::P256_VERIFY;
    for (level, source, expires) in [
        (1, 1, None),
        (0, 1, None),
        (6, 2, None),
        (5, 1, Some(50)),
        (6, 1, None),
        (6, 2, None),
    ] {
        assert_eq!(pair.push(class, level, source, expires), []);
    }
    pair.now = pair.now + Span::from_nanos(60);
    assert_eq!(
        pair.push(class, 3, 3, None),
        [(4, Shed::Expired)],
        "first what has expired"
    );
    assert_eq!(
        pair.push(class, 7, 3, None),
        [(8, Shed::QueueFull)],
        "the new one, if it is the least urgent"
    );
    assert_eq!(
        pair.push(class, 0, 3, None),
        [(6, Shed::QueueFull)],
        "the newest of who holds most"
    );
    assert_eq!(
        pair.push(class, 6, 2, None),
        [(10, Shed::QueueFull)],
        "of equals, of who came to its count last"
    );
    assert_eq!(pair.push(class, 2, 3, None), [(3, Shed::QueueFull)]);
    assert_eq!(pair.push(class, 0, 4, None), [(5, Shed::QueueFull)]);
    for number in [13, 14, 15] {
        assert!(matches!(
            pair.push(class, 0, number, None)[..],
            [(1 | 7 | 11, Shed::QueueFull)]
        ));
    }
    assert_eq!(pair.queue.immediate(), 6);
    assert_eq!(
        pair.push(class, 1, 9, None),
        [(16, Shed::QueueFull)],
        "no immediate one for another"
    );
    assert_eq!(
        pair.push(class, 0, 9, None),
        [(17, Shed::QueueFull)],
        "but for one of its kind"
    );
}

#[test]
fn strangers_leave_before_whom_is_known_whatever_they_claim() {
    let mut pair = Pair::new(LIMITS);
    let class = Class::P256_VERIFY;
    let stranger =
        |pair: &Pair, level, source| Meta::new(class, Priority::new(level), Source(source), pair.now);
    for level in [7, 0, 1] {
        assert_eq!(pair.push(class, level, u64::from(level), None), []);
    }
    for (level, source) in [(1, 100), (1, 100), (0, 101), (1, 101), (7, 102)] {
        assert_eq!(pair.push_as(stranger(&pair, level, source), true), []);
    }
    for expected in [5, 4, 8, 7] {
        assert_eq!(
            pair.push(class, 6, 10 + expected, None),
            [(expected, Shed::QueueFull)],
            "who holds most, then who came to its count last, at whatever level"
        );
    }
    assert_eq!(
        pair.push_as(stranger(&pair, 1, 103), true),
        [(13, Shed::QueueFull)],
        "the new one, if it is the only stranger's"
    );
    for expected in [1, 12, 11, 10, 9] {
        assert_eq!(
            pair.push(class, 1, 20 + expected, None),
            [(expected, Shed::QueueFull)],
            "then known ones by level"
        );
    }
    for expected in [18, 17, 16, 15, 14, 3, 6] {
        assert_eq!(
            pair.push(class, 0, 40 + expected, None),
            [(expected, Shed::QueueFull)],
            "immediate ones last, and of these a stranger's first"
        );
    }
}

#[test]
fn a_job_of_the_least_level_is_not_passed_for_ever() {
    let mut pair = Pair::new(LIMITS);
    let class = Class::RSA_VERIFY;
    pair.push(class, 7, 0, None);
    let mut rounds = 0;
    loop {
        rounds += 1;
        pair.push(class, 1, 1 + rounds, None);
        if pair.take(class, 1) == [1] {
            break;
        }
        pair.now = pair.now + Span::from_nanos(30);
    }
    // Six steps of 100 ns, in rounds of 30 ns, in which it stays behind one that is there.
    assert_eq!(rounds, 21);
}

#[test]
fn nothing_becomes_immediate_by_waiting() {
    let mut pair = Pair::new(LIMITS);
    pair.push(Class::RSA_VERIFY, 1, 0, None);
    pair.now = pair.now + Span::from_millis(1);
    assert_eq!(
        pair.queue
            .head(Class::RSA_VERIFY, Share::Both, pair.now)
            .map(|head| head.level),
        Some(Priority::URGENT)
    );
    assert!(
        pair.take_immediate(Class::RSA_VERIFY, Share::Known, room(9))
            .is_empty()
    );
}

#[test]
fn without_a_step_nothing_ages() {
    let mut queue = Queue::new(QueueLimits {
        age_step: Span::ZERO,
        ..LIMITS
    });
    let level = Priority::new(5);
    let meta = Meta::new(Class::RSA_VERIFY, level, Source(0), Time::ZERO);
    queue.push(
        Ticket {
            meta,
            number: 1,
            level,
            attempts: 0,
            stranger: false,
            cost: COST,
        },
        0,
        Time::ZERO,
        &mut Vec::new(),
    );
    assert_eq!(
        queue.head(Class::RSA_VERIFY, Share::Both, Time::NEVER),
        Some(Head { level, number: 1 })
    );
}

#[test]
fn expiries_of_jobs_that_left_are_forgotten() {
    let mut pair = Pair::new(LIMITS);
    for _ in 0..10_000 {
        pair.push(Class::RSA_VERIFY, 3, 0, Some(u64::from(u32::MAX)));
        pair.take(Class::RSA_VERIFY, 1);
        pair.taken.clear();
    }
    assert!(pair.queue.expiries.len() < 200);
}
