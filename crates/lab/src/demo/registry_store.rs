//! The registry of the demonstration: a registry with a master key in a temporary directory, which is removed at the end.

use std::path::Path;

use linewarden_protocol::ids::DeviceId;
use linewarden_registry::{BulkOptions, DeviceRecord, MasterKey, Registry, RegistryError};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::{DemoError, RunControl, participants};

/// The registry, its directory and the runtime of its database.
pub(super) struct RegistryStore {
    pub(super) registry: Registry,
    runtime: Runtime,
    // Dropped last: the database is closed before its directory is removed.
    directory: TempDir,
}

impl RegistryStore {
    /// Creates a registry and stores the records.
    pub(super) fn create(
        records: Vec<DeviceRecord>,
        control: &mut RunControl<'_>,
    ) -> Result<Self, DemoError> {
        let directory = tempfile::Builder::new()
            .prefix("linewarden-demo-")
            .tempdir()
            .map_err(DemoError::system("creating a temporary directory"))?;
        // A worker thread that runs between calls, because tasks return connections to the pool.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .map_err(DemoError::system("starting the database runtime"))?;
        let key = MasterKey::generate_file(directory.path().join("master.key"))?;
        let registry = runtime.block_on(async {
            let registry = Registry::create(directory.path().join("fleet.registry"), &key).await?;
            let total = records.len() as u64;
            registry
                .enroll_bulk(records, BulkOptions::default(), |progress| {
                    control.report_progress(progress.done, total);
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
        let revoked = self
            .registry
            .revoke(device, "demonstration", participants::now_s());
        self.block_on(revoked).map(drop)
    }

    /// Waits for a registry operation.
    pub(super) fn block_on<T>(
        &self,
        work: impl Future<Output = Result<T, RegistryError>>,
    ) -> Result<T, DemoError> {
        Ok(self.runtime.block_on(work)?)
    }

    /// The temporary directory, which is removed when the run ends.
    pub(super) fn directory(&self) -> &Path {
        self.directory.path()
    }
}
