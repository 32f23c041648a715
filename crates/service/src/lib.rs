//! The controller service: HTTP API and dashboard over TLS, Prometheus metrics, and the gRPC link for gateways.
//!
//! ```text
//!   browser, command line ─── HTTPS, token or certificate ──► api ──┐
//!   gateways ──────────────── gRPC, certificate ────────────► link ─┤──► registry (SQLite, or PostgreSQL for many controllers)
//!   Prometheus ────────────── /metrics ─────────────────────► fleet ┤
//!   NATS ◄─────────────────── JetStream ────────────────────── nats ┤
//!   OpenTelemetry ◄────────── OTLP ─────────────────────── telemetry ┘
//! ```
//!
//! | Module | Content |
//! |---|---|
//! | `service`, `listener` | start and stop, TLS connections and their limits |
//! | `api`, `auth`, `idempotency`, `error` | HTTP API v1, its users, repeatable writes and errors |
//! | `local` | the API over a registry that the process opens, for local administration |
//! | `dashboard` | the web dashboard, compiled into the program |
//! | `gateways`, `link` | gRPC routes for gateways, and the controller's end of the link |
//! | `fleet`, `trust` | the state of all gateways |
//! | `stream`, `nats` | events for API clients and NATS subscribers |
//! | `metrics`, `telemetry` | Prometheus metrics and OpenTelemetry traces |
//! | `limits`, `permits`, `reference_limits` | rate and concurrency limits |
//!
//! Requests and responses are the types of [`linewarden_api`]; [`convert`] converts devices for export files and imports.
//!
//! All state is in the registry. Any number of services can share one registry on PostgreSQL, and clients may use any
//! of these services. Gateways authenticate devices without the service. The service does not issue certificates. For
//! decisions on attestation results, the service calls [`linewarden_controller`].
//!
//! # Example
//! ```
//! assert_eq!(linewarden_service::user_uri("alice"), "urn:linewarden:user:alice");
//! assert!(linewarden_service::openapi().contains("\"/api/v1/devices\""));
//! ```
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
mod link;
mod listener;
mod local;
mod metrics;
mod nats;
mod peer;
mod permits;
mod reference_limits;
mod service;
mod state;
mod stream;
mod telemetry;
mod trust;

pub use api::{convert, openapi};
pub use listener::socket::SocketOptions;
pub use local::{LocalApi, local_action};
pub use nats::{NatsError, NatsOptions, NatsTls};
pub use peer::{user_from_certificate, user_uri, validity_s};
pub use service::{ApiOptions, Service, ServiceError, ServiceOptions};
pub use telemetry::{TelemetryError, TelemetryOptions};
