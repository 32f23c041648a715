//! The link between gateway and controller over gRPC: what a gateway asks its controller, on a network between them (LAP/1 1.4.11).
//!
//! ```text
//!   gateway                                      controllers
//!   ┌─────────────────┐   gRPC, mutual TLS   ┌──────────────────┐
//!   │ Client          │─────────────────────►│ Server           │──► Controller, one of many over one registry
//!   │ one at a time,  │                      │ who asks: by the │
//!   │ the next if it  │─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─►│ certificate only │
//!   │ does not answer │                      └──────────────────┘
//!   └─────────────────┘
//! ```
//!
//! A gateway is who its certificate names, `urn:linewarden:gateway:N`. It shows the fence of its registration with each question, so that a
//! process that was replaced gets nothing, whichever controller it asks; and a number that is drawn for each connection, by which a
//! controller knows that what it remembers of the gateway may be old. All questions may be repeated.
//!
//! What it does not do: it listens nowhere by itself, and it keeps nothing on a disk.
#![forbid(unsafe_code)]

mod client;
mod convert;
mod identity;
pub mod proto;
mod server;

pub use client::{Client, ClientOptions, Identities, Remote};
pub use identity::{PeerGateway, gateway_of, gateway_uri};
pub use server::{MESSAGE_BYTES_MAX, SHORT_MESSAGE_BYTES_MAX, Server, Surroundings, TellSink, Told};
