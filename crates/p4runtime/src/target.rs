//! Interface of a switch that P4Runtime controls, with checked values.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::mpsc;

use crate::bytes::Bits;
use crate::data::Data;
use crate::entity::{Entity, Query, TableEntry, Update};
use crate::error::EntityError;
use crate::ids::DigestId;
use crate::p4info::P4Info;

/// Forwarding pipeline that a controller sets (specification 7).
#[derive(Clone, Debug)]
pub struct Pipeline {
    /// P4Info.
    pub info: Arc<P4Info>,
    /// Program in the format of the target (`p4_device_config`).
    pub device_config: Arc<[u8]>,
    /// Cookie of the controller.
    pub cookie: Option<u64>,
}

/// Atomicity of a batch (12.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomicity {
    /// Every update is attempted, even after failures.
    ContinueOnError,
    /// All or none; packets may observe intermediate states.
    RollbackOnError,
    /// All or none; no packet observes an intermediate state.
    DataplaneAtomic,
}

/// A switch. The server calls the methods from several threads: reads run concurrently, a call that changes
/// state runs alone. All arguments have been checked against the P4Info.
pub trait Target: Send + Sync + 'static {
    /// Checks whether the program can run; changes no state. Returns INVALID_ARGUMENT with the reason if the program
    /// cannot run, for example because it requires more than the platform provides
    /// (`pkg_info.platform_properties`).
    fn verify(&self, pipeline: &Pipeline) -> Result<(), EntityError>;

    /// Prepares the program with its initial entries only; the running program continues to process
    /// packets. Subsequent writes and reads refer to the prepared program. An earlier prepared program that was not
    /// committed is discarded. If this method fails, no state changes.
    fn save(&self, pipeline: &Pipeline) -> Result<(), EntityError>;

    /// Replaces the running program with the prepared program and its written state. The server calls this method only
    /// if a program is prepared. If this method fails, no state changes.
    fn commit(&self) -> Result<(), EntityError>;

    /// Runs the program, keeps all written state and discards a prepared program. If the state does not fit the
    /// program, returns INVALID_ARGUMENT and changes nothing.
    fn reconcile(&self, pipeline: &Pipeline) -> Result<(), EntityError>;

    /// Applies updates in order and returns one result for each. If the atomicity requires all or none and one
    /// update fails, no state changes, even if other results are successes. An error of the whole call means that no
    /// update was attempted: UNIMPLEMENTED if the atomicity is not supported for these updates.
    fn write(
        &self,
        updates: &[Update],
        atomicity: Atomicity,
    ) -> Result<Vec<Result<(), EntityError>>, EntityError>;

    /// Passes all matching entities to `emit`. A missing entity is not an error. Direct resources are included
    /// if `options` requests them and the table has them.
    fn read(&self, query: &Query, emit: &mut dyn FnMut(Entity)) -> Result<(), EntityError>;

    /// Sends a packet-out of the controller, with a value for each metadata field of the program. Must not
    /// block.
    fn packet_out(&self, metadata: Vec<Bits>, payload: Vec<u8>) -> Result<(), EntityError>;
}

/// Unsolicited event of a switch.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Packet-in, with a value for each metadata field of the program.
    PacketIn {
        /// Metadata values.
        metadata: Vec<Bits>,
        /// Packet.
        payload: Vec<u8>,
    },
    /// One digest message of the program. The server handles buffering, duplicates and acknowledgments.
    /// Messages of disabled digests may be omitted.
    Digest {
        /// Digest.
        id: DigestId,
        /// Message.
        data: Data,
    },
    /// Entries whose idle timeout has expired; the timeout of each entry restarts.
    IdleTimeout(Vec<TableEntry>),
}

/// Sender of events, for the switch. Never blocks.
#[derive(Clone, Debug)]
pub struct EventSender {
    packets: mpsc::Sender<Event>,
    notices: mpsc::Sender<Event>,
    /// Number of lost events other than packets since the last report.
    lost: Arc<AtomicU64>,
}

/// Receiver of events, for the server.
#[derive(Debug)]
pub struct EventReceiver {
    packets: mpsc::Receiver<Event>,
    notices: mpsc::Receiver<Event>,
    /// Number of lost events other than packets since the last report.
    #[cfg_attr(
        not(feature = "server"),
        allow(dead_code, reason = "only the server reads the number")
    )]
    lost: Arc<AtomicU64>,
}

/// Creates separate queues of this capacity for packets and for other events: a flood of packets delays no other event.
pub fn events(capacity: usize) -> (EventSender, EventReceiver) {
    let (packets, packet_receiver) = mpsc::channel(capacity.max(1));
    let (notices, notice_receiver) = mpsc::channel(capacity.max(1));
    let lost = Arc::<AtomicU64>::default();
    let sender = EventSender {
        packets,
        notices,
        lost: Arc::clone(&lost),
    };
    let receiver = EventReceiver {
        packets: packet_receiver,
        notices: notice_receiver,
        lost,
    };
    (sender, receiver)
}

impl EventSender {
    /// Queues an event and returns whether it was queued. An event is lost if the queue is full or the server has
    /// ended, which P4Runtime allows for all events. Clients receive the number of lost events that are not packets.
    #[must_use = "the caller counts lost events"]
    pub fn send(&self, event: Event) -> bool {
        match event {
            Event::PacketIn { .. } => self.packets.try_send(event).is_ok(),
            Event::Digest { .. } | Event::IdleTimeout(_) => {
                let is_queued = self.notices.try_send(event).is_ok();
                self.lost.fetch_add(u64::from(!is_queued), Ordering::Relaxed);
                is_queued
            }
        }
    }
}

impl EventReceiver {
    /// Waits for the next event; `None` after all senders are dropped.
    pub async fn next(&mut self) -> Option<Event> {
        tokio::select! {
            Some(event) = self.notices.recv() => Some(event),
            Some(event) = self.packets.recv() => Some(event),
            else => None,
        }
    }

    /// Returns and resets the number of lost events other than packets.
    #[cfg(feature = "server")]
    pub(crate) fn take_lost(&self) -> u64 {
        self.lost.swap(0, Ordering::Relaxed)
    }
}
