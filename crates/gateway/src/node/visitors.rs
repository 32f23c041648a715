//! Messages of devices that are not in the data plane: a bounded queue on the way to the controller (LAP/1 1.4.6).

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use linewarden_controller::Knock;
use linewarden_dataplane::Miss;

/// Messages that may wait.
const WAITING_MAX: usize = 1024;
/// Messages of one source that may wait.
const WAITING_PER_SOURCE: u32 = 32;
/// Messages in one question.
const PER_ASK: usize = 128;

/// Who waits, and who is being asked about.
#[derive(Debug, Default)]
pub(super) struct Visitors {
    waiting: VecDeque<Miss>,
    per_source: HashMap<IpAddr, u32>,
    asked: Vec<Miss>,
}

impl Visitors {
    /// Queues a message; false if there is no room for it, or the device has one waiting.
    pub(super) fn queue(&mut self, miss: Miss) -> bool {
        let same = |other: &Miss| other.message() == miss.message();
        if self.waiting.len() >= WAITING_MAX || self.waiting.iter().any(same) || self.asked.iter().any(same) {
            return false;
        }
        let count = self.per_source.entry(miss.source()).or_default();
        if *count >= WAITING_PER_SOURCE {
            return false;
        }
        *count += 1;
        self.waiting.push_back(miss);
        true
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The next ones to ask about.
    pub(super) fn knocks(&mut self) -> Vec<Knock> {
        let count = self.waiting.len().min(PER_ASK);
        self.asked = self.waiting.drain(..count).collect();
        for miss in &self.asked {
            if let Some(count) = self.per_source.get_mut(&miss.source()) {
                *count -= 1;
                if *count == 0 {
                    self.per_source.remove(&miss.source());
                }
            }
        }
        let knock = |miss: &Miss| Knock {
            message: *miss.message(),
            loc: *miss.loc(),
        };
        self.asked.iter().map(knock).collect()
    }

    /// Those that were asked about, in order. Without an answer for them they are let go: their senders repeat.
    pub(super) fn asked(&mut self) -> Vec<Miss> {
        std::mem::take(&mut self.asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn miss(number: u32, source: u8) -> Miss {
        let mut message = [0; 64];
        message[..4].copy_from_slice(&number.to_be_bytes());
        Miss::new(message, [10, 0, 0, source].into(), [0; 8])
    }

    #[test]
    fn one_source_cannot_fill_the_queue_and_no_message_waits_twice() {
        let mut visitors = Visitors::default();
        let taken = (0..200).filter(|number| visitors.queue(miss(*number, 1))).count();
        assert_eq!(taken as u32, WAITING_PER_SOURCE);
        assert!(visitors.queue(miss(1000, 2)));
        assert!(!visitors.queue(miss(1000, 2)));
        assert_eq!(visitors.knocks().len(), 33);
        assert!(!visitors.queue(miss(1000, 2)), "it is being asked about");
        assert!(visitors.queue(miss(7000, 1)), "there is room again");
        assert_eq!(visitors.asked().len(), 33);
        assert!(visitors.queue(miss(1000, 2)));
    }

    #[test]
    fn the_queue_is_bounded() {
        let mut visitors = Visitors::default();
        for number in 0..5000 {
            visitors.queue(miss(number, (number % 251) as u8));
        }
        let mut asked = 0;
        while !visitors.is_empty() {
            asked += visitors.knocks().len();
        }
        assert_eq!(asked, WAITING_MAX);
        assert!(visitors.per_source.is_empty());
    }
}
