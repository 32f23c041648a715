//! State of one gateway, with plausible values and known names only.

use std::collections::BTreeMap;

use linewarden_protocol::gateway::DroppedTypes;
use linewarden_protocol::verdict::Verdict;
use linewarden_types::StatusReport;
use serde::{Deserialize, Serialize};

use crate::trust::Trust;

/// Maximum plausible number of devices or sessions of a gateway.
pub(super) const DEVICES_MAX: u64 = u32::MAX as u64;
/// Maximum plausible number of accepted authentications per second, above the rate of minimum-size frames at 800 Gbit/s.
const RATE_MAX: f64 = 1e9;
/// Maximum plausible latency, µs: longer than the last bucket of the histogram.
const LATENCY_US_MAX: f64 = 1e7;
/// Maximum plausible count of one verdict; up to this value, a browser represents integers exactly.
const COUNT_MAX: u64 = 1 << 53;
/// The name for the sum of all counts with an unknown name, such as a verdict of a newer gateway.
pub(crate) const OTHER: &str = "other";

/// State of a gateway, as stored for other controllers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct GatewayStatus {
    pub(crate) version: String,
    pub(crate) fencing_token: u64,
    pub(crate) data_plane: String,
    pub(crate) devices: u64,
    pub(crate) slots: u64,
    pub(crate) sessions: Option<u64>,
    pub(crate) authentications_per_s: Option<f64>,
    pub(crate) latency_us_p50: Option<f64>,
    pub(crate) latency_us_p99: Option<f64>,
    /// Counts by verdict name; [`OTHER`] has the sum for unknown names. The names in the next three fields are limited in
    /// the same way.
    pub(crate) verdicts: BTreeMap<String, u64>,
    #[serde(default)]
    pub(crate) dropped_types: BTreeMap<String, u64>,
    #[serde(default)]
    pub(crate) kernel_drops: BTreeMap<String, u64>,
    #[serde(default)]
    pub(crate) tickets: BTreeMap<String, u64>,
    /// Time of the last status report; `None` before the first report.
    #[serde(default)]
    pub(crate) reported_ms: Option<u64>,
    /// `None` if no attestation of the gateway is required.
    #[serde(default)]
    pub(crate) trust: Option<Trust>,
}

impl GatewayStatus {
    /// Replaces unknown names.
    pub(super) fn with_known_names(self) -> Self {
        Self {
            verdicts: count_by_known_name(self.verdicts, is_verdict),
            dropped_types: count_by_known_name(self.dropped_types, DroppedTypes::is_name),
            kernel_drops: count_by_known_name(self.kernel_drops, |name| {
                StatusReport::KERNEL_DROPS.contains(&name)
            }),
            tickets: count_by_known_name(self.tickets, |name| StatusReport::TICKETS.contains(&name)),
            ..self
        }
    }

    /// Replaces the state by the state of a report. Registration and trust are not part of a report. The limits prevent an
    /// overflow of sums over thousands of gateways.
    pub(super) fn apply_report(&mut self, report: StatusReport, now_ms: u64) {
        *self = Self {
            version: std::mem::take(&mut self.version),
            fencing_token: self.fencing_token,
            data_plane: report.data_plane.chars().take(64).collect(),
            devices: report.devices.min(DEVICES_MAX),
            slots: report.slots.min(DEVICES_MAX),
            sessions: report.sessions.filter(|sessions| *sessions <= DEVICES_MAX),
            authentications_per_s: in_range(report.authentications_per_s, RATE_MAX),
            latency_us_p50: in_range(report.latency_us_p50, LATENCY_US_MAX),
            latency_us_p99: in_range(report.latency_us_p99, LATENCY_US_MAX),
            verdicts: report.verdicts,
            dropped_types: report.dropped_types,
            kernel_drops: report.kernel_drops,
            tickets: report.tickets,
            reported_ms: Some(now_ms),
            trust: self.trust.take(),
        }
        .with_known_names();
    }
}

/// Returns `None` for a number outside of the range from 0 to `max` (inclusive), and for NaN. JSON cannot represent NaN
/// and infinities.
fn in_range(number: Option<f64>, max: f64) -> Option<f64> {
    number.filter(|number| (0.0..=max).contains(number))
}

/// Returns the counts by known name; [`OTHER`] has the sum of the counts with unknown names. Unknown names are not stored,
/// because a gateway could report an unlimited number of names. Counts above [`COUNT_MAX`] are ignored.
fn count_by_known_name(
    counts_by_name: impl IntoIterator<Item = (String, u64)>,
    is_known: impl Fn(&str) -> bool,
) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for (name, count) in counts_by_name
        .into_iter()
        .filter(|(_, count)| *count <= COUNT_MAX)
    {
        let name = match is_known(&name) {
            true => name,
            false => OTHER.to_owned(),
        };
        let sum: &mut u64 = counts.entry(name).or_default();
        *sum = sum.saturating_add(count).min(COUNT_MAX);
    }
    counts
}

fn is_verdict(name: &str) -> bool {
    Verdict::ALL.iter().any(|verdict| verdict.name() == name)
}
