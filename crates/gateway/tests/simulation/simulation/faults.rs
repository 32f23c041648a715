//! Faults of gateways and devices.

use rand::RngExt as _;

use super::{GATEWAYS, Process, Simulation};

impl Simulation {
    pub(super) fn inject_fault(&mut self) -> Result<(), String> {
        if !self.rng.random_ratio(1, 45) {
            return Ok(());
        }
        let gateway = self.rng.random_range(0..GATEWAYS);
        let is_running = |process: &Process| process.gateway == gateway && !process.is_replaced;
        let Some(at) = self.processes.iter().position(is_running) else {
            return Ok(());
        };
        match self.rng.random_range(0..17) {
            0..4 => self.kill(gateway, at)?,
            4..6 => {
                self.tally.stops += 1;
                self.stop(at);
                self.start(gateway);
            }
            6..9 => self.replace(gateway)?,
            9 => {
                let station = self.rng.random_range(0..self.devices.len());
                if !self.devices[station].revoked && self.rng.random_ratio(1, 3) {
                    self.revoke(station);
                }
            }
            10 => self.reload(at)?,
            11 => {
                self.tally.suspends += 1;
                self.processes[at].clock.suspend(&mut self.rng);
                self.session_locations.forget();
            }
            12 => self.set_wall_clock(),
            13 | 14 => self.back_up_or_restore()?,
            _ => self.inject_controller_fault(),
        }
        Ok(())
    }

    fn kill(&mut self, gateway: usize, at: usize) -> Result<(), String> {
        self.tally.kills += 1;
        self.losses += 1;
        match self.rng.random_range(0..4) {
            // The host or its memory is lost.
            0 | 1 => {
                self.remove_process(at);
                self.start(gateway);
                Ok(())
            }
            2 => {
                self.kill_process(at);
                self.start_on_adopted(gateway)
            }
            // The next process starts on another host, or here, on memory that an earlier one has left.
            _ => {
                let is_left = self.processes.iter().any(|process| process.is_killed);
                self.kill_process(at);
                match is_left && self.rng.random_ratio(1, 2) {
                    true => self.start_on_adopted(gateway),
                    false => {
                        self.start(gateway);
                        Ok(())
                    }
                }
            }
        }
    }

    /// Starts another process while the old one keeps running. Sometimes this is a replaced process that is restarted
    /// on its memory.
    fn replace(&mut self, gateway: usize) -> Result<(), String> {
        self.tally.replacements += 1;
        self.losses += 1;
        let is_replaced =
            |process: &Process| process.gateway == gateway && process.is_replaced && !process.is_killed;
        let restarted = self.processes.iter().position(is_replaced);
        let restarted = restarted.filter(|_| self.rng.random_ratio(1, 2));
        if let Some(at) = restarted {
            self.tally.restarted += 1;
            self.kill_process(at);
        }
        self.processes
            .retain(|process| !process.is_replaced || process.is_killed);
        let is_current = |process: &&mut Process| process.gateway == gateway && !process.is_killed;
        if let Some(process) = self.processes.iter_mut().find(is_current) {
            process.is_replaced = true;
        }
        match restarted {
            Some(_) => self.start_on_adopted(gateway),
            None => {
                self.start(gateway);
                Ok(())
            }
        }
    }
}
