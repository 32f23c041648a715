//! The `xdp` data plane: an eBPF program on the interface (`bpf/gateway.bpf.c`) and the maps that it works on.
//!
//! The program is loaded with its configuration as constants, so that the kernel's verifier removes what is switched
//! off. It is attached by a BPF link, which ends with this process or stays (`attach`).

mod answer;
mod attach;
pub mod cipher_bench;
#[cfg(test)]
mod compare_test;
pub(crate) mod config;
mod dropped;
mod forward;
mod keep;
#[cfg(test)]
mod layout_test;
mod measure;
pub mod microbench;
pub mod p4dra_bench;
mod passes;
mod programs;
pub mod proof_bench;
mod rings;
mod seal;
pub mod sealed_bench;
mod secure;
mod skeleton;
#[cfg(test)]
mod stack_test;
mod stamp;
pub mod stamp_bench;
mod waiting;

use std::collections::BTreeMap;
use std::fs::File;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use libbpf_rs::skel::{OpenSkel as _, Skel as _, SkelBuilder as _};
use libbpf_rs::{MapCore, MapFlags, MapHandle, OpenObject, PrintLevel, ProgramMut, ProgramType};
use linewarden_protocol::classic::p4dra::Round as P4draRound;
use linewarden_protocol::frame::Mac;
use linewarden_protocol::gateway::DroppedTypes;
use linewarden_protocol::sources::DeviceSources;
use linewarden_protocol::wire::{AttestRequest, MESSAGE_BYTES};

pub use self::attach::{Held, has_large_frames, held, release, strays};
pub use self::keep::release_memory;
pub use self::secure::{InsecureDirectory, insecure};

use self::attach::{Attachment, Purpose};
use self::dropped::DroppedPlaces;
use self::keep::Memory;
use self::rings::Rings;
use self::seal::{DownCell, Seal};
use self::skeleton::gateway::{GatewaySkel, GatewaySkelBuilder};
use self::stamp::Stamping;
use self::waiting::Waiting;
use crate::ask::{self, Asker};
use crate::capability::{self, Capability};
use crate::config::{Config, Gate, Live};
use crate::counters::Counters;
use crate::event::Event;
use crate::frames::FrameSender;
use crate::handling::Handling;
use crate::layout::WaitingProof;
use crate::measurement::Witness;
use crate::miss::{self, Carrier, Miss};
use crate::p4dra::{P4draAsker, P4draControl};
use crate::stamp::{Stamp, StampCounts};
use crate::store::adopt::Left;
use crate::store::provers::Provers;
use crate::store::{ClosedSession, Region, Store};
use crate::{DataPlaneError, StoreBacked};

/// The `xdp` data plane.
pub struct Xdp {
    gateway_id: u32,
    skeleton: GatewaySkel<'static>,
    store: Store,
    provers: Option<Provers>,
    waiting: Waiting,
    p4dra: Option<P4draControl>,
    /// By slot, of a sealed gate.
    down: Option<Region<DownCell>>,
    /// What packets carry, if they carry anything.
    stamping: Option<Stamping>,
    dropped: DroppedPlaces,
    seals: Vec<Seal>,
    /// Interfaces that are forwarded to.
    forwards: Vec<u32>,
    /// Interfaces on the devices' side.
    inside: Vec<u32>,
    /// Their MAC addresses, and where messages are taken from, as they were written last.
    macs: BTreeMap<u32, Vec<Mac>>,
    sources: DeviceSources,
    attachments: Vec<Attachment>,
    rings: Rings,
    sender: Option<FrameSender>,
    /// Of `p4dra-classic`.
    p4dra_asker: Option<P4draAsker>,
    asker: Option<Asker<OwnedFd>>,
    memory: Option<Memory>,
    /// What an earlier process left has not been told yet.
    has_left: bool,
}

// SAFETY: libbpf objects are not bound to the thread that made them; `Xdp` is changed by one thread at a time.
unsafe impl Send for Xdp {}

