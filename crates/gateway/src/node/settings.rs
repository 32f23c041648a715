//! Settings of a node, and their consistency.

use linewarden_dataplane::{Config, DataPlaneError, Gate};
use linewarden_protocol::commit::CREDIT_MAX;
use linewarden_protocol::ids::GatewayId;

use super::eviction::Eviction;

/// How long a revoked device stays in the data plane, ms.
pub const WIPE_AFTER_MS: u64 = 60_000;

/// Maximum duration of an attestation period, seconds (LAP/1 3.2).
pub const ATTEST_PERIOD_S_MAX: u32 = 3_600;

/// Settings of a node. `gateway`, `ring`, `spare_live_sessions` and `eviction` cannot change while the node runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The gateway's id.
    pub gateway: GatewayId,
    /// Rows by which a mark is moved (LAP/1 1.4.6); more for a device that authenticates often.
    pub mark_block: u32,
    /// The mark is moved when it allows spending at most this number of rows; less than `mark_block`.
    pub low_credit: u32,
    /// Maximum number of rows of a device in the data plane after the current row.
    pub ring: u32,
    /// More rows are requested when at most this number of rows is left; less than `ring`.
    pub low_rows: u32,
    /// Interval of requests for changes, ms. A revocation arrives after at most this time and one tick.
    pub feed_poll_ms: u64,
    /// How long the node continues without a response of the controller, s. Then it sends no more replies.
    pub offline_limit_s: u32,
    /// Whether devices with a live session are never evicted, because a gate would block their frames after an eviction.
    pub spare_live_sessions: bool,
    /// How long a revoked device stays in the data plane, so that its packets get the right verdict, ms.
    pub wipe_after_ms: u64,
    /// The eviction policy.
    pub eviction: Eviction,
    /// Duration of an attestation period, s; at most an hour.
    pub attest_period_s: u32,
}

impl Settings {
    /// Returns the default settings: marks move by 4 rows, the feed is read every 50 ms, the offline limit is a day.
    #[must_use]
    pub fn for_data_plane(config: &Config) -> Self {
        Self {
            gateway: config.gateway_id,
            mark_block: 4,
            low_credit: config.low_credit,
            ring: config.geometry.ring,
            low_rows: config.low_rows,
            feed_poll_ms: 50,
            offline_limit_s: 86_400,
            spare_live_sessions: config.gate != Gate::Off,
            wipe_after_ms: WIPE_AFTER_MS,
            eviction: Eviction::default(),
            attest_period_s: ATTEST_PERIOD_S_MAX,
        }
    }

    /// Checks the consistency of the settings.
    ///
    /// # Errors
    /// The first invalid field.
    pub fn check(&self) -> Result<(), SettingsError> {
        self.problems().into_iter().next().map_or(Ok(()), Err)
    }

    /// Returns all inconsistencies.
    #[must_use]
    pub fn problems(&self) -> Vec<SettingsError> {
        let mut problems = Vec::new();
        let mut refuse = |field, value: u64, allowed: String| {
            problems.push(SettingsError {
                field,
                value,
                allowed,
            });
        };
        if self.mark_block <= self.low_credit || self.mark_block > CREDIT_MAX {
            let allowed = format!("{} to {CREDIT_MAX}", self.low_credit.saturating_add(1));
            refuse("mark_block", self.mark_block.into(), allowed);
        }
        // The data plane looks this many positions ahead in the ring, so a larger number would wrap around.
        if self.low_rows >= self.ring.max(1) {
            let allowed = format!("less than `ring`, which is {}", self.ring);
            refuse("low_rows", self.low_rows.into(), allowed);
        }
        if !(1..=60_000).contains(&self.feed_poll_ms) {
            refuse("feed_poll_ms", self.feed_poll_ms, "1 to 60000".to_owned());
        }
        if self.offline_limit_s == 0 {
            refuse("offline_limit_s", 0, "at least 1".to_owned());
        }
        if !(1..=ATTEST_PERIOD_S_MAX).contains(&self.attest_period_s) {
            let allowed = format!("1 to {ATTEST_PERIOD_S_MAX}");
            refuse("attest_period_s", self.attest_period_s.into(), allowed);
        }
        problems
    }
}

/// An invalid setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} must be {allowed}; found {value}")]
pub struct SettingsError {
    /// The field.
    pub field: &'static str,
    /// The value.
    pub value: u64,
    /// The allowed values.
    pub allowed: String,
}

/// The reason why settings are not applied.
#[derive(Debug, thiserror::Error)]
pub enum ReconfigureError {
    /// The settings are inconsistent.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// A field that cannot change.
    #[error("sizes and gate of the data plane cannot change while the gateway runs; restart the gateway")]
    Fixed,
    /// The data plane rejects the settings.
    #[error(transparent)]
    DataPlane(#[from] DataPlaneError),
}
