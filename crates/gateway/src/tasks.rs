//! Tasks that a runtime has left when its work is done.

use std::time::Duration;

use tokio::runtime::Runtime;

/// How long they have.
pub(crate) const GRACE: Duration = Duration::from_secs(2);

/// Ends a runtime, whose tasks end before. The database's driver gives connections back in tasks: one that is dropped unrun leaves its
/// connection to a thread that closes it some time later, and until then the registry's log lies beside its file.
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
