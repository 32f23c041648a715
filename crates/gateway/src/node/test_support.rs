//! A context for the tests of the components.

use std::net::{IpAddr, Ipv4Addr};

use linewarden_dataplane::host::Host;
use linewarden_dataplane::{Config, Gate, Geometry};
use linewarden_protocol::gateway::Row;
use linewarden_protocol::ids::{DeviceId, GatewayId, Mode, RowIndex, Suite};
use linewarden_protocol::keys::{AuthKey, RowKey};
use linewarden_types::Provision;

use super::context::{Connection, Context};
use super::settings::Settings;
use crate::audit::AuditBuffer;
use crate::time::Clock;

pub(super) const DEVICE: DeviceId = DeviceId(1);
const GATEWAY: GatewayId = GatewayId(7);

/// The configuration of a `host` data plane with one slot.
fn config() -> Config {
    Config {
        gateway_id: GATEWAY,
        session_lifetime_s: 300,
        lap_port: 7447,
        local: vec![IpAddr::V4(Ipv4Addr::LOCALHOST)],
        device_prefixes: vec!["127.0.0.0/8".parse().unwrap()],
        follows_interfaces: false,
        other_addresses: Vec::new(),
        fragments: false,
        gate: Gate::Off,
        always_pass: Vec::new(),
        dhcp_servers: Vec::new(),
        nak_per_s: 1000,
        alarm_per_s: 10,
        miss_per_s: 1000,
        low_rows: 2,
        low_credit: 2,
        geometry: Geometry {
            slots: 1,
            ring: 8,
            hash_seed: [5, 6],
        },
        provers: 0,
        inband_evidence: false,
    }
}

/// A context over a data plane without sockets, at the time 1 s.
pub(super) fn context() -> Context {
    let config = config();
    let mut context = Context {
        data_plane: Box::new(Host::new(&config).unwrap()),
        audit: AuditBuffer::default(),
        settings: Settings::for_data_plane(&config),
        clock: Clock::default(),
        retry_random: 0,
        connection: Connection::default(),
    };
    set_time(&mut context, 1);
    context
}

pub(super) fn set_time(context: &mut Context, now_s: u64) {
    context.clock = Clock {
        monotonic_ns: now_s * 1_000_000_000,
        boot_ns: now_s * 1_000_000_000,
    };
}

/// Four rows of a device, from row 10; one row in key mode.
pub(super) fn provision(device: DeviceId, mode: Mode) -> Provision {
    let row = |idx| Row {
        challenge: [1; 8],
        auth_key: AuthKey::derive(
            &RowKey::from_bytes([7; 16]),
            Suite::SipHash128,
            mode,
            RowIndex(idx),
            GATEWAY,
        ),
    };
    let end = match mode {
        Mode::Pool => 14,
        Mode::Key => 11,
    };
    Provision {
        device,
        mode,
        epoch: 0,
        first: RowIndex(10),
        rows: (10..end).map(row).collect(),
        mark: RowIndex(14),
    }
}
