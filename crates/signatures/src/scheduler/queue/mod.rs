//! The priority queue: FIFO within a priority and class, aging, shares, and a stated order of shedding.
//!
//! # Order
//! A job queues in the FIFO of its class and level. Levels 1 to 7 age: a job that has waited k times
//! [`QueueLimits::age_step`] counts as k levels more urgent, but never as immediate. The next job of a class
//! is the front that counts as most urgent, among equals the one that came first. After 6 steps a job of
//! level 7 is preceded only by jobs that came before it, and these are bounded by the capacity: nothing
//! starves that is not shed.
//!
//! Jobs of strangers ([`Ticket::stranger`]) have FIFOs of their own, so that whoever takes jobs says whose ([`Share`]).
//!
//! # Shedding
//! A job whose source has [`QueueLimits::share_max`] jobs waiting is refused. Any other is let in; if the
//! queue is then over its capacity, there leave, until it is not:
//! 1. all jobs that have expired;
//! 2. of strangers ([`Ticket::stranger`]), whatever level they claim but immediate, the newest job of the
//!    source that holds most; among equal sources, of the one that came to its count last;
//! 3. of known sources' least urgent level that has jobs (as submitted, not as aged), the newest job of the
//!    source that holds most there, likewise;
//! 4. of immediate jobs, strangers' first, likewise.
//!
//! It may be the new job itself. So a flood of forgeries from invented sources drops nothing of who has sent
//! something valid, and an immediate job leaves only if the queue holds nothing but immediate jobs. Jobs of
//! lost batches are at the very front of their class, are worked on before all others, and are never shed for
//! room: the queue may exceed its capacity by them.

mod arena;
mod expiry;
mod holders;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use self::arena::{Arena, Links, List};
use self::expiry::Expiries;
use self::holders::Holders;
use super::class::{Class, PerClass};
use super::job::{Batch, Dropped, Job, PerPriority, Priority, Room, Shed, Ticket};
use super::rank::Rank;
use super::time::{Span, Time};

/// Jobs that a queue may hold at most: places have numbers of 32 bits, with room to spare.
pub const CAPACITY_MAX: usize = 1 << 24;

/// Bounds of a queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueLimits {
    /// Jobs that wait at most, 1 to [`CAPACITY_MAX`].
    pub capacity: usize,
    /// Jobs of one source that wait at most.
    pub share_max: usize,
    /// What a job waits to count as one level more urgent. Zero: jobs do not age.
    pub age_step: Span,
    /// Lost batches that a job may have been in and be tried again.
    pub attempts_max: u8,
}

/// Whose jobs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Share {
    /// Of senders of whom something was found valid lately.
    Known,
    /// Of others.
    Strangers,
    /// Of both.
    Both,
}

impl Share {
    const fn of(stranger: bool) -> Self {
        if stranger { Self::Strangers } else { Self::Known }
    }

    /// The FIFOs that belong to it.
    fn fifos(self) -> impl Iterator<Item = Self> {
        [Self::Known, Self::Strangers]
            .into_iter()
            .filter(move |fifo| self == Self::Both || self == *fifo)
    }
}

/// The FIFOs of a class and level.
#[derive(Default)]
struct Fifos {
    known: List,
    strangers: List,
}

impl Fifos {
    fn of(&self, share: Share) -> &List {
        if share == Share::Strangers {
            &self.strangers
        } else {
            &self.known
        }
    }

    fn of_mut(&mut self, share: Share) -> &mut List {
        if share == Share::Strangers {
            &mut self.strangers
        } else {
            &mut self.known
        }
    }
}

/// A job that waits.
struct Node<J> {
    ticket: Ticket,
    payload: J,
    holder: u32,
    fifo: Links,
    held: Links,
}

/// The job that is next of its class, leaving aside immediate ones and those of lost batches.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Head {
    /// The level that it counts as, being aged.
    pub level: Priority,
    /// Its place in the order of arrival.
    pub number: u64,
}

/// Jobs of lost batches, in the order in which they are to be done.
#[derive(Debug)]
struct Returned<J> {
    immediate: VecDeque<(Ticket, J)>,
    other: VecDeque<(Ticket, J)>,
}

impl<J> Returned<J> {
    fn of(&self, immediate: bool) -> &VecDeque<(Ticket, J)> {
        if immediate { &self.immediate } else { &self.other }
    }

    fn of_mut(&mut self, immediate: bool) -> &mut VecDeque<(Ticket, J)> {
        if immediate {
            &mut self.immediate
        } else {
            &mut self.other
        }
    }
}

