//! Servers that tests and measurements start for themselves: PostgreSQL and nats-server.
//!
//! Each is a process of its own in a directory of its own, and both are gone when who started it is, in whatever way that ends.
//! Nothing listens but where it is asked to. Where a machine lacks a server, [`Missing`] says which package has it: a test prints
//! that and skips itself.
#![forbid(unsafe_code)]

mod nats;
mod postgres;
mod process;

use std::net::IpAddr;

pub use nats::Nats;
pub use postgres::{Paused, Postgres, PostgresOptions};

/// An address and a port.
#[derive(Clone, Copy, Debug)]
pub struct Listen {
    /// The address.
    pub address: IpAddr,
    /// The port.
    pub port: u16,
}

/// What this machine lacks, and where it is to be had.
#[derive(Debug, thiserror::Error)]
pub enum Missing {
    /// A program that is not installed.
    #[error("no {program} on this machine; Debian has it in the package {package}")]
    Program {
        /// What was looked for.
        program: &'static str,
        /// Where it is.
        package: &'static str,
    },
    /// It is there, and does not start.
    #[error("{program} does not start: {detail}")]
    Start {
        /// What was started.
        program: &'static str,
        /// What it said.
        detail: String,
    },
}
