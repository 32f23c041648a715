//! The verifier's side of attestation (RFC 9334; LAP/1 3.2): which keys a gateway gets, which rounds it may open, and what
//! follows from what it saw.
//!
//! ```text
//!   gateway                                        controller                         registry
//!   what is to be attested ──── PlanWish ────────► periods, groups, round numbers  ► numbers and periods, durable
//!   keys of a period, ahead ─── provers ─────────► kg and request keys             (nothing is written)
//!   a round has ended ───────── RoundOutcome ────► m of N, quarantine, readmission ► round, appraisals, durable
//!   a device's log ──────────── ticket ──────────► does it explain, does it match? ► the evidence
//! ```
//!
//! One [`Verifier`] serves one gateway. Quarantine reaches the gateways as revocations do, by the feed of changes, so that
//! the gate closes at all of them.

mod appraise;
mod evidence;
mod keys;
mod plan;
mod results;
mod standing;
mod unanswered;
mod verifier;

pub use appraise::{Appraised, Quarantined, RoundOutcome, Verdict};
pub(crate) use evidence::Inbox;
pub use evidence::examine;
pub use keys::{ProverIds, ProverProvision, Provers};
pub use plan::{GroupPlan, Plan, PlanWish};
pub use results::{Outcome, ResultsError, SUBMODULES_MAX, Signer};
pub use standing::{Decision, Seen, Standing};
pub use unanswered::Unanswered;
pub use verifier::Verifier;
