//! Latency of complete authentications: the same devices, one at a time, without attackers.

use super::report::LatencyPass;
use super::{Audience, Backend, DemoError, Event, Options, Stage};
use crate::fleet::{Fleet, Run};

/// What a pass gave.
pub(super) struct Measured {
    pub(super) pass: LatencyPass,
    /// Devices that were refused.
    pub(super) refused: u64,
}

/// Lets each authenticate anew at a gateway that has just taken them up. It may not spend their rows yet, and asks its controller
/// with the first RESPONSE of each, which is no matter of the data plane.
pub(super) fn introduce(
    fleet: &mut Fleet,
    options: &Options,
    audience: &mut Audience<'_>,
) -> Result<(), DemoError> {
    fleet.power_cycle();
    fleet.authenticate(&mut Run {
        window: options.window,
        limit: options.limit,
        stop: audience.stop,
        progress: &mut |_| {},
    })?;
    audience.check()
}

/// Takes all devices' power away and lets each authenticate anew, with no other under way.
pub(super) fn measure(
    fleet: &mut Fleet,
    backend: Backend,
    options: &Options,
    audience: &mut Audience<'_>,
) -> Result<Measured, DemoError> {
    audience.stage(Stage::Measuring(backend))?;
    fleet.power_cycle();
    let stop = audience.stop;
    let report = fleet.authenticate(&mut Run {
        window: 1,
        limit: options.limit,
        stop,
        progress: &mut |progress| {
            audience.tell(Event::Progress {
                done: progress.authenticated,
                total: progress.devices,
            });
        },
    })?;
    audience.check()?;
    Ok(Measured {
        pass: LatencyPass::new(backend, &report.network_ns),
        refused: report.unfinished,
    })
}
