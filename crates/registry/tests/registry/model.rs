//! Random operations compared with an in-memory model. Gateways lose memory, stop, and are replaced without their
//! knowledge.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::support::{in_memory, is_on_postgres, master_key, record, rows, unused_location};
use linewarden_harness::stay_on_one_cpu;
use linewarden_protocol::ids::{DeviceId, GatewayId, Mode, RowIndex};
use linewarden_protocol::keys::RowKey;
use linewarden_protocol::nonce::RowStatement;
use linewarden_registry::{
    Credentials, DeviceError, DeviceFilter, FencingError, FencingToken, LeaseRequest, Location, OnConflict,
    Registry, RegistryError, Status,
};
use linewarden_types::{Revision, UnusedRows};
use proptest::prelude::*;

/// Few ids, so that operations collide. Ids from the upper half of the range are negative in the database.
const IDS: [u64; 5] = [1, 2, i64::MAX as u64, 1 << 63, u64::MAX];
const GATEWAYS: usize = 3;

#[derive(Clone, Debug)]
enum Op {
    Enroll {
        device: usize,
        first_idx: u32,
        count: u32,
        replace: bool,
    },
    Revoke {
        device: usize,
    },
    /// The gateway starts. The former process continues if `keep_old_process`.
    Start {
        gateway: usize,
        keep_old_process: bool,
    },
    Lease {
        process: prop::sample::Index,
        device: usize,
        additional_rows: u32,
        spendable_rows: u32,
        /// The response is lost.
        is_lost: bool,
    },
    Spend {
        process: prop::sample::Index,
        device: usize,
        count: usize,
    },
    ReportUnusedRows {
        process: prop::sample::Index,
        device: usize,
        keep: bool,
    },
    Reopen,
}

fn op() -> impl Strategy<Value = Op> {
    let device = 0..IDS.len();
    let process = any::<prop::sample::Index>;
    prop_oneof![
        // A count of 0 means key mode.
        3 => (device.clone(), prop_oneof![Just(0), 0..30u32], 0..40u32, any::<bool>())
            .prop_map(|(device, first_idx, count, replace)| Op::Enroll { device, first_idx, count, replace }),
        1 => device.clone().prop_map(|device| Op::Revoke { device }),
        2 => (0..GATEWAYS, any::<bool>()).prop_map(|(gateway, keep_old_process)| Op::Start { gateway, keep_old_process }),
        8 => (process(), device.clone(), 0..6u32, 0..6u32, prop::bool::weighted(0.2))
            .prop_map(|(process, device, additional_rows, spendable_rows, is_lost)| {
                Op::Lease { process, device, additional_rows, spendable_rows, is_lost }
            }),
        8 => (process(), device.clone(), 1..5usize)
            .prop_map(|(process, device, count)| Op::Spend { process, device, count }),
        3 => (process(), device, any::<bool>())
            .prop_map(|(process, device, keep)| Op::ReportUnusedRows { process, device, keep }),
        1 => Just(Op::Reopen),
    ]
}

/// Expected state of a device in the registry.
#[derive(Clone, Debug)]
struct Device {
    credentials: Credentials,
    epoch: u32,
    revoked: bool,
    revision: u64,
}

/// A gateway process with its rows in memory.
struct Process {
    fencing_token: FencingToken,
    /// By device id: the process's rows in ascending order with their epoch, and the mark.
    held: BTreeMap<u64, HeldRows>,
}

#[derive(Clone, Default)]
struct HeldRows {
    epoch: u32,
    /// The next row to spend.
    next: u32,
    rows: VecDeque<u32>,
    mark: u32,
}

struct Simulation {
    registry: Registry,
    file: Option<Location>,
    devices: BTreeMap<u64, Device>,
    revision: u64,
    processes: Vec<Process>,
    /// The newest fencing token of each gateway.
    newest: BTreeMap<u32, u64>,
    /// All rows ever spent by any process.
    spent: BTreeSet<(u64, u32)>,
    /// By device: maximum number of rows that were lost by a memory loss, by new credentials, or because a lease
    /// skipped them.
    lost: BTreeMap<u64, u32>,
}

