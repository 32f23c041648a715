//! How a node stands, for people and tests.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::desk::Counts as DeskCounts;

/// Whether the controller answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum LinkState {
    /// It did last time.
    #[default]
    Reachable,
    /// It did not; the node goes on with what it holds and tries again.
    Lost {
        /// What it said.
        error: String,
    },
}

/// How the controller takes what the data plane is measured to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum TrustState {
    /// It has seen nothing yet, and gives no rows.
    Unproven,
    /// It is what it should be.
    Trusted,
    /// It is not, and has no rows.
    Distrusted {
        /// What differs, or what was wrong.
        why: String,
    },
}

/// How attestation stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AttestStatus {
    /// Provers that this gateway has keys of.
    pub provers: u64,
    /// Provers for which there is no room in the data plane.
    pub provers_refused: u64,
    /// Groups.
    pub groups: u64,
    /// The period that runs.
    pub period: u64,
    /// The last round that ended.
    pub round: u32,
    /// Rounds that were decided about.
    pub rounds: u64,
    /// Rounds that were forgotten because the controller was away.
    pub rounds_lost: u64,
    /// Requests sent.
    pub requests: u64,
    /// Devices that could not be asked in the last round of their group: nothing can be sent to them from here.
    pub unreached: u64,
    /// Devices quarantined.
    pub quarantined: u64,
    /// Devices let in again.
    pub readmitted: u64,
    /// Devices that were shut out and may come again, which this gateway has not seen prove themselves.
    pub reopened: u64,
    /// Devices here that are to be attested, where the data plane attests nobody.
    pub not_attested: u64,
}

/// How `p4dra-classic` stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct P4draStatus {
    /// Provers that are asked.
    pub provers: u64,
    /// Rounds that have ended since the node started.
    pub rounds: u64,
    /// Provers that were ok in the last round that ended.
    pub verified: u64,
    /// Provers that were not.
    pub silent: u64,
    /// Rounds that were not sent out of every interface.
    pub unsent: u64,
}

/// What became of packets that have passed the gate, where they carry evidence of the data plane.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct InPacketsStatus {
    /// With evidence.
    pub stamped: u64,
    /// Without: no IPv6.
    pub not_ipv6: u64,
    /// Without: nothing was measured yet, or lately.
    pub stale: u64,
    /// Without: too long for their way with it, or malformed.
    pub unfit: u64,
}

/// Counts and states of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Status {
    /// Whether all that this gateway held when it stopped is here again.
    pub loaded: bool,
    /// How far that is, out of what.
    pub resumed: (u64, u64),
    /// Whether the node is about to stop.
    pub stopping: bool,
    /// Devices in the data plane that may authenticate.
    pub devices: u64,
    /// Devices that wait for rows.
    pub rows_waited_for: u64,
    /// Devices that wait for a place in the data plane.
    pub no_room: u64,
    /// Devices revoked since the node started.
    pub revoked: u64,
    /// Devices admitted by the slow path.
    pub admitted: u64,
    /// Messages of unknown devices for which there was no room on the way to the controller.
    pub visitors_turned_away: u64,
    /// Messages that the data plane did not take once their devices were there: these had to repeat them.
    pub replays_failed: u64,
    /// Devices that had to leave for others.
    pub evicted: u64,
    /// Rows that went back to their pools.
    pub rows_given_back: u64,
    /// Another process has registered as this gateway.
    pub replaced: bool,
    /// Nothing is answered any more: replaced, or too long without the controller.
    pub lapsed: bool,
    /// Devices for which the registry has no more rows; they spend the last ones that the data plane holds.
    pub exhausted: u64,
    /// REQUESTs of devices that are not here that were answered with a NAK: the registry has no row left for them.
    pub unserved: u64,
    /// Records of the registry that could not be used.
    pub damaged: u64,
    /// Sessions opened, as far as events were not lost.
    pub sessions_opened: u64,
    /// Sessions closed because their devices have newer ones at other gateways.
    pub sessions_closed: u64,
    /// Reports of sessions for which there was no room while the controller was away.
    pub reports_dropped: u64,
    /// Reports of sessions that proved nothing to the controller.
    pub reports_refused: u64,
    /// Wrong tags reported (rate-limited; the counters hold them all).
    pub wrong_tags: u64,
    /// Likewise, wrong proofs.
    pub wrong_proofs: u64,
    /// Rows handed to the data plane.
    pub rows_given: u64,
    /// Draws of a freshness value that gave none.
    pub draws_failed: u64,
    /// Configurations that came into force while the gateway ran.
    pub reloads: u64,
    /// Configurations that were refused while the gateway ran.
    pub reloads_refused: u64,
    /// Audit records that could not be written.
    pub audit_lost: u64,
    /// Whether the audit record cannot be written now.
    pub audit_failing: bool,
    /// Whether the data plane's events cannot be read.
    pub events_failing: bool,
    /// Why the data plane no longer handles packets, if it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plane_failure: Option<String>,
    /// Attestation; all zero where nobody is to be attested.
    pub attest: AttestStatus,
    /// `p4dra-classic`; `None` where it is off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p4dra: Option<P4draStatus>,
    /// Whether the controller trusts this gateway; `None` where it asks for no evidence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trust: Option<TrustState>,
    /// Times that evidence was wanted and the data plane could not be measured.
    pub unmeasured: u64,
    /// Evidence in packets; `None` where they carry nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_packets: Option<InPacketsStatus>,
    /// Frames other than IP that the gate has dropped, by the name of their Ethernet type or its number; those that found no place of
    /// their own are `other`. Empty where there is no gate, or it does not count them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub dropped_types: BTreeMap<String, u64>,
    /// What became of devices' tickets; `None` where none are taken, or none has come yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tickets: Option<DeskCounts>,
    /// The link to the controller.
    pub link: LinkState,
}
