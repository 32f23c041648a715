//! Ports in memory, on files and on network interfaces.

mod memory;
mod net;
mod packet;
mod pcap;
mod xdp;