/// The queue. Every operation on one job is O(1), but for the levels that are compared and the heap of
/// expiries.
pub struct Queue<J> {
    limits: QueueLimits,
    nodes: Arena<Node<J>>,
    fifos: PerClass<PerPriority<Fifos>>,
    holders: Holders,
    expiries: Expiries,
    returned: PerClass<Returned<J>>,
    immediate: usize,
    other: usize,
    /// Jobs that are not immediate, nor of lost batches: of known senders and of strangers.
    others_of: [usize; 2],
    /// Lane time of what waits of strangers.
    strangers_cost: Span,
}

impl<J> Queue<J> {
    /// An empty one. A capacity out of range is brought into it.
    pub fn new(limits: QueueLimits) -> Self {
        Self {
            limits: QueueLimits {
                capacity: limits.capacity.clamp(1, CAPACITY_MAX),
                ..limits
            },
            nodes: Arena::new(),
            fifos: PerClass::default(),
            holders: Holders::new(),
            expiries: Expiries::default(),
            returned: PerClass::from_fn(|_| Returned {
                immediate: VecDeque::new(),
                other: VecDeque::new(),
            }),
            immediate: 0,
            other: 0,
            others_of: [0; 2],
            strangers_cost: Span::ZERO,
        }
    }

    /// Jobs that wait.
    pub fn len(&self) -> usize {
        self.immediate + self.other
    }

    /// Whether none does.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Immediate jobs that wait.
    pub fn immediate(&self) -> usize {
        self.immediate
    }

    /// Other jobs that wait.
    pub fn other(&self) -> usize {
        self.other
    }

    /// Jobs of a class that wait, without immediate ones and those of lost batches.
    pub fn waiting(&self, class: Class) -> usize {
        let levels = self.fifos.of(class).iter().skip(1);
        levels
            .map(|(_, fifos)| fifos.known.len() + fifos.strangers.len())
            .sum()
    }

    /// Whether both known senders and strangers have jobs waiting that are neither immediate nor of lost batches.
    pub fn both_wait(&self) -> bool {
        self.others_of.iter().all(|count| *count > 0)
    }

    fn other_of(&mut self, stranger: bool) -> &mut usize {
        let [known, strangers] = &mut self.others_of;
        if stranger { strangers } else { known }
    }

    /// The lane time that the waiting jobs of strangers take, but for those of lost batches.
    pub fn strangers_cost(&self) -> Span {
        self.strangers_cost
    }

    /// Takes a job in, or drops it, or drops others for it. Numbers must ascend.
    pub fn push(&mut self, ticket: Ticket, payload: J, now: Time, shed: &mut Vec<Dropped<J>>) {
        if self.holders.total(ticket.meta.source) >= self.limits.share_max {
            shed.push(dropped(ticket, payload, Shed::SourceShare));
            return;
        }
        self.insert(ticket, payload);
        if self.len() > self.limits.capacity {
            self.purge(now, shed);
            while self.len() > self.limits.capacity && self.shed_next(shed) {}
        }
    }

    fn insert(&mut self, ticket: Ticket, payload: J) {
        let Ticket {
            meta,
            level,
            number,
            stranger,
            ..
        } = ticket;
        if stranger {
            self.strangers_cost += ticket.cost;
        }
        let node = Node {
            ticket,
            payload,
            holder: 0,
            fifo: Links::default(),
            held: Links::default(),
        };
        let id = self.nodes.add(node);
        let fifos = self.fifos.of_mut(meta.class).of_mut(level);
        let fifo = fifos.of_mut(Share::of(stranger));
        fifo.push_back(&mut self.nodes, id, |node| &mut node.fifo);
        let holder = self
            .holders
            .add(&mut self.nodes, id, meta.source, Rank::of(&ticket));
        if let Some(node) = self.nodes.get_mut(id) {
            node.holder = holder;
        }
        let nodes = &self.nodes;
        self.expiries
            .add(meta.expires, number, id, nodes.len(), |number, id| {
                waits(nodes, number, id)
            });
        *self.count(level) += 1;
        if !level.is_immediate() {
            *self.other_of(stranger) += 1;
        }
    }

    /// Takes a job out of all lists.
    fn remove(&mut self, id: u32) -> Option<(Ticket, J)> {
        let node = self.nodes.get(id)?;
        let (ticket, holder) = (node.ticket, node.holder);
        let Ticket {
            meta,
            level,
            stranger,
            ..
        } = ticket;
        if stranger {
            self.strangers_cost = self.strangers_cost.less(ticket.cost);
        }
        let fifos = self.fifos.of_mut(meta.class).of_mut(level);
        let fifo = fifos.of_mut(Share::of(stranger));
        fifo.remove(&mut self.nodes, id, |node| &mut node.fifo);
        self.holders
            .remove(&mut self.nodes, id, holder, Rank::of(&ticket));
        *self.count(level) -= 1;
        if !level.is_immediate() {
            *self.other_of(stranger) -= 1;
        }
        let node = self.nodes.remove(id)?;
        Some((node.ticket, node.payload))
    }

