//! The ports, on memory, files and real interfaces.

#![allow(missing_docs, reason = "a test")]

mod memory;
mod net;
mod packet;
mod pcap;
mod xdp;
