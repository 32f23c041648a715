//! The controller: leases rows to gateways, handles tickets of devices, and verifies attestation. The controller owns the
//! registry. A gateway gets only the keys of its own rows; row keys stay in the controller.
//!
//! ```text
//!   gateway                                              controller                              registry
//!   first REQUEST of a device ────── AdmissionRequest ─► CHALLENGE for the next row             (no write)
//!   the device's RESPONSE ────────── AdmissionRequest ─► verify, lease, derive keys           ► lease
//!   rows or credit low ───────────── RowRequest ───────► more rows, the mark ahead            ► lease
//!   device evicted, or gateway stops ─ UnusedRows ─────► unused rows return to the pool       ► lease
//!   session opened ───────────────── SessionReport ────► verify, end older sessions elsewhere ► newest session
//!   polling ──────────────────────── changes_since ────► enrollments, revocations, newer sessions
//!   ticket of a device ───────────── handle_ticket ────► renew rows or keys, pair, evidence   ► change, ticket number
//!   attestation round ────────────── Verifier ─────────► keys before, decisions after         ► appraisals
//!   evidence of the data plane ───── trust ────────────► appraisal; no rows while untrusted   ► fencing token
//! ```
//!
//! Every write is durable before the controller responds. The controller leases a device's rows to a gateway only after
//! the device has proved one of the rows at this gateway, so unauthenticated requests use up no rows. The ranges of
//! different gateways are disjoint, and each gateway gets its own keys (LAP/1 1.1, 1.4.6). A request under a stale fencing
//! token is rejected. The crate opens no socket. Callers pass times and random numbers, for
//! example those of [`MachineEnvironment`].
//!
//! | module | content |
//! |---|---|
//! | `admission` | first authentication of a device at a gateway |
//! | [`attest`] | attestation plan, keys, appraisal, quarantine and results |
//! | `denial` | rejected requests of gateways |
//! | `environment` | [`Environment`]: clocks and random numbers; [`MachineEnvironment`] reads those of the machine |
//! | `in_process` (feature) | a controller in the process of the gateway, for lab and tests |
//! | `keys` | derivation of one gateway's keys |
//! | `link` | [`Controller`], and [`Link`]: one registration of one gateway |
//! | `report` | session reports |
//! | `serve` | [`Serve`]: each request of a gateway |
//! | `ticket` | tickets of devices |
//! | [`trust`] | evidence of gateways |
//!
//! ```no_run
//! use linewarden_controller::{Controller, Policy};
//! use linewarden_protocol::ids::GatewayId;
//! use linewarden_registry::{Registry, RegistryError};
//! use linewarden_types::Revision;
//!
//! # async fn example(registry: Registry) -> Result<(), RegistryError> {
//! let controller = Controller::new(registry, Policy::default());
//! let link = controller.register(GatewayId(7), 1_790_000_000).await?;
//! let changes = link.changes_since(Revision::ZERO, None).await?;
//! println!("{} devices have changed", changes.changes.len());
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod admission;
pub mod attest;
mod denial;
mod environment;
#[cfg(feature = "in-process")]
mod in_process;
mod keys;
mod link;
mod report;
mod serve;
mod ticket;
pub mod trust;

pub use denial::Denial;
pub use environment::{Environment, MachineEnvironment, random};
#[cfg(feature = "in-process")]
pub use in_process::{InProcess, InProcessController};
pub use link::{Controller, LeaseReader, Link, Policy, ROWS_HELD_MAX};
pub use serve::{RequestObserver, Serve, ServeContext, VerifierSlot};
pub use ticket::RelayContext;