/// What one run of the program gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestRun {
    /// `XDP_PASS`, `XDP_TX`, `XDP_DROP`, … by number.
    pub action: u32,
    /// The frame afterwards.
    pub frame: Vec<u8>,
}

impl Xdp {
    /// Loads the program; it sees no packet until [`Xdp::attach`].
    ///
    /// # Errors
    /// A configuration that cannot be used, missing privileges, or the kernel's refusal.
    pub fn load(config: &Config) -> Result<Self, DataPlaneError> {
        Self::check(config)?;
        Self::load_with(config, None)
    }

    /// Likewise, with maps that are pinned below `directory`, which must be on a BPF filesystem: they stay when this process
    /// ends. Those that an earlier process of this gateway left there are taken up, devices, sessions and all, if the sizes
    /// are the same; [`DataPlane::take_left`](crate::DataPlane::take_left) tells. [`release_memory`] gives them up.
    ///
    /// # Errors
    /// Those of [`Xdp::load`]; no BPF filesystem; a process of this gateway that lives.
    pub fn load_kept(config: &Config, directory: &Path) -> Result<Self, DataPlaneError> {
        Self::check(config)?;
        let memory = Memory::of(directory, config.gateway_id.0, Purpose::Keep)?;
        if let Some(hash_seed) = memory.seed(config) {
            let mut kept = config.clone();
            kept.geometry.hash_seed = hash_seed;
            match Self::load_with(&kept, Some((&memory, true))) {
                Ok(plane) => {
                    return Ok(Self {
                        has_left: true,
                        memory: Some(memory),
                        ..plane
                    });
                }
                Err(error) => tracing::warn!(%error, "the memory of the earlier process is of no use"),
            }
        }
        if memory.forget()? {
            tracing::warn!(
                "the memory of an earlier process does not fit this configuration and is given up"
            );
        }
        let plane = Self::load_with(config, Some((&memory, false)))?;
        plane.store.identify(config);
        Ok(Self {
            memory: Some(memory),
            ..plane
        })
    }

    fn check(config: &Config) -> Result<(), DataPlaneError> {
        config.check()?;
        check_privileges()?;
        check_sender(config)?;
        quiet_libbpf();
        Ok(())
    }

    /// With pinned maps, and whether something lies in them.
    fn load_with(config: &Config, memory: Option<(&Memory, bool)>) -> Result<Self, DataPlaneError> {
        // libbpf wants the object's storage to outlive the skeleton; a few dozen bytes a load are left behind.
        let storage: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
        let open_error = |error| DataPlaneError::kernel("opening the eBPF object", error);
        let mut open = GatewaySkelBuilder::default().open(storage).map_err(open_error)?;
        self::config::configure(open.open_object_mut(), config, false)?;
        if let Some((memory, _)) = memory {
            memory.pin(open.open_object_mut())?;
        }
        let is_sealed = config.gate == Gate::Sealed;
        open.progs.linewarden_proof.set_autoload(config.provers > 0);
        open.progs.linewarden_p4dra.set_autoload(config.p4dra.is_some());
        let stamps = config.in_packets.is_some();
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
            |error| DataPlaneError::kernel("loading the eBPF program (Linux 6.1 or later?)", error);
        let skeleton = open.load().map_err(load_error)?;
        let regions = self::config::regions(skeleton.object(), config)?;
        let (regions, geometry) = (Arc::new(regions), config.geometry.clone());
        let store = match memory {
            Some((_, true)) => {
                let store = Store::adopt(regions, geometry);
                store.set_live(&config.live(), crate::host::now().boot_s());
                store
            }
            _ => {
                regions.begin(&config.live());
                Store::new(regions, geometry)
            }
        };
        let rings = Rings::map(&skeleton.maps.events, &skeleton.maps.misses)?;
        programs::link_all(&skeleton)?;
        let stamping = stamps.then(|| Stamping::map(skeleton.object())).transpose()?;
        let down = is_sealed
            .then(|| self::config::region(skeleton.object(), "down", config.geometry.slots))
            .transpose()?;
        let provers = (config.provers > 0)
            .then(|| self::config::prover_regions(skeleton.object(), config))
            .transpose()?
            .map(|regions| Provers::new(Arc::new(regions), config.prover_geometry()));
        let waiting = Waiting::map(skeleton.object(), config)?;
        let dropped = DroppedPlaces::map(skeleton.object())?;
        let p4dra = P4draControl::new(config, |_| self::config::p4dra_regions(skeleton.object(), config))?;
        let plane = Self {
            gateway_id: config.gateway_id.0,
            skeleton,
            store,
            provers,
            waiting,
            p4dra,
            down,
            stamping,
            dropped,
            seals: Vec::new(),
            forwards: Vec::new(),
            inside: Vec::new(),
            macs: BTreeMap::new(),
            sources: config.sources(),
            attachments: Vec::new(),
            rings,
            sender: open_sender(config.miss_per_s),
            p4dra_asker: config.p4dra.as_ref().map(P4draAsker::open).transpose()?,
            asker: open_asker(config)?,
            memory: None,
            has_left: false,
        };
        self::config::fill_classic(plane.skeleton.object(), config)?;
        Ok(plane)
    }

