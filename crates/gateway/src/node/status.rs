//! How a node stands, for people and tests.

use serde::Serialize;

/// Whether the registry answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum RegistryState {
    /// It did last time.
    #[default]
    Reachable,
    /// It did not; the node goes on with what it holds and tries again.
    Lost {
        /// What it said.
        error: String,
    },
}

/// Counts and states of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Status {
    /// Whether the whole fleet has been read from the registry.
    pub loaded: bool,
    /// Whether the node is about to stop.
    pub stopping: bool,
    /// Devices in the data plane that may authenticate.
    pub devices: u64,
    /// Devices that wait for rows.
    pub rows_waited_for: u64,
    /// Devices that the data plane had no room for.
    pub no_room: u64,
    /// Devices revoked since the node started.
    pub revoked: u64,
    /// Devices for which the registry has no more rows; they spend the last ones that the data plane holds.
    pub exhausted: u64,
    /// Records of the registry that could not be used.
    pub damaged: u64,
    /// Sessions opened, as far as events were not lost.
    pub sessions_opened: u64,
    /// Wrong tags reported (rate-limited; the counters hold them all).
    pub wrong_tags: u64,
    /// Rows handed to the data plane.
    pub rows_given: u64,
    /// Draws of a freshness value that gave none.
    pub draws_failed: u64,
    /// Whether the data plane's events cannot be read.
    pub events_failing: bool,
    /// Why the data plane no longer handles packets, if it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plane_failure: Option<String>,
    /// The registry.
    pub registry: RegistryState,
}
