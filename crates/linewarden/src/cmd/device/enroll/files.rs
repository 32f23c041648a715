//! A device's files: public helper data, and a configuration of its agent.

use std::path::{Path, PathBuf};

use linewarden_agent::Credential;
use linewarden_protocol::ids::DeviceId;

use crate::failure::Failure;

/// Where a device's files lie.
pub struct DeviceFiles {
    /// Helper data.
    pub helper: PathBuf,
    /// Configuration of the agent.
    pub config: PathBuf,
}

impl DeviceFiles {
    /// Names after the device's id.
    pub fn new(directory: &Path, device: DeviceId) -> Self {
        Self {
            helper: directory.join(format!("{device}.helper")),
            config: directory.join(format!("{device}.toml")),
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

    /// Writes both.
    pub fn write(
        &self,
        device: DeviceId,
        helper: &Credential,
        gateway: Option<&str>,
        puf_section: &str,
    ) -> Result<(), Failure> {
        match helper {
            Credential::Pool(pool) => pool.write_to(&self.helper),
            Credential::Key(key) => key.write_to(&self.helper),
        }
        .map_err(Failure::failed)?;
        let text = agent_config(device, gateway, puf_section);
        std::fs::write(&self.config, text).map_err(|error| {
            Failure::failed(format!("{}: cannot be written: {error}", self.config.display()))
        })
    }
}

fn agent_config(device: DeviceId, gateway: Option<&str>, puf_section: &str) -> String {
    let address = match gateway {
        Some(address) => format!("address = {}\n", toml::Value::from(address)),
        None => "# address = \"192.0.2.1\"\n".to_owned(),
    };
    format!(
        "# linewarden agent --config {device}.toml\n\n[device]\nid = \"{device}\"\nhelper = \"{device}.helper\"\n\n\
         [gateway]\n{address}# interface = \"eth0\"\n\n{puf_section}"
    )
}

#[cfg(test)]
mod tests {
    use linewarden_agent::AgentConfig;

    use super::*;

    #[test]
    fn the_agent_reads_what_enrolment_writes() {
        let puf = "[puf.readouts]\npath = \"/x\"\n";
        for gateway in [None, Some("192.0.2.1"), Some("odd \"name\"")] {
            let text = agent_config(DeviceId(0xd1), gateway, puf);
            let config: AgentConfig = toml::from_str(&text).unwrap();
            assert_eq!(config.device_id().unwrap(), DeviceId(0xd1));
            assert_eq!(config.gateway.address.as_deref(), gateway);
        }
    }
}
