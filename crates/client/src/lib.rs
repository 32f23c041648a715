//! A controller's API from the other end: typed questions over TLS, by a token or a certificate.
//!
//! What is sent and what comes back are the service's own types ([`linewarden_service::wire`]). Every write carries a key of its own, by
//! which the controller knows it again: it is repeated where a connection breaks, a controller is away or too busy, until [patience]
//! has run out, and is done once.
//!
//! [patience]: ClientOptions::patience
#![forbid(unsafe_code)]

mod ask;
mod connection;
mod error;
mod events;
mod patience;
mod questions;

pub use connection::{Client, ClientOptions, Secrets};
pub use error::ClientError;
pub use events::Events;
pub use questions::Treatment;
