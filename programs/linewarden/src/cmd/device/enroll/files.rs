//! The files of a device: public helper data, and a configuration of its agent.
//!
//! Helper data are first written to a temporary file (`ID.helper.new`), which is renamed after the registry has stored the
//! device. If the enrollment fails, the file `ID.helper` still contains the helper data of the valid credentials.

use linewarden_cli::failure::Failure;
use linewarden_cli::results;
use std::fmt::Display;
use std::path::{Path, PathBuf};

use linewarden_agent::Credential;
use linewarden_config::agent::AgentConfig;
use linewarden_files::sync_parent;
use linewarden_protocol::ids::DeviceId;

/// Paths of a device's files.
pub struct DeviceFiles {
    /// Helper data.
    pub helper: PathBuf,
    /// Configuration of the agent.
    pub config: PathBuf,
    /// Temporary file with the helper data of a device that the registry has not stored yet.
    pending_helper: PathBuf,
}

impl DeviceFiles {
    /// Paths in `directory`, named after the device ID.
    pub fn new(directory: &Path, device: DeviceId) -> Self {
        Self {
            helper: directory.join(format!("{device}.helper")),
            config: directory.join(format!("{device}.toml")),
            pending_helper: directory.join(format!("{device}.helper.new")),
        }
    }

    /// Refuses to overwrite the files of another enrollment.
    pub fn check_absent(&self) -> Result<(), Failure> {
        if self.helper.symlink_metadata().is_ok() {
            return Err(Failure::input(format!(
                "{} already exists: helper data cannot be recovered, so the file is not overwritten; use --replace",
                self.helper.display()
            )));
        }
        Ok(())
    }

    /// The chip number in the existing configuration; `None` if no existing configuration is kept.
    pub fn existing_chip(&self) -> Result<Option<u32>, Failure> {
        if !self.keeps_config() {
            return Ok(None);
        }
        let unreadable = |error: &dyn Display| {
            Failure::input(format!(
                "existing configuration is unreadable: {}: {error}; the file is kept, because the file may have been edited",
                self.config.display()
            ))
        };
        let text = linewarden_config::read_text(&self.config).map_err(|error| unreadable(&error))?;
        let config: AgentConfig = toml::from_str(&text).map_err(|error| unreadable(&error))?;
        Ok(Some(config.puf.simulated.map_or(0, |puf| puf.chip)))
    }

    /// Whether an existing configuration is kept. The operator of an enrolled device may have edited the configuration.
    fn keeps_config(&self) -> bool {
        self.helper.symlink_metadata().is_ok() && self.config.symlink_metadata().is_ok()
    }

    /// Writes the helper data to the temporary file. Writes also the configuration, unless an existing configuration is
    /// kept.
    pub fn write(
        &self,
        device: DeviceId,
        helper: &Credential,
        route: GatewayRoute<'_>,
        puf_section: &str,
    ) -> Result<(), Failure> {
        match helper {
            Credential::Pool(pool) => pool.write_to(&self.pending_helper),
            Credential::Key(key) => key.write_to(&self.pending_helper),
        }
        .map_err(Failure::failed)?;
        if self.keeps_config() {
            return Ok(());
        }
        let text = agent_config(device, route, puf_section);
        results::write(&self.config, &text)
    }

    /// Renames the helper data, after the registry has stored the device.
    pub fn commit(&self) -> Result<(), Failure> {
        linewarden_agent::remove_previous(&self.helper);
        std::fs::rename(&self.pending_helper, &self.helper)
            .and_then(|()| sync_parent(&self.helper))
            .map_err(|error| {
                Failure::failed(format!(
                    "renaming {} to {} failed: {error}; rename the file, because the registry has stored the device",
                    self.pending_helper.display(),
                    self.helper.display()
                ))
            })
    }

    /// Removes the files of a device that the registry has not stored, except the files of an earlier enrollment.
    pub fn discard(&self) {
        // The next enrollment overwrites a file that cannot be removed.
        std::fs::remove_file(&self.pending_helper).ok();
        if self.helper.symlink_metadata().is_err() {
            std::fs::remove_file(&self.config).ok();
        }
    }
}

/// The route to the gateway, for the agent's configuration. Unknown fields are `None`.
#[derive(Clone, Copy, Default)]
pub struct GatewayRoute<'a> {
    pub address: Option<&'a str>,
    pub interface: Option<&'a str>,
}

fn agent_config(device: DeviceId, route: GatewayRoute<'_>, puf_section: &str) -> String {
    let field = |name: &str, value: Option<&str>, example: &str| match value {
        Some(value) => format!("{name} = {}\n", toml::Value::from(value)),
        None => format!("# {name} = \"{example}\"\n"),
    };
    let address = field("address", route.address, "192.0.2.1");
    let interface = field("interface", route.interface, "eth0");
    format!(
        "# linewarden-agent run --config {device}.toml\n\n[device]\nid = \"{device}\"\nhelper = \"{device}.helper\"\n\n\
         [gateway]\n{address}{interface}\n{puf_section}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_reads_the_files_of_enrollment() {
        let puf = "[puf.readouts]\npath = \"/x\"\n";
        for value in [None, Some("192.0.2.1"), Some("odd \"name\"")] {
            let route = GatewayRoute {
                address: value,
                interface: value,
            };
            let text = agent_config(DeviceId(0xd1), route, puf);
            let config: AgentConfig = toml::from_str(&text).unwrap();
            assert_eq!(config.device.id.parse(), Ok(DeviceId(0xd1)));
            assert_eq!(config.gateway.address.as_deref(), value);
            assert_eq!(config.gateway.interface.as_deref(), value);
        }
    }

    #[test]
    fn old_helper_data_remain_until_the_registry_has_stored_the_new_helper_data() {
        let directory = tempfile::tempdir().unwrap();
        let files = DeviceFiles::new(directory.path(), DeviceId(1));
        std::fs::write(&files.helper, "old").unwrap();
        std::fs::write(&files.config, "edited").unwrap();
        for new in ["first", "second"] {
            std::fs::write(&files.pending_helper, new).unwrap();
            assert_eq!(std::fs::read_to_string(&files.helper).unwrap(), "old");
            files.discard();
        }
        assert_eq!(std::fs::read_to_string(&files.config).unwrap(), "edited");
        std::fs::write(&files.pending_helper, "third").unwrap();
        files.commit().unwrap();
        assert_eq!(std::fs::read_to_string(&files.helper).unwrap(), "third");
        assert!(files.commit().is_err(), "no pending helper data");
    }
}
