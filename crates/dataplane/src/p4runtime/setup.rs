//! Sets up the switch, except for devices: gateway, addresses, bridge, limits, digests.

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

/// How long the switch collects messages for one digest list, ns.
const DIGEST_WAIT_NS: u64 = 5_000_000;
/// Maximum number of messages per list.
const LIST_MESSAGES: u32 = 256;
/// The multicast group of all ports (`FLOOD` in p4/include/lap_frame.p4).
const FLOOD: MulticastGroupId = MulticastGroupId(1);
/// Unsolicited RESPONSEs may use `1 / UNSOLICITED_SHARE` of the slow path's limit, and messages of one source
/// `1 / SOURCE_SHARE` (as in `store::load_shedder`).
const UNSOLICITED_SHARE: u32 = 8;
const SOURCE_SHARE: u32 = 64;
/// Maximum number of reported requests to advance a mark, per second. No setting disables these requests, and only a
/// message with a valid tag causes a request.
const CREDITS_PER_S: u32 = 1_000;
/// Number of factors of the hash over addresses (`bucket_keys` in p4/include/lap_state.p4).
const FACTORS: u32 = 5;
/// Maximum number of reported session openings of one key-mode device per second. Opening a session costs such a device
/// nothing, but each report costs the gateway time.
const RENEWALS_PER_S: u32 = 100;
/// The digests of lap.p4: sessions; wrong tags, wrong proofs and requests to advance a mark.
pub(super) const SESSIONS: &str = "session_digest_t";
pub(super) const ALARMS: &str = "event_digest_t";

impl P4Runtime {
    pub(super) fn set_up(&self, options: &P4Options) -> Result<(), SwitchError> {
        let program = &self.connection.program;
        let mut updates = vec![self.gateway()?];
        updates.extend(self.limits()?);
        updates.extend(self.bucket_keys()?);
        for ip in &self.config.local {
            updates.push(program.insert(("local", &[number(*ip)]), ("is_own", &[]))?);
        }
        updates.extend(self.lists()?);
        for neighbor in &options.bridge {
            let arguments = [u128::from(neighbor.port), u128::from(neighbor.is_device_port)];
            updates.push(program.insert(("bridge", &[mac(&neighbor.mac)]), ("to_port", &arguments))?);
        }
        if let Some(port) = options.default_port {
            let arguments = [u128::from(port.port), u128::from(port.is_device_port)];
            updates.push(program.set_default("bridge", "to_port", &arguments)?);
        }
        let services = options.ports().filter(|port| !port.is_device_port);
        let services: BTreeSet<u16> = services.map(|port| port.port).collect();
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
                    // Every message is reported, even if it equals an earlier one; no acknowledgment is awaited.
                    ack_timeout_ns: 0,
                },
            })));
        }
        self.connection.write(&updates)?;
        self.write_sources(None)
    }

    /// Entries for protocols that always pass the gate, for protocols that devices must not send, for DHCP servers, and
    /// for the counters of Ethernet types.
    fn lists(&self) -> Result<Vec<Update>, SwitchError> {
        let program = &self.connection.program;
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
        for (cell, (ether_type, _)) in (1..).zip(KNOWN_TYPES) {
            updates.push(program.insert(("gate_types", &[ether_type.into()]), ("count_type", &[cell]))?);
        }
        Ok(updates)
    }

    /// Factors of the hash that distributes addresses over buckets, derived from the secret hash seed of this
    /// gateway, so that an attacker cannot predict collisions.
    fn bucket_keys(&self) -> Result<Vec<Update>, SwitchError> {
        let [low, high] = self.config.geometry.hash_seed;
        let key = (u128::from(high) << 64 | u128::from(low)).to_le_bytes();
        (0..FACTORS)
            .map(|index| {
                let [factor, _] = halves(&f(&key, &[u64::from(index).to_be_bytes()]));
                let odd = u64::from_be_bytes(factor) | 1;
                self.connection.program.set_cell("bucket_keys", index, odd.into())
            })
            .collect()
    }

    /// The gateway's own settings, as one entry. Whether the gateway is stopping changes at run time and is in a
    /// register.
    pub(super) fn gateway(&self) -> Result<Update, SwitchError> {
        let gate: u128 = match self.config.gate {
            Gate::Sealed => 0,
            Gate::Bound => 1,
            Gate::Off => 2,
        };
        let values = [
            self.config.gateway_id.0.into(),
            self.live.session_lifetime_s.into(),
            gate,
            // MTU of a sealed gate; not used.
            0,
            (self.live.miss_per_s != 0).into(),
            (self.config.provers != 0).into(),
            self.config.dhcp_servers.iter().any(IpAddr::is_ipv4).into(),
        ];
        self.connection
            .program
            .set_default("gateway", "set_gateway", &values)
    }

    /// NAKs, alarms and slow-path messages per second. Once half of the slow-path limit is used, a limit per source
    /// applies too.
    pub(super) fn limits(&self) -> Result<Vec<Update>, SwitchError> {
        let limit = |name: &'static str, per_s: u32| -> Result<Update, SwitchError> {
            let meter = self.connection.program.info().meters().by_name_or_alias(name);
            let rate = u64::from(per_s);
            Ok(Update::Meter {
                id: meter.ok_or(SwitchError::ProgramMismatch(name))?.id,
                // All cells have the same limit.
                index: None,
                // Without a limit the meter is always green, otherwise green or red.
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
        let share = |divisor: u32| match self.live.miss_per_s {
            u32::MAX => u32::MAX,
            per_s => (per_s / divisor).max(1),
        };
        Ok(vec![
            limit("naks", self.live.nak_per_s)?,
            limit("events", self.live.alarm_per_s)?,
            limit("credits", CREDITS_PER_S)?,
            limit("renewals", RENEWALS_PER_S)?,
            // Each of the next two meters has two cells with half of the limit each. The second cell is for sources within
            // their share.
            limit("unknown_requests", share(2))?,
            limit("unsolicited_responses", share(2 * UNSOLICITED_SHARE))?,
            limit("sources", share(SOURCE_SHARE))?,
        ])
    }
}

fn mac(address: &Mac) -> u128 {
    address.iter().fold(0, |sum, byte| sum << 8 | u128::from(*byte))
}

/// A multicast group of all ports for frames to group addresses. Frames do not leave through their ingress port.
fn flood(options: &P4Options) -> Update {
    let ports: BTreeSet<u16> = options.ports().map(|switch_port| switch_port.port).collect();
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
