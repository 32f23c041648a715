//! P4Runtime 1.5: its messages, and what both ends of a connection have to get right.

pub mod arbitration;
pub mod bytes;
pub mod ids;
pub mod p4info;
pub mod proto;
