//! Digests: messages gathered into lists, each sent once until it is acknowledged (specification 9.7).
//!
//! Without input, output and clock: time is an argument, in nanoseconds from any origin.

use std::collections::{BTreeMap, BTreeSet};

use crate::data::Data;
use crate::entity::DigestConfig;
use crate::ids::DigestId;

/// Messages in one list, where the controller sets no limit.
const LIST_MESSAGES_MAX: usize = 4096;
/// Messages of one digest that were sent and are not acknowledged; beyond, the oldest list counts as
/// acknowledged.
const UNACKNOWLEDGED_MAX: usize = 65_536;

/// A list to be sent.
#[derive(Clone, Debug, PartialEq)]
pub struct DigestList {
    /// The digest.
    pub id: DigestId,
    /// What it is acknowledged by.
    pub list_id: u64,
    /// Its messages, each once, oldest first.
    pub data: Vec<Data>,
}

#[derive(Debug)]
struct Gathering {
    config: DigestConfig,
    waiting: Vec<Data>,
    since_ns: u64,
    /// Lists that are not acknowledged, by when they count as such, as it was set when they were sent, and number.
    sent: BTreeMap<(u64, u64), Vec<Data>>,
    /// All messages of `waiting` and `sent`.
    known: BTreeSet<Data>,
}

/// All digests of a switch.
#[derive(Debug, Default)]
pub struct Digests {
    enabled: BTreeMap<DigestId, Gathering>,
    lists: u64,
}

impl Digests {
    /// Nothing is enabled.
    pub fn new() -> Self {
        Self::default()
    }

    /// Enables a digest, changes how it is gathered, or disables it; then what was gathered is forgotten.
    pub fn configure(&mut self, id: DigestId, config: Option<DigestConfig>) {
        let Some(config) = config else {
            self.enabled.remove(&id);
            return;
        };
        let new = Gathering {
            config,
            waiting: Vec::new(),
            since_ns: 0,
            sent: BTreeMap::new(),
            known: BTreeSet::new(),
        };
        self.enabled.entry(id).or_insert(new).config = config;
    }

    /// Forgets all digests; another program runs. Numbers of lists go on.
    pub fn clear(&mut self) {
        self.enabled.clear();
    }

    /// A message came; the list that it completes.
    pub fn push(&mut self, now_ns: u64, id: DigestId, message: Data) -> Option<DigestList> {
        let gathering = self.enabled.get_mut(&id)?;
        gathering.expire(now_ns);
        if !gathering.known.insert(message.clone()) {
            return None;
        }
        if gathering.waiting.is_empty() {
            gathering.since_ns = now_ns;
        }
        gathering.waiting.push(message);
        let limit = match gathering.config.max_list_size as usize {
            0 => LIST_MESSAGES_MAX,
            limit => limit.min(LIST_MESSAGES_MAX),
        };
        let full = gathering.waiting.len() >= limit || gathering.config.max_timeout_ns == 0;
        full.then(|| gathering.list(now_ns, id, &mut self.lists))
    }

    /// Time has passed; the lists that have waited long enough.
    pub fn due(&mut self, now_ns: u64) -> Vec<DigestList> {
        let lists = &mut self.lists;
        let due = self
            .enabled
            .iter_mut()
            .filter(|(_, gathering)| gathering.due_ns().is_some_and(|due| due <= now_ns));
        due.map(|(id, gathering)| gathering.list(now_ns, *id, lists))
            .collect()
    }

    /// When [`due`](Self::due) has something next.
    pub fn next_due_ns(&self) -> Option<u64> {
        self.enabled.values().filter_map(Gathering::due_ns).min()
    }

    /// The controller has acted on a list, or could not be told: its messages may be sent again.
    pub fn acknowledge(&mut self, id: DigestId, list_id: u64) {
        let Some(gathering) = self.enabled.get_mut(&id) else {
            return;
        };
        let key = gathering.sent.keys().find(|(_, sent)| *sent == list_id).copied();
        if let Some(messages) = key.and_then(|key| gathering.sent.remove(&key)) {
            gathering.forget(messages);
        }
    }
}

impl Gathering {
    fn due_ns(&self) -> Option<u64> {
        (!self.waiting.is_empty()).then(|| self.since_ns.saturating_add(self.config.max_timeout_ns))
    }

    fn list(&mut self, now_ns: u64, id: DigestId, lists: &mut u64) -> DigestList {
        *lists += 1;
        let data = std::mem::take(&mut self.waiting);
        let until_ns = now_ns.saturating_add(self.config.ack_timeout_ns);
        self.sent.insert((until_ns, *lists), data.clone());
        self.expire(now_ns);
        while self.known.len() > UNACKNOWLEDGED_MAX
            && let Some((_, oldest)) = self.sent.pop_first()
        {
            self.forget(oldest);
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
            self.forget(messages);
        }
    }

    fn forget(&mut self, messages: Vec<Data>) {
        for message in messages {
            self.known.remove(&message);
        }
    }
}
