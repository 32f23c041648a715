//! Messages of devices that are not in the data plane: a bounded queue on the way to the controller (LAP/1 1.4.6).
//!
//! RESPONSEs go first: each answers a CHALLENGE that has been paid for. When the queue is full, a newcomer takes the place
//! of one that is chosen by chance: a flood cannot keep others out by being there before them.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher as _, RandomState};

use linewarden_controller::Knock;
use linewarden_dataplane::Miss;
use linewarden_protocol::ids::DeviceId;
use linewarden_protocol::wire::message_type;

/// REQUESTs that may wait, and RESPONSEs.
const WAITING_MAX: usize = 1024;
/// Messages in one question.
const PER_ASK: usize = 128;

/// Whether it is a RESPONSE; else it is a REQUEST.
pub(super) fn is_response(miss: &Miss) -> bool {
    let [_, _, _, kind, ..] = miss.message();
    *kind == message_type::RESPONSE
}

/// What makes two messages one: the same from elsewhere is another one.
type Name = ([u8; 64], std::net::IpAddr, [u8; 8]);

fn name(miss: &Miss) -> Name {
    (*miss.message(), miss.source(), *miss.loc())
}

/// Who waits, and who is being asked about.
#[derive(Debug, Default)]
pub(super) struct Visitors {
    responses: VecDeque<Miss>,
    requests: VecDeque<Miss>,
    asked: Vec<Miss>,
    /// Of all three.
    names: HashSet<Name>,
    chance: RandomState,
    queued: u64,
}

impl Visitors {
    /// Queues a message, unless the same one waits already; returns the one that has to go for it, if there is no room.
    pub(super) fn queue(&mut self, miss: Miss) -> Option<Miss> {
        if !self.names.insert(name(&miss)) {
            return None;
        }
        let queue = match is_response(&miss) {
            true => &mut self.responses,
            false => &mut self.requests,
        };
        if queue.len() < WAITING_MAX {
            queue.push_back(miss);
            return None;
        }
        self.queued += 1;
        let at = self.chance.hash_one(self.queued) as usize % queue.len();
        let turned_away = queue.get_mut(at).map(|place| std::mem::replace(place, miss))?;
        self.names.remove(&name(&turned_away));
        Some(turned_away)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.responses.is_empty() && self.requests.is_empty()
    }

    /// The next ones to ask about. Those whose device `is_here` by now are let go: another message of it was faster, and a
    /// RESPONSE that is asked about once more could bring back, after an eviction, the row that it has spent.
    pub(super) fn knocks(&mut self, is_here: impl Fn(DeviceId) -> bool) -> Vec<Knock> {
        for queue in [&mut self.responses, &mut self.requests] {
            queue.retain(|miss| {
                let stays = !is_here(miss.device());
                if !stays {
                    self.names.remove(&name(miss));
                }
                stays
            });
        }
        let responses = self.responses.len().min(PER_ASK);
        let requests = self.requests.len().min(PER_ASK - responses);
        self.asked = self.responses.drain(..responses).collect();
        self.asked.extend(self.requests.drain(..requests));
        let knock = |miss: &Miss| Knock {
            message: *miss.message(),
            loc: *miss.loc(),
        };
        self.asked.iter().map(knock).collect()
    }

    /// Whether an answer about this device is on its way.
    pub(super) fn is_asked(&self, device: DeviceId) -> bool {
        self.asked.iter().any(|miss| miss.device() == device)
    }

    /// Those that were asked about, in order.
    pub(super) fn asked(&mut self) -> Vec<Miss> {
        for miss in &self.asked {
            self.names.remove(&name(miss));
        }
        std::mem::take(&mut self.asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn miss(kind: u8, number: u32) -> Miss {
        let mut message = [0; 64];
        message[3] = kind;
        message[8..12].copy_from_slice(&number.to_be_bytes());
        Miss::new(message, [10, 0, 0, 1].into(), [0; 8])
    }

    fn request(number: u32) -> Miss {
        miss(message_type::REQUEST, number)
    }

    #[test]
    fn no_message_waits_twice() {
        let mut visitors = Visitors::default();
        for _ in 0..3 {
            assert!(visitors.queue(request(1)).is_none());
        }
        assert_eq!(visitors.knocks(|_| false).len(), 1);
        assert!(visitors.queue(request(1)).is_none());
        assert!(visitors.is_empty(), "it is being asked about");
        assert_eq!(visitors.asked().len(), 1);
        assert!(visitors.queue(request(1)).is_none());
        assert!(!visitors.is_empty(), "it comes again");
        let elsewhere = Miss::new(*request(1).message(), [10, 0, 0, 2].into(), [0; 8]);
        assert!(visitors.queue(elsewhere).is_none());
        assert_eq!(visitors.knocks(|_| false).len(), 2);
    }

    #[test]
    fn who_is_here_by_now_is_not_asked_about() {
        let mut visitors = Visitors::default();
        let response = miss(message_type::RESPONSE, 1);
        let device = response.device();
        assert!(visitors.queue(response).is_none());
        assert!(visitors.queue(request(2)).is_none());
        assert_eq!(visitors.knocks(|other| other == device).len(), 1);
        assert_eq!(visitors.names.len(), 1);
    }

    #[test]
    fn a_full_queue_turns_away_by_chance_and_responses_go_first() {
        let mut visitors = Visitors::default();
        let mut turned_away = 0;
        for number in 0..10_000 {
            turned_away += usize::from(visitors.queue(request(number)).is_some());
        }
        assert_eq!(turned_away, 10_000 - WAITING_MAX);
        assert!(visitors.queue(miss(message_type::RESPONSE, 1)).is_none());
        let first = visitors.knocks(|_| false);
        assert_eq!(
            (first.len(), first[0].message[3]),
            (PER_ASK, message_type::RESPONSE)
        );
        let (mut asked, mut early) = (0, 0);
        while !visitors.is_empty() || !visitors.asked.is_empty() {
            for miss in visitors.asked() {
                asked += 1;
                early += usize::from(miss.message()[8..12] < 5000u32.to_be_bytes()[..]);
            }
            visitors.knocks(|_| false);
        }
        assert_eq!(asked, WAITING_MAX + 1);
        // Who came early has been replaced with a chance of (1 - 1/1024)^5000, and some are there still.
        assert!(early < WAITING_MAX / 10, "{early}");
        assert!(visitors.names.is_empty());
    }
}
