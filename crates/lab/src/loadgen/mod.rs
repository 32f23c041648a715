//! A closed-loop load generator in eBPF that keeps any verifier saturated, and a reflector to measure itself by.
//!
//! [`Generator`] plays [`Plan::window`] devices at once from the devices' end of a lab's veth: a CHALLENGE comes back
//! as the RESPONSE prepared for it, an ACK as the next device's REQUEST, each in the same packet buffer. It makes no
//! PUF reading and no cryptography on the way (all RESPONSE tags are computed when it is attached, for the bench's
//! frozen `fresh`), so it is faster than every verifier; [`Reflector`] in the verifier's place shows by how much.
//!
//! Frames are Ethernet II, IPv4, UDP with right checksums, from the addresses of [`crate::address`]; every device has
//! an address of its own, as LAP/1 1.4.3 demands. The `xdp` data plane needs nothing else, whatever the number of
//! devices. The `host` data plane replies through the kernel, which needs to know the devices' Ethernet addresses:
//! [`crate::topology::Topology::permanent_neighbours`], for up to [`crate::address::DEVICES_MAX`] devices.
//!
//! Turn threaded NAPI on at both ends ([`crate::napi`]), pin generator and verifier to *one* processor, and count
//! handshakes per second of the verifier's (and of the generator's) processor time. On two processors every frame,
//! ring slot and frame header changes caches four times per handshake, which costs more than all the work that is
//! to be measured, and each side sleeps and wakes: the bench's idle sink completes several times as many on one.

pub(crate) mod maps;
mod plan;
mod token;

use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{Link, MapHandle};
use linewarden_protocol::frame::write;
use linewarden_protocol::ids::{DeviceId, RowIndex};
use linewarden_protocol::keys::AuthKey;
use linewarden_protocol::wire::LAP_PORT;
use zerocopy::IntoBytes as _;

pub use plan::{Plan, Transmit};
use token::{PHASE_ENDED, PHASE_REQUESTED, Token};

use crate::address::{DeviceAddress, Family, GATEWAY};
use crate::capability::{self, FOR_LOAD_GENERATOR, Missing};
use crate::netns::NetNsError;
use crate::packet_socket::{Options, PacketSocket, PacketSocketError, TxBatch};
use crate::skeletons::loadgen::{LoadgenSkelBuilder, OpenLoadgenSkel};
use crate::topology::Lab;

/// Most handshakes that can be under way at once.
pub const WINDOW_MAX: u32 = 192;

