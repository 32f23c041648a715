//! The `xdp` data plane: an eBPF program on the interface (`bpf/gateway.bpf.c`) and its maps.
//!
//! The program is loaded with its configuration as constants, so that the kernel's verifier removes disabled code. The
//! program is attached by a BPF link, which ends with this process or stays (`attach`).

pub(crate) mod attach;
#[cfg(feature = "bench")]
pub mod bench;
#[cfg(test)]
pub(crate) mod compare_test;
pub(crate) mod config;
mod data_plane;
mod dropped;
mod forward;
#[cfg(test)]
mod layout_test;
pub(crate) mod libbpf_log;
mod measure;
mod pin_security;
mod pinned_maps;
mod programs;
mod reply;
mod rings;
mod seal;
pub(crate) mod skeleton;
#[cfg(test)]
pub(crate) mod stack_test;
mod stamp;
pub(crate) mod test_run;
mod waiting;

use std::collections::BTreeMap;
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use libbpf_rs::skel::{OpenSkel as _, Skel as _, SkelBuilder as _};
use libbpf_rs::{MapCore, MapFlags, MapHandle, OpenObject, ProgramMut, ProgramType};
use linewarden_protocol::frame::Mac;
use linewarden_protocol::sources::DeviceSources;

pub use self::attach::{OrphanedGate, has_large_frames, orphaned_gate, orphaned_interfaces, remove_gate};
pub use self::pin_security::{InsecureDirectory, pin_directory_problem};
pub use self::pinned_maps::remove_memory;
pub use self::test_run::TestRun;

use self::attach::{Attachment, Purpose};
use self::dropped::DroppedPlaces;
use self::pinned_maps::PinnedMaps;
use self::rings::Rings;
use self::seal::{DownCell, SealingFilter};
use self::skeleton::gateway::{GatewaySkel, GatewaySkelBuilder};
use self::stamp::Stamping;
use self::test_run::test_context;
use self::waiting::WaitingProofs;
use crate::attest_request_sender::{self, AttestRequestSender};
use crate::capability::{self, Capability};
use crate::config::{Config, Gate};
use crate::counters::Counters;
use crate::error::DataPlaneError;
use crate::frames::FrameSender;
use crate::handling_time::HandlingTimes;
use crate::layout::WaitingProof;
use crate::links::LOOPBACK;
use crate::store::provers::Provers;
use crate::store::{Region, Store};
use crate::timestamps;

/// The `xdp` data plane.
pub struct Xdp {
    gateway_id: u32,
    skeleton: GatewaySkel<'static>,
    store: Store,
    provers: Option<Provers>,
    waiting: WaitingProofs,
    /// Counters of DATA_DOWN numbers by slot; only with a sealed gate.
    down_counters: Option<Region<DownCell>>,
    /// The in-band evidence, if enabled.
    stamping: Option<Stamping>,
    dropped: DroppedPlaces,
    interfaces: Interfaces,
    /// Source addresses of devices, as last written to memory.
    sources: DeviceSources,
    rings: Rings,
    senders: Senders,
    pinned_maps: Option<PinnedMaps>,
    /// Whether there is state of an earlier process that has not been returned yet.
    has_inherited_state: bool,
}

/// The interfaces of the data plane.
#[derive(Default)]
struct Interfaces {
    /// Interfaces on the devices' side.
    device_ports: Vec<u32>,
    /// MAC addresses of `device_ports`, as last written to memory.
    macs: BTreeMap<u32, Vec<Mac>>,
    sealing_filters: Vec<SealingFilter>,
    attachments: Vec<Attachment>,
    /// Interfaces to which opened datagrams are forwarded.
    forwards: Vec<u32>,
}

/// Senders of messages of the gateway.
struct Senders {
    /// Slow-path replies. `None`: the packet socket could not be opened.
    frames: Option<FrameSender>,
    attest: Option<AttestRequestSender<OwnedFd>>,
}

// SAFETY: libbpf objects are not bound to the thread that created them; `Xdp` is changed by one thread at a time.
unsafe impl Send for Xdp {}

