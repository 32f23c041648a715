//! A closed-loop load generator in eBPF that saturates any verifier, and a reflector that measures the generator itself.
//!
//! [`Generator`] simulates [`Plan::window`] devices at once at the devices' end of a lab's veth. The generator turns a
//! CHALLENGE into the prepared RESPONSE and an ACK into the next device's REQUEST, each in the same packet buffer. The
//! generator makes no PUF reading and no cryptographic computation during a run (all RESPONSE tags are computed before,
//! for the benchmark's fixed `fresh`), so it is faster than every verifier. A run with
//! [`Reflector`] instead of a verifier measures the generator's maximum rate.
//!
//! Frames are Ethernet II, IPv4 and UDP with valid checksums, from the addresses of [`crate::address`]; every device has
//! its own address, as LAP/1 1.4.3 requires. The `xdp` data plane needs nothing more. The `host` data plane replies
//! through the kernel, which needs the devices' Ethernet addresses:
//! [`crate::topology::Topology::permanent_neighbors`], for up to [`crate::address::DEVICES_MAX`] devices.
//!
//! Enable threaded NAPI at both ends ([`crate::napi`]), pin generator and verifier to *one* CPU, and count
//! handshakes per second of the verifier's (and of the generator's) CPU time. On two CPUs every frame,
//! ring slot and frame header moves between caches four times per handshake, which costs more than the measured work,
//! and each side sleeps and wakes: with a [`Reflector`], several times as many handshakes are completed on one CPU.

mod error;
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

pub use error::LoadError;
pub use plan::{Plan, Transmit, WINDOW_MAX};
use token::{PHASE_ENDED, PHASE_REQUESTED, Token};

use crate::address::{DeviceAddress, Family, GATEWAY};
use crate::capability::{self, FOR_LOAD_GENERATOR};
use crate::packet_socket::{Options, PacketSocket, TxBatch};
use crate::skeletons::loadgen::{LoadgenSkelBuilder, OpenLoadgenSkel};
use crate::topology::Lab;

fn bpf(step: &'static str) -> impl FnOnce(libbpf_rs::Error) -> LoadError {
    move |source| LoadError::Bpf { step, source }
}

/// Counters since the generator was attached, summed over all CPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// REQUESTs sent by the program, without REQUESTs that started or restarted a handshake.
    pub requests: u64,
    /// CHALLENGEs received and answered.
    pub challenges: u64,
    /// RESPONSEs sent.
    pub responses: u64,
    /// ACKs received: complete authentications.
    pub completed: u64,
    /// NAKs received.
    pub naks: u64,
    /// CHALLENGEs for rows without a prepared RESPONSE.
    pub exhausted: u64,
    /// CHALLENGEs with another `fresh`.
    pub stale: u64,
    /// Unexpected messages, such as duplicates.
    pub unexpected: u64,
    /// Handshakes of the window that ended: by a stop, by a NAK or by a CHALLENGE that the generator cannot answer.
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
    /// `steps` of each token at the previous check, to detect stalled handshakes.
    last_steps: Vec<u64>,
}

impl Generator {
    /// Prepares all RESPONSEs and attaches the program to the devices' end of the lab; sends no frame yet.
    ///
    /// # Errors
    /// A capability is missing, the plan is invalid, or the kernel refuses the program.
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

    /// Loads and attaches the program inside the namespace, where the kernel resolves the interface index.
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
        maps::fill(&loaded.maps.response_tags, plan.devices * plan.rows, |number| {
            let (index, idx) = (
                number / plan.rows,
                RowIndex(plan.first_idx.0 + number % plan.rows),
            );
            plan.response_tag(index, device_id(index), idx, &auth_key(index, idx))
        })
        .map_err(bpf("fill response_tags"))?;

