//! Digests: messages are buffered into lists. A message is sent once until it is acknowledged (specification 9.7).
//!
//! A state machine without input, output and clock: time is an argument, in nanoseconds from any origin.

use std::collections::{BTreeMap, BTreeSet};

use crate::data::Data;
use crate::entity::DigestConfig;
use crate::ids::DigestId;

/// Maximum number of messages in a list if the controller sets no limit.
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
    waiting: Vec<Data>,
    since_ns: u64,
    /// Unacknowledged lists by acknowledgment deadline (set when the list was sent) and list id.
    sent: BTreeMap<(u64, u64), Vec<Data>>,
    /// All messages in `waiting` and `sent`.
    cached: BTreeSet<Data>,
}

/// State of all digests of a switch.
#[derive(Debug, Default)]
pub struct Digests {
    enabled: BTreeMap<DigestId, DigestBuffer>,
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
            self.enabled.remove(&id);
            return;
        };
        let new = DigestBuffer {
            config,
            waiting: Vec::new(),
            since_ns: 0,
            sent: BTreeMap::new(),
            cached: BTreeSet::new(),
        };
        self.enabled.entry(id).or_insert(new).config = config;
    }

    /// Discards all digests because another program runs. List ids continue.
    pub fn clear(&mut self) {
        self.enabled.clear();
    }

    /// Adds a message. Returns the list that the message completes.
    pub fn push(&mut self, now_ns: u64, id: DigestId, message: Data) -> Option<DigestList> {
        let digest_list = self.enabled.get_mut(&id)?;
        digest_list.expire(now_ns);
        if !digest_list.cached.insert(message.clone()) {
            return None;
        }
        if digest_list.waiting.is_empty() {
            digest_list.since_ns = now_ns;
        }
        digest_list.waiting.push(message);
        let limit = match digest_list.config.max_list_size as usize {
            0 => LIST_MESSAGES_MAX,
            limit => limit.min(LIST_MESSAGES_MAX),
        };
        let full = digest_list.waiting.len() >= limit || digest_list.config.max_timeout_ns == 0;
        full.then(|| digest_list.list(now_ns, id, &mut self.last_list_id))
    }

    /// Returns the lists whose timeout has expired.
    pub fn due(&mut self, now_ns: u64) -> Vec<DigestList> {
        let lists = &mut self.last_list_id;
        let due = self
            .enabled
            .iter_mut()
            .filter(|(_, digest_list)| digest_list.due_ns().is_some_and(|due| due <= now_ns));
        due.map(|(id, digest_list)| digest_list.list(now_ns, *id, lists))
            .collect()
    }

    /// Time at which [`due`](Self::due) next returns a list.
    pub fn next_due_ns(&self) -> Option<u64> {
        self.enabled.values().filter_map(DigestBuffer::due_ns).min()
    }

    /// Removes a list that was acknowledged or could not be delivered: its messages may be sent again.
    pub fn acknowledge(&mut self, id: DigestId, list_id: u64) {
        let Some(digest_list) = self.enabled.get_mut(&id) else {
            return;
        };
        let key = digest_list
            .sent
            .keys()
            .find(|(_, sent)| *sent == list_id)
            .copied();
        if let Some(messages) = key.and_then(|key| digest_list.sent.remove(&key)) {
            digest_list.remove_from_cache(messages);
        }
    }
}

impl DigestBuffer {
    fn due_ns(&self) -> Option<u64> {
        (!self.waiting.is_empty()).then(|| self.since_ns.saturating_add(self.config.max_timeout_ns))
    }

    fn list(&mut self, now_ns: u64, id: DigestId, lists: &mut u64) -> DigestList {
        *lists += 1;
        let data = std::mem::take(&mut self.waiting);
        let until_ns = now_ns.saturating_add(self.config.ack_timeout_ns);
        self.sent.insert((until_ns, *lists), data.clone());
        self.expire(now_ns);
        while self.cached.len() > UNACKNOWLEDGED_MAX
            && let Some((_, oldest)) = self.sent.pop_first()
        {
            self.remove_from_cache(oldest);
        }
        DigestList {
            id,
            list_id: *lists,
            data,
        }
    }

    fn expire(&mut self, now_ns: u64) {
        while let Some(oldest) = self.sent.first_entry()
            && oldest.key().0 <= now_ns
        {
            let messages = oldest.remove();
            self.remove_from_cache(messages);
        }
    }

    fn remove_from_cache(&mut self, messages: Vec<Data>) {
        for message in messages {
            self.cached.remove(&message);
        }
    }
}
