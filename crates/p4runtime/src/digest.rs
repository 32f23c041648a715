//! Digests: the server buffers messages into lists. A message is not sent again before its list is acknowledged or the
//! acknowledgment times out (specification 9.7).
//!
//! The module is a state machine without input, output or clock: time is an argument, in nanoseconds from any origin.

use std::collections::{BTreeMap, BTreeSet};

use crate::data::Data;
use crate::entity::DigestConfig;
use crate::ids::DigestId;

/// Maximum number of messages in a list if the controller sets no limit or a higher limit.
const LIST_MESSAGES_MAX: usize = 4096;
/// Maximum number of unacknowledged messages of one digest. Beyond this limit the oldest list is treated as
/// acknowledged.
const UNACKNOWLEDGED_MAX: usize = 65_536;

/// Digest list to send.
#[derive(Clone, Debug, PartialEq)]
pub struct DigestList {
    /// The digest.
    pub id: DigestId,
    /// Id for the acknowledgment.
    pub list_id: u64,
    /// Messages without duplicates, oldest first.
    pub data: Vec<Data>,
}

#[derive(Debug)]
struct DigestBuffer {
    config: DigestConfig,
    waiting_messages: Vec<Data>,
    waiting_since_ns: u64,
    /// Unacknowledged lists by acknowledgment deadline (set when the list was sent) and list id.
    unacknowledged_lists: BTreeMap<(u64, u64), Vec<Data>>,
    /// All messages in `waiting_messages` and `unacknowledged_lists`.
    cached_messages: BTreeSet<Data>,
}

/// State of all digests of a switch.
#[derive(Debug, Default)]
pub struct Digests {
    /// Buffers of the enabled digests.
    buffers: BTreeMap<DigestId, DigestBuffer>,
    last_list_id: u64,
}

impl Digests {
    /// Creates the state with all digests disabled.
    pub fn new() -> Self {
        Self::default()
    }

    /// Enables, reconfigures or disables a digest. Disabling discards all buffered messages.
    pub fn configure(&mut self, id: DigestId, config: Option<DigestConfig>) {
        let Some(config) = config else {
            self.buffers.remove(&id);
            return;
        };
        let new = DigestBuffer {
            config,
            waiting_messages: Vec::new(),
            waiting_since_ns: 0,
            unacknowledged_lists: BTreeMap::new(),
            cached_messages: BTreeSet::new(),
        };
        self.buffers.entry(id).or_insert(new).config = config;
    }

    /// Disables all digests after a change of the program. The numbering of lists continues.
    pub fn clear(&mut self) {
        self.buffers.clear();
    }

    /// Adds a message. Returns the list that the message completes, if any.
    pub fn push(&mut self, now_ns: u64, id: DigestId, message: Data) -> Option<DigestList> {
        let buffer = self.buffers.get_mut(&id)?;
        buffer.expire(now_ns);
        if !buffer.cached_messages.insert(message.clone()) {
            return None;
        }
        if buffer.waiting_messages.is_empty() {
            buffer.waiting_since_ns = now_ns;
        }
        buffer.waiting_messages.push(message);
        let limit = match buffer.config.max_list_size as usize {
            0 => LIST_MESSAGES_MAX,
            limit => limit.min(LIST_MESSAGES_MAX),
        };
        let full = buffer.waiting_messages.len() >= limit || buffer.config.max_timeout_ns == 0;
        full.then(|| buffer.complete_list(now_ns, id, &mut self.last_list_id))
    }

    /// Completes and returns the lists whose timeout has expired.
    pub fn take_due_lists(&mut self, now_ns: u64) -> Vec<DigestList> {
        let last_list_id = &mut self.last_list_id;
        let due = self
            .buffers
            .iter_mut()
            .filter(|(_, buffer)| buffer.due_ns().is_some_and(|due| due <= now_ns));
        due.map(|(id, buffer)| buffer.complete_list(now_ns, *id, last_list_id))
            .collect()
    }

    /// Time at which [`take_due_lists`](Self::take_due_lists) next returns a list.
    pub fn next_due_ns(&self) -> Option<u64> {
        self.buffers.values().filter_map(DigestBuffer::due_ns).min()
    }

    /// Removes a list that was acknowledged or could not be delivered: its messages may be sent again.
    pub fn acknowledge(&mut self, id: DigestId, list_id: u64) {
        let Some(buffer) = self.buffers.get_mut(&id) else {
            return;
        };
        let key = buffer
            .unacknowledged_lists
            .keys()
            .find(|(_, sent_id)| *sent_id == list_id)
            .copied();
        if let Some(messages) = key.and_then(|key| buffer.unacknowledged_lists.remove(&key)) {
            buffer.remove_from_cache(messages);
        }
    }
}

impl DigestBuffer {
    fn due_ns(&self) -> Option<u64> {
        (!self.waiting_messages.is_empty())
            .then(|| self.waiting_since_ns.saturating_add(self.config.max_timeout_ns))
    }

    fn complete_list(&mut self, now_ns: u64, id: DigestId, last_list_id: &mut u64) -> DigestList {
        *last_list_id += 1;
        let data = std::mem::take(&mut self.waiting_messages);
        let ack_deadline_ns = now_ns.saturating_add(self.config.ack_timeout_ns);
        self.unacknowledged_lists
            .insert((ack_deadline_ns, *last_list_id), data.clone());
        self.expire(now_ns);
        while self.cached_messages.len() > UNACKNOWLEDGED_MAX
            && let Some((_, oldest)) = self.unacknowledged_lists.pop_first()
        {
            self.remove_from_cache(oldest);
        }
        DigestList {
            id,
            list_id: *last_list_id,
            data,
        }
    }

    fn expire(&mut self, now_ns: u64) {
        while let Some(oldest) = self.unacknowledged_lists.first_entry()
            && oldest.key().0 <= now_ns
        {
            let messages = oldest.remove();
            self.remove_from_cache(messages);
        }
    }

    fn remove_from_cache(&mut self, messages: Vec<Data>) {
        for message in messages {
            self.cached_messages.remove(&message);
        }
    }
}
