//! Network namespaces, simulated fleets, attackers, load generators and the experiments of the papers.
//!
//! Everything here runs on real packets in a private network that [`topology::Lab`] builds out of unnamed network
//! namespaces and veth pairs, and that the kernel removes when the process ends, however it ends.

pub mod address;
pub mod attackers;
pub mod bench;
pub mod burst;
pub mod capability;
pub mod clock;
mod decoy;
pub mod demo;
pub mod fleet;
pub mod iproute;
pub mod loadgen;
pub mod napi;
pub mod netns;
pub mod pace;
pub mod packet_socket;
pub mod service;
mod skeletons;
pub mod topology;
pub mod xdp_pass;
