//! Errors of the agent, of its helper data and of its list of spent rows.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use linewarden_puf::extractor::FileError;

/// An error that ends the agent.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// No random bytes are available.
    #[error("reading random bytes failed: {0}")]
    Entropy(getrandom::Error),
    /// Waiting for descriptors failed.
    #[error("waiting for packets failed: {0}")]
    Wait(io::Error),
    /// The local address of a tunnel is not available.
    #[error("listening on {listen} for the tunnel to {service} failed: {source}")]
    Listen {
        /// Address for local programs.
        listen: SocketAddr,
        /// The service at the end of the tunnel.
        service: SocketAddr,
        /// The operating system's error.
        #[source]
        source: io::Error,
    },
    /// The local address of a peer is not available.
    #[error("listening on {listen} for the programs of a peer failed: {source}")]
    ListenForPeer {
        /// Address for local programs.
        listen: SocketAddr,
        /// The operating system's error.
        #[source]
        source: io::Error,
    },
    /// Attestation cannot be started.
    #[error("starting attestation failed: {0}")]
    Attest(io::Error),
    /// The device state machine refused a nonce.
    #[error("starting a handshake failed: {0}")]
    Start(linewarden_protocol::device::StartError),
}

/// Why helper data cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    /// The file cannot be opened.
    #[error("{}: {source}; expected the helper data of this device's enrollment", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        #[source]
        source: std::io::Error,
    },
    /// The file is neither kind of helper data.
    #[error("{}: not helper data of pool mode (LWHP) or key mode (LWHK)", path.display())]
    Kind {
        /// The file.
        path: PathBuf,
    },
    /// The content is invalid.
    #[error(transparent)]
    Content(#[from] FileError),
    /// The file of spent rows cannot be used.
    #[error(transparent)]
    Spent(#[from] SpentError),
}

/// Why the file of spent rows cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SpentError {
    /// The file cannot be read.
    #[error("{}: {source}; expected the list of spent rows of this device", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        #[source]
        source: io::Error,
    },
    /// The file is damaged.
    #[error(
        "{}: list of spent rows is damaged; enroll the device again, or remove the file if the registry was never restored to an earlier state",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
    },
}
