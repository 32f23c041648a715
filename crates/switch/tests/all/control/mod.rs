//! P4Runtime control plane: client, server, and a switch with in-memory ports.

mod batches;
mod cells;
mod evidence;
mod idle_timeouts;
mod packets;
mod pipeline;
mod profiles;
mod random;
mod support;
mod tables;
