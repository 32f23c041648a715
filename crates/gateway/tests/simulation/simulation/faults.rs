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
        let Some(process_index) = self.processes.iter().position(is_running) else {
            return Ok(());
        };
        match self.rng.random_range(0..17) {
            0..4 => self.kill(gateway, process_index)?,
            4..6 => {
                self.tally.stops += 1;
                self.stop(process_index);
                self.start(gateway);
            }
            6..9 => self.replace(gateway)?,
            9 => {
                let device_index = self.rng.random_range(0..self.devices.len());
                if !self.devices[device_index].revoked && self.rng.random_ratio(1, 3) {
                    self.revoke(device_index);
                }
            }
            10 => self.reload(process_index)?,
            11 => {
                self.tally.suspends += 1;
                self.processes[process_index].clock.suspend(&mut self.rng);
                self.session_locations.forget();
            }
            12 => self.set_wall_clock(),
            13 | 14 => self.back_up_or_restore()?,
            _ => self.inject_controller_fault(),
        }
        Ok(())
    }

    fn kill(&mut self, gateway: usize, process_index: usize) -> Result<(), String> {
        self.tally.kills += 1;
        self.losses += 1;
        match self.rng.random_range(0..4) {
            // The host or its memory is lost.
            0 | 1 => {
                self.remove_process(process_index);
                self.start(gateway);
                Ok(())
            }
            2 => {
                self.kill_process(process_index);
                self.start_on_adopted(gateway)
            }
            // The next process starts on another host, or here on memory that an earlier process has left.
            _ => {
                let has_abandoned_memory = self.processes.iter().any(|process| process.is_killed);
                self.kill_process(process_index);
                match has_abandoned_memory && self.rng.random_ratio(1, 2) {
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
        if let Some(process_index) = restarted {
            self.tally.restarted += 1;
            self.kill_process(process_index);
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
