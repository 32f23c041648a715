//! Simulated devices and attackers on real packets: the demonstration, the benchmarks and the tools of the system tests.
//!
//! ```text
//!   network namespace "devices"          "gateway"             "service"
//!  ┌──────────────────────────┐ veth ┌──────────────┐ veth ┌──────────────┐
//!  │ fleet, attackers,        ├──────┤ data plane   ├──────┤ echo service │
//!  │ load generators          │      │ under test   │      │              │
//!  └──────────────────────────┘      └──────────────┘      └──────────────┘
//! ```
//!
//! [`topology::Lab`] builds this isolated network out of unnamed network namespaces and veth pairs. The kernel removes
//! the network when the process ends, also after a crash. The network requires root or some capabilities
//! ([`capability`]).
//!
//! Not for production: no gateway, controller or device needs this crate. Only the commands `linewarden-lab demo` and
//! `linewarden-lab bench` and tests use this crate.
//!
//! | modules | purpose |
//! |---|---|
//! | [`topology`], [`netns`], [`iproute`], [`address`], [`capability`] | the network of namespaces, its addresses and the capabilities that it requires |
//! | [`fleet`] | simulated devices, which enroll, authenticate, attest and exchange datagrams with the service |
//! | [`attackers`] | attacks on all protocols, each with a check whether the attack succeeded |
//! | [`service`] | the service behind the gateway, which counts datagrams |
//! | [`demo`] | the demonstration: a fleet authenticates while all attacks run; the report lists every wrong decision |
//! | [`bench`](mod@bench) | the benchmarks, which repeat experiments of the five publications in `docs/experiments.md` |
//! | [`loadgen`], [`burst`], [`pace`] | senders for the benchmarks: complete handshakes, bursts, frames at a fixed rate |
//! | [`packet_socket`], [`xdp_pass`], [`napi`], [`clock`] | access to kernel interfaces: packet sockets, XDP, receive threads, clocks |
//!
//! # Example
//! The addresses of a simulated device are computed from its index, and the index from an address:
//!
//! ```
//! use linewarden_lab::address::DeviceAddress;
//!
//! let device = DeviceAddress::new(3);
//! assert_eq!(device.v4().to_string(), "10.66.1.3");
//! assert_eq!(device.mac().to_string(), "02:00:00:00:00:03");
//! ```
//!
//! A small demonstration, in which all attacks must fail:
//!
//! ```no_run
//! use std::sync::atomic::AtomicBool;
//!
//! use linewarden_lab::demo::{self, DataPlaneKind, Options};
//!
//! let options = Options::new(64, DataPlaneKind::Host, 1);
//! let stop = AtomicBool::new(false);
//! let report = demo::run(&options, &stop, &mut |_| {})?;
//! assert_eq!(report.false_accepts, 0);
//! # Ok::<(), linewarden_lab::demo::DemoError>(())
//! ```

pub mod address;
pub mod attackers;
#[cfg(feature = "bench")]
pub mod bench;
pub mod burst;
pub mod capability;
pub mod clock;
pub mod demo;
mod exempt_traffic;
pub mod fleet;
mod interface;
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
