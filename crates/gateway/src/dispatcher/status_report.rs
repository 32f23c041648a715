//! Reports of the gateway's status to its controller.

use std::collections::BTreeMap;
use std::time::Duration;

use linewarden_protocol::verdict::Verdict;
use linewarden_types::{ControllerLink, LinkError, ReportStatus, StatusReport};

use super::rates::RateMeter;
use super::sample::{DataPlaneInfo, StatusSample};
use crate::node::TicketCounts;

/// Interval of status reports.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// Reports the status once a second.
pub(super) async fn run(
    controller: &dyn ControllerLink,
    data_plane: &DataPlaneInfo,
    sample_status: impl Fn() -> Option<StatusSample> + Clone + Send + 'static,
) {
    let mut clock = tokio::time::interval(REPORT_INTERVAL);
    clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut rates = RateMeter::default();
    loop {
        clock.tick().await;
        // The control thread provides the sample, and may be busy.
        let result = tokio::task::spawn_blocking(sample_status.clone()).await;
        let Ok(Some(sample)) = result else {
            continue;
        };
        let current = rates.update(&sample);
        let report = StatusReport {
            data_plane: data_plane.kind.clone(),
            devices: sample.status.devices,
            slots: data_plane.slots,
            sessions: sample.sessions,
            authentications_per_s: current.authentications_per_s,
            latency_us_p50: current.latency_us_p50,
            latency_us_p99: current.latency_us_p99,
            verdicts: Verdict::ALL
                .iter()
                .map(|verdict| (verdict.name().to_owned(), sample.counters.get(*verdict)))
                .filter(|(_, count)| *count > 0)
                .collect(),
            dropped_types: sample.status.dropped_types.clone(),
            kernel_drops: kernel_drops(&sample),
            tickets: sample
                .status
                .tickets
                .as_ref()
                .map(ticket_counts)
                .unwrap_or_default(),
        };
        match controller.call(ReportStatus(report)).await {
            Ok(()) => {}
            // The newer process reports its status.
            Err(LinkError::Replaced(_)) => std::future::pending().await,
            // The next report follows in a second.
            Err(error) => tracing::debug!(%error, "status report failed"),
        }
    }
}

fn kernel_drops(sample: &StatusSample) -> BTreeMap<String, u64> {
    let tickets = sample.status.tickets.map_or(0, |tickets| tickets.kernel_drops);
    counts_by_name(
        StatusReport::KERNEL_DROPS,
        [sample.counters.kernel_drops, tickets],
    )
}

fn ticket_counts(counts: &TicketCounts) -> BTreeMap<String, u64> {
    let TicketCounts {
        answered,
        unknown,
        rate_limited,
        rejected,
        failed,
        kernel_drops: _,
    } = *counts;
    counts_by_name(
        StatusReport::TICKETS,
        [answered, unknown, rate_limited, rejected, failed],
    )
}

fn counts_by_name<const N: usize>(names: [&str; N], counts: [u64; N]) -> BTreeMap<String, u64> {
    names.map(str::to_owned).into_iter().zip(counts).collect()
}
