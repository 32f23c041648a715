//! Control by P4Runtime: the switch as a [`Target`] of `linewarden-p4runtime`'s server.
//!
//! A program is controlled together with its P4Info, which names what controllers write and read; both must fit each
//! other (`binding`). What only the controller knows, its own numbers of members for one, is kept beside the
//! switch (`book`). Programs, prepared or running, are exchanged whole.

mod actions;
mod ageing;
mod binding;
mod book;
mod cells;
mod device_config;
mod entries;
mod keys;
mod profiles;
mod reading;
mod reconcile;
mod replication;
pub mod server;
mod values;
mod wire;
mod writing;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use linewarden_p4runtime::bytes::Bits;
use linewarden_p4runtime::entity::{Entity, Query, Update};
use linewarden_p4runtime::error::EntityError;
use linewarden_p4runtime::target::{Atomicity, Event, EventSender, Pipeline, Target};

use self::ageing::Ageing;
use self::binding::Binding;
use self::book::Book;
pub use self::wire::Wire;
use self::wire::{Header, Shown};
use self::writing::Running;
use crate::ports::memory::MemoryPeer;
use crate::ports::{Port, PortError};
use crate::switch::{Settings, Slot, Switch};
use crate::tables::HashSeed;

/// The switch's clock: microseconds since its start, as its workers count them.
pub type Clock = Box<dyn Fn() -> u64 + Send + Sync>;

/// A program and the pipeline that it came in.
#[derive(Debug)]
struct Installed {
    pipeline: Pipeline,
    running: Running,
}

#[derive(Debug, Default)]
struct Programs {
    live: Option<Installed>,
    saved: Option<Installed>,
}

impl Programs {
    /// The one that writes and reads mean.
    fn meant(&self) -> Result<&Running, EntityError> {
        let meant = self.saved.as_ref().or(self.live.as_ref());
        meant.map(|meant| &meant.running).ok_or_else(no_program)
    }

    fn meant_mut(&mut self) -> Result<&mut Running, EntityError> {
        let meant = self.saved.as_mut().or(self.live.as_mut());
        meant.map(|meant| &mut meant.running).ok_or_else(no_program)
    }
}

fn no_program() -> EntityError {
    EntityError::precondition("no program is set: SetForwardingPipelineConfig comes first")
}

/// Where packet-outs go.
struct CpuPort {
    peer: MemoryPeer,
    header: Header,
}

/// A switch that controllers program.
pub struct Control {
    slot: Slot,
    settings: Settings,
    clock: Clock,
    wire: Arc<Wire>,
    programs: RwLock<Programs>,
    cpu: Mutex<Option<CpuPort>>,
    ageing: Mutex<Ageing>,
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control")
            .field("settings", &self.settings)
            .field("programs", &self.programs)
            .finish_non_exhaustive()
    }
}

impl Control {
    /// Controls what runs in this slot, which is what ran there before until a program is committed.
    #[must_use]
    pub fn new(slot: Slot, settings: Settings, clock: Clock, events: EventSender) -> Self {
        Self {
            slot,
            settings,
            clock,
            wire: Arc::new(Wire::new(events)),
            programs: RwLock::default(),
            cpu: Mutex::default(),
            ageing: Mutex::default(),
        }
    }

    /// Where workers hand over digests.
    #[must_use]
    pub fn wire(&self) -> &Arc<Wire> {
        &self.wire
    }

    /// Makes the port through which controllers send and receive packets. It is to be added to the ports of a worker;
    /// a packet-out wakes that worker.
    ///
    /// # Errors
    /// When the system has no file descriptor left.
    pub fn cpu_port(&self) -> Result<Port, PortError> {
        let (port, peer) = wire::cpu_port(&self.wire)?;
        let header = self
            .programs()
            .live
            .as_ref()
            .map(|live| live.running.binding.packet_out.clone());
        *self.cpu.lock().unwrap_or_else(PoisonError::into_inner) = Some(CpuPort {
            peer,
            header: header.unwrap_or_default(),
        });
        Ok(port)
    }

    /// Tells the controllers of entries that are idle. Call it again and again, at least as often as times to live are
    /// to be exact.
    pub fn age(&self) {
        let now_ms = self.now_ms();
        let programs = self.programs();
        let Some(live) = &programs.live else { return };
        let mut ageing = self.ageing.lock().unwrap_or_else(PoisonError::into_inner);
        let due = ageing.due(&live.running, now_ms);
        if !due.is_empty() {
            self.wire.tell(Event::IdleTimeout(due));
        }
    }