    /// Attaches the program to an interface of the calling thread's network namespace: in the driver where it can,
    /// else in the stack. It is gone when this process ends, and everything passes.
    ///
    /// # Errors
    /// The kernel's, for example when another XDP program is there.
    pub fn attach(&mut self, ifindex: u32) -> Result<(), DataPlaneError> {
        self.stand_inside(ifindex)?;
        let attachment = Attachment::while_alive(self.program(), ifindex)?;
        self.attachments.push(attachment);
        if self.down.is_some() {
            let program = &self.skeleton.progs.linewarden_seal_alive;
            self.seals.push(Seal::while_alive(program, ifindex)?);
        }
        Ok(())
    }

    /// As [`Xdp::attach`], but the program stays when this process ends, held by a link below `directory`, which must
    /// be on a BPF filesystem: a gate stays shut, and answers until `fresh` is 16 s old. The next call for the interface takes its
    /// place without a gap, and until then its maps take up memory; [`release`] opens.
    ///
    /// # Errors
    /// Those of [`Xdp::attach`]; no BPF filesystem; a gateway that lives on the interface.
    pub fn attach_pinned(&mut self, ifindex: u32, directory: &Path) -> Result<(), DataPlaneError> {
        self.stand_inside(ifindex)?;
        let called = self
            .down
            .is_some()
            .then(|| MapHandle::try_from(&self.skeleton.maps.kept_programs));
        let called = called
            .transpose()
            .map_err(|error| DataPlaneError::kernel("the table of programs", error))?;
        let attachment = Attachment::pinned(self.program(), called, ifindex, directory, self.gateway_id)?;
        self.attachments.push(attachment);
        if self.down.is_some() {
            return seal::stay(&self.skeleton.progs.linewarden_seal, ifindex);
        }
        // A sealed gate whose place this one has taken.
        seal::remove(ifindex);
        Ok(())
    }