/// Why the generator could not be set up or read.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Not allowed.
    #[error(transparent)]
    Capability(#[from] Missing),
    /// The namespace could not be entered.
    #[error(transparent)]
    NetNs(#[from] NetNsError),
    /// The socket for the first REQUESTs.
    #[error(transparent)]
    Socket(#[from] PacketSocketError),
    /// Loading, attaching or a map.
    #[error("load generator: {step}: {source}")]
    Bpf {
        /// What was tried.
        step: &'static str,
        /// What libbpf or the kernel says.
        source: libbpf_rs::Error,
    },
    /// A plan that makes no sense.
    #[error("load generator: {0}")]
    Plan(&'static str),
    /// It did not come to its end in time.
    #[error("load generator: {ended} of {window} handshakes ended within {waited:?}")]
    Stuck {
        /// Tokens that ended.
        ended: u64,
        /// Tokens there are.
        window: u32,
        /// How long.
        waited: Duration,
    },
}

fn bpf(step: &'static str) -> impl FnOnce(libbpf_rs::Error) -> LoadError {
    move |source| LoadError::Bpf { step, source }
}

/// What has happened since the generator was attached, over all processors.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// REQUESTs sent by the program, besides those that started or revived a handshake.
    pub requests: u64,
    /// CHALLENGEs received and answered.
    pub challenges: u64,
    /// RESPONSEs sent.
    pub responses: u64,
    /// ACKs received: complete authentications.
    pub completed: u64,
    /// NAKs received.
    pub naks: u64,
    /// CHALLENGEs for rows of which no RESPONSE was prepared.
    pub exhausted: u64,
    /// CHALLENGEs with another `fresh`.
    pub stale: u64,
    /// Messages that nothing waited for, such as duplicates.
    pub unexpected: u64,
    /// Handshakes of the window that ended, stopped or for want of rows.
    pub ended: u64,
}

/// A generator attached to a lab; detached when dropped.
pub struct Generator {
    _link: Link,
    counters: MapHandle,
    tokens: MapHandle,
    stopping: MapHandle,
    device_ids: MapHandle,
    socket: PacketSocket,
    plan: Plan,
    /// `steps` of each token when last looked at, to see which stand still.
    seen_steps: Vec<u64>,
}

impl Generator {
    /// Prepares all RESPONSEs and attaches the program to the devices' end of the lab; nothing is sent yet.
    ///
    /// # Errors
    /// A missing capability, a plan that makes no sense, or what the kernel says.
    pub fn attach(
        lab: &Lab,
        plan: &Plan,
        device_id: impl Fn(u32) -> DeviceId + Send,
        auth_key: impl Fn(u32, RowIndex) -> AuthKey + Send,
    ) -> Result<Self, LoadError> {
        capability::require(FOR_LOAD_GENERATOR)?;
        plan.check()?;
        let socket = PacketSocket::open(&lab.devices, &lab.devices_end, &Options::default())?;
        let interface = lab.devices_end.index;
        lab.devices
            .run(|| Self::attach_here(interface, socket, plan, device_id, auth_key))?
    }

    /// Loads and attaches inside the namespace, where the kernel looks the interface's number up.
    fn attach_here(
        interface: u32,
        socket: PacketSocket,
        plan: &Plan,
        device_id: impl Fn(u32) -> DeviceId,
        auth_key: impl Fn(u32, RowIndex) -> AuthKey,
    ) -> Result<Self, LoadError> {
        let mut storage = MaybeUninit::uninit();
        let mut open = LoadgenSkelBuilder::default()
            .open(&mut storage)
            .map_err(bpf("open"))?;
        configure(&mut open, plan)?;
        open.progs.loadgen_reflect.set_autoload(false);
        let maps = &mut open.maps;
        maps.device_ids
            .set_max_entries(plan.devices)
            .map_err(bpf("size of device_ids"))?;
        maps.response_tags
            .set_max_entries(plan.devices * plan.rows)
            .map_err(bpf("size of response_tags"))?;
        let loaded = open.load().map_err(bpf("load"))?;

        maps::fill(&loaded.maps.device_ids, plan.devices, |index| {
            device_id(index).0.to_be_bytes()
        })
        .map_err(bpf("fill device_ids"))?;
        maps::fill(&loaded.maps.response_tags, plan.devices * plan.rows, |at| {
            let (index, idx) = (at / plan.rows, RowIndex(plan.first_idx.0 + at % plan.rows));
            plan.response_tag(index, device_id(index), idx, &auth_key(index, idx))
        })
        .map_err(bpf("fill response_tags"))?;

        let tokens = maps::handle(&loaded.maps.tokens).map_err(bpf("tokens"))?;
        for token in 0..plan.window {
            maps::write(&tokens, token, &Token::at(token).to_bytes()).map_err(bpf("tokens"))?;
        }
        Ok(Self {
            counters: maps::handle(&loaded.maps.counters).map_err(bpf("counters"))?,
            stopping: maps::handle(&loaded.maps.bss).map_err(bpf("bss"))?,
            device_ids: maps::handle(&loaded.maps.device_ids).map_err(bpf("device_ids"))?,
            // A link detaches when its descriptor is closed: nothing stays behind when this process dies.
            _link: loaded
                .progs
                .loadgen_generate
                .attach_xdp(interface.cast_signed())
                .map_err(bpf("attach"))?,
            tokens,
            socket,
            plan: plan.clone(),
            seen_steps: vec![0; plan.window as usize],
        })
    }

    /// Sends the first REQUEST of each handshake of the window.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn start(&mut self) -> Result<(), LoadError> {
        let first: Vec<u32> = (0..self.plan.window).collect();
        self.send_requests(&first)
    }

    /// Lets each handshake end at its next ACK.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn stop(&mut self) -> Result<(), LoadError> {
        maps::write(&self.stopping, 0, &1u32.to_ne_bytes()).map_err(bpf("stop"))
    }

    /// Stops and waits until every handshake has ended, reviving those that lost a packet.
    ///
    /// # Errors
    /// [`LoadError::Stuck`] when they have not by the deadline.
    pub fn finish(&mut self, limit: Duration) -> Result<Counters, LoadError> {
        self.stop()?;
        let start = Instant::now();
        loop {
            let counters = self.counters()?;
            if counters.ended >= u64::from(self.plan.window) {
                return Ok(counters);
            }
            if start.elapsed() > limit {
                return Err(LoadError::Stuck {
                    ended: counters.ended,
                    window: self.plan.window,
                    waited: limit,
                });
            }
            std::thread::sleep(Duration::from_millis(20));
            self.revive()?;
        }
    }

    /// Sends the REQUEST again of each handshake that has not moved since the last call, because the verifier or
    /// a queue dropped its packet. Call it at intervals much longer than a handshake takes. Returns how many.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn revive(&mut self) -> Result<usize, LoadError> {
        let mut stuck = Vec::new();
        for (place, seen) in (0..self.plan.window).zip(self.seen_steps.iter_mut()) {
            let bytes = maps::read(&self.tokens, place).map_err(bpf("tokens"))?;
            let token = Token::from_bytes(&bytes);
            if token.phase != PHASE_ENDED && token.steps == *seen {
                let again = Token {
                    phase: PHASE_REQUESTED,
                    ..token
                };
                maps::write(&self.tokens, place, &again.to_bytes()).map_err(bpf("tokens"))?;
                stuck.push(token.device);
            }
            *seen = token.steps;
        }
        self.send_requests(&stuck)?;
        Ok(stuck.len())
    }

    /// The counters, summed over all processors.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn counters(&self) -> Result<Counters, LoadError> {
        let [
            requests,
            challenges,
            responses,
            completed,
            naks,
            exhausted,
            stale,
            unexpected,
            ended,
        ] = maps::sum_per_cpu(&self.counters).map_err(bpf("counters"))?;
        Ok(Counters {
            requests,
            challenges,
            responses,
            completed,
            naks,
            exhausted,
            stale,
            unexpected,
            ended,
        })
    }

    fn send_requests(&self, devices: &[u32]) -> Result<(), LoadError> {
        let mut batch = TxBatch::new(WINDOW_MAX as usize);
        for index in devices {
            let id = maps::read(&self.device_ids, *index).map_err(bpf("device_ids"))?;
            let id = DeviceId(u64::from_be_bytes(id.try_into().unwrap_or_default()));
            let from = DeviceAddress::new(*index).endpoint(Family::V4, self.plan.source_port);
            let to = GATEWAY.endpoint(Family::V4, LAP_PORT);
            let request = self.plan.request(*index, id);
            batch.push_with(|buffer| write::udp(buffer, &from, &to, [0; 2], request.as_bytes()));
        }
        self.socket.send(&mut batch)?;
        Ok(())
    }
}

