//! Parts of the steps: short runs of a few devices, and the datagrams at the service.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::demo::DemoError;
use crate::fleet::{Progress, RunOptions};
use crate::service::EchoService;

/// Timeout for the devices to reach the service, or to authenticate after a revocation.
pub(super) const STEP_TIMEOUT: Duration = Duration::from_secs(60);

/// Options for a run of a few devices.
pub(super) fn short_run<'a>(stop: &'a AtomicBool, progress: &'a mut dyn FnMut(Progress)) -> RunOptions<'a> {
    RunOptions {
        window: 16,
        timeout: STEP_TIMEOUT,
        stop,
        progress,
    }
}

/// Ignores the progress of a short run.
pub(super) fn ignore_progress(_: Progress) {}

/// Waits until the service has counted all queued datagrams.
pub(super) fn drain_service_queue(echo: &EchoService) -> Result<(), DemoError> {
    if echo.drain_queue() {
        Ok(())
    } else {
        Err(DemoError::ServiceTimeout)
    }
}

/// Datagrams at the service from other addresses than loopback.
pub(super) fn count_device_datagrams(echo: &EchoService) -> Result<u64, DemoError> {
    drain_service_queue(echo)?;
    let traffic = echo.traffic();
    let from_devices = traffic.sources.iter().filter(|(source, _)| !source.is_loopback());
    Ok(from_devices.map(|(_, datagrams)| datagrams).sum())
}