impl Xdp {
    /// Loads the program. No packet is processed until [`Xdp::attach`].
    ///
    /// # Errors
    /// The configuration is invalid, privileges are missing, or the kernel refuses the program.
    pub fn load(config: &Config) -> Result<Self, DataPlaneError> {
        Self::check(config)?;
        Self::load_with(config, None)
    }

    /// As [`Xdp::load`], with maps that are pinned below `directory`, which must be on a BPF filesystem: they stay when
    /// this process ends. Maps that an earlier process of this gateway left there are adopted, including devices and
    /// sessions, if layout, gate and sizes are equal;
    /// [`DataPlane::take_inherited_state`](crate::DataPlane::take_inherited_state) returns the devices.
    /// [`remove_memory`] removes the maps.
    ///
    /// # Errors
    /// Errors of [`Xdp::load`]; `directory` is not on a BPF filesystem; another process of this gateway runs.
    pub fn load_pinned(config: &Config, directory: &Path) -> Result<Self, DataPlaneError> {
        Self::check(config)?;
        let memory = PinnedMaps::of(directory, config.gateway_id.0, Purpose::Pin)?;
        if let Some(hash_seed) = memory.hash_seed(config) {
            let mut adopted_config = config.clone();
            adopted_config.geometry.hash_seed = hash_seed;
            match Self::load_with(&adopted_config, Some((&memory, true))) {
                Ok(data_plane) => {
                    return Ok(Self {
                        has_inherited_state: true,
                        pinned_maps: Some(memory),
                        ..data_plane
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "xdp: adopting the memory of the earlier process failed; starting with new memory")
                }
            }
        }
        if memory.unpin()? {
            tracing::warn!(
                "xdp: discarded the memory of an earlier process because it does not match this configuration"
            );
        }
        let data_plane = Self::load_with(config, Some((&memory, false)))?;
        data_plane.store.write_identity(config);
        Ok(Self {
            pinned_maps: Some(memory),
            ..data_plane
        })
    }

    fn check(config: &Config) -> Result<(), DataPlaneError> {
        config.check()?;
        check_privileges()?;
        check_sender(config)?;
        libbpf_log::redirect();
        Ok(())
    }

    /// Loads the program. `memory`: the pinned maps, and whether they contain state.
    fn load_with(config: &Config, memory: Option<(&PinnedMaps, bool)>) -> Result<Self, DataPlaneError> {
        // libbpf requires the object's storage to outlive the skeleton; a few dozen bytes leak per load.
        let storage: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
        let open_error = |error| DataPlaneError::kernel("opening the eBPF object", error);
        let mut open = GatewaySkelBuilder::default().open(storage).map_err(open_error)?;
        self::config::configure(open.open_object_mut(), config, false)?;
        if let Some((memory, _)) = memory {
            memory.pin(open.open_object_mut())?;
        }
        let is_sealed = config.gate == Gate::Sealed;
        open.progs.linewarden_proof.set_autoload(config.provers > 0);
        let stamps = config.inband_evidence;
        if config.fragments {
            for mut program in open.open_object_mut().progs_mut() {
                if program.prog_type() == ProgramType::Xdp {
                    program.set_flags(XDP_HAS_FRAGS);
                }
            }
        }
        open.progs.linewarden_gateway.set_autoload(is_sealed || !stamps);
        open.progs
            .linewarden_gateway_stamping
            .set_autoload(!is_sealed && stamps);
        open.progs.linewarden_sealed.set_autoload(is_sealed && !stamps);
        open.progs
            .linewarden_sealed_stamping
            .set_autoload(is_sealed && stamps);
        open.progs.linewarden_stamp.set_autoload(stamps);
        open.progs.linewarden_seal.set_autoload(is_sealed);
        open.progs.linewarden_seal_alive.set_autoload(is_sealed);
        let load_error =
            |error| DataPlaneError::kernel("loading the eBPF program (requires Linux 6.1 or later)", error);
        let skeleton = open.load().map_err(load_error)?;
        let regions = self::config::regions(skeleton.object(), config)?;
        let (regions, geometry) = (Arc::new(regions), config.geometry.clone());
        let store = match memory {
            Some((_, true)) => {
                let store = Store::adopt(regions, geometry);
                store.set_live(&config.live_settings(), timestamps::now().boot_s());
                store
            }
            _ => {
                regions.initialize_settings(&config.live_settings());
                Store::new(regions, geometry)
            }
        };
        let rings = Rings::map(&skeleton.maps.events, &skeleton.maps.misses)?;
        programs::fill_tables(&skeleton)?;
        let stamping = stamps.then(|| Stamping::map(skeleton.object())).transpose()?;
        let down_counters = is_sealed
            .then(|| self::config::region(skeleton.object(), "down", config.geometry.slots))
            .transpose()?;
        let provers = (config.provers > 0)
            .then(|| self::config::prover_regions(skeleton.object(), config))
            .transpose()?
            .map(|regions| Provers::new(Arc::new(regions), config.prover_geometry()));
        let waiting = WaitingProofs::map(skeleton.object(), config)?;
        let dropped = DroppedPlaces::map(skeleton.object())?;
        Ok(Self {
            gateway_id: config.gateway_id.0,
            skeleton,
            store,
            provers,
            waiting,
            down_counters,
            stamping,
            dropped,
            interfaces: Interfaces::default(),
            sources: config.sources(),
            rings,
            senders: Senders {
                frames: open_sender(config.miss_per_s),
                attest: open_request_sender(config)?,
            },
            pinned_maps: None,
            has_inherited_state: false,
        })
    }

    /// Attaches the program to an interface of the calling thread's network namespace: in the driver if possible,
    /// otherwise in the stack. The program is detached when this process ends; then all traffic passes.
    ///
    /// # Errors
    /// Errors of the kernel, for example if another XDP program is attached.
    pub fn attach(&mut self, ifindex: u32) -> Result<(), DataPlaneError> {
        self.add_device_port(ifindex)?;
        let attachment = Attachment::for_process_lifetime(self.program(), ifindex)?;
        self.interfaces.attachments.push(attachment);
        if self.down_counters.is_some() {
            let program = &self.skeleton.progs.linewarden_seal_alive;
            self.interfaces
                .sealing_filters
                .push(SealingFilter::for_process_lifetime(program, ifindex)?);
        }
        Ok(())
    }

    /// As [`Xdp::attach`], but the program stays when this process ends, held by a link below `directory`, which must
    /// be on a BPF filesystem. A gate then stays closed, and replies continue until `fresh` is 16 s old. The next
    /// call for the interface replaces the program without a gap; until then the maps of the program use memory.
    /// [`remove_gate`] opens the gate.
    ///
    /// # Errors
    /// Errors of [`Xdp::attach`]; `directory` is not on a BPF filesystem; a running gateway uses the interface.
    pub fn attach_pinned(&mut self, ifindex: u32, directory: &Path) -> Result<(), DataPlaneError> {
        self.add_device_port(ifindex)?;
        let program_table = self
            .down_counters
            .is_some()
            .then(|| MapHandle::try_from(&self.skeleton.maps.kept_programs));
        let program_table = program_table
            .transpose()
            .map_err(|error| DataPlaneError::kernel("duplicating the table of programs", error))?;
        let attachment =
            Attachment::pinned(self.program(), program_table, ifindex, directory, self.gateway_id)?;
        self.interfaces.attachments.push(attachment);
        if self.down_counters.is_some() {
            return seal::attach_persistent(&self.skeleton.progs.linewarden_seal, ifindex);
        }
        // Removes the filter of a sealed gate that this gate replaces.
        seal::remove(ifindex);
        Ok(())
    }

    /// The program that is attached to the interface.
    fn program(&self) -> &ProgramMut<'static> {
        let programs = &self.skeleton.progs;
        match (&self.down_counters, &self.stamping) {
            (Some(_), None) => &programs.linewarden_sealed,
            (None, None) => &programs.linewarden_gateway,
            (Some(_), Some(_)) => &programs.linewarden_sealed_stamping,
            (None, Some(_)) => &programs.linewarden_gateway_stamping,
        }
    }