    fn now_ms(&self) -> u64 {
        (self.clock)() / 1000
    }

    /// A thread that panicked has left a batch whole or undone.
    fn programs(&self) -> RwLockReadGuard<'_, Programs> {
        self.programs.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn programs_mut(&self) -> RwLockWriteGuard<'_, Programs> {
        self.programs.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn install(&self, pipeline: &Pipeline) -> Result<Installed, EntityError> {
        let json = device_config::json(&pipeline.device_config)?;
        let switch = Switch::new(json, self.settings, &HashSeed::random())
            .map_err(|error| EntityError::invalid(format!("p4_device_config: {error}")))?;
        check_platform(pipeline)?;
        let binding = Binding::new(pipeline.info.clone(), &switch.executable().program)?;
        Ok(Installed {
            pipeline: pipeline.clone(),
            running: Running {
                switch,
                binding,
                book: Book::default(),
            },
        })
    }

    /// From the next batch of packets on, they go through this program.
    fn run(&self, programs: &mut Programs, installed: Installed) {
        let binding = &installed.running.binding;
        self.slot.run(&installed.running.switch);
        self.wire.show(Shown {
            packet_in: binding.packet_in.clone(),
            digests: binding.digests.clone(),
        });
        if let Some(cpu) = &mut *self.cpu.lock().unwrap_or_else(PoisonError::into_inner) {
            cpu.header = binding.packet_out.clone();
        }
        self.ageing
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .forget();
        programs.live = Some(installed);
        programs.saved = None;
    }
}

/// Whether a program asks for more than there is.
fn check_platform(pipeline: &Pipeline) -> Result<(), EntityError> {
    let package = pipeline.info.message().pkg_info.as_ref();
    let groups = package
        .and_then(|package| package.platform_properties.as_ref())
        .map_or(0, |wanted| wanted.multicast_group_table_size);
    if groups > i32::from(u16::MAX) {
        return Err(EntityError::invalid(format!(
            "platform_properties: {groups} multicast groups; there are {}",
            u16::MAX
        )));
    }
    Ok(())
}

impl Target for Control {
    fn verify(&self, pipeline: &Pipeline) -> Result<(), EntityError> {
        self.install(pipeline).map(|_| ())
    }

    fn save(&self, pipeline: &Pipeline) -> Result<(), EntityError> {
        let installed = self.install(pipeline)?;
        self.programs_mut().saved = Some(installed);
        Ok(())
    }

    fn commit(&self) -> Result<(), EntityError> {
        let mut programs = self.programs_mut();
        let saved = programs.saved.take();
        let saved = saved.ok_or_else(|| EntityError::not_found("no program is saved"))?;
        self.run(&mut programs, saved);
        Ok(())
    }

    fn reconcile(&self, pipeline: &Pipeline) -> Result<(), EntityError> {
        let mut installed = self.install(pipeline)?;
        let now_ms = self.now_ms();
        let mut programs = self.programs_mut();
        if let Some(live) = &mut programs.live
            && live.pipeline.device_config == pipeline.device_config
            && live.pipeline.info.message() == pipeline.info.message()
        {
            // It runs already: what packets have counted and written stays too.
            live.pipeline = pipeline.clone();
            programs.saved = None;
            return Ok(());
        }
        if let Some(live) = &programs.live {
            reconcile::carry_over(&live.running, &mut installed.running, now_ms)?;
        }
        self.run(&mut programs, installed);
        Ok(())
    }

    fn write(
        &self,
        updates: &[Update],
        atomicity: Atomicity,
    ) -> Result<Vec<Result<(), EntityError>>, EntityError> {
        let now_ms = self.now_ms();
        self.programs_mut().meant_mut()?.write(updates, atomicity, now_ms)
    }

    fn read(&self, query: &Query, found: &mut dyn FnMut(Entity)) -> Result<(), EntityError> {
        let now_ms = self.now_ms();
        let programs = self.programs();
        programs
            .meant()?
            .reading(now_ms, |reading| reading.answer(query, found))
    }

    fn packet_out(&self, metadata: Vec<Bits>, payload: Vec<u8>) -> Result<(), EntityError> {
        let cpu = self.cpu.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(cpu) = &*cpu else {
            return Err(EntityError::precondition(
                "the switch has no CPU port: start it with --cpu-port",
            ));
        };
        let mut frame = cpu.header.encode(&metadata);
        frame.extend_from_slice(&payload);
        if cpu.peer.send(&frame) {
            return Ok(());
        }
        Err(EntityError::exhausted(
            "too many packets wait for the switch already",
        ))
    }
}
