//! What befalls gateways and devices.

use rand::RngExt as _;

use super::{GATEWAYS, Process, World};

impl World {
    pub(super) fn misfortune(&mut self) -> Result<(), String> {
        if !self.rng.random_ratio(1, 45) {
            return Ok(());
        }
        let gateway = self.rng.random_range(0..GATEWAYS);
        let alive = |process: &Process| process.gateway == gateway && !process.zombie;
        let Some(at) = self.processes.iter().position(alive) else {
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
                let station = self.rng.random_range(0..self.stations.len());
                if !self.stations[station].revoked && self.rng.random_ratio(1, 3) {
                    self.revoke(station);
                }
            }
            10 => self.reload(at)?,
            11 => {
                self.tally.suspends += 1;
                self.processes[at].clock.suspend(&mut self.rng);
                self.whereabouts.forget();
            }
            12 => self.set_wall_clock(),
            13 | 14 => self.back_up_or_restore()?,
            _ => self.trouble(),
        }
        Ok(())
    }

    fn kill(&mut self, gateway: usize, at: usize) -> Result<(), String> {
        self.tally.kills += 1;
        self.losses += 1;
        match self.rng.random_range(0..4) {
            // The host is lost, or the memory was the process's own.
            0 | 1 => {
                self.bury(at);
                self.start(gateway);
                Ok(())
            }
            2 => {
                self.behead(at);
                self.start_on_left(gateway)
            }
            // The next one starts elsewhere; or here, on what one before has left.
            _ => {
                let is_left = self.processes.iter().any(|process| process.headless);
                self.behead(at);
                match is_left && self.rng.random_ratio(1, 2) {
                    true => self.start_on_left(gateway),
                    false => {
                        self.start(gateway);
                        Ok(())
                    }
                }
            }
        }
    }

    /// Another process starts, and the one that was there goes on. Now and then that is one that was itself replaced, and is
    /// started again on its memory.
    fn replace(&mut self, gateway: usize) -> Result<(), String> {
        self.tally.zombies += 1;
        self.losses += 1;
        let replaced = |process: &Process| process.gateway == gateway && process.zombie && !process.headless;
        let again = self.processes.iter().position(replaced);
        let again = again.filter(|_| self.rng.random_ratio(1, 2));
        if let Some(at) = again {
            self.tally.came_again += 1;
            self.behead(at);
        }
        self.processes
            .retain(|process| !process.zombie || process.headless);
        let present = |process: &&mut Process| process.gateway == gateway && !process.headless;
        if let Some(process) = self.processes.iter_mut().find(present) {
            process.zombie = true;
        }
        match again {
            Some(_) => self.start_on_left(gateway),
            None => {
                self.start(gateway);
                Ok(())
            }
        }
    }
}
