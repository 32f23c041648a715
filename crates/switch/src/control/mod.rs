//! Control plane: the switch as a [`Target`] of the P4Runtime server of `linewarden-p4runtime`.
//!
//! Each program has a P4Info that names the elements for controllers; `binding` checks that the P4Info matches the
//! program. State that exists only for the controller, such as member ids, is in `controller_state`. Saved and
//! running programs are replaced as a whole.

mod actions;
mod attest;
mod attestation_config;
mod binding;
mod cells;
mod controller_channel;
mod controller_state;
mod device_config;
mod entries;
mod idle_timeouts;
mod keys;
mod meter_rates;
mod profiles;
mod read;
mod reconcile;
mod replication;
pub mod server;
mod values;
mod write;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use linewarden_p4runtime::bytes::Bits;
use linewarden_p4runtime::entity::{Entity, Query, Update};
use linewarden_p4runtime::error::EntityError;
use linewarden_p4runtime::target::{Atomicity, Event, EventSender, Pipeline, Target};

pub use self::attestation_config::AttestationConfig;
use self::binding::Binding;
pub use self::controller_channel::ControllerChannel;
use self::controller_channel::{ControllerView, PacketIoHeader};
use self::controller_state::ControllerState;
use self::idle_timeouts::IdleTimeouts;
use self::write::ControlledProgram;
use crate::ports::memory::MemoryPeer;
use crate::ports::{Port, PortError};
use crate::settings::Settings;
use crate::switch::{Slot, Switch};
use crate::tables::HashSeed;

/// Clock of the switch, shared with the workers: microseconds since the start of the switch.
pub type Clock = Box<dyn Fn() -> u64 + Send + Sync>;

/// Loaded program with its pipeline configuration.
#[derive(Debug)]
struct InstalledPipeline {
    pipeline: Pipeline,
    program: ControlledProgram,
}

#[derive(Debug, Default)]
struct Programs {
    running: Option<InstalledPipeline>,
    saved: Option<InstalledPipeline>,
    /// Program that runs without a P4Info until a controller sets a pipeline. Evidence covers this program, but controllers
    /// cannot access it.
    without_p4info: Option<Switch>,
}

impl Programs {
    /// Switch that processes packets.
    fn running_switch(&self) -> Option<&Switch> {
        let switch = self.running.as_ref().map(|running| &running.program.switch);
        switch.or(self.without_p4info.as_ref())
    }

    /// Returns the program for reads and writes: the saved program if there is one, else the running program.
    fn target(&self) -> Result<&ControlledProgram, EntityError> {
        let target = self.saved.as_ref().or(self.running.as_ref());
        target.map(|target| &target.program).ok_or_else(no_program_error)
    }

    fn target_mut(&mut self) -> Result<&mut ControlledProgram, EntityError> {
        let target = self.saved.as_mut().or(self.running.as_mut());
        target
            .map(|target| &mut target.program)
            .ok_or_else(no_program_error)
    }
}

fn no_program_error() -> EntityError {
    EntityError::precondition("no forwarding pipeline: call SetForwardingPipelineConfig first")
}

/// Destination of packet-outs.
struct CpuPort {
    peer: MemoryPeer,
    header: PacketIoHeader,
}

/// Control plane of a switch.
pub struct Control {
    slot: Slot,
    settings: Settings,
    clock: Clock,
    channel: Arc<ControllerChannel>,
    programs: RwLock<Programs>,
    cpu: Mutex<Option<CpuPort>>,
    idle_timeouts: Mutex<IdleTimeouts>,
    attestation: Option<AttestationConfig>,
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
    /// Controls the switch in this slot. The current program keeps running until a program is committed.
    #[must_use]
    pub fn new(slot: Slot, settings: Settings, clock: Clock, events: EventSender) -> Self {
        Self {
            slot,
            settings,
            clock,
            channel: Arc::new(ControllerChannel::new(events)),
            programs: RwLock::default(),
            cpu: Mutex::default(),
            idle_timeouts: Mutex::default(),
            attestation: None,
        }
    }

    /// Enables evidence for all programs installed later.
    #[must_use]
    pub fn with_evidence(mut self, attestation: AttestationConfig) -> Self {
        self.attestation = Some(attestation);
        self
    }

    /// Runs a program without a P4Info until a controller sets a pipeline.
    ///
    /// # Errors
    /// Evidence is enabled, but the program cannot be measured.
    pub fn run_without_p4info(&self, mut switch: Switch) -> Result<(), EntityError> {
        let mut programs = self.programs_mut();
        self.start_measurement(&programs, &mut switch)?;
        self.slot.run(&switch);
        programs.without_p4info = Some(switch);
        Ok(())
    }

    /// Channel for the digests of workers.
    #[must_use]
    pub fn channel(&self) -> &Arc<ControllerChannel> {
        &self.channel
    }

    /// Creates the CPU port, through which controllers send and receive packets. Add the port to a worker's ports; a
    /// packet-out wakes that worker.
    ///
    /// # Errors
    /// No file descriptor is available.
    pub fn cpu_port(&self) -> Result<Port, PortError> {
        let (port, peer) = controller_channel::cpu_port(&self.channel)?;
        let header = self
            .programs()
            .running
            .as_ref()
            .map(|running| running.program.binding.packet_out.clone());
        *self.cpu.lock().unwrap_or_else(PoisonError::into_inner) = Some(CpuPort {
            peer,
            header: header.unwrap_or_default(),
        });
        Ok(port)
    }

