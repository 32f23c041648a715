//! The device side of LAP/1 on Linux: a PUF, a socket, and a session that the agent keeps open.
//!
//! ```text
//!   gateway ◄── UDP ──► Agent ── poll(2): socket, deadline, stop
//!                         │
//!                         ├─ protocol::device::Device   decides (no I/O)
//!                         ├─ Tunnels                    sealed datagrams of local programs to services
//!                         ├─ Peers                      sealed datagrams of local programs to other devices
//!                         ├─ Attestation                proofs and evidence of the device's configuration
//!                         ├─ Renewal                    new rows or a new key, by tickets to the controller
//!                         ├─ Keyring                    current, new and previous helper data on disk; spent rows
//!                         └─ Puf                        simulated · readouts · external command
//! ```
//!
//! [`Agent::run`] authenticates and re-authenticates until it is stopped, and reports each change as an [`AgentEvent`].
//! A [`Tunnel`] carries datagrams of local programs through a sealed gate. The session key stays in the device state
//! machine.
//!
//! The crate does not enroll devices in a registry, and it does not authenticate devices: the gateway does. The protocol itself,
//! without I/O, is in `linewarden_protocol`.
//!
//! | Module | Contents |
//! |---|---|
//! | [`source`] | sources of PUF bits: a program, or a simulation |
//! | [`attest`] | attestation: measurement, proofs, evidence, and the enrollment of the device's TPM |
#![forbid(unsafe_code)]

mod agent;
pub mod attest;
mod credential;
mod device_socket;
mod error;
mod event;
mod handshake_diagnosis;
mod keyring;
mod link;
mod peer;
mod renewal;
mod retry;
mod session_endpoints;
pub mod source;
mod spent;
mod ticket;
mod time;
mod tunnel;

pub use agent::{Agent, AgentOptions, RunOutcome};
pub use attest::AttestOptions;
pub use credential::Credential;
pub use error::{AgentError, CredentialError, SpentError};
pub use event::{AgentEvent, LOSS_COUNTERS, TunnelCounts};
pub use keyring::{Keyring, remove_previous};
pub use link::{LinkError, interface_mac};
pub use peer::Peer;
pub use renewal::{ROWS_MAX, RenewalOptions};
pub use spent::{SpentFile, SpentRows};
pub use tunnel::Tunnel;
