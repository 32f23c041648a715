//! Changes settings while packets flow.

use super::{ActiveSettings, Regions, Store, admission};
use crate::config::LiveSettings;

impl Regions {
    /// Writes the settings before the first packet.
    pub(crate) fn initialize_settings(&self, live: &LiveSettings) {
        if let Some(control) = self.control.first() {
            admission::activate_sources(control, &live.sources);
            ActiveSettings::of(live).write(&control.live);
        }
    }
}

impl Store {
    /// Activates new settings at `boot_s` of the boot-time clock.
    pub fn set_live(&self, live: &LiveSettings, boot_s: u32) {
        if let Some(control) = self.regions.control.first() {
            admission::activate_sources(control, &live.sources);
            ActiveSettings::read(control)
                .updated(live, boot_s)
                .write(&control.live);
        }
    }

    /// Maximum number of events about wrong tags and wrong PROOFs per second on each CPU.
    pub(crate) fn alarm_per_s(&self) -> u32 {
        let control = self.regions.control.first();
        control.map_or(0, |control| ActiveSettings::read(control).alarm_per_s)
    }
}
