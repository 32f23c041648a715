//! The device's side of LAP/1 on Linux: a PUF behind a trait, a socket, a lease kept alive.
//!
//! ```text
//!   gateway ◄── UDP ──► Agent ── poll(2): socket, deadline, stop
//!                         │
//!                         ├─ protocol::device::Device   decides (no I/O)
//!                         ├─ Tunnels                    local programs' datagrams, sealed
//!                         ├─ Peers                      local programs' datagrams to other devices
//!                         ├─ Attestation                proves what the device runs
//!                         ├─ Renewal                    new rows or a new key, by tickets to the controller
//!                         ├─ Keyring                    helper data from a file, through their renewal; rows that are spent
//!                         └─ Puf                        simulated · readouts · external command
//! ```
//!
//! With [`Tunnel`]s it carries datagrams of local programs through a sealed gate, under the session's key.
//!
//! [`Agent::run`] authenticates and re-authenticates until it is told to stop and reports each change as a [`Report`].
//! What leaves this crate is never a key: the session's key stays in the device machine.
#![forbid(unsafe_code)]

mod agent;
pub mod attest;
pub mod config;
mod credential;
mod diagnosis;
mod ends;
mod keyring;
mod link;
mod peer;
mod renewal;
mod report;
pub mod source;
mod spent;
mod ticket;
mod time;
mod tunnel;
mod way;

pub use agent::{Agent, AgentError, AgentOptions, Ended};
pub use attest::AttestOptions;
pub use config::{AgentConfig, FieldError};
pub use credential::{Credential, CredentialError};
pub use keyring::{Keyring, remove_previous};
pub use link::{LinkError, interface_mac};
pub use peer::Peer;
pub use renewal::RenewalOptions;
pub use report::{LOSSES, Report, TunnelCounts};
pub use spent::{SpentError, SpentFile, SpentRows};
pub use tunnel::Tunnel;
