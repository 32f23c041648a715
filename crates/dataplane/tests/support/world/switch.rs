//! A P4 switch in memory and its data plane, beside the others: the same packets, verdicts, replies, lines and events.
//!
//! The switch has its own clock and registers that only packets write. A record that moves the clock, or stops a winner half way,
//! goes on without it: it is *left behind* until the next reset.

use std::net::Ipv6Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linewarden_dataplane::p4runtime::{Neighbour, P4Options, P4Runtime};
use linewarden_dataplane::{Config, Counters, DataPlane as _, Event, EventKind, StoreError};
use linewarden_p4runtime::server::Options;
use linewarden_p4runtime::target::events;
use linewarden_protocol::commit;
use linewarden_protocol::ids::{Mode, RowIndex};
use linewarden_protocol::verdict::{Disposition, Verdict};
use linewarden_switch::control::Control;
use linewarden_switch::control::server::Server;
use linewarden_switch::ports::memory::{MemoryPeer, memory_port};
use linewarden_switch::ports::{PortId, PortSet, Waker};
use linewarden_switch::serve::{WorkerCounters, serve};
use linewarden_switch::switch::{Settings, Slot};

use super::{INGRESS, World, hex};
use crate::support::device::{Dev, gateway_end};

/// Long enough for any machine; nothing waits for its end unless it fails.
const LONG: Duration = Duration::from_secs(60);
const DEVICE_ID: u64 = 3;
const CPU: u16 = 510;
/// The devices' port is [`INGRESS`].
const SERVICES: u16 = 2;
const FRAMES: usize = 1024;

/// A switch with two ports in memory, served on the loopback interface.
pub struct Switch {
    server: Option<Server>,
    pub devices: MemoryPeer,
    pub services: MemoryPeer,
    worker: Option<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    waker: Waker,
}

impl Switch {
    pub fn start() -> Self {
        let mut ports = PortSet::new().unwrap().with_spin_rounds(0);
        let mut peers = [INGRESS as u16, SERVICES].map(|number| {
            let (port, peer) = memory_port(FRAMES).unwrap();
            ports.add(PortId::new(number).unwrap(), port).unwrap();
            Some(peer)
        });
        let (sender, receiver) = events(FRAMES);
        let (slot, start) = (Slot::default(), Instant::now());
        let clock = Box::new(move || start.elapsed().as_micros() as u64);
        let control = Control::new(slot.clone(), Settings::default(), clock, sender);
        let control = Arc::new(control);
        ports
            .add(PortId::new(CPU).unwrap(), control.cpu_port().unwrap())
            .unwrap();
        let options = Options {
            device_id: DEVICE_ID,
            limits: Default::default(),
            pipeline: None,
        };
        let server = Server::start("127.0.0.1:0".parse().unwrap(), &control, receiver, options).unwrap();
        let (waker, stop) = (ports.waker(), Arc::new(AtomicBool::new(false)));
        let worker = {
            let (wire, stop) = (Arc::clone(control.wire()), Arc::clone(&stop));
            std::thread::spawn(move || {
                let (mut worker, counters) = (slot.worker(), WorkerCounters::default());
                let mut digests = |told| wire.digest(told);
                serve(&mut worker, &mut ports, &counters, &mut digests, start, &stop).unwrap();
            })
        };
        Self {
            server: Some(server),
            devices: peers[0].take().unwrap(),
            services: peers[1].take().unwrap(),
            worker: Some(worker),
            stop,
            waker,
        }
    }

    /// How the data plane finds it, and who is behind its ports.
    pub fn options(&self) -> P4Options {
        P4Options {
            address: self.server.as_ref().unwrap().address().to_string(),
            device_id: DEVICE_ID,
            election_id: 1,
            bridge: vec![Neighbour {
                mac: gateway_end(false).mac,
                port: SERVICES,
                is_devices: false,
            }],
        }
    }

    /// Ends the server; packets go on.
    pub fn stop_server(&mut self) {
        self.server.take().unwrap().stop().unwrap();
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.waker.wake();
        if let Some(worker) = self.worker.take() {
            let _ = worker.join();
        }
    }
}

pub struct SwitchSide {
    pub plane: P4Runtime,
    options: P4Options,
    switch: Switch,
    counted: Counters,
    pub(super) left_behind: bool,
    /// Frames that went through it.
    pub sent: u64,
}

impl SwitchSide {
    pub fn start(config: &Config) -> Self {
        let switch = Switch::start();
        let options = switch.options();
        Self {
            plane: P4Runtime::connect(config, &options).unwrap(),
            options,
            switch,
            counted: Counters::default(),
            left_behind: false,
            sent: 0,
        }
    }

    /// What is counted of the frame that was sent last, once it is.
    fn counted(&mut self) -> Vec<(Verdict, u64)> {
        let deadline = Instant::now() + LONG;
        loop {
            let counted = self.plane.counters().unwrap();
            let counts: Vec<_> = counted.since(&self.counted).nonzero().collect();
            if !counts.is_empty() {
                self.counted = counted;
                return counts;
            }
            assert!(Instant::now() < deadline, "the switch counts nothing");
            std::thread::yield_now();
        }
    }
}

impl World {
    /// Frames that went through the switch.
    pub fn sent_to_switch(&self) -> u64 {
        self.switch.as_ref().map_or(0, |side| side.sent)
    }

