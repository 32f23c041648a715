//! Servers for tests and benchmarks: PostgreSQL and nats-server.
//!
//! Each server is a process with its own temporary directory, which is removed on drop. The server stops when the
//! process that started the server ends, also after a crash of that process. Servers listen only on the given address.
//!
//! The crate is not for production: by default, commits need not survive a power failure, and the servers have no passwords.
//!
//! | Type | Server |
//! |---|---|
//! | [`Postgres`] | PostgreSQL with its own cluster, which tests can stop, kill and pause |
//! | [`Nats`] | nats-server, which tests can stop and kill |
//! | [`Unavailable`] | error: the server is not installed, or does not start; names the Debian package |
//!
//! A test skips itself if the server is not installed:
//!
//! ```no_run
//! use linewarden_testbed::{Postgres, PostgresOptions, Unavailable};
//!
//! match Postgres::start(PostgresOptions::default()) {
//!     Ok(server) => println!("{}", server.new_schema("fleet")?),
//!     Err(missing @ Unavailable::NotInstalled { .. }) => linewarden_harness::skip!("{missing}"),
//!     Err(error) => return Err(error.into()),
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod nats;
mod postgres;
mod process;

use std::net::IpAddr;

pub use nats::Nats;
pub use postgres::{Paused, Postgres, PostgresOptions};

/// An address and a port to listen on.
#[derive(Clone, Copy, Debug)]
pub struct Listen {
    /// The address.
    pub address: IpAddr,
    /// The port.
    pub port: u16,
}

/// Why a server is not available.
#[derive(Debug, thiserror::Error)]
pub enum Unavailable {
    /// The server is not installed.
    #[error("{program} not found; install the Debian package {package}")]
    NotInstalled {
        /// The program.
        program: &'static str,
        /// The Debian package of the program.
        package: &'static str,
    },
    /// The server is installed, but does not start.
    #[error("starting {program} failed: {detail}")]
    StartFailed {
        /// The program.
        program: &'static str,
        /// Error output of the program, or the I/O error.
        detail: String,
    },
}
