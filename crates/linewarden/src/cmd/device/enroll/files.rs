//! A device's files: public helper data, and a configuration of its agent.
//!
//! Helper data are written beside their place first (`ID.helper.new`) and take it when the registry has stored the
//! device: whatever ends an enrolment, helper data of the credentials that count are there.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use linewarden_agent::{AgentConfig, Credential};
use linewarden_files::sync_parent;
use linewarden_protocol::ids::DeviceId;

use crate::failure::Failure;
use crate::{config_file, results};

/// Where a device's files lie.
pub struct DeviceFiles {
    /// Helper data.
    pub helper: PathBuf,
    /// Configuration of the agent.
    pub config: PathBuf,
    /// Helper data of a device that is not stored yet.
    pending: PathBuf,
}

impl DeviceFiles {
    /// Names after the device's id.
    pub fn new(directory: &Path, device: DeviceId) -> Self {
        Self {
            helper: directory.join(format!("{device}.helper")),
            config: directory.join(format!("{device}.toml")),
            pending: directory.join(format!("{device}.helper.new")),
        }
    }

    /// Refuses to overwrite what another enrolment left.
    pub fn check_absent(&self) -> Result<(), Failure> {
        if self.helper.symlink_metadata().is_ok() {
            return Err(Failure::input(format!(
                "{} exists already; without its helper data a device is lost, so it is not overwritten (use --replace)",
                self.helper.display()
            )));
        }
        Ok(())
    }

    /// The chip of a configuration that is kept: the device has it, and no other.
    pub fn kept_chip(&self) -> Result<Option<u32>, Failure> {
        if !self.keeps_config() {
            return Ok(None);
        }
        let unreadable = |error: &dyn Display| {
            Failure::input(format!(
                "{}: is kept, for it may have been edited, and cannot be read: {error}",
                self.config.display()
            ))
        };
        let text = config_file::read_text(&self.config).map_err(|error| unreadable(&error))?;
        let config: AgentConfig = toml::from_str(&text).map_err(|error| unreadable(&error))?;
        Ok(Some(config.puf.simulated.map_or(0, |puf| puf.chip)))
    }

    /// A device that is enrolled again may have an edited configuration.
    fn keeps_config(&self) -> bool {
        self.helper.symlink_metadata().is_ok() && self.config.symlink_metadata().is_ok()
    }

    /// Writes the helper data beside their place, and the configuration if there is none to be kept.
    pub fn write(
        &self,
        device: DeviceId,
        helper: &Credential,
        way: Way<'_>,
        puf_section: &str,
    ) -> Result<(), Failure> {
        match helper {
            Credential::Pool(pool) => pool.write_to(&self.pending),
            Credential::Key(key) => key.write_to(&self.pending),
        }
        .map_err(Failure::failed)?;
        if self.keeps_config() {
            return Ok(());
        }
        let text = agent_config(device, way, puf_section);
        results::write(&self.config, &text)
    }

    /// The registry holds the device: its helper data take their place.
    pub fn adopt(&self) -> Result<(), Failure> {
        linewarden_agent::remove_previous(&self.helper);
        std::fs::rename(&self.pending, &self.helper)
            .and_then(|()| sync_parent(&self.helper))
            .map_err(|error| {
                Failure::failed(format!(
                    "{}: cannot be renamed to {}: {error}; do so by hand, for the registry holds the device already",
                    self.pending.display(),
                    self.helper.display()
                ))
            })
    }

    /// The registry does not hold the device: nothing of it is left, but what an earlier enrolment wrote.
    pub fn discard(&self) {
        // What cannot be removed is overwritten by the next enrolment.
        std::fs::remove_file(&self.pending).ok();
        if self.helper.symlink_metadata().is_err() {
            std::fs::remove_file(&self.config).ok();
        }
    }
}

/// What the agent's configuration is to say of the way to the gateway, as far as it is known.
#[derive(Clone, Copy, Default)]
pub struct Way<'a> {
    pub address: Option<&'a str>,
    pub interface: Option<&'a str>,
}

fn agent_config(device: DeviceId, way: Way<'_>, puf_section: &str) -> String {
    let field = |name: &str, value: Option<&str>, example: &str| match value {
        Some(value) => format!("{name} = {}\n", toml::Value::from(value)),
        None => format!("# {name} = \"{example}\"\n"),
    };
    let address = field("address", way.address, "192.0.2.1");
    let interface = field("interface", way.interface, "eth0");
    format!(
        "# linewarden agent --config {device}.toml\n\n[device]\nid = \"{device}\"\nhelper = \"{device}.helper\"\n\n\
         [gateway]\n{address}{interface}\n{puf_section}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_reads_what_enrolment_writes() {
        let puf = "[puf.readouts]\npath = \"/x\"\n";
        for value in [None, Some("192.0.2.1"), Some("odd \"name\"")] {
            let way = Way {
                address: value,
                interface: value,
            };
            let text = agent_config(DeviceId(0xd1), way, puf);
            let config: AgentConfig = toml::from_str(&text).unwrap();
            assert_eq!(config.device_id().unwrap(), DeviceId(0xd1));
            assert_eq!(config.gateway.address.as_deref(), value);
            assert_eq!(config.gateway.interface.as_deref(), value);
        }
    }

    #[test]
    fn old_helper_data_stay_until_the_registry_has_the_new_ones() {
        let directory = tempfile::tempdir().unwrap();
        let files = DeviceFiles::new(directory.path(), DeviceId(1));
        std::fs::write(&files.helper, "old").unwrap();
        std::fs::write(&files.config, "edited").unwrap();
        for new in ["first", "second"] {
            std::fs::write(&files.pending, new).unwrap();
            assert_eq!(std::fs::read_to_string(&files.helper).unwrap(), "old");
            files.discard();
        }
        assert_eq!(std::fs::read_to_string(&files.config).unwrap(), "edited");
        std::fs::write(&files.pending, "third").unwrap();
        files.adopt().unwrap();
        assert_eq!(std::fs::read_to_string(&files.helper).unwrap(), "third");
        assert!(files.adopt().is_err(), "nothing is pending");
    }
}