    /// Notifies the controllers of idle entries. Call this method periodically; the interval limits the precision of
    /// idle timeouts.
    pub fn notify_idle_entries(&self) {
        let now_ms = self.now_ms();
        let programs = self.programs();
        let Some(running) = &programs.running else { return };
        let mut idle_timeouts = self.idle_timeouts.lock().unwrap_or_else(PoisonError::into_inner);
        let expired = idle_timeouts.take_expired(&running.program, now_ms);
        if !expired.is_empty() {
            self.channel.send_event(Event::IdleTimeout(expired));
        }
    }

    fn now_ms(&self) -> u64 {
        (self.clock)() / 1000
    }

    /// Locks the programs, even after a panic of another thread: a panic leaves a batch complete or undone, so the state
    /// is valid.
    fn programs(&self) -> RwLockReadGuard<'_, Programs> {
        self.programs.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn programs_mut(&self) -> RwLockWriteGuard<'_, Programs> {
        self.programs.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loads and checks a pipeline without running it.
    fn install(&self, pipeline: &Pipeline) -> Result<InstalledPipeline, EntityError> {
        let json = device_config::json(&pipeline.device_config)?;
        let switch = Switch::new(json, self.settings, &HashSeed::random())
            .map_err(|error| EntityError::invalid(format!("p4_device_config: {error}")))?;
        check_platform_properties(pipeline)?;
        let binding = Binding::new(pipeline.info.clone(), &switch.executable().program)?;
        Ok(InstalledPipeline {
            pipeline: pipeline.clone(),
            program: ControlledProgram {
                switch,
                binding,
                controller_state: ControllerState::default(),
            },
        })
    }

    /// Makes workers process packets with this program, starting with their next batch.
    fn activate(&self, programs: &mut Programs, installed: InstalledPipeline) {
        let binding = &installed.program.binding;
        self.slot.run(&installed.program.switch);
        self.channel.set_view(ControllerView {
            packet_in: binding.packet_in.clone(),
            digests: binding.digests.clone(),
        });
        if let Some(cpu) = &mut *self.cpu.lock().unwrap_or_else(PoisonError::into_inner) {
            cpu.header = binding.packet_out.clone();
        }
        self.idle_timeouts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
        programs.running = Some(installed);
        programs.saved = None;
        programs.without_p4info = None;
    }
}

/// Checks that the platform satisfies the requirements of the program.
fn check_platform_properties(pipeline: &Pipeline) -> Result<(), EntityError> {
    let package = pipeline.info.message().pkg_info.as_ref();
    let groups = package
        .and_then(|package| package.platform_properties.as_ref())
        .map_or(0, |properties| properties.multicast_group_table_size);
    if groups > i32::from(u16::MAX) {
        return Err(EntityError::invalid(format!(
            "platform_properties: {groups} multicast groups exceed the maximum of {}",
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
        let mut saved = saved.ok_or_else(|| EntityError::not_found("no saved pipeline"))?;
        if let Err(error) = self.start_measurement(&programs, &mut saved.program.switch) {
            programs.saved = Some(saved);
            return Err(error);
        }
        self.activate(&mut programs, saved);
        Ok(())
    }

    fn reconcile(&self, pipeline: &Pipeline) -> Result<(), EntityError> {
        let mut installed = self.install(pipeline)?;
        let now_ms = self.now_ms();
        let mut programs = self.programs_mut();
        if let Some(running) = &mut programs.running
            && running.pipeline.device_config == pipeline.device_config
            && running.pipeline.info.message() == pipeline.info.message()
        {
            // The same program is running: counters and registers also stay.
            running.pipeline = pipeline.clone();
            programs.saved = None;
            return Ok(());
        }
        if let Some(running) = &programs.running {
            reconcile::carry_over(&running.program, &mut installed.program, now_ms)?;
        }
        self.start_measurement(&programs, &mut installed.program.switch)?;
        self.activate(&mut programs, installed);
        Ok(())
    }

    fn write(
        &self,
        updates: &[Update],
        atomicity: Atomicity,
    ) -> Result<Vec<Result<(), EntityError>>, EntityError> {
        let now_ms = self.now_ms();
        self.programs_mut()
            .target_mut()?
            .write(updates, atomicity, now_ms)
    }

    fn read(&self, query: &Query, emit: &mut dyn FnMut(Entity)) -> Result<(), EntityError> {
        let now_ms = self.now_ms();
        let programs = self.programs();
        programs
            .target()?
            .with_reader(now_ms, |reader| reader.query(query, emit))
    }

    fn packet_out(&self, metadata: Vec<Bits>, payload: Vec<u8>) -> Result<(), EntityError> {
        let cpu = self.cpu.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(cpu) = &*cpu else {
            return Err(EntityError::precondition(
                "switch has no CPU port: start it with --cpu-port",
            ));
        };
        let mut frame = cpu.header.encode(&metadata);
        frame.extend_from_slice(&payload);
        if cpu.peer.send(&frame) {
            return Ok(());
        }
        Err(EntityError::exhausted("packet-out queue is full"))
    }
}