impl Simulation {
    async fn step(&mut self, op: Op) {
        match op {
            Op::Enroll {
                device,
                first_idx,
                count,
                replace,
            } => self.enroll(IDS[device], first_idx, count, replace).await,
            Op::Revoke { device } => self.revoke(IDS[device]).await,
            Op::Start {
                gateway,
                keep_old_process,
            } => self.start(gateway, keep_old_process).await,
            Op::Lease {
                process,
                device,
                additional_rows,
                spendable_rows,
                is_lost,
            } => {
                if let Some(process) = self.pick(process) {
                    self.lease(process, IDS[device], additional_rows, spendable_rows, is_lost)
                        .await;
                }
            }
            Op::Spend {
                process,
                device,
                count,
            } => {
                if let Some(process) = self.pick(process) {
                    self.spend(process, IDS[device], count);
                }
            }
            Op::ReportUnusedRows {
                process,
                device,
                keep,
            } => {
                let Some(process) = self.pick(process) else {
                    return;
                };
                if !keep {
                    return self.report_unused_rows(process, IDS[device], false).await;
                }
                // The process shuts down regularly.
                for id in IDS {
                    if !self.processes[process].held.contains_key(&id) {
                        // The process has not received the lease of this device.
                        let unspent = self.unspent_rows_below_mark(process, id).await;
                        *self.lost.entry(id).or_default() += unspent;
                    }
                    self.report_unused_rows(process, id, true).await;
                }
                self.processes.remove(process);
            }
            Op::Reopen => self.reopen().await,
        }
    }

    fn pick(&self, process: prop::sample::Index) -> Option<usize> {
        (!self.processes.is_empty()).then(|| process.index(self.processes.len()))
    }

    async fn reopen(&mut self) {
        if let Some(path) = &self.file {
            self.registry.clone().close().await;
            self.registry = Registry::open(path, &master_key()).await.unwrap();
        }
    }

    async fn enroll(&mut self, id: u64, first_idx: u32, count: u32, replace: bool) {
        let credentials = match count {
            0 => Credentials::Key(RowKey::from_bytes([self.revision as u8 | 1; 16])),
            _ => Credentials::Pool {
                first_idx: RowIndex(first_idx),
                rows: rows(id, self.revision as u8, count),
            },
        };
        let on_conflict = if replace {
            OnConflict::Replace
        } else {
            OnConflict::Refuse
        };
        let floor = self
            .registry
            .get(DeviceId(id))
            .await
            .map_or(0, |info| info.idx_floor.0);
        let result = self
            .registry
            .enroll_chunk(vec![record(id, credentials.clone())], on_conflict)
            .await;
        let existing = self.devices.get(&id);
        let exhausted = count > 0 && floor.max(first_idx) >= first_idx + count;
        let expected = existing.is_none_or(|existing| replace && !existing.revoked && !exhausted);
        assert_eq!(result.is_ok(), expected, "{result:?}");
        if expected {
            self.revision += 1;
            let epoch = existing.map_or(0, |existing| existing.epoch + 1);
            let device = Device {
                credentials,
                epoch,
                revoked: false,
                revision: self.revision,
            };
            self.devices.insert(id, device);
            self.lost.insert(id, 0);
        }
    }

    async fn revoke(&mut self, id: u64) {
        let result = self.registry.revoke(DeviceId(id), "", 1).await;
        match self.devices.get_mut(&id) {
            None => assert!(matches!(
                result,
                Err(RegistryError::Device(DeviceError::UnknownDevice { .. }))
            )),
            Some(device) if device.revoked => assert_eq!(result.unwrap(), Revision(device.revision)),
            Some(device) => {
                self.revision += 1;
                device.revoked = true;
                device.revision = self.revision;
                assert_eq!(result.unwrap(), Revision(self.revision));
            }
        }
    }

