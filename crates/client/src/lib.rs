//! Client of a controller's REST API: typed requests over TLS, authenticated by a token or a certificate.
//!
//! Requests and responses are the types of [`linewarden_api`], which the service also uses. The client retries a request until
//! the [retry timeout] if the connection breaks or the controller is unreachable or too busy. Every request that changes
//! data has its own idempotency key, so that the controller executes a retried request only once.
//!
//! The crate does not read files or configuration: callers pass certificates and tokens.
//!
//! | module | contents |
//! |---|---|
//! | `connection` | [`Client`], its options and credentials |
//! | `endpoints` | one method per API endpoint |
//! | `request`, `retry` | sending, parsing, retries |
//! | `events` | [`EventStream`], which resumes after a broken connection |
//! | `error` | [`ClientError`] |
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use linewarden_client::{Client, ClientError, ClientOptions, Credentials};
//!
//! # async fn example() -> Result<(), ClientError> {
//! let client = Client::new(ClientOptions {
//!     server: "https://controller.example:20560".to_owned(),
//!     ca: None,
//!     credentials: Credentials::Token(String::from("the token").into()),
//!     retry_timeout: Duration::from_secs(10),
//! })?;
//! println!("{:?}", client.current_user().await?);
//! # Ok(())
//! # }
//! ```
//!
//! [retry timeout]: ClientOptions::retry_timeout
#![forbid(unsafe_code)]

mod connection;
mod endpoints;
mod error;
mod events;
mod request;
mod retry;

pub use connection::{Client, ClientOptions, Credentials};
pub use endpoints::DeviceAction;
pub use error::ClientError;
pub use events::EventStream;
