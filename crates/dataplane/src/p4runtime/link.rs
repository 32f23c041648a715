//! The connection to the switch: calls that wait, and what the switch tells meanwhile.

use std::collections::{HashMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use linewarden_p4runtime::arbitration::Standing;
use linewarden_p4runtime::bytes::Bits;
use linewarden_p4runtime::client::{Client, ClientError, Events, Session, Told};
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
use crate::bell::Bell;

/// Longest wait for an answer: a program of megabytes is loaded in less.
const WAIT: Duration = Duration::from_secs(20);
/// Messages of digests that wait to be taken; the switch sends each once, and what finds no room here is counted.
const MESSAGES_MAX: usize = 65_536;
/// Lists that are taken at once: whoever takes them has more to do.
const LISTS_AT_ONCE: usize = 16;
/// Packet-ins that are taken at once: each may cost a call, and revocations must not wait for all of them.
const PACKETS_AT_ONCE: usize = 256;
/// Packet-ins that wait; what finds no room is dropped, for devices repeat their messages.
const PACKETS_MAX: usize = 4096;

/// What the switch has told since it was last asked.
#[derive(Debug, Default)]
struct Heard {
    lists: VecDeque<DigestList>,
    /// Messages in these.
    messages: usize,
    /// Messages that were lost here, and one for each time that the switch says it has lost some.
    lost: u64,
    /// Why the switch has not taken a message, the last time.
    refused: Option<String>,
    /// Frames, and the ports that they came in by.
    packets: VecDeque<(u16, Vec<u8>)>,
    ended: Option<String>,
}

/// The bell, and whether somebody listens for it.
#[derive(Debug)]
struct Wake {
    bell: Bell,
    is_armed: AtomicBool,
}

/// A session at the switch, as its primary controller.
#[derive(Debug)]
pub(super) struct Link {
    runtime: Runtime,
    client: Mutex<Client>,
    heard: Arc<Mutex<Heard>>,
    wake: Arc<Wake>,
    pub program: Program,
}

impl Link {
    /// Connects, becomes the primary controller and has the switch run the program, with nothing in it.
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
            .map_err(SwitchError::Threads)?;
        let session = Session {
            device_id: options.device_id,
            role: String::new(),
            election_id: options.election_id,
        };
        let connect = Client::connect(endpoint, session);
        let (client, events, standing) = in_time(&runtime, connect).map_err(|error| match error {
            SwitchError::Client(
                source @ (ClientError::Unreachable(_) | ClientError::Broken(_) | ClientError::Refused(_)),
            ) => {
                let address = options.address.clone();
                let hint = hint(options, &source);
                SwitchError::Connect {
                    address,
                    source: source.into(),
                    hint,
                }
            }
            error => error,
        })?;
        if standing != Standing::Primary {
            return Err(SwitchError::Held);
        }
        let heard = Arc::<Mutex<Heard>>::default();
        let wake = Arc::new(Wake {
            bell: Bell::new().map_err(SwitchError::Threads)?,
            is_armed: AtomicBool::new(false),
        });
        let link = Self {
            client: Mutex::new(client),
            heard: Arc::clone(&heard),
            wake: Arc::clone(&wake),
            program: Program::new()?,
            runtime,
        };
        let pipeline = link.program.pipeline();
        link.call(async |client| client.set_pipeline(&pipeline).await)?;
        link.runtime.spawn(listen(events, heard, wake));
        Ok(link)
    }

    fn call<T>(
        &self,
        work: impl AsyncFnOnce(&mut Client) -> Result<T, ClientError>,
    ) -> Result<T, SwitchError> {
        let mut client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        in_time(&self.runtime, work(&mut client))
    }

    /// All updates in their order, or none.
    pub fn write(&self, updates: &[Update]) -> Result<(), SwitchError> {
        self.call(async |client| client.write(updates, Atomicity::RollbackOnError).await)
    }

    pub fn read(&self, requests: &[Read]) -> Result<Vec<Entity>, SwitchError> {
        self.call(async |client| client.read(requests).await)
    }

    /// What these cells of registers hold.
    pub fn cells<const N: usize>(&self, cells: [(&'static str, u32); N]) -> Result<[u128; N], SwitchError> {
        let read = self.read_cells(&cells)?;
        let name = cells.first().map_or("", |(name, _)| *name);
        <[u128; N]>::try_from(read).map_err(|_| SwitchError::Silent(name))
    }

    /// What these cells of one register hold.
    pub fn column(
        &self,
        name: &'static str,
        cells: impl Iterator<Item = u32>,
    ) -> Result<Vec<u128>, SwitchError> {
        let cells: Vec<_> = cells.map(|cell| (name, cell)).collect();
        self.read_cells(&cells)
    }

    /// What these cells hold, in their order.
    pub fn read_cells(&self, cells: &[(&'static str, u32)]) -> Result<Vec<u128>, SwitchError> {
        if cells.is_empty() {
            return Ok(Vec::new());
        }
        let asked = |(name, index): &(&'static str, u32)| {
            let (id, _) = self.program.register(name)?;
            Ok((id, u64::from(*index)))
        };
        let asked: Vec<_> = cells.iter().map(asked).collect::<Result<_, SwitchError>>()?;
        let request = |(id, index): &(RegisterId, u64)| Read::Registers {
            id: Some(*id),
            index: Some(*index),
        };
        let requests: Vec<Read> = asked.iter().map(request).collect();
        let mut held = HashMap::new();
        for entity in self.read(&requests)? {
            if let Entity::Register {
                id,
                index,
                data: Data::Bits(bits),
            } = entity
            {
                held.insert((id, index), number(&bits));
            }
        }
        let values = cells.iter().zip(&asked).map(|((name, _), asked)| {
            let value = held.get(asked).copied();
            value.ok_or(SwitchError::Silent(name))
        });
        values.collect()
    }

    /// Sends a frame through the CPU port (`packet_out_t` in p4/include/lap_frame.p4).
    pub fn packet_out(&self, port: u16, ingress: u16, frame: Vec<u8>) -> Result<(), SwitchError> {
        let field = |value: u16| Bits::from_u128(16, value.into()).ok_or(SwitchError::Program("packet_out"));
        let header = [field(port)?, field(ingress)?];
        self.call(async |client| client.packet_out(&header, frame).await)
    }

    /// The bell rings once, when something is told.
    pub fn listen(&self) {
        self.wake.bell.silence();
        self.wake.is_armed.store(true, Ordering::Release);
    }

    pub fn bell(&self) -> BorrowedFd<'_> {
        self.wake.bell.fd()
    }

    /// Frames that have come, and the ports by which, a bounded number.
    pub fn take_packets(&self) -> Vec<(u16, Vec<u8>)> {
        let mut heard = self.heard();
        let some = heard.packets.len().min(PACKETS_AT_ONCE);
        let taken = heard.packets.drain(..some).collect();
        if !heard.packets.is_empty() {
            self.wake.bell.ring();
        }
        taken
    }

    /// Lists of digests so far, a bounded number.
    pub fn take_lists(&self) -> Vec<DigestList> {
        let mut heard = self.heard();
        let some = heard.lists.len().min(LISTS_AT_ONCE);
        let taken: Vec<DigestList> = heard.lists.drain(..some).collect();
        heard.messages -= messages_of(&taken);
        if !heard.lists.is_empty() {
            // Whoever listens comes again for the rest.
            self.wake.bell.ring();
        }
        taken
    }

    /// Messages that were lost, at least.
    pub fn messages_lost(&self) -> u64 {
        self.heard().lost
    }

    /// Whether the switch has not taken a message.
    pub fn has_refused(&self) -> bool {
        self.heard().refused.is_some()
    }

    /// Why the switch tells nothing any more.
    pub fn ended(&self) -> Option<String> {
        self.heard().ended.clone()
    }

    fn heard(&self) -> std::sync::MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn hint(options: &P4Options, error: &ClientError) -> &'static str {
    match (error, &options.tls) {
        (ClientError::Refused(_), _) => {
            "`device_id` in [p4] is the switch's --device-id; where another gateway controls it, stop that one, or set a higher `election_id`"
        }
        (ClientError::Unreachable(_), None) => "is it started there, and serves P4Runtime?",
        (_, None) => "if it serves by TLS, its CA has to be named",
        (ClientError::Unreachable(_), Some(_)) => {
            "is it started there, with TLS and a certificate of that CA?"
        }
        (_, Some(_)) => "if it asks for a certificate, it wants one of its own CA that has not expired",
    }
}

fn in_time<T>(
    runtime: &Runtime,
    call: impl Future<Output = Result<T, ClientError>>,
) -> Result<T, SwitchError> {
    let late = SwitchError::Late {
        seconds: WAIT.as_secs(),
    };
    match runtime.block_on(async { timeout(WAIT, call).await }) {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(late),
    }
}

async fn listen(mut events: Events, heard: Arc<Mutex<Heard>>, wake: Arc<Wake>) {
    loop {
        let told = events.next().await;
        let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.take(told);
        let ends = heard.ended.is_some();
        drop(heard);
        if wake.is_armed.swap(false, Ordering::AcqRel) {
            wake.bell.ring();
        }
        if ends {
            return;
        }
    }
}

/// One at least for each list.
fn messages_of(lists: &[DigestList]) -> usize {
    lists.iter().map(|list| list.data.len().max(1)).sum()
}

impl Heard {
    fn take(&mut self, told: Result<Told, ClientError>) {
        match told {
            Ok(Told::Digest(list)) if self.messages >= MESSAGES_MAX => {
                self.lost += messages_of(std::slice::from_ref(&list)) as u64;
            }
            Ok(Told::Digest(list)) => {
                self.messages += messages_of(std::slice::from_ref(&list));
                self.lists.push_back(list);
            }
            Ok(Told::Standing(Standing::Primary, _)) => {}
            Ok(Told::Standing(..)) => self.ended = Some(SwitchError::Held.to_string()),
            Ok(Told::Lost(what)) => {
                tracing::warn!("{what}");
                self.lost += 1;
            }
            Ok(Told::Error(error)) => {
                let why = error.to_string();
                if self.refused.as_ref() != Some(&why) {
                    tracing::warn!(%error, "the switch has not taken a message");
                }
                self.refused = Some(why);
            }
            Ok(Told::PacketIn { metadata, payload }) => {
                let ingress = metadata.first().map(number).and_then(|port| port.try_into().ok());
                if let (true, Some(ingress)) = (self.packets.len() < PACKETS_MAX, ingress) {
                    self.packets.push_back((ingress, payload));
                }
            }
            Ok(Told::IdleTimeout(_)) => {}
            // Of the program that ran before, say.
            Err(error @ ClientError::Answer(_)) => {
                tracing::warn!(%error, "what the switch has told is lost");
                self.lost += 1;
            }
            Err(error) => self.ended = Some(error.to_string()),
        }
    }
}