        let tokens = maps::handle(&loaded.maps.tokens).map_err(bpf("tokens"))?;
        for token in 0..plan.window {
            maps::write(&tokens, token, &Token::new(token).to_bytes()).map_err(bpf("tokens"))?;
        }
        Ok(Self {
            counters: maps::handle(&loaded.maps.counters).map_err(bpf("counters"))?,
            stopping: maps::handle(&loaded.maps.bss).map_err(bpf("bss"))?,
            device_ids: maps::handle(&loaded.maps.device_ids).map_err(bpf("device_ids"))?,
            // The kernel detaches the program when the link's descriptor is closed, even if this process is killed.
            _link: loaded
                .progs
                .loadgen_generate
                .attach_xdp(interface.cast_signed())
                .map_err(bpf("attach"))?,
            tokens,
            socket,
            plan: plan.clone(),
            last_steps: vec![0; plan.window as usize],
        })
    }

    /// Sends the first REQUEST of each handshake of the window.
    ///
    /// # Errors
    /// The kernel refuses the operation.
    pub fn start(&mut self) -> Result<(), LoadError> {
        let first: Vec<u32> = (0..self.plan.window).collect();
        self.send_requests(&first)
    }

    /// Lets each handshake end at its next ACK.
    ///
    /// # Errors
    /// The kernel refuses the operation.
    pub fn stop(&mut self) -> Result<(), LoadError> {
        maps::write(&self.stopping, 0, &1u32.to_ne_bytes()).map_err(bpf("stop"))
    }

    /// Stops and waits until every handshake has ended; restarts handshakes that lost a packet.
    ///
    /// # Errors
    /// [`LoadError::Timeout`] if handshakes are still running at the deadline.
    pub fn finish(&mut self, limit: Duration) -> Result<Counters, LoadError> {
        self.stop()?;
        let start = Instant::now();
        loop {
            let counters = self.counters()?;
            if counters.ended >= u64::from(self.plan.window) {
                return Ok(counters);
            }
            if start.elapsed() > limit {
                return Err(LoadError::Timeout {
                    ended: counters.ended,
                    window: self.plan.window,
                    timeout: limit,
                });
            }
            std::thread::sleep(Duration::from_millis(20));
            self.restart_stalled()?;
        }
    }

    /// Resends the REQUEST of each handshake that has made no progress since the previous call, because the verifier or a
    /// queue dropped its packet. Call it at intervals much longer than a handshake. Returns the number of restarts.
    ///
    /// # Errors
    /// The kernel refuses the operation.
    pub fn restart_stalled(&mut self) -> Result<usize, LoadError> {
        let mut stalled = Vec::new();
        for (token_index, last_steps) in (0..self.plan.window).zip(self.last_steps.iter_mut()) {
            let bytes = maps::read(&self.tokens, token_index).map_err(bpf("tokens"))?;
            let token = Token::from_bytes(&bytes);
            if token.phase != PHASE_ENDED && token.steps == *last_steps {
                let restarted = Token {
                    phase: PHASE_REQUESTED,
                    ..token
                };
                maps::write(&self.tokens, token_index, &restarted.to_bytes()).map_err(bpf("tokens"))?;
                stalled.push(token.device);
            }
            *last_steps = token.steps;
        }
        self.send_requests(&stalled)?;
        Ok(stalled.len())
    }

    /// The counters, summed over all CPUs.
    ///
    /// # Errors
    /// The kernel refuses the operation.
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

/// Counters of a [`Reflector`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReflectorCounters {
    /// REQUESTs sent back as CHALLENGEs.
    pub requests: u64,
    /// RESPONSEs sent back as ACKs.
    pub responses: u64,
}

/// The fastest possible verifier, which verifies nothing; detached when dropped.
pub struct Reflector {
    _link: Link,
    counters: MapHandle,
}

impl Reflector {
    /// Attaches to the gateway's end of the device link. The reflector sends only replies that a [`Generator`] of
    /// the same plan needs to continue: the replies have no tags.
    ///
    /// # Errors
    /// A capability is missing, the plan is invalid, or the kernel refuses the program.
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

    /// The counters, summed over all CPUs.
    ///
    /// # Errors
    /// The kernel refuses the operation.
    pub fn counters(&self) -> Result<ReflectorCounters, LoadError> {
        let [requests, responses] = maps::sum_per_cpu(&self.counters).map_err(bpf("reflector_counters"))?;
        Ok(ReflectorCounters { requests, responses })
    }
}

fn configure(open: &mut OpenLoadgenSkel<'_>, plan: &Plan) -> Result<(), LoadError> {
    let rodata = open
        .maps
        .rodata_data
        .as_deref_mut()
        .ok_or(LoadError::InvalidPlan(
            "the eBPF program has no configuration section; rebuild the lab crate",
        ))?;
    rodata.config = plan.config();
    Ok(())
}
