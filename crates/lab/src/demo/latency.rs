//! Latency of complete authentications: the same devices, one at a time, without attackers.

use super::report::LatencyPass;
use super::{DataPlaneKind, DemoError, Event, Options, RunControl, Stage};
use crate::fleet::{Fleet, RunOptions};

/// The result of one latency measurement.
pub(super) struct LatencyMeasurement {
    pub(super) pass: LatencyPass,
    /// Devices that got no session.
    pub(super) refused: u64,
}

/// Lets each device authenticate once at a gateway that has just loaded the fleet. For the first RESPONSE of each
/// device the gateway sends a request to its controller, because no row may be spent yet; the measurement excludes the
/// time of this request.
pub(super) fn authenticate_first(
    fleet: &mut Fleet,
    options: &Options,
    control: &mut RunControl<'_>,
) -> Result<(), DemoError> {
    fleet.power_cycle();
    fleet.authenticate(&mut RunOptions {
        window: options.window,
        timeout: options.timeout,
        stop: control.stop,
        progress: &mut |_| {},
    })?;
    control.check_stop()
}

/// Power-cycles all devices and lets them authenticate again, one at a time.
pub(super) fn measure(
    fleet: &mut Fleet,
    data_plane: DataPlaneKind,
    options: &Options,
    control: &mut RunControl<'_>,
) -> Result<LatencyMeasurement, DemoError> {
    control.begin_stage(Stage::Measuring(data_plane))?;
    fleet.power_cycle();
    let stop = control.stop;
    let report = fleet.authenticate(&mut RunOptions {
        window: 1,
        timeout: options.timeout,
        stop,
        progress: &mut |progress| {
            control.emit(Event::Progress {
                done: progress.authenticated,
                total: progress.devices,
            });
        },
    })?;
    control.check_stop()?;
    Ok(LatencyMeasurement {
        pass: LatencyPass::new(data_plane, &report.network_ns),
        refused: report.unfinished,
    })
}
