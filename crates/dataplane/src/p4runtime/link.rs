//! The connection to the switch: calls that wait, and what the switch tells meanwhile.

use std::collections::{HashMap, VecDeque};
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
use tokio::runtime::Runtime;
use tokio::time::timeout;
use tonic::transport::Endpoint;

use super::error::SwitchError;
use super::program::{Program, number};

/// Longest wait for an answer: a program of megabytes is loaded in less.
const WAIT: Duration = Duration::from_secs(20);
/// Lists of digests that wait to be taken; the switch sends a list once, and what finds no room here is counted.
const LISTS_MAX: usize = 4096;

/// What the switch has told since it was last asked.
#[derive(Debug, Default)]
struct Heard {
    lists: VecDeque<DigestList>,
    lost: u64,
    ended: Option<String>,
}

/// A session at the switch, as its primary controller.
#[derive(Debug)]
pub(super) struct Link {
    runtime: Runtime,
    client: Mutex<Client>,
    heard: Arc<Mutex<Heard>>,
    pub program: Program,
}

impl Link {
    /// Connects, becomes the primary controller and has the switch run the program, with nothing in it.
    pub fn open(address: &str, device_id: u64, election_id: u128) -> Result<Self, SwitchError> {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|source| {
            let address = address.to_owned();
            SwitchError::Address { address, source }
        })?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("lw-p4")
            .enable_all()
            .build()
            .map_err(SwitchError::Threads)?;
        let session = Session {
            device_id,
            role: String::new(),
            election_id,
        };
        let connect = Client::connect(endpoint, session);
        let (client, events, standing) = in_time(&runtime, connect)?;
        if standing != Standing::Primary {
            return Err(SwitchError::Held);
        }
        let heard = Arc::<Mutex<Heard>>::default();
        let link = Self {
            client: Mutex::new(client),
            heard: Arc::clone(&heard),
            program: Program::new()?,
            runtime,
        };
        let pipeline = link.program.pipeline();
        link.call(async |client| client.set_pipeline(&pipeline).await)?;
        link.runtime.spawn(listen(events, heard));
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

    fn read_cells(&self, cells: &[(&'static str, u32)]) -> Result<Vec<u128>, SwitchError> {
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

    /// Sends a packet that goes nowhere, but through the switch.
    pub fn touch(&self, nowhere: u16) -> Result<(), SwitchError> {
        let port = Bits::from_u128(16, nowhere.into()).ok_or(SwitchError::Program("packet_out"))?;
        self.call(async |client| client.packet_out(&[port], Vec::new()).await)
    }

    /// Lists of digests so far.
    pub fn take_lists(&self) -> VecDeque<DigestList> {
        std::mem::take(&mut self.heard().lists)
    }

    /// Lists that found no room.
    pub fn lists_lost(&self) -> u64 {
        self.heard().lost
    }

    /// Why the switch tells nothing any more.
    pub fn ended(&self) -> Option<String> {
        self.heard().ended.clone()
    }

    fn heard(&self) -> std::sync::MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
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

async fn listen(mut events: Events, heard: Arc<Mutex<Heard>>) {
    loop {
        let told = events.next().await;
        let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
        match told {
            Ok(Told::Digest(_)) if heard.lists.len() >= LISTS_MAX => heard.lost += 1,
            Ok(Told::Digest(list)) => heard.lists.push_back(list),
            Ok(Told::Standing(Standing::Primary, _)) => {}
            Ok(Told::Standing(..)) => heard.ended = Some(SwitchError::Held.to_string()),
            Ok(Told::Error(error)) => tracing::warn!(%error, "the switch has not taken a message"),
            Ok(Told::PacketIn { .. } | Told::IdleTimeout(_)) => {}
            Err(error) => {
                heard.ended = Some(error.to_string());
                return;
            }
        }
    }
}