    /// Runs the program once on a frame (`BPF_PROG_TEST_RUN`), as if it had arrived on the loopback interface.
    ///
    /// # Errors
    /// Errors of the kernel: a frame below 14 B or above a page is refused.
    pub fn test_run(&self, frame: &[u8]) -> Result<TestRun, DataPlaneError> {
        self.run(frame, frame.len(), LOOPBACK, 1)
    }

    /// As [`Xdp::test_run`], with `linear_bytes` of the frame in the part that the program sees and the rest in
    /// fragments, as drivers deliver frames if [`Config::fragments`](crate::Config::fragments) is set.
    ///
    /// # Errors
    /// As [`Xdp::test_run`]; kernels before 6.18 split no frame that fits a page.
    pub fn test_run_in_fragments(
        &self,
        frame: &[u8],
        linear_bytes: usize,
    ) -> Result<TestRun, DataPlaneError> {
        self.run(frame, linear_bytes, LOOPBACK, 1)
    }

    /// As [`Xdp::test_run`], with `times` runs without a pause. Returns the result of the last run.
    ///
    /// # Errors
    /// As [`Xdp::test_run`].
    pub fn test_runs(&self, frame: &[u8], times: u32) -> Result<TestRun, DataPlaneError> {
        self.run(frame, frame.len(), LOOPBACK, times)
    }

