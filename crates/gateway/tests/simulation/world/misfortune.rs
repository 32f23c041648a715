//! What befalls gateways and devices.

use rand::RngExt as _;

use super::{GATEWAYS, Process, Rule, World};

impl World {
    pub(super) fn misfortune(&mut self) {
        if !self.rng.random_ratio(1, 60) {
            return;
        }
        let gateway = self.rng.random_range(0..GATEWAYS);
        let alive = |process: &Process| process.gateway == gateway && !process.zombie;
        let Some(at) = self.processes.iter().position(alive) else {
            return;
        };
        match self.rng.random_range(0..10) {
            0..4 => {
                self.tally.kills += 1;
                self.losses += 1;
                match self.rng.random_range(0..4) {
                    // The host is lost, or the memory was the process's own.
                    0 | 1 => {
                        self.bury(at);
                        self.start(gateway);
                    }
                    2 => {
                        self.behead(at);
                        self.start_on_left(gateway);
                    }
                    // The next one starts elsewhere; or here, on what one before has left.
                    _ => {
                        let others: Vec<bool> =
                            self.processes.iter().map(|process| process.headless).collect();
                        self.behead(at);
                        match others.contains(&true) && self.rng.random_ratio(1, 2) {
                            true => self.start_on_left(gateway),
                            false => self.start(gateway),
                        }
                    }
                }
            }
            4..6 => {
                self.tally.stops += 1;
                self.stop(at);
                self.start(gateway);
            }
            6..9 => {
                self.tally.zombies += 1;
                self.losses += 1;
                self.processes
                    .retain(|process| !process.zombie || process.headless);
                if let Some(process) = self
                    .processes
                    .iter_mut()
                    .find(|process| process.gateway == gateway && !process.headless)
                {
                    process.zombie = true;
                }
                self.start(gateway);
                if self.without == Some(Rule::Fence) {
                    self.confuse(gateway);
                }
            }
            _ => {
                let station = self.rng.random_range(0..self.stations.len());
                if !self.stations[station].revoked && self.rng.random_ratio(1, 3) {
                    self.tally.revoked += 1;
                    self.stations[station].revoked = true;
                    let device = self.stations[station].id;
                    self.runtime
                        .block_on(self.registry.revoke(device, "lost", 1))
                        .unwrap();
                }
            }
        }
    }

    /// Without the fence an old process is served like the new one.
    pub(super) fn confuse(&mut self, gateway: usize) {
        let newest = self
            .processes
            .iter()
            .filter(|process| process.gateway == gateway)
            .max_by_key(|process| process.number)
            .map(|process| process.link.clone());
        for process in &mut self.processes {
            if process.gateway == gateway {
                process.link = newest.clone().unwrap();
            }
        }
    }
}
