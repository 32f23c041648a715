//! Control by P4Runtime: this project's client, the server, and the switch with packets in memory.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

mod ageing;
mod batches;
mod cells;
mod packets;
mod pipeline;
mod profiles;
mod random;
mod support;
mod tables;
