//! The verifier's part of attestation (RFC 9334; LAP/1 3.2): a gateway's keys, its rounds, and the decisions.
//!
//! ```text
//!   gateway                                        controller                         registry
//!   attestation plan ────────── PlanRequest ─────► periods, groups, round numbers  ► numbers and periods, durable
//!   keys of a period, ahead ─── provers ─────────► period keys and request keys    (nothing is written)
//!   a round has ended ───────── RoundOutcome ────► m of N, quarantine, release     ► round, appraisals, durable
//!   a device's TCG event log ── ticket ──────────► check of the evidence           ► the evidence
//! ```
//!
//! One [`Verifier`] serves one gateway. A quarantine reaches all gateways through the change feed, like a revocation,
//! so every gateway blocks the device.

mod evidence;
mod history;
mod keys;
mod outage;
mod plan;
mod results;
mod round;
mod verifier;

pub(crate) use evidence::EvidenceInbox;
pub use evidence::examine;
pub use history::{Decision, ProverHistory};
pub use results::{DeviceResult, ResultsError, SUBMODULES_MAX, Signer};
pub use round::round_record;
pub use verifier::Verifier;