    /// The one that gets what comes in.
    fn program(&self) -> &ProgramMut<'static> {
        let programs = &self.skeleton.progs;
        match (&self.down, &self.stamping) {
            (Some(_), None) => &programs.linewarden_sealed,
            (None, None) => &programs.linewarden_gateway,
            (Some(_), Some(_)) => &programs.linewarden_sealed_stamping,
            (None, Some(_)) => &programs.linewarden_gateway_stamping,
        }
    }

    /// Runs the program once on a frame (`BPF_PROG_TEST_RUN`), as if it came in on the loopback interface.
    ///
    /// # Errors
    /// The kernel's: a frame below 14 B or above a page is refused.
    pub fn test_run(&self, frame: &[u8]) -> Result<TestRun, DataPlaneError> {
        self.run(frame, frame.len(), LOOPBACK, 1)
    }

    /// Likewise, with so many bytes of the frame in the part that the program sees, and the rest in fragments, as drivers deliver
    /// frames where [`Config::fragments`](crate::Config::fragments) is set.
    ///
    /// # Errors
    /// As [`Xdp::test_run`]; of kernels before 6.18, which split no frame of a page.
    pub fn test_run_in_fragments(
        &self,
        frame: &[u8],
        linear_bytes: usize,
    ) -> Result<TestRun, DataPlaneError> {
        self.run(frame, linear_bytes, LOOPBACK, 1)
    }

    /// Likewise, so often without a pause; what the last run gave.
    ///
    /// # Errors
    /// As [`Xdp::test_run`].
    pub fn test_runs(&self, frame: &[u8], times: u32) -> Result<TestRun, DataPlaneError> {
        self.run(frame, frame.len(), LOOPBACK, times)
    }

    /// Likewise, as if it came in on that interface of the calling thread's network namespace.
    fn run(
        &self,
        frame: &[u8],
        linear_bytes: usize,
        ingress: u32,
        repeat: u32,
    ) -> Result<TestRun, DataPlaneError> {
        // Evidence makes it longer, and so does a reply of p4dra-classic.
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

    /// Settles the PROOFs that wait: whoever looks finds no verdict that is still to come.
    fn settle(&self) {
        if let Some(provers) = &self.provers {
            let per_s = self.store.alarm_per_s();
            let report = &mut |event| self.rings.report(event);
            self.waiting
                .settle(provers.regions(), crate::host::now(), per_s, report);
        }
    }

    fn send_frame(&self, ifindex: u32, frame: &[u8]) {
        let Some(sender) = &self.sender else {
            return;
        };
        if let Err(error) = answer::send(sender, ifindex, frame) {
            tracing::debug!(%error, ifindex, "an answer could not be sent; its device repeats");
        }
    }

    /// Runs the program of the way out once on a frame, as if it left by the interface `ifindex`; of a sealed gate only.
    ///
    /// # Errors
    /// The kernel's: a frame below 14 B or above a page is refused; a gate that is not sealed.
    pub fn test_seal(&self, frame: &[u8], ifindex: u32) -> Result<TestRun, DataPlaneError> {
        seal::test_run(&self.skeleton.progs.linewarden_seal, frame, ifindex)
    }

    /// Who counts the numbers towards the device of that slot, for tests that compare memory.
    #[must_use]
    pub fn down(&self, slot: u32) -> Option<&AtomicU64> {
        self.down.as_ref()?.get(slot as usize).map(|cell| &cell.0)
    }

    /// The places of PROOFs that wait, one a CPU, for tests that look before anything is settled.
    #[must_use]
    pub fn waiting(&self) -> &[WaitingProof] {
        self.waiting.places()
    }

    /// The store, for tests that compare its memory.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The provers' memory, with the verdicts of now; `None`: it attests nobody.
    pub fn prover_store(&mut self) -> Option<&mut Provers> {
        StoreBacked::provers(self)
    }
}

impl StoreBacked for Xdp {
    const NAME: &'static str = "xdp";

    fn store(&self) -> &Store {
        &self.store
    }

    fn store_mut(&mut self) -> &mut Store {
        &mut self.store
    }

    fn provers(&mut self) -> Option<&mut Provers> {
        self.settle();
        self.provers.as_mut()
    }

    fn ask(&mut self, requests: &[(SocketAddr, AttestRequest)]) -> Result<usize, DataPlaneError> {
        self.asker.as_ref().map_or(Ok(0), |asker| asker.ask(requests))
    }

    fn p4dra(&mut self) -> Option<&mut P4draControl> {
        self.p4dra.as_mut()
    }

    fn ask_p4dra(&mut self, round: &P4draRound) -> Result<(), DataPlaneError> {
        self.p4dra_asker
            .as_ref()
            .map_or(Ok(()), |asker| asker.ask(&self.inside, round))
    }

    fn counters(&self) -> Result<Counters, DataPlaneError> {
        self.settle();
        let mut counters = read_counters(&self.skeleton.maps.percpu)?;
        self.waiting.count(&mut counters);
        Ok(counters)
    }