    /// Runs the program `repeat` times, as if the frame had arrived on the interface `ingress` of the calling thread's network
    /// namespace, with `linear_bytes` of the frame in the part that the program sees.
    fn run(
        &self,
        frame: &[u8],
        linear_bytes: usize,
        ingress: u32,
        repeat: u32,
    ) -> Result<TestRun, DataPlaneError> {
        // Evidence makes the frame longer.
        let mut out = vec![0u8; frame.len() + 128];
        let mut context = test_context(linear_bytes, ingress);
        let input = libbpf_rs::ProgramInput {
            data_in: Some(frame),
            data_out: Some(&mut out),
            context_in: Some(&mut context),
            repeat,
            ..Default::default()
        };
        let output = self
            .program()
            .test_run(input)
            .map_err(|error| DataPlaneError::kernel("BPF_PROG_TEST_RUN", error))?;
        let action = output.return_value;
        let length = output.data.as_ref().map_or(0, |data| data.len());
        out.truncate(length);
        Ok(TestRun { action, frame: out })
    }

    /// Settles the waiting PROOFs, so that a query sees all verdicts.
    fn settle_waiting_proofs(&self) {
        if let Some(provers) = &self.provers {
            let per_s = self.store.alarm_per_s();
            let report = &mut |event| self.rings.report(event);
            self.waiting
                .settle(provers.regions(), timestamps::now(), per_s, report);
        }
    }

    fn send_frame(&self, ifindex: u32, frame: &[u8]) {
        let Some(sender) = &self.senders.frames else {
            return;
        };
        if let Err(error) = reply::send(sender, ifindex, frame) {
            tracing::debug!(%error, interface = ifindex, "xdp: sending a slow-path reply failed; the device will repeat its message");
        }
    }

    /// Runs the egress program once on a frame, as if it left through the interface `ifindex`. Only with a sealed
    /// gate.
    ///
    /// # Errors
    /// Errors of the kernel: a frame below 14 B or above a page is refused; the gate is not sealed.
    pub fn test_seal(&self, frame: &[u8], ifindex: u32) -> Result<TestRun, DataPlaneError> {
        seal::test_run(&self.skeleton.progs.linewarden_seal, frame, ifindex)
    }

    /// The counter of DATA_DOWN numbers of the device in that slot, for tests that compare memory.
    #[must_use]
    pub fn down_counter(&self, slot: u32) -> Option<&AtomicU64> {
        self.down_counters
            .as_ref()?
            .get(slot as usize)
            .map(|cell| &cell.0)
    }

    /// The waiting PROOFs, one place per CPU, for tests that inspect them before they are settled.
    #[must_use]
    pub fn waiting(&self) -> &[WaitingProof] {
        self.waiting.places()
    }

    /// The store, for tests that compare its memory.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The provers' memory with current verdicts. `None`: PROOFs are not served.
    pub fn prover_store(&mut self) -> Option<&mut Provers> {
        self.settle_waiting_proofs();
        self.provers.as_mut()
    }
}

/// The program accepts frames in fragments (`BPF_F_XDP_HAS_FRAGS`, Linux 5.18).
const XDP_HAS_FRAGS: u32 = 1 << 5;