    /// Ends the switch's server, and returns what its data plane says of that, and what of the next installation.
    pub fn lose_switch(&mut self) -> (String, Result<(), StoreError>) {
        let side = self.switch.as_mut().unwrap();
        side.switch.stop_server();
        let deadline = Instant::now() + LONG;
        while side.plane.failure().is_none() {
            assert!(Instant::now() < deadline, "the data plane does not notice");
            std::thread::yield_now();
        }
        let rows = Self::store_rows(Dev(1), Mode::Key, 0, 1);
        let refused = side
            .plane
            .install(Dev(1).id(), Mode::Key, RowIndex(0), &rows, None);
        (side.plane.failure().unwrap(), refused)
    }

    /// From now until the next reset the switch is not what the others are.
    pub fn leave_switch_behind(&mut self) {
        if let Some(side) = &mut self.switch {
            side.left_behind = true;
        }
    }

    /// A switch that was left behind gets another gateway, which has it forget everything.
    pub(super) fn reset_switch(&mut self) {
        let config = self.shape.config();
        let Some(side) = self.switch.as_mut().filter(|side| side.left_behind) else {
            return;
        };
        side.options.election_id += 1;
        side.plane = P4Runtime::connect(&config, &side.options).unwrap();
        side.counted = Counters::default();
        side.left_behind = false;
    }

    /// Sends a frame from the devices' side through the switch.
    pub(super) fn send_switch(&mut self, frame: &[u8], verdict: Verdict, out: &[u8]) {
        let is_whole = frame.len() >= 14;
        let Some(side) = self.switch.as_mut().filter(|side| is_whole && !side.left_behind) else {
            return;
        };
        assert!(side.switch.devices.send(frame));
        side.sent += 1;
        let counts = side.counted();
        assert_eq!(
            counts,
            [(verdict, 1)],
            "switch; oracle: {verdict}; {}",
            hex(frame)
        );
        let goes_on = frame.starts_with(&gateway_end(false).mac);
        let came = match verdict.disposition() {
            Disposition::Reply => side.switch.devices.receive(LONG),
            Disposition::Pass if goes_on => side.switch.services.receive(LONG),
            Disposition::Pass | Disposition::Drop => return,
        };
        let came = came.unwrap_or_else(|| panic!("nothing comes out of the switch, {verdict}"));
        assert_eq!(hex(&came), hex(out), "switch, {verdict}, of {}", hex(frame));
    }

    /// What the oracle's line holds is what the switch says.
    pub(super) fn compare_switch_line(&self, device: Dev) {
        let Some(side) = self.switch.as_ref().filter(|side| !side.left_behind) else {
            return;
        };
        let line = self.oracle.line(device.id()).unwrap();
        let got = side.plane.status(device.id()).unwrap();
        let flags = commit::VALID | commit::REVOKED | commit::KEY;
        assert_eq!(got.commit.idx(), line.commit.idx(), "switch, {device:?}");
        assert_eq!(got.commit.0 & flags, line.commit.0 & flags, "switch, {device:?}");
        assert_eq!(got.commit.has_credit(), line.commit.has_credit());
        let rows_left = line.rows_ahead as u32 + u32::from(line.commit.is_valid());
        assert_eq!(got.rows_left, rows_left, "switch, {device:?}");
        assert_eq!(got.has_session, line.session_id != [0; 8], "switch, {device:?}");
        let view = side.plane.session(device.id());
        assert_eq!(view.is_some(), got.has_session && !line.commit.is_revoked());
        let Some(view) = view else { return };
        let session = &line.session;
        assert_eq!(view.id.to_wire(), line.session_id);
        assert_eq!((view.addr, view.port), (session.addr, session.port));
        assert_eq!((view.mac, view.is_bound), (session.mac, session.bound));
        let vlan = |word: u16| (word != 0).then_some(word & 0xfff);
        assert_eq!(view.vlans, session.vlans.map(vlan));
        let shift_s = u32::try_from(self.shift_ms / 1000).unwrap();
        assert!((view.lease_until_s + shift_s).abs_diff(line.lease_until_s) <= 1);
    }

    /// What it tells, a moment later; openings without a proof, wrong tags and marks without an address.
    pub(super) fn compare_switch_events(&mut self, mut expected: Vec<Event>, frame: &[u8], verdict: Verdict) {
        let is_whole = frame.len() >= 14;
        let Some(side) = self.switch.as_mut().filter(|side| is_whole && !side.left_behind) else {
            return;
        };
        for event in &mut expected {
            match event.kind {
                EventKind::Session(opening) => event.kind = EventKind::Unproven(opening.session),
                _ if verdict != Verdict::ReplyAck => event.from = Ipv6Addr::UNSPECIFIED.into(),
                _ => {}
            }
        }
        let deadline = Instant::now() + LONG;
        let mut got = Vec::new();
        loop {
            side.plane.drain_events(&mut |event| got.push(event)).unwrap();
            if got.len() >= expected.len() {
                break;
            }
            assert!(
                Instant::now() < deadline,
                "the switch tells {got:?}, not {expected:?}"
            );
            std::thread::yield_now();
        }
        assert_eq!(got, expected, "events of the switch");
    }
}