    fn count(&mut self, level: Priority) -> &mut usize {
        if level.is_immediate() {
            &mut self.immediate
        } else {
            &mut self.other
        }
    }

    /// Drops what expires until now. Without it, [`Queue::take`] and [`Queue::head`] do not look at expiries.
    pub fn purge(&mut self, now: Time, shed: &mut Vec<Dropped<J>>) {
        while let Some((number, id)) = self.expiries.pop(now) {
            if waits(&self.nodes, number, id)
                && let Some((ticket, payload)) = self.remove(id)
            {
                shed.push(dropped(ticket, payload, Shed::Expired));
            }
        }
    }

    /// When the next job expires, at the earliest.
    pub fn next_expiry(&self) -> Time {
        self.expiries.next()
    }

    fn shed_next(&mut self, shed: &mut Vec<Dropped<J>>) -> bool {
        let victim = Rank::all().find_map(|rank| self.holders.newest_of_most(rank));
        let Some((ticket, payload)) = victim.and_then(|id| self.remove(id)) else {
            return false;
        };
        shed.push(dropped(ticket, payload, Shed::QueueFull));
        true
    }

    /// What a job of this level that arrived then counts as now.
    fn aged(&self, level: Priority, arrived: Time, now: Time) -> Priority {
        let (waited, step) = (now.since(arrived), self.limits.age_step);
        if waited < step || step == Span::ZERO || level <= Priority::URGENT {
            return level;
        }
        let steps = waited.as_nanos() / step.as_nanos();
        let steps = steps.min(u64::from(Priority::LEAST.number())) as u8;
        Priority::new(level.number().saturating_sub(steps)).max(Priority::URGENT)
    }

    fn front(&self, class: Class, level: Priority, fifo: Share) -> Option<&Ticket> {
        let id = self.fifos.of(class).of(level).of(fifo).first()?;
        Some(&self.nodes.get(id)?.ticket)
    }

    fn front_head(&self, class: Class, level: Priority, fifo: Share, now: Time) -> Option<Head> {
        let ticket = self.front(class, level, fifo)?;
        Some(Head {
            level: self.aged(level, ticket.meta.arrived, now),
            number: ticket.number,
        })
    }

    /// The next jobs of the FIFOs of a class, next one first.
    fn heads(&self, class: Class, share: Share, now: Time) -> impl Iterator<Item = (Head, Priority, Share)> {
        let fifos = share
            .fifos()
            .flat_map(|fifo| Priority::all().skip(1).map(move |level| (level, fifo)));
        fifos.filter_map(move |(level, fifo)| Some((self.front_head(class, level, fifo, now)?, level, fifo)))
    }

    /// The next job of a class.
    pub fn head(&self, class: Class, share: Share, now: Time) -> Option<Head> {
        self.heads(class, share, now).map(|(head, ..)| head).min()
    }

    /// Earliest arrival among the fronts of a class' levels, which is the earliest of all, and earliest
    /// deadline among the fronts, which is the earliest of all if jobs of a level have the same time.
    pub fn fronts(&self, class: Class) -> Option<(Time, Time)> {
        let fronts = Share::Both.fifos().flat_map(|fifo| {
            Priority::all()
                .skip(1)
                .filter_map(move |level| self.front(class, level, fifo))
        });
        let times = fronts.map(|ticket| (ticket.meta.arrived, ticket.meta.deadline));
        times.reduce(|one, other| (one.0.min(other.0), one.1.min(other.1)))
    }

    /// Moves jobs of a class into a batch while it has room, next one first; no immediate ones.
    pub fn take(&mut self, class: Class, share: Share, room: Room, now: Time, batch: &mut Batch<J>) {
        loop {
            let mut heads: Vec<_> = self.heads(class, share, now).collect();
            heads.sort_unstable();
            let Some((_, level, fifo)) = heads.first().copied() else {
                return;
            };
            // One FIFO is taken from until the front of another is next.
            let other = heads.get(1).map(|(head, ..)| *head);
            while let Some(head) = self.front_head(class, level, fifo, now)
                && other.is_none_or(|other| head < other)
            {
                if !self.take_front(class, level, fifo, room, batch) {
                    return;
                }
            }
        }
    }