/// Opens the packet socket of the slow path, even if the slow path is disabled: this setting may change, and the
/// gateway drops the privilege after its start.
fn open_sender(miss_per_s: u32) -> Option<FrameSender> {
    FrameSender::open()
        .inspect_err(|error| match miss_per_s {
            0 => tracing::debug!(%error, "xdp: opening a packet socket failed; it needs CAP_NET_RAW"),
            _ => tracing::error!(%error, "xdp: opening a packet socket failed; unknown devices cannot authenticate; grant CAP_NET_RAW"),
        })
        .ok()
}

/// A socket for each of the gateway's addresses, in the calling thread's network namespace. `None`: PROOFs are not
/// served.
fn open_request_sender(config: &Config) -> Result<Option<AttestRequestSender<OwnedFd>>, DataPlaneError> {
    if config.provers == 0 {
        return Ok(None);
    }
    let mut sockets = Vec::new();
    for ip in &config.local {
        match attest_request_sender::send_only_socket((*ip, config.lap_port).into()) {
            Ok(socket) => sockets.push((*ip, socket)),
            Err(error) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => {
                tracing::warn!(address = %ip, "xdp: this kernel does not support the address family; no ATTEST_REQUEST is sent from this address");
            }
            Err(error) => {
                let port = config.lap_port;
                let operation = format!(
                    "opening a socket for ATTEST_REQUESTs at {ip}, UDP port {port} (check that no other program uses the port)"
                );
                return Err(DataPlaneError::kernel(operation, error));
            }
        }
    }
    let error = |error| DataPlaneError::kernel("opening a socket for route look-ups", error);
    AttestRequestSender::new(sockets).map(Some).map_err(error)
}

/// Sums the per-CPU counters.
pub(crate) fn read_counters(percpu: &dyn MapCore) -> Result<Counters, DataPlaneError> {
    let values = percpu
        .lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY)
        .map_err(|error| DataPlaneError::kernel("reading the counters", error))?
        .unwrap_or_default();
    let mut sum = Counters::default();
    for value in values {
        let mut words = value
            .chunks_exact(8)
            .map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default()));
        sum.by_verdict
            .iter_mut()
            .zip(&mut words)
            .for_each(|(sum, word)| *sum += word);
        sum.events_lost += words.next().unwrap_or_default();
    }
    Ok(sum)
}

/// Sums the per-CPU histograms.
fn read_handling(percpu: &dyn MapCore) -> Result<HandlingTimes, DataPlaneError> {
    let values = percpu
        .lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY)
        .map_err(|error| DataPlaneError::kernel("reading the handling times", error))?
        .unwrap_or_default();
    let mut sum = HandlingTimes::default();
    for value in values {
        let words = value.chunks_exact(8).skip(config::PERCPU_HANDLED_WORD);
        for (sum, word) in sum.buckets.iter_mut().zip(words) {
            *sum += u64::from_ne_bytes(word.try_into().unwrap_or_default());
        }
    }
    Ok(sum)
}

/// Capabilities for loading and attaching the program.
const REQUIRED_CAPABILITIES: &[Capability] = &[Capability::Bpf, Capability::Perfmon, Capability::NetAdmin];

pub(crate) fn check_privileges() -> Result<(), DataPlaneError> {
    if let Some(missing) = capability::missing(REQUIRED_CAPABILITIES).first() {
        return Err(DataPlaneError::Privilege {
            backend: "xdp",
            capability: missing.name(),
            hint: "run as root, or use the host data plane (`dataplane = \"host\"`), which needs no capability",
        });
    }
    if File::open("/sys/kernel/btf/vmlinux").is_err() {
        tracing::debug!("xdp: the kernel has no BTF; loading the program anyway");
    }
    Ok(())
}

/// Fails without the privilege for a packet socket if the slow path needs one: without its replies no unknown device
/// could authenticate.
fn check_sender(config: &Config) -> Result<(), DataPlaneError> {
    if config.miss_per_s == 0 || capability::missing(&[Capability::NetRaw]).is_empty() {
        return Ok(());
    }
    Err(DataPlaneError::Privilege {
        backend: "xdp",
        capability: Capability::NetRaw.name(),
        hint: "run as root, or add the capability to the service",
    })
}
