//! LAP/1 and the classic profiles: wire formats, keys and the state machines of both roles.
//!
//! Bytes, the time and the state go in; bytes, a verdict and the state come out. There is no socket, clock, random
//! source or file in this crate, so every timeout and every reordering can be tried without waiting. The gateway
//! role here is the *oracle*: plain, single-threaded and easy to read; every data plane is compared with it byte
//! for byte.
//!
//! The text of the protocol is `docs/protocols.md`; its clauses are cited as "LAP/1 1.4.3".
#![no_std]
#![forbid(unsafe_code)]

#[cfg(any(feature = "alloc", test))]
extern crate alloc;

pub mod attest;
pub mod classic;
pub mod commit;
pub mod data;
pub mod device;
pub mod device_end;
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
