//! Why a P4 switch does not serve as a data plane.

use linewarden_p4runtime::client::ClientError;
use linewarden_p4runtime::p4info::P4InfoError;

/// What went wrong between this data plane and its switch.
#[derive(Debug, thiserror::Error)]
pub enum SwitchError {
    /// This side has no threads or descriptors left.
    #[error("cannot start the switch's client: {0}")]
    Threads(#[source] std::io::Error),
    /// The switch's address is no URI.
    #[error("{address} is no address of a switch: {source}")]
    Address {
        /// As it was given.
        address: String,
        /// What is wrong.
        #[source]
        source: tonic::transport::Error,
    },
    /// It cannot be connected to.
    #[error("the switch at {address}: {source} ({hint})")]
    Connect {
        /// Where.
        address: String,
        /// Why.
        #[source]
        source: Box<ClientError>,
        /// What may be amiss.
        hint: &'static str,
    },
    /// The switch refused, or cannot be reached.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// No answer came in time.
    #[error("the switch has not answered for {seconds} s")]
    Late {
        /// How long was waited.
        seconds: u64,
    },
    /// Another controller is the switch's primary one.
    #[error(
        "another controller with a higher election id holds the switch; raise `election_id` or stop that one"
    )]
    Held,
    /// The clock register does not move.
    #[error("the switch's clock cannot be read: start it with --cpu-port 510")]
    Clock,
    /// The program that is built in cannot be read.
    #[error("the program lap: {0}")]
    Info(#[from] P4InfoError),
    /// The program that is built in has no such thing, or of another width.
    #[error("the program lap has no {0} as this data plane knows it")]
    Program(&'static str),
    /// The switch left out what was asked for.
    #[error("the switch does not say what its register {0} holds")]
    Silent(&'static str),
    /// An earlier failure, after which nobody knows what the switch holds.
    #[error("the switch is lost: {0}")]
    Lost(String),
}
