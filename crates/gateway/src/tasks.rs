//! Orderly shutdown of an asynchronous runtime.

use std::time::Duration;

use tokio::runtime::Runtime;

/// Timeout for the remaining tasks.
pub(crate) const GRACE: Duration = Duration::from_secs(2);

/// Ends a runtime when its tasks have ended, at the latest after [`GRACE`]. If a controller runs in this process,
/// as in the lab, its database driver returns connections in tasks. A connection whose task did not run is closed by a
/// thread later, and until then the registry's write-ahead log stays beside its file.
pub(crate) fn end(runtime: Runtime) {
    runtime.block_on(async {
        let tasks = tokio::runtime::Handle::current().metrics();
        let all_ended = async {
            while tasks.num_alive_tasks() > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let _ = tokio::time::timeout(GRACE, all_ended).await;
    });
}
