//! The node: one data plane, its devices and their rows, its link to a controller.
//!
//! ```text
//!              ┌──── control thread: woken by events, answers, time ───┐
//!   packets    │                                                       │
//!  ─────────►  │  data plane ◄─── Node (no clock, no randomness,       │
//!              │  events, misses ─►      no database of its own)       │
//!              └──────────────────────▲───────────┬────────────────────┘
//!                              Answer │           │ Ask
//!                                     │           ▼
//!                             the link to the controller
//! ```
//!
//! [`Node`] decides everything and waits for nothing: it is told the time, draws randomness from its caller, drives a
//! [`DataPlane`](linewarden_dataplane::DataPlane), and asks the controller by [`Ask`]s whose [`Answer`]s come whenever
//! they come. [`Desk`] takes what devices ask of the controller end to end, and hands it on. [`Gateway`] is the shell around it: the threads, the clocks, the link. While the controller is away, the
//! node goes on with what it holds (LAP/1 1.4.6); the packet path notices nothing.
#![forbid(unsafe_code)]

pub mod addresses;
mod attester;
pub mod audit;
pub mod classic;
pub mod config;
mod desk;
pub mod evidence_desk;
mod evidence_source;
mod exchange;
mod feeder;
mod gateway;
mod in_packets;
mod node;
pub mod p4dra;
pub mod plane;
mod tasks;
mod time;

pub use attester::{Attester, AttesterError, Shown};
pub use desk::{Counts as DeskCounts, Desk, DeskError, DeskSockets};
pub use evidence_source::{EvidenceSource, SwitchAttester};
pub use exchange::{Answer, Ask, LinkError};
pub use feeder::{About, ControllerLink};
pub use gateway::{Change, Gateway, GatewayError, PlaneHandle, Stopped};
pub use in_packets::InPackets;
pub use node::{
    AttestStatus, Eviction, InPacketsStatus, LinkState, Node, P4draStatus, ReconfigureError, Settings,
    SettingsError, Status, TrustState, WRONG_TAGS,
};
pub use time::Clock;
