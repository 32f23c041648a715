//! A P4 switch in memory and its data plane, beside the others: the same packets, verdicts, replies, lines and events.
//!
//! The switch has its own clock and registers that only packets write. A record that moves the clock, or stops a winner half way,
//! goes on without it: it is *left behind* until the next reset.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use linewarden_dataplane::p4runtime::{Neighbour, P4Options, P4Runtime, Place};
use linewarden_dataplane::{
    Config, Counters, DataPlane as _, DataPlaneError, Event, KeyedSession, StoreError,
};
use linewarden_protocol::attest::Round;
use linewarden_protocol::commit;
use linewarden_protocol::frame::{Network, parse};
use linewarden_protocol::gateway::DroppedTypes;
use linewarden_protocol::ids::{DeviceId, Mode, RowIndex};
use linewarden_protocol::verdict::{Disposition, Verdict};
use linewarden_protocol::wire::AttestRequest;
use linewarden_switch::hosted::{HostOptions, Hosted};
use linewarden_switch::ports::memory::{MemoryPeer, memory_port};
use linewarden_switch::ports::{PortId, PortSet};
use linewarden_tls::{ClientTls, Identity, ServerTls};

use super::authority::Authority;
use super::events::{Before, began};
use super::{INGRESS, World, hex, read_clock};
use crate::support::device::{Dev, gateway_end};

/// Long enough for any machine; nothing waits for its end unless it fails.
pub const LONG: Duration = Duration::from_secs(60);
const DEVICE_ID: u64 = 3;
const CPU: u16 = 510;
/// Where the devices are.
pub const DEVICES: Place = Place {
    port: INGRESS as u16,
    is_devices: true,
};
const SERVICES: u16 = 2;
const FRAMES: usize = 1024;
const CLOCK_END_S: u32 = ((1u64 << 48) / 1_000_000) as u32;

/// Both ends of a connection on which each shows the other a certificate: neither answers in the clear.
fn mutual_tls() -> (ServerTls, ClientTls) {
    let ca = Authority::new("fleet");
    let [switch, gateway] = ["127.0.0.1", "gateway"].map(|name| {
        let issued = ca.issue(name);
        Identity::from_pem(issued.cert.as_bytes(), issued.key.as_bytes()).unwrap()
    });
    let client = ClientTls::new(ca.pem.as_bytes()).unwrap().with_identity(gateway);
    (ServerTls::new(switch, Some(ca.pem.as_bytes())).unwrap(), client)
}

/// A switch with two ports in memory, served on the loopback interface.
pub struct Switch {
    hosted: Hosted,
    tls: ClientTls,
    pub devices: MemoryPeer,
    pub services: MemoryPeer,
}

impl Switch {
    pub fn start() -> Self {
        let mut ports = PortSet::new().unwrap().with_spin_rounds(0);
        let [devices, services] = [DEVICES.port, SERVICES].map(|number| {
            let (port, peer) = memory_port(FRAMES).unwrap();
            ports.add(PortId::new(number).unwrap(), port).unwrap();
            peer
        });
        let (served, tls) = mutual_tls();
        let options = HostOptions {
            address: "127.0.0.1:0".parse().unwrap(),
            device_id: DEVICE_ID,
            cpu_port: PortId::new(CPU).unwrap(),
            evidence: None,
            tls: Some(served),
        };
        Self {
            hosted: Hosted::start(ports, options).unwrap(),
            tls,
            devices,
            services,
        }
    }

    /// How the data plane finds it, and who is behind its ports.
    pub fn options(&self) -> P4Options {
        P4Options {
            address: self.hosted.address().to_string(),
            device_id: DEVICE_ID,
            election_id: 1,
            tls: Some(self.tls.clone()),
            bridge: vec![Neighbour {
                mac: gateway_end(false).mac,
                port: SERVICES,
                is_devices: false,
            }],
            elsewhere: None,
        }
    }
}

pub struct SwitchSide {
    pub plane: P4Runtime,
    options: P4Options,
    switch: Switch,
    counted: Counters,
    /// What the oracle had counted when this data plane took the switch.
    dropped_before: BTreeMap<Option<u16>, u64>,
    pub(super) left_behind: bool,
    /// Frames that went through it.
    pub sent: u64,
    /// RESPONSEs that have won since this data plane has it.
    wins: u64,
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
            dropped_before: BTreeMap::new(),
            left_behind: false,
            sent: 0,
            wins: 0,
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

/// Dropped frames of the types that have names; all others together.
fn of_known_types(dropped: &DroppedTypes) -> BTreeMap<Option<u16>, u64> {
    let mut known = BTreeMap::new();
    for (ether_type, name, count) in dropped.nonzero() {
        *known.entry(name.map(|_| ether_type)).or_default() += count;
    }
    if dropped.other() > 0 {
        *known.entry(None).or_default() += dropped.other();
    }
    known
}

impl World {
    pub fn has_switch(&self) -> bool {
        self.switch.is_some()
    }

    /// Frames that went through the switch.
    pub fn sent_to_switch(&self) -> u64 {
        self.switch.as_ref().map_or(0, |side| side.sent)
    }