    /// Moves the first job of a FIFO into a batch, if there is one and room for it.
    fn take_front(
        &mut self,
        class: Class,
        level: Priority,
        fifo: Share,
        room: Room,
        batch: &mut Batch<J>,
    ) -> bool {
        let has_room = self
            .front(class, level, fifo)
            .is_some_and(|front| room.has_room(batch, front));
        let front = self.fifos.of(class).of(level).of(fifo).first();
        let Some((ticket, payload)) = front.filter(|_| has_room).and_then(|id| self.remove(id)) else {
            return false;
        };
        batch.push(ticket, payload);
        true
    }

    /// The first immediate job of a class by arrival, of known senders or of strangers; 0 if there is one of a lost batch, which counts as
    /// known.
    pub fn immediate_head(&self, class: Class, share: Share) -> Option<u64> {
        if share == Share::Known && !self.returned.of(class).immediate.is_empty() {
            return Some(0);
        }
        self.front(class, Priority::IMMEDIATE, share)
            .map(|ticket| ticket.number)
    }

    /// Moves immediate jobs of a class into a batch while it has room: those of strangers, or those of known senders after those of lost
    /// batches.
    pub fn take_immediate(
        &mut self,
        class: Class,
        share: Share,
        room: Room,
        now: Time,
        batch: &mut Batch<J>,
        shed: &mut Vec<Dropped<J>>,
    ) {
        if share == Share::Known {
            self.take_returned(class, true, room, now, batch, shed);
        }
        while self.take_front(class, Priority::IMMEDIATE, share, room, batch) {}
    }

    /// Takes back the jobs of a batch whose lane was lost: to the front, in their order. Drops those that
    /// were too often in one.
    pub fn put_back(&mut self, batch: &mut Batch<J>, shed: &mut Vec<Dropped<J>>) {
        let jobs = batch.tickets.drain(..).zip(batch.payloads.drain(..));
        for (mut ticket, payload) in jobs.rev() {
            ticket.attempts = ticket.attempts.saturating_add(1);
            if ticket.attempts > self.limits.attempts_max {
                shed.push(dropped(ticket, payload, Shed::LanesFailed));
                continue;
            }
            let immediate = ticket.level.is_immediate();
            *if immediate {
                &mut self.immediate
            } else {
                &mut self.other
            } += 1;
            let returned = self.returned.of_mut(ticket.meta.class).of_mut(immediate);
            returned.push_front((ticket, payload));
        }
    }

    /// Arrival of the first job of a lost batch of a class.
    pub fn returned_head(&self, class: Class, immediate: bool) -> Option<u64> {
        self.returned
            .of(class)
            .of(immediate)
            .front()
            .map(|(ticket, _)| ticket.number)
    }

    /// Moves jobs of lost batches of a class into a batch while it has room.
    pub fn take_returned(
        &mut self,
        class: Class,
        immediate: bool,
        room: Room,
        now: Time,
        batch: &mut Batch<J>,
        shed: &mut Vec<Dropped<J>>,
    ) {
        let returned = self.returned.of_mut(class).of_mut(immediate);
        let mut gone = 0;
        while batch.len() < room.jobs
            && returned
                .front()
                .is_some_and(|(ticket, _)| ticket.meta.expires <= now || room.has_room(batch, ticket))
            && let Some((ticket, payload)) = returned.pop_front()
        {
            gone += 1;
            if ticket.meta.expires <= now {
                shed.push(dropped(ticket, payload, Shed::Expired));
            } else {
                batch.push(ticket, payload);
            }
        }
        *if immediate {
            &mut self.immediate
        } else {
            &mut self.other
        } -= gone;
    }

    /// Empties the queue: jobs of lost batches first, then class by class and level by level.
    pub fn drain(&mut self, jobs: &mut Vec<Job<J>>) {
        let mut batch = Batch::new(Class::RSA_VERIFY);
        for class in Class::all() {
            for immediate in [true, false] {
                let returned = self.returned.of_mut(class).of_mut(immediate);
                returned
                    .drain(..)
                    .for_each(|(ticket, payload)| batch.push(ticket, payload));
            }
        }
        for class in Class::all() {
            for level in Priority::all() {
                for fifo in Share::Both.fifos() {
                    while self.take_front(class, level, fifo, Room::of_jobs(usize::MAX), &mut batch) {}
                }
            }
        }
        (self.immediate, self.other) = (0, 0);
        let pairs = batch.tickets.into_iter().zip(batch.payloads);
        jobs.extend(pairs.map(|(ticket, payload)| Job {
            meta: ticket.meta,
            payload,
        }));
    }
}

fn waits<J>(nodes: &Arena<Node<J>>, number: u64, id: u32) -> bool {
    nodes.get(id).is_some_and(|node| node.ticket.number == number)
}

fn dropped<J>(ticket: Ticket, payload: J, why: Shed) -> Dropped<J> {
    Dropped {
        job: Job {
            meta: ticket.meta,
            payload,
        },
        why,
    }
}
