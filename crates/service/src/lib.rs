//! The controller as a service: API and dashboard over TLS, metrics, gateways over gRPC.
//!
//! ```text
//!   browser, command line ─── HTTPS, token or certificate ──► api ──┐
//!   gateways ──────────────── gRPC, certificate ────────────► link ─┤──► registry (SQLite, or PostgreSQL for many controllers)
//!   Prometheus ────────────── /metrics ─────────────────────► fleet ┤
//!   NATS ◄─────────────────── JetStream ────────────────────── nats ┤
//!   OpenTelemetry ◄────────── OTLP ─────────────────────── telemetry ┘
//! ```
//!
//! A service keeps nothing that another one could not make anew: any number of them stand over one registry on PostgreSQL, and whoever
//! asks may ask any of them. Nothing here is on the way of an authentication.
#![forbid(unsafe_code)]

mod api;
mod auth;
mod clock;
mod dashboard;
mod error;
mod extract;
mod fleet;
mod gateways;
mod health;
mod idempotency;
mod limits;
mod listener;
mod metrics;
mod nats;
mod peer;
mod service;
mod shares;
mod state;
mod stream;
mod telemetry;
mod trust;

pub use api::{openapi, wire};
pub use nats::{NatsError, NatsOptions, NatsTls};
pub use peer::{user_of, user_uri, validity_s};
pub use service::{Service, ServiceError, ServiceOptions};
pub use telemetry::{TelemetryError, TelemetryOptions};
