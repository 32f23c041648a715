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
//! The gateway's certificate names the gateway: `urn:linewarden:gateway:N`. A controller on the same machine may serve a
//! Unix socket instead: the file's mode controls access, and the host of the request's URI names the gateway. Each
//! request carries the fencing token of the registration, so every controller rejects a process that was replaced, and a
//! connection id, so a controller discards the state of an older connection. Each request may be repeated. A request
//! also carries the number of abandoned requests; a controller then refuses those requests.
//!
//! The crate opens no listening socket and stores nothing on disk. The controller's end of the link is in
//! `linewarden-service`.
//!
//! | module | content |
//! |---|---|
//! | `client` | [`Client`]: the gateway's end, with failover between controllers |
//! | `calls` | [`MessageCall`]: a request and its response as messages |
//! | `failure` | errors of requests |
//! | `pending_request` | counts the requests that the client abandons |
//! | [`convert`] | conversion between messages and domain types |
//! | `identity` | the gateway's number in its certificate |
//! | [`proto`] | the generated messages |
//!
//! ```no_run
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use linewarden_link::{Client, ClientOptions, Controllers, Identities, RemoteController};
//! use linewarden_types::{ControllerLink, LinkError, ListChanges, Revision};
//!
//! # async fn example(identities: Arc<dyn Identities>) -> Result<(), LinkError> {
//! let client = Client::new(ClientOptions {
//!     controllers: Controllers::Remote {
//!         addresses: vec!["controller.example:20560".to_owned()],
//!         identities,
//!     },
//!     connect_timeout: Duration::from_secs(5),
//!     response_timeout: Duration::from_secs(10),
//!     version: "1.0.0".to_owned(),
//! });
//! let controller: &dyn ControllerLink = &RemoteController::from(client);
//! let (changes, _) = controller.call(ListChanges { since: Revision::ZERO }).await?;
//! println!("{} devices have changed", changes.changes.len());
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod calls;
mod client;
pub mod convert;
mod failure;
mod identity;
mod pending_request;
pub mod proto;

pub use calls::{MessageCall, RegisteredMessage};
pub use client::{Client, ClientOptions, Controllers, Identities, RemoteController};
pub use identity::{PeerGateway, gateway_of, gateway_of_authority, gateway_uri, socket_authority};

/// Maximum length of a message, bytes: evidence with its inventory.
pub const MESSAGE_BYTES_MAX: usize = 32 << 20;
/// Maximum length of a gateway's message except evidence and appraisals, bytes. It allows [`convert::ENTRIES_MAX`] entries
/// below 256 bytes each. A message is decoded before its registration is checked. An entry without fields takes 2 bytes on
/// the wire and 56 in memory, so decoding allocates at most 14 MiB, even if the list's capacity has just doubled. The
/// lists of evidence and appraisals, which may be longer, contain only 8-byte numbers.
pub const SHORT_MESSAGE_BYTES_MAX: usize = 256 << 10;
/// Length of the connection id, bytes.
pub const CONNECTION_BYTES: usize = 16;
/// The trailer that contains the reason of a rejection.
pub const DENIAL: &str = "linewarden-denial";
/// Reason of a rejection: the registry was restored to an earlier state; the process registers again.
pub const RESTORED: &str = "restored";
/// Reason of a rejection: the gateway's evidence is missing or was not affirmed.
pub const UNTRUSTED: &str = "untrusted";
/// Reason of a rejection: a failure of this controller or its registry.
pub const FAILED: &str = "failed";
/// Reason of a rejection: the gateway has exceeded a limit of concurrent requests or of registrations.
pub const LIMITED: &str = "limited";
/// Reason of a rejection: the gateway abandoned a request after it had sent this request.
pub const OUTDATED: &str = "outdated";
/// Reason of a rejection: another process is registered as this gateway, or the gateway was revoked.
pub const REPLACED: &str = "replaced";
