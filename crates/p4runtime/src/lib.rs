//! P4Runtime 1.5: its messages, and what both ends of a connection have to get right; and [`evidence`] of the switch beside it.
//!
//! The specification is the [P4.org API Working
//! Group's](https://p4.org/p4-spec/p4runtime/main/P4Runtime-Spec.html); numbers in brackets in this crate are
//! its sections.

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
pub mod server;
pub mod target;
pub mod translate;
