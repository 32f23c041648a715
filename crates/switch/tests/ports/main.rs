//! Ports in memory, on files and on network interfaces.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

mod memory;
mod net;
mod packet;
mod pcap;
mod xdp;
