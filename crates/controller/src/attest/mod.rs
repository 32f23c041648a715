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
//!
//! | file | decides |
//! |---|---|
//! | `plan.rs` | the periods and round numbers of a gateway |
//! | `keys.rs` | the expected proofs: the keys of a gateway's provers in one period |
//! | `verifier.rs` | which provers a gateway gets, with the histories of these provers |
//! | `round.rs` | the appraisal of a round: attestation states, quarantine and release, durable before the response |
//! | `history.rs` | quarantine and release of one device after a round (m of N) |
//! | `outage.rs` | whether a round without any proof is an outage of the group, which excuses its devices |
//! | `evidence.rs` | whether evidence of a device is accepted and stored |
//! | `results.rs` | the signed attestation result (EAR) of a device |

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
