//! `linewarden attest` as operators run it.

mod device;
mod fleet;
mod rounds;
mod show;
mod tpm;

use std::collections::BTreeMap;

use linewarden_measurement::HashAlgorithm;
use linewarden_measurement::configuration::Configuration;
use linewarden_measurement::files::{ContentHash, FileEntry, FilePath, Mode};
use linewarden_measurement::pcr::PcrValues;
use linewarden_registry::{MasterKey, Registry};

use super::*;

/// A device's configuration: one program with this content hash.
fn configuration(content: u8) -> Configuration {
    configuration_of_files(&[("/usr/bin/sensord", content)])
}

/// A configuration of files, each with a path and a content hash of 32 equal bytes.
fn configuration_of_files(files: &[(&str, u8)]) -> Configuration {
    let entry = |(path, content): &(&str, u8)| {
        let entry = FileEntry::File {
            mode: Mode::new(0o755).unwrap(),
            content: ContentHash([*content; 32]),
        };
        (FilePath::new(path.as_bytes()).unwrap(), entry)
    };
    let files: BTreeMap<_, _> = files.iter().map(entry).collect();
    Configuration::new(PcrValues::new(HashAlgorithm::Sha256), files).unwrap()
}

impl Site {
    /// A site with devices d1, d2 and so on, and a group `pumps` with the reference value `configuration(1)`.
    fn attesting(devices: usize) -> Self {
        let site = Self::new();
        for number in 1..=devices {
            site.on_registry(&format!(
                "device enroll simulated --device d{number} --name pump{number} --rows 2 --out devices"
            ))
            .ok();
        }
        site.write_configuration("pumps.conf", &configuration(1));
        site.on_registry("attest group set pumps --reference pumps.conf")
            .ok();
        site
    }

    fn write_configuration(&self, name: &str, configuration: &Configuration) {
        fs::write(self.path(name), configuration.encode()).unwrap();
    }

    /// The line of `attest group list --output json` about this group.
    fn group(&self, name: &str) -> serde_json::Value {
        let listed = self.on_registry("attest group list --output json").ok();
        let mut groups = listed.lines().map(json);
        groups.find(|group| group["name"] == name).unwrap()
    }

    /// The output of `attest list --output json` about this device.
    fn status(&self, device: &str) -> serde_json::Value {
        json(
            &self
                .on_registry(&format!("attest list {device} --output json"))
                .ok(),
        )
    }

    /// Runs a function on the registry itself.
    fn with_registry<T>(&self, action: impl AsyncFnOnce(&Registry) -> T) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let key = MasterKey::from_file(self.path("master.key")).unwrap();
            let registry = Registry::open(self.path("fleet.registry"), &key).await.unwrap();
            let result = action(&registry).await;
            registry.close().await;
            result
        })
    }

    /// The sorted names of the files in a directory of the site.
    fn file_names(&self, directory: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(directory)).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}
