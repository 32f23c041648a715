//! Configurations of the data planes under test, and the equivalent configurations of the oracle.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use linewarden_dataplane::{Config, Gate, Geometry};
use linewarden_protocol::gateway::{ControlProtocol, Gate as OracleGate, Gateway, GatewayConfig};
use linewarden_protocol::sources::{OwnAddress, Prefix};
use linewarden_protocol::wire;

use super::device::{GATEWAY, TestDevice, gateway_end};

/// CRP rows per device in addition to the row in the line.
pub const RING: u32 = 4;
pub const SESSION_LIFETIME_S: u32 = 1000;

/// Prefixes of the tests' devices, except in tests that need others.
pub fn device_prefixes() -> Vec<Prefix> {
    ["10.66.0.0/16", "fd66::/64"]
        .map(|text| text.parse().unwrap())
        .to_vec()
}

/// The gateway's IPv4 address on the devices' link, and its subnet.
pub fn own_address() -> OwnAddress {
    OwnAddress {
        address: gateway_end(false).ip,
        subnet: device_prefixes()[0],
    }
}

/// The configuration of the data planes.
#[derive(Clone, Copy, Debug)]
pub struct TestConfig {
    pub gate: Gate,
    pub nak_per_s: u32,
    /// 0: no slow path.
    pub miss_per_s: u32,
    /// The maximum number of provers. With 0, PROOFs are not supported.
    pub provers: u32,
    /// Whether the tables of bindings are full from the start.
    pub no_bindings: bool,
    /// Whether evidence is added to packets that pass the gate.
    pub inband_evidence: bool,
    /// Whether the operator has listed all control protocols and some DHCP servers, which then pass the gate.
    pub lists: bool,
}

/// The DHCP servers that are listed by [`TestConfig::lists`], in addition to the group of all DHCPv6 servers.
pub const DHCP_SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 9));
pub const DHCP_SERVER6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 9));
const DHCP_SERVERS6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 1, 3));

impl TestConfig {
    pub const OFF: Self = Self {
        gate: Gate::Off,
        nak_per_s: u32::MAX,
        miss_per_s: 0,
        provers: 0,
        no_bindings: false,
        inband_evidence: false,
        lists: false,
    };
    pub const BOUND: Self = Self {
        gate: Gate::Bound,
        ..Self::OFF
    };

    /// The bound gate with the operator's lists of control protocols and DHCP servers.
    pub const LISTED: Self = Self {
        lists: true,
        ..Self::BOUND
    };

    /// With a slow path.
    pub const SLOW: Self = Self {
        miss_per_s: u32::MAX,
        ..Self::OFF
    };

    /// With provers and rounds.
    pub const ATTESTING: Self = Self {
        provers: 256,
        ..Self::OFF
    };

    pub const SEALED: Self = Self {
        gate: Gate::Sealed,
        ..Self::OFF
    };

    pub fn config(&self) -> Config {
        Config {
            gateway_id: GATEWAY,
            session_lifetime_s: SESSION_LIFETIME_S,
            lap_port: wire::LAP_PORT,
            local: vec![gateway_end(false).ip, gateway_end(true).ip],
            device_prefixes: device_prefixes(),
            follows_interfaces: false,
            other_addresses: vec![own_address()],
            fragments: false,
            gate: self.gate,
            nak_per_s: self.nak_per_s,
            alarm_per_s: u32::MAX,
            miss_per_s: self.miss_per_s,
            low_rows: 2,
            low_credit: 0,
            geometry: Geometry {
                slots: 256,
                ring: RING,
                hash_seed: [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210],
            },
            provers: self.provers,
            inband_evidence: self.inband_evidence,
            always_pass: self.always_pass(),
            dhcp_servers: self.dhcp_servers(),
        }
    }

    fn always_pass(&self) -> Vec<ControlProtocol> {
        let all = ControlProtocol::ALL.iter().copied();
        all.filter(|_| self.lists).collect()
    }

    fn dhcp_servers(&self) -> Vec<IpAddr> {
        let all = [DHCP_SERVER, DHCP_SERVER6, DHCP_SERVERS6];
        all.into_iter().filter(|_| self.lists).collect()
    }

    /// The oracle with this configuration.
    pub fn oracle(&self) -> Gateway {
        Gateway::new(GatewayConfig {
            gate: match self.gate {
                Gate::Off => OracleGate::Off,
                Gate::Bound => OracleGate::Bound,
                Gate::Sealed => OracleGate::Sealed,
            },
            sources: Some(self.config().sources()),
            own_macs: Some(vec![gateway_end(false).mac]),
            always_pass: self.always_pass(),
            dhcp_servers: self.dhcp_servers(),
            session_lifetime_s: SESSION_LIFETIME_S,
            nak_per_s: self.nak_per_s,
            miss_per_s: self.miss_per_s,
            rows_ahead: RING,
            bindings_max: if self.no_bindings { 0 } else { usize::MAX },
            provers_max: self.provers as usize,
            ..GatewayConfig::new(GATEWAY, &[gateway_end(false).ip, gateway_end(true).ip])
        })
    }
}

/// `count` devices. The first six of them have the same home, which has lines for only four devices.
pub fn devices_with_one_home(count: usize) -> Vec<TestDevice> {
    let geometry = TestConfig::OFF.config().geometry;
    let home = |device: &TestDevice| geometry.home(geometry.device_hash(device.id()));
    let first = TestDevice(1);
    let same_home = (1..)
        .map(TestDevice)
        .filter(|device| home(device) == home(&first));
    let others = (1..)
        .map(TestDevice)
        .filter(|device| home(device) != home(&first));
    same_home.take(6).chain(others).take(count).collect()
}
