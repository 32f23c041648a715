//! A bounded queue of messages to the controller, from devices that are not in the data plane (LAP/1 1.4.6).
//!
//! RESPONSEs are sent first, because each belongs to a CHALLENGE that has caused work. When the queue is full, a new
//! message replaces a random message, so that a flood cannot block later messages.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher as _, RandomState};

use linewarden_dataplane::Miss;
use linewarden_protocol::ids::DeviceId;
use linewarden_protocol::wire::message_type;
use linewarden_types::AdmissionRequest;

/// Maximum number of waiting REQUESTs, and of waiting RESPONSEs.
const WAITING_MAX: usize = 1024;
/// Maximum number of messages in a request to the controller.
const PER_REQUEST: usize = 128;

/// Whether the message is a RESPONSE; else it is a REQUEST.
pub(super) fn is_response(miss: &Miss) -> bool {
    let [_, _, _, kind, ..] = miss.message();
    *kind == message_type::RESPONSE
}

/// Identifies a message: messages with the same bytes from different sources have different keys.
type MessageKey = ([u8; 64], std::net::IpAddr, [u8; 8]);

fn message_key(miss: &Miss) -> MessageKey {
    (*miss.message(), miss.source(), *miss.loc())
}

/// Waiting messages, and messages in flight.
#[derive(Debug, Default)]
pub(super) struct AdmissionQueue {
    responses: VecDeque<Miss>,
    requests: VecDeque<Miss>,
    in_flight: Vec<Miss>,
    /// Keys of all messages in `responses`, `requests` and `in_flight`.
    keys: HashSet<MessageKey>,
    hasher: RandomState,
    /// Number of replaced messages: the input of the random selection.
    replacements: u64,
}

impl AdmissionQueue {
    /// Adds a message, unless an equal message waits or is in flight. If the queue is full, returns the message that
    /// was replaced.
    pub(super) fn push(&mut self, miss: Miss) -> Option<Miss> {
        if !self.keys.insert(message_key(&miss)) {
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
        self.replacements += 1;
        let index = self.hasher.hash_one(self.replacements) as usize % queue.len();
        let replaced = queue.get_mut(index).map(|entry| std::mem::replace(entry, miss))?;
        self.keys.remove(&message_key(&replaced));
        Some(replaced)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.responses.is_empty() && self.requests.is_empty()
    }

    /// Marks the next messages as in flight, and returns them. Messages of devices for which `is_installed` returns
    /// `true` are dropped, because an earlier message has caused the admission of the device. If a dropped RESPONSE
    /// were sent after an eviction of the device, the controller could lease the spent row of the RESPONSE again.
    pub(super) fn next_requests(&mut self, is_installed: impl Fn(DeviceId) -> bool) -> Vec<AdmissionRequest> {
        for queue in [&mut self.responses, &mut self.requests] {
            queue.retain(|miss| {
                let is_kept = !is_installed(miss.device());
                if !is_kept {
                    self.keys.remove(&message_key(miss));
                }
                is_kept
            });
        }
        let responses = self.responses.len().min(PER_REQUEST);
        let requests = self.requests.len().min(PER_REQUEST - responses);
        self.in_flight = self.responses.drain(..responses).collect();
        self.in_flight.extend(self.requests.drain(..requests));
        let request = |miss: &Miss| AdmissionRequest {
            message: *miss.message(),
            loc: *miss.loc(),
        };
        self.in_flight.iter().map(request).collect()
    }

    /// Whether a message of this device is in flight.
    pub(super) fn is_in_flight(&self, device: DeviceId) -> bool {
        self.in_flight.iter().any(|miss| miss.device() == device)
    }

    /// The devices of the RESPONSEs in flight: the controller may admit these devices.
    pub(super) fn responses_in_flight(&self) -> impl Iterator<Item = DeviceId> {
        self.in_flight
            .iter()
            .filter(|miss| is_response(miss))
            .map(Miss::device)
    }

    /// Takes the messages in flight, in order.
    pub(super) fn take_in_flight(&mut self) -> Vec<Miss> {
        for miss in &self.in_flight {
            self.keys.remove(&message_key(miss));
        }
        std::mem::take(&mut self.in_flight)
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
        let mut queue = AdmissionQueue::default();
        for _ in 0..3 {
            assert!(queue.push(request(1)).is_none());
        }
        assert_eq!(queue.next_requests(|_| false).len(), 1);
        assert!(queue.push(request(1)).is_none());
        assert!(queue.is_empty(), "the request is in flight");
        assert_eq!(queue.take_in_flight().len(), 1);
        assert!(queue.push(request(1)).is_none());
        assert!(!queue.is_empty(), "the request is queued again");
        let other_source = Miss::new(*request(1).message(), [10, 0, 0, 2].into(), [0; 8]);
        assert!(queue.push(other_source).is_none());
        assert_eq!(queue.next_requests(|_| false).len(), 2);
    }

    #[test]
    fn messages_of_installed_devices_are_not_sent() {
        let mut queue = AdmissionQueue::default();
        let response = miss(message_type::RESPONSE, 1);
        let device = response.device();
        assert!(queue.push(response).is_none());
        assert!(queue.push(request(2)).is_none());
        assert_eq!(queue.next_requests(|other| other == device).len(), 1);
        assert_eq!(queue.keys.len(), 1);
    }

    #[test]
    fn a_full_queue_drops_at_random_and_responses_have_priority() {
        let mut queue = AdmissionQueue::default();
        let mut replaced = 0;
        for number in 0..10_000 {
            replaced += usize::from(queue.push(request(number)).is_some());
        }
        assert_eq!(replaced, 10_000 - WAITING_MAX);
        assert!(queue.push(miss(message_type::RESPONSE, 1)).is_none());
        let first = queue.next_requests(|_| false);
        assert_eq!(
            (first.len(), first[0].message[3]),
            (PER_REQUEST, message_type::RESPONSE)
        );
        let (mut requests, mut early) = (0, 0);
        while !queue.is_empty() || !queue.in_flight.is_empty() {
            for miss in queue.take_in_flight() {
                requests += 1;
                early += usize::from(miss.message()[8..12] < 5000u32.to_be_bytes()[..]);
            }
            queue.next_requests(|_| false);
        }
        assert_eq!(requests, WAITING_MAX + 1);
        // An early message has been replaced with a probability of 1 - (1 - 1/1024)^5000; few are left.
        assert!(early < WAITING_MAX / 10, "{early}");
        assert!(queue.keys.is_empty());
    }
}