    fn dropped_types(&self) -> Result<Option<DroppedTypes>, DataPlaneError> {
        self.dropped.counts(&self.skeleton.maps.dropped).map(Some)
    }

    fn handling(&self) -> Result<Handling, DataPlaneError> {
        read_handling(&self.skeleton.maps.percpu)
    }

    fn drain_events(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), DataPlaneError> {
        self.settle();
        self.rings.take_events()?.into_iter().for_each(sink);
        Ok(())
    }

    fn drain_misses(&mut self, sink: &mut dyn FnMut(Miss)) -> Result<(), DataPlaneError> {
        self.rings.take_misses()?.into_iter().for_each(sink);
        Ok(())
    }

    fn send(&mut self, miss: &Miss, reply: &[u8; MESSAGE_BYTES]) {
        let Carrier::Frame { frame, ingress } = &miss.carrier else {
            return;
        };
        if let Some(reply) = miss::reply_to(frame, reply) {
            self.send_frame(*ingress, &reply);
        }
    }

    fn replay(&mut self, miss: Miss) -> Result<(), DataPlaneError> {
        let Carrier::Frame { frame, ingress } = &miss.carrier else {
            return Ok(());
        };
        let run = self.run(frame, frame.len(), *ingress, 1)?;
        if run.action == XDP_TX {
            self.send_frame(*ingress, &run.frame);
        }
        Ok(())
    }

    fn measure(&self) -> Result<Witness, DataPlaneError> {
        Xdp::measure(self).map(|measurement| Witness::Kernel(Box::new(measurement)))
    }

    fn stamp(&self, stamp: Option<&Stamp>) {
        if let Some(stamping) = &self.stamping {
            stamping.put(stamp);
        }
    }

    fn stamped(&self) -> Result<Option<StampCounts>, DataPlaneError> {
        let counts = || stamp::counts(&self.skeleton.maps.stamp_counts);
        self.stamping.as_ref().map(|_| counts()).transpose()
    }

    fn take_left(&mut self) -> Option<Left> {
        std::mem::take(&mut self.has_left).then(|| self.store.left())
    }

    fn outlives_process(&self) -> bool {
        self.memory.is_some()
    }

    fn reconfigure(&mut self, live: &Live, boot_s: u32) -> Result<(), DataPlaneError> {
        self.forward_to_these(&live.forward_to)?;
        if self.sender.is_none() && live.miss_per_s > 0 {
            tracing::error!(
                "no packet socket (CAP_NET_RAW at the start): devices that are new here cannot authenticate"
            );
        }
        self.store.set_live(live, boot_s);
        self.sources.clone_from(&live.sources);
        self.forward_to_no_others(&live.forward_to);
        Ok(())
    }

    fn set_sources(&mut self, sources: &DeviceSources) -> Vec<ClosedSession> {
        self.sources.clone_from(sources);
        // A new address is often that of a new interface.
        self.follow_macs();
        self.store.set_sources(sources)
    }

    fn follow_links(&mut self) {
        self.follow_macs();
    }

    /// A ring that has been drained is silent.
    fn silence(&mut self) {}

    fn bell(&self) -> Option<BorrowedFd<'_>> {
        Some(self.rings.fd())
    }

    fn failure(&mut self) -> Option<String> {
        let gone = self.attachments.iter().any(Attachment::is_loose);
        gone.then(|| "an interface that the program was attached to is gone".to_owned())
    }
}

/// The program takes frames in fragments (`BPF_F_XDP_HAS_FRAGS`, Linux 5.18).
const XDP_HAS_FRAGS: u32 = 1 << 5;
/// The loopback interface's index.
const LOOPBACK: u32 = 1;
/// "Send the frame back", in include/uapi/linux/bpf.h.
const XDP_TX: u32 = 3;

/// Also where nobody new is let in: that may change, and the privilege is given up once the gateway has started.
fn open_sender(miss_per_s: u32) -> Option<FrameSender> {
    FrameSender::open()
        .inspect_err(|error| match miss_per_s {
            0 => tracing::debug!(%error, "no packet socket (CAP_NET_RAW)"),
            _ => tracing::error!(%error, "no packet socket (CAP_NET_RAW): devices that are new here cannot authenticate"),
        })
        .ok()
}

