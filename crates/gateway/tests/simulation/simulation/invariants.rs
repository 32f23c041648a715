//! Invariants of every run.

use linewarden_protocol::ids::{DeviceId, GatewayId, Mode, RowIndex};
use linewarden_protocol::nonce::RowStatement;
use linewarden_registry::LeaseRequest;
use linewarden_types::UnusedRows;

use super::{GATEWAYS, LOSS_MAX, Mechanism, RING, Simulation};
use crate::simulated_device::SimulatedDevice;

impl Simulation {
    /// Checks that each key in the memory of a data plane belongs to an unspent row of one of its devices.
    pub(super) fn check_keys(&self, process_index: usize) -> Result<(), String> {
        if !self.now_ms.is_multiple_of(500) {
            return Ok(());
        }
        let process = &self.processes[process_index];
        let inner = process.data_plane.0.lock().unwrap();
        let store = inner.host.store();
        let gateway = process.id();
        let allowed: Vec<[u8; 16]> = self
            .devices
            .iter()
            .filter_map(|simulated| Some((simulated, store.status(simulated.id)?)))
            .flat_map(|(simulated, line)| {
                let from = line.commit.idx().0;
                // Rows that other processes have spent may still be there.
                let spender = Some(process.number);
                let unspent = move |idx: &u32| self.ledger.spender(simulated.id, *idx) != spender;
                let rows = (from..from + RING + 1).filter(unspent);
                rows.map(|idx| *simulated.auth_key(idx, gateway).as_bytes())
            })
            .collect();
        let regions = store.regions();
        let order = std::sync::atomic::Ordering::Acquire;
        let lines = regions.lines.iter().map(|line| &line.auth_key);
        let rows = regions.rows.iter().map(|row| &row.auth_key);
        for [first, second] in lines.chain(rows) {
            let mut key = [0; 16];
            key[..8].copy_from_slice(&first.load(order).to_ne_bytes());
            key[8..].copy_from_slice(&second.load(order).to_ne_bytes());
            if key != [0; 16] && !allowed.contains(&key) {
                return Err(format!(
                    "process {} holds a key that it should have wiped",
                    process.number
                ));
            }
        }
        Ok(())
    }

    /// Whether a device opens a session in at most `attempts` handshakes of 6 s each.
    fn authenticates(&mut self, device_index: usize, gateway: usize, attempts: u32) -> Result<bool, String> {
        let before = self.devices[device_index].sessions;
        for _ in 0..attempts {
            self.begin(device_index, Some(gateway));
            for _ in 0..600 {
                self.step()?;
                if self.devices[device_index].sessions > before {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Checks that a device at a gateway authenticates up to its mark while the controller's disk is missing, and beyond
    /// the mark when the disk is available again.
    pub fn run_with_lost_disk(mut self) -> Result<(), String> {
        self.is_calm = true;
        let Some(device_index) = self
            .devices
            .iter()
            .position(|simulated| simulated.mode == Mode::Pool)
        else {
            return Ok(());
        };
        if !self.authenticates(device_index, 0, 8)? {
            return Err("a genuine device is not served".to_owned());
        }
        self.controller_host.remove_disk();
        let mut count = 0;
        while count <= LOSS_MAX && self.authenticates(device_index, 0, 1)? {
            count += 1;
        }
        if !(1..LOSS_MAX).contains(&count) {
            return Err(format!("without the disk a device authenticates {count} times"));
        }
        self.controller_host.reattach_disk();
        match self.authenticates(device_index, 0, 8)? {
            true => Ok(()),
            false => Err("the disk is available again, and the device is not served".to_owned()),
        }
    }

    /// Maximum number of rows of a device that the faults of this run can have lost.
    fn lost_rows(&self, device: DeviceId) -> u32 {
        self.losses * LOSS_MAX + self.stranded_rows.get(&device).copied().unwrap_or_default()
    }

    /// Checks that a device is served at a gateway, unless the device is revoked or may have no rows.
    pub(super) fn expect_service(&mut self, device_index: usize, gateway: usize) -> Result<(), String> {
        let device = self.devices[device_index].id;
        let served = self.authenticates(device_index, gateway, 8)?;
        let SimulatedDevice {
            revoked, mode, rows, ..
        } = self.devices[device_index];
        if revoked {
            return match served {
                true => Err(format!("device {device} is revoked and was served")),
                false => Ok(()),
            };
        }
        let rows_left = rows - self.ledger.spent_count(device).min(rows);
        let may_be_used_up =
            mode == Mode::Pool && rows_left <= self.lost_rows(device) + GATEWAYS as u32 * (RING + 1);
        match served || may_be_used_up {
            true => Ok(()),
            false => Err(format!(
                "device {device} is locked out at gateway {}: {rows_left} of {rows} rows unspent, {} losses of memory",
                gateway + 1,
                self.losses
            )),
        }
    }

    /// Checks that another gateway can lease all rows that no fault can have lost.
    pub(super) fn expect_little_loss(&mut self) -> Result<(), String> {
        while let Some(process_index) = self.processes.len().checked_sub(1) {
            let unused_rows: Vec<_> = self.processes[process_index]
                .node
                .close()
                .into_iter()
                .map(|unused| UnusedRows {
                    keep_leased: false,
                    ..unused
                })
                .collect();
            let process = &self.processes[process_index];
            if let Some(link) = &process.link {
                let link = self.link_with_count(process, link);
                let result = self.runtime.block_on(async {
                    link.record_abandoned_requests().await?;
                    link.record_unused_rows(&unused_rows).await
                });
                result.map_err(|error| {
                    format!("the last report of unused rows of a gateway was rejected: {error}")
                })?;
            }
            self.remove_process(process_index);
        }
        let registry = self.controller_host.registry();
        let fencing_token = self
            .runtime
            .block_on(registry.register_gateway(GatewayId(99), 0))
            .unwrap();
        for simulated in &self.devices {
            if simulated.revoked || simulated.mode == Mode::Key {
                continue;
            }
            let mut from = 0;
            let mut unspent = 0;
            let statement = match self.without {
                Some(Mechanism::Statement) => RowStatement::default(),
                _ => RowStatement {
                    first_unanswered_row: RowIndex(simulated.unanswered_from()),
                    has_refused_row: false,
                },
            };
            loop {
                let lease_request = LeaseRequest {
                    device: simulated.id,
                    epoch: 0,
                    from: RowIndex(from),
                    received: RowIndex(from),
                    hold_rows: 1000,
                    spendable_rows: 1000,
                    statement,
                };
                let leases = self
                    .runtime
                    .block_on(registry.lease(&fencing_token, &[lease_request]))
                    .unwrap();
                let Some(lease) = leases.into_iter().flatten().find(|lease| !lease.rows.is_empty()) else {
                    break;
                };
                for idx in lease.rows.clone() {
                    if self.ledger.spender(simulated.id, idx).is_some() {
                        return Err(format!(
                            "row {idx} of device {} is leased though it was spent",
                            simulated.id
                        ));
                    }
                    unspent += 1;
                }
                from = lease.rows.end;
            }
            let accounted_rows =
                self.ledger.spent_count(simulated.id) + unspent + self.lost_rows(simulated.id);
            if accounted_rows < simulated.rows {
                return Err(format!(
                    "device {}: {} rows were spent, {unspent} are left of {}; {} losses of memory do not explain the difference",
                    simulated.id,
                    self.ledger.spent_count(simulated.id),
                    simulated.rows,
                    self.losses
                ));
            }
        }
        Ok(())
    }
}
