//! Errors of the P4 switch as a data plane.

use linewarden_p4runtime::client::ClientError;
use linewarden_p4runtime::p4info::P4InfoError;

/// An operation between this data plane and its switch failed.
#[derive(Debug, thiserror::Error)]
pub enum SwitchError {
    /// A thread or a file descriptor could not be created.
    #[error("starting the P4Runtime client failed: {0}")]
    Runtime(#[source] std::io::Error),
    /// The switch's address is not a URI.
    #[error("invalid switch address {address}: {source}")]
    Address {
        /// The configured address.
        address: String,
        /// The reason.
        #[source]
        source: tonic::transport::Error,
    },
    /// Connecting to the switch failed.
    #[error("connecting to the switch at {address} failed: {source}; {hint}")]
    Connect {
        /// Address of the switch.
        address: String,
        /// The reason.
        #[source]
        source: Box<ClientError>,
        /// What to check.
        hint: &'static str,
    },
    /// The switch refused a request, or is unreachable.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The switch did not respond in time.
    #[error("the switch did not respond within {seconds} s")]
    Timeout {
        /// The timeout, seconds.
        seconds: u64,
    },
    /// Another P4Runtime controller is the switch's primary controller.
    #[error(
        "another controller with a higher election id is the switch's primary controller; raise `election_id` or stop that controller"
    )]
    NotPrimary,
    /// The clock register does not change.
    #[error(
        "reading the switch's clock failed: no packet reached the CPU port; start the switch with --cpu-port 510"
    )]
    ClockUnreadable,
    /// The built-in program description cannot be read.
    #[error("reading the P4Info of program lap failed: {0}")]
    P4Info(#[from] P4InfoError),
    /// The built-in program lacks this object, or the object has another width.
    #[error("the program lap has no object {0} of the expected type and width")]
    ProgramMismatch(&'static str),
    /// The switch's response lacks a requested value.
    #[error("the switch returned no value of register {0}")]
    RegisterMissing(&'static str),
    /// An earlier operation failed, so the content of the switch is unknown.
    #[error("the switch is lost: {0}")]
    Lost(String),
}
