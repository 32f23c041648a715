//! What the switch holds beside devices: gateway, addresses, bridge, limits, digests.

use std::collections::BTreeSet;
use std::net::IpAddr;

use linewarden_p4runtime::entity::{
    Change, Digest, DigestConfig, MeterConfig, MulticastGroup, Port, Replica, Update,
};
use linewarden_p4runtime::ids::MulticastGroupId;
use linewarden_protocol::frame::Mac;
use linewarden_protocol::gateway::{ControlProtocol, KNOWN_TYPES};
use linewarden_protocol::keys::halves;
use linewarden_protocol::prf::f;

use super::options::P4Options;
use super::sources::number;
use super::{P4Runtime, SwitchError};
use crate::config::Gate;

/// How long a digest waits for more of its kind, ns.
const DIGEST_WAIT_NS: u64 = 5_000_000;
/// Messages of one list.
const LIST_MESSAGES: u32 = 256;
/// The multicast group of all ports (`FLOOD` in p4/include/lap_frame.p4).
const FLOOD: MulticastGroupId = MulticastGroupId(1);
/// Of what goes to the slow path: RESPONSEs that nobody asked for, and what a source may send (as `store::shed` has it).
const UNASKED_PART: u32 = 8;
const SOURCE_PART: u32 = 64;
/// Of devices that want their mark moved, which no setting may silence. Only a right tag asks for it.
const CREDITS_PER_S: u32 = 1_000;
/// Factors of the hash over addresses (`bucket_keys` in p4/include/lap_state.p4).
const FACTORS: u32 = 5;
/// Of sessions that one device of key mode opens: they cost it nothing, and who tells of them something.
const RENEWALS_PER_S: u32 = 100;
/// The digests of lap.p4: sessions; wrong tags, wrong proofs and marks.
pub(super) const SESSIONS: &str = "session_digest_t";
pub(super) const ALARMS: &str = "event_digest_t";

impl P4Runtime {
    pub(super) fn set_up(&self, options: &P4Options) -> Result<(), SwitchError> {
        let program = &self.link.program;
        let mut updates = vec![self.gateway()?];
        updates.extend(self.limits()?);
        updates.extend(self.bucket_keys()?);
        for ip in &self.config.local {
            updates.push(program.insert(("local", &[number(*ip)]), ("is_own", &[]))?);
        }
        updates.extend(self.lists()?);
        for neighbour in &options.bridge {
            let to = [u128::from(neighbour.port), u128::from(neighbour.is_devices)];
            updates.push(program.insert(("bridge", &[mac(&neighbour.mac)]), ("to_port", &to))?);
        }
        if let Some(place) = options.elsewhere {
            let to = [u128::from(place.port), u128::from(place.is_devices)];
            updates.push(program.set_default("bridge", "to_port", &to)?);
        }
        let services = options.places().filter(|place| !place.is_devices);
        let services: BTreeSet<u16> = services.map(|place| place.port).collect();
        for port in services {
            updates.push(program.insert(("ports", &[u128::from(port)]), ("services", &[]))?);
        }
        updates.push(flood(options));
        for name in [SESSIONS, ALARMS] {
            updates.push(Update::Digest(Change::Insert(Digest {
                id: program.digest(name)?,
                config: DigestConfig {
                    max_timeout_ns: DIGEST_WAIT_NS,
                    max_list_size: LIST_MESSAGES,
                    // Each is told, also if it is the same as one before: nothing waits for an acknowledgement.
                    ack_timeout_ns: 0,
                },
            })));
        }
        self.link.write(&updates)?;
        self.write_sources(None)
    }