/// A socket for each of the gateway's addresses, in the calling thread's network namespace. `None`: it attests nobody.
fn open_asker(config: &Config) -> Result<Option<Asker<OwnedFd>>, DataPlaneError> {
    if config.provers == 0 {
        return Ok(None);
    }
    let mut exits = Vec::new();
    for ip in &config.local {
        match ask::exit_only((*ip, config.lap_port).into()) {
            Ok(socket) => exits.push((*ip, socket)),
            Err(error) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => {
                tracing::warn!(%ip, "this kernel has no such addresses: nobody is asked from there");
            }
            Err(error) => {
                let port = config.lap_port;
                let what = format!(
                    "a socket to ask devices from at {ip}, UDP port {port} (is another program there?)"
                );
                return Err(DataPlaneError::kernel(what, error));
            }
        }
    }
    let error = |error| DataPlaneError::kernel("a socket to look routes up", error);
    Asker::over(exits).map(Some).map_err(error)
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
fn read_handling(percpu: &dyn MapCore) -> Result<Handling, DataPlaneError> {
    let values = percpu
        .lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY)
        .map_err(|error| DataPlaneError::kernel("reading how long RESPONSEs took", error))?
        .unwrap_or_default();
    let mut sum = Handling::default();
    for value in values {
        let words = value.chunks_exact(8).skip(config::PERCPU_HANDLED_WORD);
        for (sum, word) in sum.buckets.iter_mut().zip(words) {
            *sum += u64::from_ne_bytes(word.try_into().unwrap_or_default());
        }
    }
    Ok(sum)
}

/// `struct xdp_md` for a test run: the whole frame, on an interface's queue 0.
fn test_context(linear_bytes: usize, ingress: u32) -> Vec<u8> {
    let length = u32::try_from(linear_bytes).unwrap_or(u32::MAX);
    // data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex
    [0, length, 0, ingress, 0, 0]
        .iter()
        .flat_map(|word: &u32| word.to_ne_bytes())
        .collect()
}

/// What loading and attaching the program need.
const NEEDED: &[Capability] = &[Capability::Bpf, Capability::Perfmon, Capability::NetAdmin];

fn check_privileges() -> Result<(), DataPlaneError> {
    if let Some(needed) = capability::missing(NEEDED).first() {
        return Err(DataPlaneError::Privilege {
            backend: "xdp",
            needed: needed.name(),
            hint: "run as root, or use the host data plane (`dataplane = \"host\"`), which needs none",
        });
    }
    if File::open("/sys/kernel/btf/vmlinux").is_err() {
        tracing::debug!("the kernel has no BTF of its own; loading anyway");
    }
    Ok(())
}

/// The slow path answers through a packet socket: without one no device could authenticate here for the first time. And provers
/// of `p4dra-classic` are asked through one.
fn check_sender(config: &Config) -> Result<(), DataPlaneError> {
    let sends = config.miss_per_s > 0 || config.p4dra.is_some();
    if !sends || capability::missing(&[Capability::NetRaw]).is_empty() {
        return Ok(());
    }
    Err(DataPlaneError::Privilege {
        backend: "xdp",
        needed: Capability::NetRaw.name(),
        hint: "run as root, or add it to the capabilities of the service",
    })
}

/// libbpf's own messages go to the log, not to standard error.
fn quiet_libbpf() {
    libbpf_rs::set_print(Some((PrintLevel::Debug, |level, text| match level {
        // The error itself comes back; that there was no qdisc, or one already, is none.
        PrintLevel::Warn if text.contains("Kernel error message") => {
            tracing::debug!(target: "libbpf", "{}", text.trim_end());
        }
        PrintLevel::Warn => tracing::warn!(target: "libbpf", "{}", text.trim_end()),
        _ => tracing::trace!(target: "libbpf", "{}", text.trim_end()),
    })));
}
