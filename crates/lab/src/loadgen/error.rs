//! Why the load generator failed.

use std::time::Duration;

use crate::capability::MissingCapabilities;
use crate::netns::NetNsError;
use crate::packet_socket::PacketSocketError;

/// Why the generator could not be set up or read.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A capability is missing.
    #[error(transparent)]
    Capability(#[from] MissingCapabilities),
    /// The namespace could not be entered.
    #[error(transparent)]
    NetNs(#[from] NetNsError),
    /// The socket for the first REQUESTs failed.
    #[error(transparent)]
    Socket(#[from] PacketSocketError),
    /// Loading or attaching the program, or accessing a map, failed.
    #[error("load generator failed at {step}: {source}")]
    Bpf {
        /// The failed step.
        step: &'static str,
        /// The error of libbpf or the kernel.
        source: libbpf_rs::Error,
    },
    /// The plan is invalid.
    #[error("load generator plan invalid: {0}")]
    InvalidPlan(&'static str),
    /// Not all handshakes ended in time.
    #[error("load generator timeout: only {ended} of {window} handshakes ended within {timeout:?}")]
    Timeout {
        /// Number of handshakes that ended.
        ended: u64,
        /// Number of handshakes in the window.
        window: u32,
        /// The timeout.
        timeout: Duration,
    },
}