    /// What passes a gate that is not always the same, what no device may send, and the places of counters of Ethernet types.
    fn lists(&self) -> Result<Vec<Update>, SwitchError> {
        let program = &self.link.program;
        let mut updates = Vec::new();
        for protocol in ControlProtocol::ALL {
            let action = match protocol {
                _ if self.config.always_pass.contains(protocol) => "pass_always",
                ControlProtocol::Stp | ControlProtocol::Cdp => "forbid",
                _ => continue,
            };
            for (address, ether_type) in protocol.addresses() {
                let key = [mac(address), u128::from(*ether_type)];
                updates.push(program.insert(("control_protocols", &key), (action, &[]))?);
            }
        }
        for server in &self.config.dhcp_servers {
            updates.push(program.insert(("dhcp_servers", &[number(*server)]), ("pass_always", &[]))?);
        }
        for (place, (ether_type, _)) in (1..).zip(KNOWN_TYPES) {
            updates.push(program.insert(("gate_types", &[ether_type.into()]), ("count_type", &[place]))?);
        }
        Ok(updates)
    }

    /// The factors of the hash that spreads addresses over buckets, from the seed of this gateway's hashes: nobody else knows
    /// which addresses meet.
    fn bucket_keys(&self) -> Result<Vec<Update>, SwitchError> {
        let [low, high] = self.config.geometry.hash_seed;
        let key = (u128::from(high) << 64 | u128::from(low)).to_le_bytes();
        (0..FACTORS)
            .map(|index| {
                let [factor, _] = halves(&f(&key, &[u64::from(index).to_be_bytes()]));
                let odd = u64::from_be_bytes(factor) | 1;
                self.link.program.cell("bucket_keys", index, odd.into())
            })
            .collect()
    }

    /// The gateway's own settings, which are one entry. Whether it stops is no setting, and so in a register.
    pub(super) fn gateway(&self) -> Result<Update, SwitchError> {
        let gate: u128 = match self.config.gate {
            Gate::Sealed => 0,
            Gate::Open => 1,
            Gate::Off => 2,
        };
        let values = [
            self.config.gateway_id.0.into(),
            self.live.lease_s.into(),
            gate,
            // Of a sealed gate.
            0,
            (self.live.miss_per_s != 0).into(),
            (self.config.provers != 0).into(),
            self.config.dhcp_servers.iter().any(IpAddr::is_ipv4).into(),
        ];
        self.link.program.set_default("gateway", "set_gateway", &values)
    }

    /// How many NAKs, alarms and messages to the slow path a second; of the last, of each source as well, once half is gone.
    pub(super) fn limits(&self) -> Result<Vec<Update>, SwitchError> {
        let limit = |name: &'static str, per_s: u32| -> Result<Update, SwitchError> {
            let meter = self.link.program.info().meters().named(name);
            let rate = u64::from(per_s);
            Ok(Update::Meter {
                id: meter.ok_or(SwitchError::Program(name))?.id,
                // All cells alike.
                index: None,
                // Without a limit it is always green, else green or red.
                config: (per_s != u32::MAX).then_some(MeterConfig {
                    committed_rate: rate,
                    committed_burst: rate,
                    peak_rate: rate,
                    peak_burst: rate,
                    excess_burst: 0,
                }),
                reset_counters: false,
            })
        };
        let share = |part: u32| match self.live.miss_per_s {
            u32::MAX => u32::MAX,
            per_s => (per_s / part).max(1),
        };
        Ok(vec![
            limit("naks", self.live.nak_per_s)?,
            limit("events", self.live.alarm_per_s)?,
            limit("credits", CREDITS_PER_S)?,
            limit("renewals", RENEWALS_PER_S)?,
            // Two halves each.
            limit("strangers", share(2))?,
            limit("unasked", share(2 * UNASKED_PART))?,
            limit("sources", share(SOURCE_PART))?,
        ])
    }
}

fn mac(address: &Mac) -> u128 {
    address.iter().fold(0, |sum, byte| sum << 8 | u128::from(*byte))
}

/// All ports, for frames to group addresses; they do not leave by the port that they came in on.
fn flood(options: &P4Options) -> Update {
    let ports: BTreeSet<u16> = options.places().map(|place| place.port).collect();
    let replica = |port: u16| Replica {
        port: Port {
            number: port.into(),
            deprecated_field: false,
        },
        instance: 0,
        backups: Vec::new(),
    };
    Update::MulticastGroup(Change::Insert(MulticastGroup {
        id: FLOOD,
        replicas: ports.into_iter().map(replica).collect(),
        metadata: Vec::new(),
    }))
}
