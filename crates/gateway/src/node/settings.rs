//! How a node goes about, and what fits together.

use linewarden_dataplane::{Config, DataPlaneError, Gate};
use linewarden_protocol::commit::CREDIT_MAX;
use linewarden_protocol::ids::GatewayId;

use super::eviction::Eviction;

/// How long a device that is shut out stays in the data plane, ms.
pub(crate) const WIPE_AFTER_MS: u64 = 60_000;

/// The longest period of attestation, seconds (LAP/1 3.2).
pub(crate) const ATTEST_PERIOD_S_MAX: u32 = 3_600;

/// From one round of `p4dra-classic` to the next unless something else is wanted, seconds.
pub(crate) const P4DRA_ROUND_S: u32 = 60;
/// The longest such time, seconds.
const P4DRA_ROUND_S_MAX: u32 = 86_400;

/// How the node goes about; `gateway`, `ring`, `spare_live_sessions` and `eviction` are fixed while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Which gateway it is.
    pub gateway: GatewayId,
    /// Rows that a mark is moved ahead at a time (LAP/1 1.4.6); more for a device that comes often.
    pub mark_block: u32,
    /// The mark is moved when it allows no more rows than this; less than `mark_block`.
    pub low_credit: u32,
    /// Rows that the data plane holds for a device beside the current one.
    pub ring: u32,
    /// More are asked for when no more than this are left; less than `ring`.
    pub low_rows: u32,
    /// How often the controller is asked for changes, ms; a revocation takes at most this and a tick to arrive.
    pub feed_poll_ms: u64,
    /// How long the node goes on without an answer of the controller, s; then it stops answering.
    pub link_lease_s: u32,
    /// Devices with a live session are not evicted: a gate would shut them out.
    pub spare_live_sessions: bool,
    /// How long a device that is shut out stays in the data plane, so that its packets are counted as what they are, ms.
    pub wipe_after_ms: u64,
    /// Who leaves when every place is taken.
    pub eviction: Eviction,
    /// How long a period of attestation lasts, s; at most an hour.
    pub attest_period_s: u32,
    /// From one round of `p4dra-classic` to the next, s; at most a day.
    pub p4dra_round_s: u32,
}

impl Settings {
    /// Blocks of 4 rows, as LAP/1 1.4.6 has them; changes every 50 ms; a day without the controller.
    #[must_use]
    pub fn for_plane(config: &Config) -> Self {
        Self {
            gateway: config.gateway_id,
            mark_block: 4,
            low_credit: config.low_credit,
            ring: config.geometry.ring,
            low_rows: config.low_rows,
            feed_poll_ms: 50,
            link_lease_s: 86_400,
            spare_live_sessions: config.gate != Gate::Off,
            wipe_after_ms: WIPE_AFTER_MS,
            eviction: Eviction::default(),
            attest_period_s: ATTEST_PERIOD_S_MAX,
            p4dra_round_s: P4DRA_ROUND_S,
        }
    }

    /// Checks that the numbers fit together.
    ///
    /// # Errors
    /// The field that does not.
    pub fn check(&self) -> Result<(), SettingsError> {
        self.problems().into_iter().next().map_or(Ok(()), Err)
    }

    /// All that does not fit together.
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
        // The packet path looks that many places ahead in the ring; further ones are its beginning again.
        if self.low_rows >= self.ring.max(1) {
            let allowed = format!("less than `ring`, which is {}", self.ring);
            refuse("low_rows", self.low_rows.into(), allowed);
        }
        if !(1..=60_000).contains(&self.feed_poll_ms) {
            refuse("feed_poll_ms", self.feed_poll_ms, "1 to 60000".to_owned());
        }
        if self.link_lease_s == 0 {
            refuse("link_lease_s", 0, "at least 1".to_owned());
        }
        if !(1..=ATTEST_PERIOD_S_MAX).contains(&self.attest_period_s) {
            let allowed = format!("1 to {ATTEST_PERIOD_S_MAX}");
            refuse("attest_period_s", self.attest_period_s.into(), allowed);
        }
        if !(1..=P4DRA_ROUND_S_MAX).contains(&self.p4dra_round_s) {
            let allowed = format!("1 to {P4DRA_ROUND_S_MAX}");
            refuse("p4dra_round_s", self.p4dra_round_s.into(), allowed);
        }
        problems
    }
}

/// A setting that does not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} = {value}: allowed is {allowed}")]
pub struct SettingsError {
    /// Its name.
    pub field: &'static str,
    /// What was given.
    pub value: u64,
    /// What would do.
    pub allowed: String,
}

/// Why other settings do not come into force.
#[derive(Debug, thiserror::Error)]
pub enum ReconfigureError {
    /// They do not fit together.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The data plane's sizes or gate.
    #[error("the sizes of the data plane and its gate are fixed while it runs")]
    Fixed,
    /// The data plane refuses them.
    #[error(transparent)]
    DataPlane(#[from] DataPlaneError),
}
