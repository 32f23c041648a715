//! The connection to the switch: blocking calls, and the messages that the switch sends between them.

use std::collections::{HashMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use linewarden_p4runtime::arbitration::ArbitrationStatus;
use linewarden_p4runtime::bytes::Bits;
use linewarden_p4runtime::client::{Client, ClientError, ClientIdentity, Events, StreamEvent};
use linewarden_p4runtime::data::Data;
use linewarden_p4runtime::digest::DigestList;
use linewarden_p4runtime::entity::{Entity, Update};
use linewarden_p4runtime::ids::RegisterId;
use linewarden_p4runtime::target::Atomicity;
use linewarden_p4runtime::translate::Read;
use linewarden_tls::endpoint;
use tokio::runtime::Runtime;
use tokio::time::timeout;

use super::error::SwitchError;
use super::options::P4Options;
use super::program::{Program, number};
use crate::wake_fd::WakeFd;

/// Maximum number of updates in one batch.
pub(super) const UPDATES_PER_WRITE: usize = 4096;
/// Maximum number of devices in one read call.
pub(super) const DEVICES_PER_READ: usize = 4096;
/// Timeout of a call. Loading a program of several megabytes takes less.
const CALL_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum number of digest messages that wait for the gateway. The switch sends each message one time; messages that
/// exceed the limit are counted as lost.
const MESSAGES_MAX: usize = 65_536;
/// Maximum number of digest lists per drain, so that the caller can do other work between two drains.
const LISTS_PER_DRAIN: usize = 16;
/// Maximum number of packet-ins per drain. Each packet-in may cost a call, and revocations must not wait for all
/// packet-ins.
const PACKETS_PER_DRAIN: usize = 256;
/// Maximum number of packet-ins that wait for the gateway. Further packet-ins are dropped; devices repeat their messages.
const PACKETS_MAX: usize = 4096;

/// Messages of the switch that the gateway has not yet read.
#[derive(Debug, Default)]
struct Inbox {
    lists: VecDeque<DigestList>,
    /// Number of messages in these lists.
    messages: usize,
    /// Number of messages that this process dropped, plus one for each loss that the switch reported.
    lost_count: u64,
    /// The latest error that the switch reported for a message.
    last_error: Option<String>,
    /// Frames, and the ports on which they arrived.
    packets: VecDeque<(u16, Vec<u8>)>,
    /// Why the stream ended; `None` while it is open.
    end_reason: Option<String>,
}

/// The wake descriptor, and whether the gateway waits for it.
#[derive(Debug)]
struct Wake {
    wake_fd: WakeFd,
    is_armed: AtomicBool,
}

/// The connection to a switch, as its primary controller.
#[derive(Debug)]
pub(super) struct SwitchConnection {
    runtime: Runtime,
    client: Mutex<Client>,
    inbox: Arc<Mutex<Inbox>>,
    wake: Arc<Wake>,
    pub program: Program,
}

impl SwitchConnection {
    /// Connects, becomes the primary controller, and loads the program with empty tables.
    pub fn open(options: &P4Options) -> Result<Self, SwitchError> {
        let endpoint = endpoint(&options.address, options.tls.as_ref()).map_err(|source| {
            let address = options.address.clone();
            SwitchError::Address { address, source }
        })?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("lw-p4")
            .enable_all()
            .build()
            .map_err(SwitchError::Runtime)?;
        let identity = ClientIdentity {
            device_id: options.device_id,
            role: String::new(),
            election_id: options.election_id,
        };
        let connect = Client::connect(endpoint, identity);
        let (client, events, arbitration) = with_timeout(&runtime, connect).map_err(|error| match error {
            SwitchError::Client(
                source @ (ClientError::Unreachable(_)
                | ClientError::ConnectionLost(_)
                | ClientError::Rejected(_)),
            ) => {
                let address = options.address.clone();
                let hint = connect_hint(options, &source);
                SwitchError::Connect {
                    address,
                    source: source.into(),
                    hint,
                }
            }
            error => error,
        })?;
        if arbitration != ArbitrationStatus::Primary {
            return Err(SwitchError::NotPrimary);
        }
        let inbox = Arc::<Mutex<Inbox>>::default();
        let wake = Arc::new(Wake {
            wake_fd: WakeFd::new().map_err(SwitchError::Runtime)?,
            is_armed: AtomicBool::new(false),
        });
        let connection = Self {
            client: Mutex::new(client),
            inbox: Arc::clone(&inbox),
            wake: Arc::clone(&wake),
            program: Program::new()?,
            runtime,
        };
        let pipeline = connection.program.pipeline();
        connection.call(async |client| client.set_pipeline(&pipeline).await)?;
        connection.runtime.spawn(receive_events(events, inbox, wake));
        Ok(connection)
    }

    fn call<T>(
        &self,
        work: impl AsyncFnOnce(&mut Client) -> Result<T, ClientError>,
    ) -> Result<T, SwitchError> {
        let mut client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        with_timeout(&self.runtime, work(&mut client))
    }

    /// Executes all updates in order, or none.
    pub fn write(&self, updates: &[Update]) -> Result<(), SwitchError> {
        self.call(async |client| client.write(updates, Atomicity::RollbackOnError).await)
    }

    pub fn read(&self, requests: &[Read]) -> Result<Vec<Entity>, SwitchError> {
        self.call(async |client| client.read(requests).await)
    }

    /// Reads these register cells.
    pub fn read_array<const N: usize>(
        &self,
        cells: [(&'static str, u32); N],
    ) -> Result<[u128; N], SwitchError> {
        let values = self.read_cells(&cells)?;
        let name = cells.first().map_or("", |(name, _)| *name);
        <[u128; N]>::try_from(values).map_err(|_| SwitchError::RegisterMissing(name))
    }

    /// Reads these cells of one register.
    pub fn read_column(
        &self,
        name: &'static str,
        cells: impl Iterator<Item = u32>,
    ) -> Result<Vec<u128>, SwitchError> {
        let cells: Vec<_> = cells.map(|cell| (name, cell)).collect();
        self.read_cells(&cells)
    }

    /// Reads these cells, in order.
    pub fn read_cells(&self, cells: &[(&'static str, u32)]) -> Result<Vec<u128>, SwitchError> {
        if cells.is_empty() {
            return Ok(Vec::new());
        }
        let to_id = |(name, index): &(&'static str, u32)| {
            let (id, _) = self.program.register(name)?;
            Ok((id, u64::from(*index)))
        };
        let ids: Vec<_> = cells.iter().map(to_id).collect::<Result<_, SwitchError>>()?;
        let request = |(id, index): &(RegisterId, u64)| Read::Registers {
            id: Some(*id),
            index: Some(*index),
        };
        let requests: Vec<Read> = ids.iter().map(request).collect();
        let mut by_cell = HashMap::new();
        for entity in self.read(&requests)? {
            if let Entity::Register {
                id,
                index,
                data: Data::Bits(bits),
            } = entity
            {
                by_cell.insert((id, index), number(&bits));
            }
        }
        let values = cells.iter().zip(&ids).map(|((name, _), id)| {
            let value = by_cell.get(id).copied();
            value.ok_or(SwitchError::RegisterMissing(name))
        });
        values.collect()
    }

    /// Sends a frame through the CPU port (`packet_out_t` in p4/include/lap_frame.p4).
    pub fn packet_out(&self, port: u16, ingress: u16, frame: Vec<u8>) -> Result<(), SwitchError> {
        let field =
            |value: u16| Bits::from_u128(16, value.into()).ok_or(SwitchError::ProgramMismatch("packet_out"));
        let header = [field(port)?, field(ingress)?];
        self.call(async |client| client.packet_out(&header, frame).await)
    }

    /// Makes the wake descriptor readable at the next message of the switch.
    pub fn arm_wake(&self) {
        self.wake.wake_fd.reset();
        self.wake.is_armed.store(true, Ordering::Release);
    }

    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.wake_fd.fd()
    }

    /// Takes received frames and their ports, at most [`PACKETS_PER_DRAIN`].
    pub fn take_packets(&self) -> Vec<(u16, Vec<u8>)> {
        let mut inbox = self.lock_inbox();
        let count = inbox.packets.len().min(PACKETS_PER_DRAIN);
        let packets = inbox.packets.drain(..count).collect();
        if !inbox.packets.is_empty() {
            self.wake.wake_fd.signal();
        }
        packets
    }

    /// Takes received digest lists, at most [`LISTS_PER_DRAIN`].
    pub fn take_lists(&self) -> Vec<DigestList> {
        let mut inbox = self.lock_inbox();
        let count = inbox.lists.len().min(LISTS_PER_DRAIN);
        let lists: Vec<DigestList> = inbox.lists.drain(..count).collect();
        inbox.messages -= messages_of(&lists);
        if !inbox.lists.is_empty() {
            // The gateway reads the remaining lists on the next wake.
            self.wake.wake_fd.signal();
        }
        lists
    }

    /// Number of lost messages, or less: the switch reports several lost messages as one loss.
    pub fn messages_lost(&self) -> u64 {
        self.lock_inbox().lost_count
    }

    /// Whether the switch has reported an error for a message.
    pub fn has_error(&self) -> bool {
        self.lock_inbox().last_error.is_some()
    }

    /// Why the stream of the switch ended; `None` while it is open.
    pub fn end_reason(&self) -> Option<String> {
        self.lock_inbox().end_reason.clone()
    }

    fn lock_inbox(&self) -> std::sync::MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn connect_hint(options: &P4Options, error: &ClientError) -> &'static str {
    match (error, &options.tls) {
        (ClientError::Rejected(_), _) => {
            "set `device_id` in [p4] to the switch's --device-id; if another gateway controls the switch, stop that gateway or set a higher `election_id`"
        }
        (ClientError::Unreachable(_), None) => "check that the switch is running and serves P4Runtime there",
        (_, None) => "if the switch uses TLS, configure its CA",
        (ClientError::Unreachable(_), Some(_)) => {
            "check that the switch is running there with TLS and a certificate of the configured CA"
        }
        (_, Some(_)) => {
            "if the switch requires a client certificate, configure an unexpired certificate of the switch's client CA"
        }
    }
}

fn with_timeout<T>(
    runtime: &Runtime,
    call: impl Future<Output = Result<T, ClientError>>,
) -> Result<T, SwitchError> {
    let timeout_error = SwitchError::Timeout {
        seconds: CALL_TIMEOUT.as_secs(),
    };
    match runtime.block_on(async { timeout(CALL_TIMEOUT, call).await }) {
        Ok(response) => Ok(response?),
        Err(_) => Err(timeout_error),
    }
}

async fn receive_events(mut events: Events, inbox: Arc<Mutex<Inbox>>, wake: Arc<Wake>) {
    loop {
        let message = events.next().await;
        let mut inbox = inbox.lock().unwrap_or_else(PoisonError::into_inner);
        inbox.push(message);
        let has_ended = inbox.end_reason.is_some();
        drop(inbox);
        if wake.is_armed.swap(false, Ordering::AcqRel) {
            wake.wake_fd.signal();
        }
        if has_ended {
            return;
        }
    }
}

/// Number of messages in these lists, at least one per list.
fn messages_of(lists: &[DigestList]) -> usize {
    lists.iter().map(|list| list.data.len().max(1)).sum()
}

impl Inbox {
    fn push(&mut self, event: Result<StreamEvent, ClientError>) {
        match event {
            Ok(StreamEvent::Digest(list)) if self.messages >= MESSAGES_MAX => {
                self.lost_count += messages_of(std::slice::from_ref(&list)) as u64;
            }
            Ok(StreamEvent::Digest(list)) => {
                self.messages += messages_of(std::slice::from_ref(&list));
                self.lists.push_back(list);
            }
            Ok(StreamEvent::Arbitration(ArbitrationStatus::Primary, _)) => {}
            Ok(StreamEvent::Arbitration(..)) => self.end_reason = Some(SwitchError::NotPrimary.to_string()),
            Ok(StreamEvent::Lost(reason)) => {
                tracing::warn!(%reason, "P4 switch reported lost messages");
                self.lost_count += 1;
            }
            Ok(StreamEvent::Error(error)) => {
                let text = error.to_string();
                if self.last_error.as_ref() != Some(&text) {
                    tracing::warn!(%error, "P4 switch rejected a message");
                }
                self.last_error = Some(text);
            }
            Ok(StreamEvent::PacketIn { metadata, payload }) => {
                let ingress = metadata.first().map(number).and_then(|port| port.try_into().ok());
                if let (true, Some(ingress)) = (self.packets.len() < PACKETS_MAX, ingress) {
                    self.packets.push_back((ingress, payload));
                }
            }
            Ok(StreamEvent::IdleTimeout(_)) => {}
            // For example, a message of the program that this data plane replaced causes this error.
            Err(error @ ClientError::InvalidResponse(_)) => {
                tracing::warn!(%error, "reading a message of the P4 switch failed; message dropped");
                self.lost_count += 1;
            }
            Err(error) => self.end_reason = Some(error.to_string()),
        }
    }
}