    /// Starts the gateway, which resumes at the marks of its leases.
    async fn start(&mut self, gateway: usize, keep_old_process: bool) {
        let gateway = GatewayId(gateway as u32);
        let newest_before = self.newest.get(&gateway.0).copied();
        if let Some(index) = self.processes.iter().position(|process| {
            process.fencing_token.gateway() == gateway
                && Some(process.fencing_token.number()) == newest_before
        }) {
            for id in IDS {
                let unspent = self.unspent_rows_below_mark(index, id).await;
                *self.lost.entry(id).or_default() += unspent;
            }
        }
        let fencing_token = self.registry.register_gateway(gateway, 7).await.unwrap();
        let newest = self.newest.entry(gateway.0).or_default();
        *newest += 1;
        assert_eq!(fencing_token.number(), *newest);
        if !keep_old_process {
            self.processes
                .retain(|process| process.fencing_token.gateway() != gateway);
        }
        let mut held_rows = BTreeMap::new();
        let mut stream = self.registry.stream_leased(fencing_token, 2);
        while let Some(chunk) = stream.next_chunk().await.unwrap() {
            for device in chunk.devices {
                let id = device.info.device.0;
                assert_eq!(device.credentials, self.devices[&id].credentials);
                let mark = device.lease.mark.0;
                let rows = (mark..device.lease.rows.end).collect();
                let epoch = device.info.epoch;
                let next = mark;
                held_rows.insert(
                    id,
                    HeldRows {
                        epoch,
                        next,
                        rows,
                        mark,
                    },
                );
            }
        }
        self.processes.push(Process {
            fencing_token,
            held: held_rows,
        });
    }

    /// Number of unspent rows that the mark allows the process to spend, whether or not the process has received them.
    async fn unspent_rows_below_mark(&self, process: usize, id: u64) -> u32 {
        let process = &self.processes[process];
        let leases = self.registry.leases_of(DeviceId(id)).await.unwrap();
        let epoch = self.devices.get(&id).map(|device| device.epoch);
        let gateway = process.fencing_token.gateway();
        let Some(lease) = leases
            .iter()
            .find(|lease| lease.gateway == gateway && Some(lease.epoch) == epoch)
        else {
            return 0;
        };
        let held = process.held.get(&id).filter(|held| held.epoch == lease.epoch);
        let received = held.and_then(|held| held.rows.back()).map_or(0, |last| last + 1);
        let received = received.max(held.map_or(0, |held| held.next));
        let held_rows = held.map_or(0, |held| {
            held.rows.iter().filter(|idx| **idx < lease.mark.0).count()
        });
        held_rows as u32 + lease.mark.0.saturating_sub(received.max(lease.rows.start))
    }

