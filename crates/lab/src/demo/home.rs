//! The registry of the demonstration: a real one, with a master key, in a directory that goes when the run ends.

use std::path::Path;

use linewarden_protocol::ids::DeviceId;
use linewarden_registry::{BulkOptions, DeviceRecord, MasterKey, Registry, RegistryError};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::{Audience, DemoError, cast};

/// Registry, key and what drives the database.
pub(super) struct Home {
    pub(super) registry: Registry,
    runtime: Runtime,
    // Dropped last: the database is closed before its directory goes.
    directory: TempDir,
}

impl Home {
    /// Makes a registry and stores the records in it.
    pub(super) fn create(records: Vec<DeviceRecord>, audience: &mut Audience<'_>) -> Result<Self, DemoError> {
        let directory = tempfile::Builder::new()
            .prefix("linewarden-demo-")
            .tempdir()
            .map_err(DemoError::system("making a temporary directory"))?;
        // A thread that goes on between calls: connections go back to the pool by tasks of their own.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .map_err(DemoError::system("starting the database's runtime"))?;
        let key = MasterKey::generate_file(directory.path().join("master.key"))?;
        let registry = runtime.block_on(async {
            let registry = Registry::create(directory.path().join("fleet.registry"), &key).await?;
            let total = records.len() as u64;
            registry
                .enrol_bulk(records, BulkOptions::default(), |progress| {
                    audience.progress(progress.done, total);
                })
                .await?;
            Ok::<_, DemoError>(registry)
        })?;
        Ok(Self {
            registry,
            runtime,
            directory,
        })
    }

    /// Revokes a device, as `linewarden device revoke` does.
    pub(super) fn revoke(&self, device: DeviceId) -> Result<(), DemoError> {
        let revoked = self.registry.revoke(device, "demonstration", cast::now_s());
        self.block_on(revoked).map(drop)
    }

    /// Waits for what the registry does.
    pub(super) fn block_on<T>(
        &self,
        work: impl Future<Output = Result<T, RegistryError>>,
    ) -> Result<T, DemoError> {
        Ok(self.runtime.block_on(work)?)
    }

    /// Goes when the run ends.
    pub(super) fn directory(&self) -> &Path {
        self.directory.path()
    }
}
