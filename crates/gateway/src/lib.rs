//! The gateway: one data plane, its devices and their rows, and a link to a controller.
//!
//! ```text
//!              ┌──── control thread: woken by events, responses and time ────┐
//!   frames     │                                                             │
//!  ─────────►  │  data plane ◄─── Node (no clock, no random numbers,         │
//!              │  events, misses ─►      no database, no threads of its own) │
//!              └──────────────────────▲───────────┬──────────────────────────┘
//!                  ControllerResponse │           │ ControllerRequest
//!                                     │           ▼
//!                             link to the controller
//! ```
//!
//! [`Node`] makes all decisions and never blocks. It gets the time and random numbers from its caller, drives a
//! [`DataPlane`](linewarden_dataplane::DataPlane), and sends [`ControllerRequest`](linewarden_types::ControllerRequest)s. The
//! [`ControllerResponse`](linewarden_types::ControllerResponse)s arrive later. [`Gateway`] runs a node: threads, clocks
//! and the link. [`TicketRelay`] relays tickets of devices to the controller. While the controller does not respond, the
//! node continues with its leases and sessions (LAP/1 1.4.6), and the data plane is not affected.
//!
//! | module | content |
//! |---|---|
//! | [`data_plane`] | start of the data plane, and removal of gates |
//! | `gateway` | [`Gateway`]: threads, clocks, link |
//! | `node` | [`Node`]: devices, rows, sessions, attestation, eviction |
//! | `dispatcher` | sends requests to the controller, in several queues, so that slow requests do not delay urgent requests |
//! | `ticket_relay` | [`TicketRelay`], with its rate limits |
//! | [`evidence_server`], `attester`, `evidence_source`, `packet_stamper` | signed evidence about the data plane |
//! | [`audit`] | the gateway audit log |
//! | [`addresses`] | addresses of interfaces |
#![cfg_attr(
    not(feature = "full"),
    allow(
        dead_code,
        unused_imports,
        unused_variables,
        irrefutable_let_patterns,
        reason = "data planes without a P4 switch need less"
    )
)]
#![forbid(unsafe_code)]

pub mod addresses;
mod attester;
pub mod audit;
#[cfg(feature = "full")]
pub mod data_plane;
mod dispatcher;
pub mod evidence_server;
mod evidence_source;
mod gateway;
mod node;
mod packet_stamper;
mod tasks;
mod ticket_relay;
mod time;

pub use attester::{Attester, AttesterError, SignedEvidence};
pub use dispatcher::DataPlaneInfo;
pub use evidence_source::EvidenceSource;
#[cfg(feature = "full")]
pub use evidence_source::SwitchAttester;
pub use gateway::{ConfigChange, DataPlaneHandle, Gateway, GatewayError, StopReport};
pub use node::{
    ATTEST_PERIOD_S_MAX, AttestStatus, Eviction, EvidenceRequest, LinkState, Node, PacketEvidenceStatus,
    ReconfigureError, Settings, SettingsError, Status, TicketCounts, TrustState, WIPE_AFTER_MS, WRONG_TAGS,
};
pub use packet_stamper::PacketStamper;
pub use ticket_relay::{TicketRelay, TicketRelayError, TicketSockets};
pub use time::Clock;
