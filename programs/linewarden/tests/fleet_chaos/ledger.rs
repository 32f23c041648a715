//! Accepted rows by gateway process, from the ACKs that devices received, and the registry's records of the same rows.

use std::collections::{BTreeMap, HashMap, HashSet};

use linewarden_protocol::ids::{DeviceId, Mode};
use linewarden_protocol::wire::{self, Message};
use linewarden_testbed::Postgres;

/// A process of a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GatewayProcess {
    /// The gateway's id.
    pub gateway: u32,
    /// Number of the process among all gateway processes.
    pub number: u32,
}

/// The process that accepted a row, and the session id.
type Acceptance = (GatewayProcess, [u8; 8]);

/// All accepted rows and sessions.
#[derive(Default)]
pub struct Ledger {
    /// Pool mode: by device and row.
    rows: HashMap<(DeviceId, u32), Acceptance>,
    /// Key mode: by device and session.
    sessions: HashMap<(DeviceId, [u8; 8]), GatewayProcess>,
    /// The highest row that each process has accepted.
    highest: HashMap<(DeviceId, GatewayProcess), u32>,
    /// Devices that must get no session at any gateway (`None`), or at one gateway.
    forbidden: HashSet<(DeviceId, Option<u32>)>,
    /// Gateway that must send no replies at present.
    silent_gateway: Option<u32>,
}

impl Ledger {
    /// Records a message from a gateway process to a device.
    pub fn record_message(&mut self, device: DeviceId, mode: Mode, payload: &[u8], process: GatewayProcess) {
        assert_ne!(
            self.silent_gateway,
            Some(process.gateway),
            "{process:?} replies after its offline limit"
        );
        let Ok(Message::Ack(ack)) = wire::parse(payload) else {
            return;
        };
        for gateway in [None, Some(process.gateway)] {
            let is_forbidden = self.forbidden.contains(&(device, gateway));
            assert!(
                !is_forbidden,
                "{device} is quarantined or revoked, but authenticates at {process:?}"
            );
        }
        if mode == Mode::Key {
            let first_acceptor = *self.sessions.entry((device, ack.session_id)).or_insert(process);
            assert_eq!(
                first_acceptor, process,
                "one RESPONSE of {device} has opened two sessions"
            );
            return;
        }
        let idx = ack.idx.get();
        let accepted = (process, ack.session_id);
        let first_acceptor = *self.rows.entry((device, idx)).or_insert(accepted);
        assert_eq!(
            first_acceptor, accepted,
            "row {idx} of {device} was accepted twice"
        );
        let highest = self.highest.entry((device, process)).or_insert(idx);
        *highest = idx.max(*highest);
    }

    /// From now on the device must get no session at this gateway; `None`: at any gateway.
    pub fn forbid(&mut self, device: DeviceId, gateway: Option<u32>) {
        self.forbidden.insert((device, gateway));
    }

    /// From now on this gateway must send no replies; `None`: all gateways may send replies.
    pub fn expect_silence(&mut self, gateway: Option<u32>) {
        self.silent_gateway = gateway;
    }

    pub fn highest_row(&self, device: DeviceId, process: GatewayProcess) -> Option<u32> {
        self.highest.get(&(device, process)).copied()
    }

    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// Checks the registry's leases against the accepted rows at one moment.
    pub fn compare(&self, leases: &Leases) {
        for (device, ranges) in &leases.ranges {
            let mut ranges = ranges.clone();
            // Empty ranges are leases without rows: the gateway has returned all rows.
            ranges.retain(|range| range.first < range.end);
            ranges.sort_by_key(|range| (range.first, range.end));
            for pair in ranges.windows(2) {
                assert!(
                    pair[0].end <= pair[1].first,
                    "{device}'s rows are leased twice: {pair:?}"
                );
            }
        }
        for ((device, idx), (process, _)) in &self.rows {
            for range in leases.ranges.get(device).into_iter().flatten() {
                let is_own = range.gateway == Some(process.gateway);
                let is_in_range = (range.first..range.end).contains(idx);
                assert!(
                    is_own || !is_in_range,
                    "row {idx} of {device}, accepted by {process:?}, is {range:?}"
                );
                assert!(
                    !is_own || *idx < range.mark,
                    "row {idx} of {device} is above the mark: {range:?}"
                );
            }
        }
    }
}

/// A contiguous range of rows of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// The gateway that holds the lease; `None`: returned rows.
    pub gateway: Option<u32>,
    pub first: u32,
    pub end: u32,
    /// The gateway may use only the rows below the mark.
    pub mark: u32,
}

/// All leases of devices with rows, at one moment.
#[derive(Debug, PartialEq, Eq)]
pub struct Leases {
    pub ranges: BTreeMap<DeviceId, Vec<Range>>,
}

impl Leases {
    /// Reads the leases from the database itself.
    pub fn read(server: &Postgres) -> Self {
        let output = server
            .psql(
                "SELECT gateway_id, device_id, first_idx, end_idx, mark FROM fleet.lease \
                 WHERE device_id IN (SELECT device_id FROM fleet.device WHERE mode = 1) UNION ALL \
                 SELECT -1, device_id, first_idx, end_idx, end_idx FROM fleet.unleased_range",
            )
            .unwrap();
        let mut ranges: BTreeMap<DeviceId, Vec<Range>> = BTreeMap::new();
        for line in output.lines() {
            let fields: Vec<i64> = line.split('|').map(|field| field.parse().unwrap()).collect();
            let number = |column: usize| u32::try_from(fields[column]);
            let range = Range {
                gateway: number(0).ok(),
                first: number(2).unwrap(),
                end: number(3).unwrap(),
                mark: number(4).unwrap(),
            };
            let device = DeviceId(fields[1].cast_unsigned());
            ranges.entry(device).or_default().push(range);
        }
        Self { ranges }
    }

    /// The leases of a gateway.
    pub fn of_gateway(&self, gateway: u32) -> BTreeMap<DeviceId, Range> {
        let ranges_of_device = |(device, ranges): (&DeviceId, &Vec<Range>)| {
            let mut ranges = ranges.iter();
            let range = ranges.find(|range| range.gateway == Some(gateway))?;
            Some((*device, range.clone()))
        };
        self.ranges.iter().filter_map(ranges_of_device).collect()
    }
}

/// Checks in the gateway audit logs that each row has opened only one session, at one gateway; returns the number of sessions.
pub fn check_audit_records(records: &[serde_json::Value]) -> usize {
    let mut sessions: HashMap<(&str, u64), (u64, &str)> = HashMap::new();
    let row_records = records
        .iter()
        .filter(|record| record["event"] == "session" && record["mode"] == "pool");
    for record in row_records {
        let row = (
            record["device"].as_str().unwrap(),
            record["row"].as_u64().unwrap(),
        );
        let session = (
            record["gateway"].as_u64().unwrap(),
            record["session"].as_str().unwrap(),
        );
        let first_session = *sessions.entry(row).or_insert(session);
        assert_eq!(first_session, session, "{row:?} has opened two sessions");
    }
    sessions.len()
}
