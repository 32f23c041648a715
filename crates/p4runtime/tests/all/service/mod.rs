//! Server and client of P4Runtime.

mod programs;
mod properties;
mod requests;
mod rules;
mod session;
mod shell;
mod support;
mod tls;