    /// Ends the switch's server, and returns what its data plane says of that, and what of the next installation.
    pub fn lose_switch(&mut self) -> (String, Result<(), StoreError>) {
        let side = self.switch.as_mut().unwrap();
        side.switch.hosted.stop_server().unwrap();
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

    /// What the switch's data plane tells of a look through its devices.
    pub fn housekeep_switch(&mut self) -> Vec<Event> {
        let side = self.switch.as_mut().unwrap();
        side.plane.housekeep();
        let mut told = Vec::new();
        side.plane.drain_events(&mut |event| told.push(event)).unwrap();
        told
    }

    /// So many others are enrolled, and not here.
    pub fn enrol_at_switch(&mut self, others: u64) {
        let side = self.switch.as_mut().unwrap();
        (0..others).for_each(|number| side.plane.enrol(DeviceId(others << 32 | number)));
    }

    pub fn filter_at_switch(&mut self) {
        self.switch.as_mut().unwrap().plane.set_filtering(true);
    }

    /// A frame of the devices' side that nothing comes out for; the verdict that is counted.
    pub fn send_to_switch_alone(&mut self, frame: &[u8]) -> Verdict {
        let side = self.switch.as_mut().unwrap();
        assert!(side.switch.devices.send(frame));
        let [(verdict, 1)] = side.counted()[..] else {
            panic!("one frame has one verdict");
        };
        verdict
    }

    /// What each data plane would ask a device in its session.
    pub fn session_requests(&mut self, device: Dev, round: &Round) -> Vec<Option<(IpAddr, AttestRequest)>> {
        let now_s = (read_clock(libc::CLOCK_BOOTTIME) / 1_000_000_000) as u32;
        let mut requests = Vec::new();
        self.each_plane(|plane, _| requests.push(plane.session_request(device.id(), round, now_s)));
        requests
    }

    /// The sessions of these devices with their keys, as each data plane has them.
    pub fn keyed_sessions(&mut self, devices: &[DeviceId]) -> Vec<Vec<Option<KeyedSession>>> {
        let mut sessions = Vec::new();
        self.each_plane(|plane, _| sessions.push(plane.keyed_sessions(devices)));
        sessions
    }

    /// Asks through the switch; the frame that comes out to the devices.
    pub fn ask_at_switch(
        &mut self,
        to: SocketAddr,
        request: AttestRequest,
    ) -> Result<Vec<u8>, DataPlaneError> {
        let side = self.switch.as_mut().unwrap();
        assert_eq!(side.plane.ask(&[(to, request)])?, 1);
        Ok(side.switch.devices.receive(LONG).unwrap())
    }

    /// The next frame that comes out to the devices.
    pub fn next_at_devices(&mut self) -> Vec<u8> {
        self.switch
            .as_mut()
            .unwrap()
            .switch
            .devices
            .receive(LONG)
            .unwrap()
    }

    /// Takes the messages of devices that are not here.
    pub fn drain_misses_at_switch(&mut self) -> u64 {
        let side = self.switch.as_mut().unwrap();
        let mut taken = 0;
        side.plane.drain_misses(&mut |_| taken += 1).unwrap();
        taken
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
        side.dropped_before = of_known_types(self.oracle.dropped_types());
        side.wins = 0;
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
        side.wins += u64::from(verdict == Verdict::ReplyAck);
        let counts = side.counted();
        assert_eq!(
            counts,
            [(verdict, 1)],
            "switch; oracle: {verdict}; {}",
            hex(frame)
        );
        let is_ip = parse(frame).is_ok_and(|parsed| matches!(parsed.network, Network::Ip(_)));
        if !is_ip && let Some(dropped) = side.plane.dropped_types().unwrap() {
            let mut expected = of_known_types(self.oracle.dropped_types());
            for (ether_type, before) in &side.dropped_before {
                *expected.entry(*ether_type).or_default() -= before;
            }
            expected.retain(|_, count| *count > 0);
            assert_eq!(of_known_types(&dropped), expected, "of {}", hex(frame));
        }
        let goes_on = frame.starts_with(&gateway_end(false).mac) || frame[0] & 1 == 1;
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
        // The switch's clock ends earlier, after 2^48 us of its own.
        let is_beyond = line.lease_until_s > CLOCK_END_S && view.lease_until_s >= CLOCK_END_S;
        assert!(is_beyond || (view.lease_until_s + shift_s).abs_diff(line.lease_until_s) <= 1);
    }

    /// What it tells, a moment later; its clock and ours are set by each other through a call.
    pub(super) fn compare_switch_events(&mut self, expected: &[Event], frame: &[u8], before: &Before) {
        let is_whole = frame.len() >= 14;
        let Some(side) = self.switch.as_mut().filter(|side| is_whole && !side.left_behind) else {
            return;
        };
        let deadline = Instant::now() + LONG;
        let mut got = Vec::new();
        loop {
            side.plane.drain_events(&mut |event| got.push(event)).unwrap();
            // All of it, also of a win that tells nothing: settings may be others by then.
            if got.len() >= expected.len() && side.plane.wins_told() >= side.wins {
                break;
            }
            assert!(
                Instant::now() < deadline,
                "the switch tells {got:?}, not {expected:?}"
            );
            std::thread::yield_now();
        }
        let call_ns = LONG.as_nanos() as u64;
        let after_ns = read_clock(libc::CLOCK_BOOTTIME) + call_ns;
        let began_ns = began(&mut got);
        assert_eq!(got, expected, "events of the switch");
        assert!(began_ns.is_none_or(|ns| (before.real_ns.saturating_sub(call_ns)..=after_ns).contains(&ns)));
    }
}
