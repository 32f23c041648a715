//! The link between gateways and controllers: gRPC over mutually authenticated TLS (LAP/1 1.4.11).
//!
//! ```text
//!   gateway                                      controllers
//!   ┌─────────────────┐   gRPC, mutual TLS   ┌──────────────────┐
//!   │ Client          │─────────────────────►│ Server           │──► Controller, one of several over one registry
//!   │ one controller  │                      │ the certificate  │
//!   │ at a time, the  │─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─►│ identifies the   │
//!   │ next on failure │                      │ gateway          │
//!   └─────────────────┘                      └──────────────────┘
//! ```
//!
//! The gateway's certificate names the gateway: `urn:linewarden:gateway:N`. Each request carries the fencing token of
//! the registration, so every controller rejects a process that was replaced, and a connection id, so a controller
//! discards the state of an older connection. Each request may be repeated.
//!
//! The crate opens no listening socket and stores nothing on disk.
//!
//! | module | content |
//! |---|---|
//! | `client` | [`Client`]: the gateway's end, with failover between controllers |
//! | `server` | [`Server`]: the controller's end; [`GatewayObserver`] receives its events |
//! | `convert` | conversion between messages and the types of controller and gateway |
//! | `identity` | the gateway's number in its certificate |
//! | [`proto`] | the generated messages |
//!
//! ```no_run
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use linewarden_link::{Client, ClientError, ClientOptions, Identities};
//!
//! # async fn example(identities: Arc<dyn Identities>) -> Result<(), ClientError> {
//! let client = Client::new(ClientOptions {
//!     controllers: vec!["controller.example:20557".to_owned()],
//!     identities,
//!     connect_timeout: Duration::from_secs(5),
//!     response_timeout: Duration::from_secs(10),
//!     version: "1.0.0".to_owned(),
//! });
//! let fencing_token = client.register().await?;
//! println!("registered with fencing token {fencing_token}");
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod client;
mod convert;
mod identity;
pub mod proto;
mod server;

pub use client::{Client, ClientError, ClientOptions, Identities};
pub use identity::{PeerGateway, gateway_of, gateway_uri};
pub use server::{
    GatewayObserver, MESSAGE_BYTES_MAX, SHORT_MESSAGE_BYTES_MAX, Server, ServerEnvironment, StatusReport,
};