/// What came to a [`Reflector`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reflected {
    /// REQUESTs sent back as CHALLENGEs.
    pub requests: u64,
    /// RESPONSEs sent back as ACKs.
    pub responses: u64,
}

/// The fastest conceivable verifier, which verifies nothing; detached when dropped.
pub struct Reflector {
    _link: Link,
    counters: MapHandle,
}

impl Reflector {
    /// Attaches to the gateway's end towards the devices. It sends back what a [`Generator`] of the same plan needs
    /// to go on for ever, and no more: its messages carry no tags.
    ///
    /// # Errors
    /// A missing capability, a plan that makes no sense, or what the kernel says.
    pub fn attach(lab: &Lab, plan: &Plan) -> Result<Self, LoadError> {
        capability::require(FOR_LOAD_GENERATOR)?;
        plan.check()?;
        let interface = lab.gateway_devices_end.index;
        lab.gateway.run(|| {
            let mut storage = MaybeUninit::uninit();
            let mut open = LoadgenSkelBuilder::default()
                .open(&mut storage)
                .map_err(bpf("open"))?;
            configure(&mut open, plan)?;
            open.progs.loadgen_generate.set_autoload(false);
            let loaded = open.load().map_err(bpf("load"))?;
            let counters = &loaded.maps.reflector_counters;
            Ok(Self {
                counters: maps::handle(counters).map_err(bpf("reflector_counters"))?,
                _link: loaded
                    .progs
                    .loadgen_reflect
                    .attach_xdp(interface.cast_signed())
                    .map_err(bpf("attach"))?,
            })
        })?
    }

    /// The counters, summed over all processors.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn counters(&self) -> Result<Reflected, LoadError> {
        let [requests, responses] = maps::sum_per_cpu(&self.counters).map_err(bpf("reflector_counters"))?;
        Ok(Reflected { requests, responses })
    }
}

fn configure(open: &mut OpenLoadgenSkel<'_>, plan: &Plan) -> Result<(), LoadError> {
    let rodata = open.maps.rodata_data.as_deref_mut().ok_or(LoadError::Plan(
        "the program has no configuration section; rebuild it",
    ))?;
    rodata.config = plan.config();
    Ok(())
}
