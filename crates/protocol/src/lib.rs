//! LAP/1: wire formats, keys and the state machines of device and gateway.
//!
//! Functions take bytes, the time and the state, and return bytes, a verdict and the new state. The crate uses no
//! socket, clock, random source or file, so tests can try every timeout and every reordering without waiting. The
//! gateway role is the *oracle*: a plain, single-threaded reference implementation. Tests compare every data plane with
//! it byte for byte.
//!
//! The crate is not a data plane. Storing credentials and opening sockets is left to its callers.
//!
//! | module | contents |
//! |---|---|
//! | [`wire`], [`frame`] | layouts of messages and of the Ethernet frames around them |
//! | [`device`], [`data_endpoint`] | role of the device: handshake and DATA |
//! | `gateway` | role of the gateway (feature `alloc`) |
//! | [`commit`], [`window`] | words in gateway memory: commit word, replay window |
//! | [`data`] | sealed datagrams (DATA) |
//! | [`keys`], [`prf`], [`tag`] | key derivation and message tags |
//! | [`attest`] | attestation rounds (`attest/2`) |
//! | [`ticket`], [`pair`] | sealed messages to the controller and between two devices |
//! | `classic` | published protocols, for measurement only (feature `lab`) |
//! | [`verdict`] | the shared list of verdicts |
//! | [`backoff`] | delays between attempts |
//! | [`ids`], [`time`], [`nonce`], `sources` | identifiers, clocks, row statement, source addresses (`alloc`) |
//!
//! The specification is `docs/protocols.md`; comments cite its clauses as "LAP/1 1.4.3".
//!
//! ```
//! use linewarden_protocol::ids::{DeviceId, Suite};
//! use linewarden_protocol::wire::{Header, Message, Request, message_type, parse};
//! use zerocopy::IntoBytes as _;
//!
//! let request = Request {
//!     header: Header::new(message_type::REQUEST, Suite::SipHash128, 0, DeviceId(7)),
//!     nonce: [1; 16],
//!     reserved: [0; 32],
//! };
//! assert!(matches!(parse(request.as_bytes()), Ok(Message::Request(_))));
//! ```
#![no_std]
#![forbid(unsafe_code)]

#[cfg(any(feature = "alloc", test))]
extern crate alloc;

pub mod attest;
pub mod backoff;
#[cfg(feature = "lab")]
pub mod classic;
pub mod commit;
pub mod data;
pub mod data_endpoint;
pub mod device;
pub mod frame;
#[cfg(feature = "alloc")]
pub mod gateway;
pub mod ids;
pub mod keys;
pub mod nonce;
pub mod pair;
pub mod prf;
#[cfg(feature = "alloc")]
pub mod sources;
pub mod tag;
pub mod ticket;
pub mod time;
pub mod verdict;
pub mod window;
pub mod wire;