    async fn lease(
        &mut self,
        process: usize,
        id: u64,
        additional_rows: u32,
        spendable_rows: u32,
        is_lost: bool,
    ) {
        let process = &mut self.processes[process];
        let fencing_token = process.fencing_token;
        let held_before = process.held.get(&id).cloned().unwrap_or_default();
        let is_current = held_before.epoch == self.devices.get(&id).map_or(0, |device| device.epoch);
        let request = LeaseRequest {
            device: DeviceId(id),
            epoch: held_before.epoch,
            from: RowIndex(held_before.next),
            received: RowIndex(held_before.rows.back().map_or(held_before.next, |last| last + 1)),
            hold_rows: held_before.rows.len() as u32 + additional_rows,
            spendable_rows,
            statement: RowStatement::default(),
        };
        let result = self.registry.lease(&fencing_token, &[request]).await;
        if fencing_token.number() != self.newest[&fencing_token.gateway().0] {
            assert!(matches!(
                result,
                Err(RegistryError::Fencing(FencingError::StaleFencingToken { .. }))
            ));
            return;
        }
        let Some(device) = self.devices.get(&id) else {
            assert!(matches!(
                result.unwrap().remove(0),
                Err(RegistryError::Device(DeviceError::UnknownDevice { .. }))
            ));
            return;
        };
        let granted = match result.unwrap().remove(0) {
            Ok(granted) => granted,
            Err(RegistryError::Device(DeviceError::Revoked { .. })) => {
                assert!(device.revoked);
                return;
            }
            Err(RegistryError::Device(DeviceError::RowsExhausted { .. })) => {
                assert!(
                    !is_current || held_before.rows.is_empty(),
                    "the process still has rows"
                );
                return;
            }
            Err(other) => panic!("{other}"),
        };
        assert!(!device.revoked);
        assert_eq!((granted.device.0, granted.epoch), (id, device.epoch));
        if granted.mode == Mode::Key {
            return;
        }
        if is_lost {
            return;
        }
        let mut held = if is_current {
            held_before
        } else {
            HeldRows::default()
        };
        held.epoch = device.epoch;
        for idx in granted.rows {
            assert!(device.credentials.row(RowIndex(idx)).is_some());
            assert!(idx >= held.next, "a device answers no lower row");
            held.rows.push_back(idx);
        }
        held.next = held.rows.front().copied().unwrap_or(held.next);
        held.mark = held.mark.max(granted.mark.0);
        process.held.insert(id, held);
    }

    fn spend(&mut self, process: usize, id: u64, count: usize) {
        let Some(held) = self.processes[process].held.get_mut(&id) else {
            return;
        };
        for _ in 0..count {
            let Some(idx) = held.rows.front().copied().filter(|idx| *idx < held.mark) else {
                return;
            };
            held.rows.pop_front();
            held.next = held.rows.front().copied().unwrap_or(idx + 1);
            let key = (id, idx + (held.epoch << 16));
            assert!(self.spent.insert(key), "row {idx} of {id:x} was spent twice");
        }
    }

    async fn report_unused_rows(&mut self, process: usize, id: u64, keep: bool) {
        let process = &mut self.processes[process];
        let fencing_token = process.fencing_token;
        let Some(held) = process.held.get(&id).cloned() else {
            return;
        };
        let unused_rows = UnusedRows {
            device: DeviceId(id),
            epoch: held.epoch,
            unused_from: RowIndex(held.next),
            keep_leased: keep,
        };
        let leases = self.registry.leases_of(DeviceId(id)).await.unwrap();
        let held_from = leases
            .iter()
            .find(|lease| lease.gateway == fencing_token.gateway());
        let result = self
            .registry
            .record_unused_rows(&fencing_token, &[unused_rows])
            .await;
        if fencing_token.number() != self.newest[&fencing_token.gateway().0] {
            assert!(matches!(
                result,
                Err(RegistryError::Fencing(FencingError::StaleFencingToken { .. }))
            ));
            return;
        }
        result.unwrap().remove(0).unwrap();
        process.held.remove(&id);
        // Rows that a lease has skipped stay spent, even if the process has not received this lease.
        let start = held_from.map_or(0, |lease| lease.rows.start);
        let left_behind = held.rows.iter().filter(|idx| **idx < start).count();
        *self.lost.entry(id).or_default() += left_behind as u32;
    }

