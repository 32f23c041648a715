//! What the switch holds beside devices: gateway, addresses, bridge, limits, digests.

use std::net::IpAddr;

use linewarden_p4runtime::entity::{Change, Digest, DigestConfig, MeterConfig, Update};

use super::{Neighbour, P4Runtime, SwitchError};
use crate::config::Gate;

/// How long a digest waits for more of its kind, ns.
const DIGEST_WAIT_NS: u64 = 5_000_000;
/// Messages of one list.
const LIST_MESSAGES: u32 = 256;
/// The digests of lap.p4: sessions, wrong tags and marks.
pub(super) const SESSIONS: &str = "session_digest_t";
pub(super) const ALARMS: &str = "event_digest_t";

impl P4Runtime {
    pub(super) fn set_up(&self, bridge: &[Neighbour]) -> Result<(), SwitchError> {
        let program = &self.link.program;
        let mut updates = vec![self.gateway()?];
        updates.extend(self.limits()?);
        for ip in &self.config.local {
            let (table, address) = match ip {
                IpAddr::V4(ip) => ("local4", u128::from(u32::from(*ip))),
                IpAddr::V6(ip) => ("local6", u128::from(*ip)),
            };
            updates.push(program.insert((table, &[address]), ("is_local", &[]))?);
        }
        let mut services: Vec<u16> = Vec::new();
        for Neighbour {
            mac,
            port,
            is_devices,
        } in bridge
        {
            let mac = mac.iter().fold(0, |sum, byte| sum << 8 | u128::from(*byte));
            let to = [u128::from(*port), u128::from(*is_devices)];
            updates.push(program.insert(("bridge", &[mac]), ("to_port", &to))?);
            if !is_devices && !services.contains(port) {
                services.push(*port);
                updates.push(program.insert(("ports", &[u128::from(*port)]), ("services", &[]))?);
            }
        }
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
        self.link.write(&updates)
    }

    /// The gateway's own settings, which are one entry.
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
            self.stopping.into(),
        ];
        self.link.program.set_default("gateway", "set_gateway", &values)
    }

    /// How many NAKs and alarms a second.
    pub(super) fn limits(&self) -> Result<[Update; 2], SwitchError> {
        let limit = |name: &'static str, per_s: u32| -> Result<Update, SwitchError> {
            let meter = self.link.program.info().meters().named(name);
            let rate = u64::from(per_s);
            Ok(Update::Meter {
                id: meter.ok_or(SwitchError::Program(name))?.id,
                index: Some(0),
                // Without a limit it is always green.
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
        Ok([
            limit("naks", self.live.nak_per_s)?,
            limit("events", self.live.alarm_per_s)?,
        ])
    }
}
