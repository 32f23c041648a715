//! The controller: who may use which rows. It owns the registry; a gateway gets from it the keys of its own rows, and
//! nothing else.
//!
//! ```text
//!   gateway                                         controller                      registry
//!   first REQUEST of a device here ── Knock ──────► a CHALLENGE for the next row     (nothing is written)
//!   its RESPONSE ─────────────────── Knock ──────► verifies, leases, derives keys ► lease, durable
//!   rows or credit low ───────────── Want ───────► more rows, the mark ahead      ► lease, durable
//!   room needed, or the end ──────── Settlement ─► unused rows go back            ► lease, durable
//!   a session was opened ─────────── SessionReport ► verifies, older ones elsewhere end ► where the device is, durable
//!   now and then ─────────────────── changes ────► what was enrolled and revoked, who is elsewhere by now
//!   a device's ticket ────────────── ticket ─────► opens it, renews rows or key   ► the change and its number, durable
//!   a round of attestation ───────── Verifier ───► keys before, decisions after   ► what it has shown, durable
//!   what its data plane runs ─────── trust ──────► appraises; no rows without it   ► a fence, where it is another thing
//! ```
//!
//! A device's rows are leased to a gateway only after the device has proved there that it holds one of them, so nobody
//! strands rows by asking; ranges are disjoint, and each gateway gets keys of its own (LAP/1 1.1, 1.4.6). What is
//! asked under an old fence is refused. Nothing here opens a socket or reads a clock.
#![forbid(unsafe_code)]

mod admit;
pub mod attest;
mod keys;
mod link;
mod message;
mod report;
mod ticket;
pub mod trust;

pub use link::{Controller, Leases, Link, Policy, ROWS_HELD_MAX};
pub use message::{
    Changes, Chunk, Denial, Elsewhere, Knock, Provision, Reception, Refusal, Refused, Reported,
    SessionReport, Want,
};
pub use ticket::Carrier;
