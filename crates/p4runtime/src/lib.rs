//! P4Runtime 1.5: messages, server and client, and the [`evidence`] service of a switch.
//!
//! The crate implements the protocol for any [`Target`](target::Target). The crate contains no data plane;
//! `linewarden-switch` is a target. The specification is from the [P4.org API Working
//! Group](https://p4.org/p4-spec/p4runtime/main/P4Runtime-Spec.html); numbers in parentheses in this crate refer to
//! the sections of the specification.
//!
//! | module | content |
//! |---|---|
//! | [`proto`] | generated protobuf messages |
//! | [`p4info`], [`ids`], [`bytes`], [`data`], [`entity`] | checked P4Info; ids, numbers, values and entities without protobuf |
//! | [`translate`] | conversion between messages and entities, with all checks that need only the P4Info |
//! | [`arbitration`], [`digest`] | state machines: election of primaries, buffering of digests |
//! | [`server`], [`target`] | gRPC service and the interface to a switch |
//! | [`client`] | client for controllers |
//! | [`evidence`] | service and client for digests and signed statements of a switch |
//! | [`error`](mod@error) | errors of single entities |
//!
//! # Example
//! The first controller of a role becomes primary and may write:
//!
//! ```
//! use linewarden_p4runtime::arbitration::{Arbitration, ArbitrationRequest, ArbitrationStatus, Limits, StreamId};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut arbitration = Arbitration::new(1, Limits::default());
//! let request = ArbitrationRequest {
//!     device_id: 1,
//!     role: String::new(),
//!     config: None,
//!     election_id: Some(10),
//! };
//! let outcome = arbitration.update(StreamId(1), request)?;
//! let takeover = outcome.takeover.ok_or("no takeover")?;
//! let notices = arbitration.complete(takeover);
//! assert_eq!(notices[0].status, ArbitrationStatus::Primary);
//! arbitration.check_write(1, "", Some(10))?;
//! # Ok(())
//! # }
//! ```

pub mod arbitration;
pub mod bytes;
pub mod client;
pub mod data;
pub mod digest;
pub mod entity;
pub mod error;
pub mod evidence;
pub mod ids;
pub mod p4info;
pub mod proto;
#[cfg(feature = "server")]
pub mod server;
pub mod target;
pub mod translate;