    /// Asserts that the registry agrees with the model.
    async fn compare(&self) {
        assert_eq!(self.registry.revision().await.unwrap(), Revision(self.revision));
        let page = self
            .registry
            .list(&DeviceFilter::default(), None, 100)
            .await
            .unwrap();
        assert!(page.damaged.is_empty() && page.next.is_none());
        let listed: Vec<u64> = page.devices.iter().map(|info| info.device.0).collect();
        assert_eq!(listed, self.devices.keys().copied().collect::<Vec<_>>());
        for (info, (id, device)) in page.devices.iter().zip(&self.devices) {
            assert_eq!(info.mode, device.credentials.mode());
            assert_eq!(
                (info.epoch, info.revision),
                (device.epoch, Revision(device.revision))
            );
            assert_eq!(info.status == Status::Active, !device.revoked);
            match self.registry.load(DeviceId(*id)).await {
                Ok(loaded) => assert_eq!((&loaded.info, &loaded.credentials), (info, &device.credentials)),
                Err(error) => assert!(
                    device.revoked && matches!(error, RegistryError::Device(DeviceError::Revoked { .. }))
                ),
            }
        }
        let changes = self
            .registry
            .changes_since(Revision::ZERO, 100)
            .await
            .unwrap()
            .changes;
        let mut expected: Vec<(u64, u64, bool)> = self
            .devices
            .iter()
            .map(|(id, device)| (device.revision, *id, !device.revoked))
            .collect();
        expected.sort_unstable();
        let listed: Vec<(u64, u64, bool)> = changes
            .iter()
            .map(|change| (change.revision.0, change.device.0, change.active))
            .collect();
        assert_eq!(listed, expected);
    }

    async fn return_all_rows(&mut self) {
        for process in 0..self.processes.len() {
            for id in IDS {
                self.report_unused_rows(process, id, false).await;
            }
        }
    }

    /// All active processes return their rows. Then a new gateway can spend all rows except lost ones.
    async fn drain(&mut self) {
        self.return_all_rows().await;
        for gateway in 0..GATEWAYS {
            // The gateway receives the rows that it kept at shutdown.
            self.start(gateway, false).await;
        }
        self.return_all_rows().await;
        self.start(GATEWAYS, false).await;
        let new_process = self.processes.len() - 1;
        let ids: Vec<u64> = self.devices.keys().copied().collect();
        for id in ids {
            for _ in 0..60 {
                self.lease(new_process, id, 5, 5, false).await;
                self.spend(new_process, id, 5);
            }
            let device = &self.devices[&id];
            if device.revoked || device.credentials.mode() == Mode::Key {
                continue;
            }
            let of_epoch = |row: &&(u64, u32)| row.0 == id && row.1 >> 16 == device.epoch;
            let spent = self.spent.iter().filter(of_epoch).count() as u32;
            let total = device.credentials.indices().len() as u32;
            let lost = self.lost.get(&id).copied().unwrap_or_default();
            assert!(spent <= total);
            assert!(
                device.epoch > 0 || spent + lost >= total,
                "{id:x}: {spent} of {total} rows were spent, {lost} may be lost"
            );
        }
    }
}

fn run(ops: Vec<Op>, on_disk: bool) {
    stay_on_one_cpu();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (_directory, location) = unused_location();
        let file = on_disk.then_some(location);
        let registry = match &file {
            Some(path) => Registry::create(path, &master_key()).await.unwrap(),
            None => in_memory().await,
        };
        let mut simulation = Simulation {
            registry,
            file,
            devices: BTreeMap::new(),
            revision: 0,
            processes: Vec::new(),
            newest: BTreeMap::new(),
            spent: BTreeSet::new(),
            lost: BTreeMap::new(),
        };
        for op in ops {
            simulation.step(op).await;
            simulation.compare().await;
        }
        simulation.drain().await;
        assert!(simulation.registry.check().await.unwrap().is_empty());
    });
}

/// The number of cases, fewer on PostgreSQL, where each case creates the tables.
fn cases(in_memory: u32) -> u32 {
    match is_on_postgres() {
        true => in_memory / 8,
        false => in_memory,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(192), failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn the_registry_in_memory_agrees_with_the_model(ops in prop::collection::vec(op(), 1..60)) {
        run(ops, false);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(16), failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn the_registry_on_disk_agrees_with_the_model(ops in prop::collection::vec(op(), 1..50)) {
        run(ops, true);
    }
}
