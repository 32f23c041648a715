//! What a switch has to offer so that it can be controlled, in terms of checked values.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::mpsc;

use crate::bytes::Bits;
use crate::data::Data;
use crate::entity::{Entity, Query, TableEntry, Update};
use crate::error::EntityError;
use crate::ids::DigestId;
use crate::p4info::P4Info;

/// A program, as a controller hands it over (specification 7).
#[derive(Clone, Debug)]
pub struct Pipeline {
    /// What of it can be named.
    pub info: Arc<P4Info>,
    /// The program itself, in the target's own form.
    pub device_config: Arc<[u8]>,
    /// The controller's own number for it.
    pub cookie: Option<u64>,
}

/// What a batch promises (12.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomicity {
    /// Every update is tried, whatever becomes of the others.
    ContinueOnError,
    /// All or none; packets may see steps in between.
    RollbackOnError,
    /// All or none, and no packet sees a step in between.
    DataplaneAtomic,
}

/// A switch. The server calls it from several threads: reads at the same time, all that changes something one
/// at a time and with no read beside it. Everything that P4Info can judge has been judged before.
pub trait Target: Send + Sync + 'static {
    /// Whether this program could be run: INVALID_ARGUMENT says why not, also where it asks for more than the
    /// platform has (`pkg_info.platform_properties`). Nothing changes.
    fn verify(&self, pipeline: &Pipeline) -> Result<(), EntityError>;

    /// Prepares this program, with its initial entries and nothing else; packets go on through the one
    /// before. From now on writes and reads mean the prepared one. What was prepared before and never
    /// committed is forgotten. On error nothing has changed.
    fn save(&self, pipeline: &Pipeline) -> Result<(), EntityError>;

    /// Has packets go through the prepared program, with what was written to it. The server calls it only
    /// where one is prepared. On error nothing has changed.
    fn commit(&self) -> Result<(), EntityError>;

    /// Runs this program and keeps all that was written; INVALID_ARGUMENT if it does not fit, and nothing has
    /// changed. What was prepared is forgotten.
    fn reconcile(&self, pipeline: &Pipeline) -> Result<(), EntityError>;

    /// Carries out updates in their order; one result for each. Where all or none was promised and one fails,
    /// nothing has changed, whatever the other results say. An error of the whole means that nothing was
    /// tried: UNIMPLEMENTED if this atomicity is not to be had for these.
    fn write(
        &self,
        updates: &[Update],
        atomicity: Atomicity,
    ) -> Result<Vec<Result<(), EntityError>>, EntityError>;

    /// Hands over everything that answers this. What is not there is no error. Resources are read where
    /// `want` asks for them and they are there.
    fn read(&self, query: &Query, found: &mut dyn FnMut(Entity)) -> Result<(), EntityError>;

    /// Takes a packet from the controller, with a value for each field of the program's header; must not
    /// wait.
    fn packet_out(&self, metadata: Vec<Bits>, payload: Vec<u8>) -> Result<(), EntityError>;
}

/// What a switch tells by itself.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A packet for the controller, with a value for each field of the program's header.
    PacketIn {
        /// The values.
        metadata: Vec<Bits>,
        /// The packet.
        payload: Vec<u8>,
    },
    /// One message of a digest, as the program emitted it. Gathering, duplicates and acknowledgements are the
    /// server's; messages of digests that are not enabled may be left out.
    Digest {
        /// Which.
        id: DigestId,
        /// The message.
        data: Data,
    },
    /// Entries that nothing has hit for as long as their time to live says; the time runs anew for each.
    IdleTimeout(Vec<TableEntry>),
}

/// The switch's end of the events' queues. It never waits.
#[derive(Clone, Debug)]
pub struct EventSender {
    packets: mpsc::Sender<Event>,
    notices: mpsc::Sender<Event>,
    lost: Arc<AtomicU64>,
}

/// The server's end.
#[derive(Debug)]
pub struct EventReceiver {
    packets: mpsc::Receiver<Event>,
    notices: mpsc::Receiver<Event>,
    lost: Arc<AtomicU64>,
}

/// Queues for so many packets and so many other events: who floods with packets keeps nothing else from being told.
pub fn events(capacity: usize) -> (EventSender, EventReceiver) {
    let (packets, packets_end) = mpsc::channel(capacity.max(1));
    let (notices, notices_end) = mpsc::channel(capacity.max(1));
    let lost = Arc::<AtomicU64>::default();
    let sender = EventSender {
        packets,
        notices,
        lost: Arc::clone(&lost),
    };
    let receiver = EventReceiver {
        packets: packets_end,
        notices: notices_end,
        lost,
    };
    (sender, receiver)
}

impl EventSender {
    /// Hands over an event. Returns whether it was taken: it is lost where the queue is full or the server is
    /// gone, which P4Runtime allows for all of them. Clients are told how many were lost that were no packets.
    #[must_use = "an event that is lost is to be counted"]
    pub fn send(&self, event: Event) -> bool {
        match event {
            Event::PacketIn { .. } => self.packets.try_send(event).is_ok(),
            Event::Digest { .. } | Event::IdleTimeout(_) => {
                let is_taken = self.notices.try_send(event).is_ok();
                self.lost.fetch_add(u64::from(!is_taken), Ordering::Relaxed);
                is_taken
            }
        }
    }
}

impl EventReceiver {
    /// The next event; none once all senders are gone.
    pub async fn next(&mut self) -> Option<Event> {
        tokio::select! {
            Some(event) = self.notices.recv() => Some(event),
            Some(event) = self.packets.recv() => Some(event),
            else => None,
        }
    }

    /// Events but for packets that were lost since this was last asked.
    pub(crate) fn take_lost(&self) -> u64 {
        self.lost.swap(0, Ordering::Relaxed)
    }
}
