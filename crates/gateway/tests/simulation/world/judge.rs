//! What must hold in every run.

use linewarden_protocol::ids::{DeviceId, GatewayId, Mode, RowIndex};
use linewarden_protocol::nonce::Statement;
use linewarden_registry::{LeaseRequest, Settlement};

use super::{GATEWAYS, LOSS_MAX, RING, Rule, World};
use crate::station::Station;

impl World {
    /// Every key in the memory of a data plane is that of an unspent row of a device that is there.
    pub(super) fn look_for_keys(&self, at: usize) -> Result<(), String> {
        if !self.now_ms.is_multiple_of(500) {
            return Ok(());
        }
        let process = &self.processes[at];
        let inner = process.plane.0.lock().unwrap();
        let store = inner.host.store();
        let gateway = process.id();
        let allowed: Vec<[u8; 16]> = self
            .stations
            .iter()
            .filter_map(|station| Some((station, store.status(station.id)?)))
            .flat_map(|(station, line)| {
                let from = line.commit.idx().0;
                // What others spent it need not know.
                let spender = Some(process.number);
                let unspent = move |idx: &u32| self.ledger.spender(station.id, *idx) != spender;
                let rows = (from..from + RING + 1).filter(unspent);
                rows.map(|idx| *station.auth_key(idx, gateway).as_bytes())
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

    /// Whether a device gets a session if it begins so often, for 6 s each.
    fn authenticates(&mut self, station: usize, gateway: usize, times: u32) -> Result<bool, String> {
        let before = self.stations[station].sessions;
        for _ in 0..times {
            self.begin(station, Some(gateway));
            for _ in 0..600 {
                self.step()?;
                if self.stations[station].sessions > before {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// While the controller's disk is gone, a device that is at a gateway authenticates there, as far as its mark; afterwards
    /// it goes on.
    pub fn endure_a_lost_disk(mut self) -> Result<(), String> {
        self.calm = true;
        let Some(station) = self
            .stations
            .iter()
            .position(|station| station.mode == Mode::Pool)
        else {
            return Ok(());
        };
        if !self.authenticates(station, 0, 8)? {
            return Err("an honest device is not served".to_owned());
        }
        self.office.take_disk();
        let mut alone = 0;
        while alone <= LOSS_MAX && self.authenticates(station, 0, 1)? {
            alone += 1;
        }
        if !(1..LOSS_MAX).contains(&alone) {
            return Err(format!("without the disk a device authenticates {alone} times"));
        }
        self.office.give_disk_back();
        match self.authenticates(station, 0, 8)? {
            true => Ok(()),
            false => Err("the disk is there again, and the device is not served".to_owned()),
        }
    }

    /// Rows of a device that may be lost by what has happened, at most.
    fn lost_rows(&self, device: DeviceId) -> u32 {
        self.losses * LOSS_MAX + self.left_behind.get(&device).copied().unwrap_or_default()
    }

    pub(super) fn expect_service(&mut self, station: usize, gateway: usize) -> Result<(), String> {
        let device = self.stations[station].id;
        let served = self.authenticates(station, gateway, 8)?;
        let Station {
            revoked, mode, rows, ..
        } = self.stations[station];
        if revoked {
            return match served {
                true => Err(format!("device {device} is revoked and was served")),
                false => Ok(()),
            };
        }
        let left = rows - self.ledger.spent_by(device).min(rows);
        let may_be_used_up =
            mode == Mode::Pool && left <= self.lost_rows(device) + GATEWAYS as u32 * (RING + 1);
        match served || may_be_used_up {
            true => Ok(()),
            false => Err(format!(
                "device {device} is locked out at gateway {}: {left} of {rows} rows unspent, {} losses of memory",
                gateway + 1,
                self.losses
            )),
        }
    }

    /// All rows that no loss of memory can account for are there for a gateway that never was here.
    pub(super) fn expect_little_loss(&mut self) -> Result<(), String> {
        while let Some(at) = self.processes.len().checked_sub(1) {
            let stood: Vec<_> = self.processes[at]
                .node
                .close()
                .into_iter()
                .map(|settlement| Settlement {
                    keep: false,
                    ..settlement
                })
                .collect();
            if let Some(link) = &self.processes[at].link {
                let link = self.office.controller.reconnect(link);
                let told = self.runtime.block_on(link.settle(&stood));
                told.map_err(|error| format!("a gateway's last word is refused: {error}"))?;
            }
            self.bury(at);
        }
        let registry = self.office.registry();
        let fence = self
            .runtime
            .block_on(registry.register_gateway(GatewayId(99), 0))
            .unwrap();
        for station in &self.stations {
            if station.revoked || station.mode == Mode::Key {
                continue;
            }
            let mut from = 0;
            let mut unspent = 0;
            let stated = match self.without {
                Some(Rule::Statement) => Statement::default(),
                _ => Statement {
                    unanswered_from: RowIndex(station.unanswered_from()),
                    has_refused: false,
                },
            };
            loop {
                let wish = LeaseRequest {
                    device: station.id,
                    epoch: 0,
                    from: RowIndex(from),
                    received: RowIndex(from),
                    hold: 1000,
                    ahead: 1000,
                    stated,
                };
                let granted = self.runtime.block_on(registry.lease(&fence, &[wish])).unwrap();
                let Some(granted) = granted
                    .into_iter()
                    .flatten()
                    .find(|granted| !granted.rows.is_empty())
                else {
                    break;
                };
                for idx in granted.rows.clone() {
                    if self.ledger.spender(station.id, idx).is_some() {
                        return Err(format!(
                            "row {idx} of device {} is leased though it was spent",
                            station.id
                        ));
                    }
                    unspent += 1;
                }
                from = granted.rows.end;
            }
            let accounted = self.ledger.spent_by(station.id) + unspent + self.lost_rows(station.id);
            if accounted < station.rows {
                return Err(format!(
                    "device {}: {} rows were spent, {unspent} are left of {}; {} losses of memory do not explain that",
                    station.id,
                    self.ledger.spent_by(station.id),
                    station.rows,
                    self.losses
                ));
            }
        }
        Ok(())
    }
}
