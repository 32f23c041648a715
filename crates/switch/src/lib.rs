//! Attesting P4 switch: runs programs that p4c compiles for BMv2 (v1model), with the semantics of simple_switch.
//!
//! The crate provides the packet engine, the P4Runtime control plane and the evidence of a switch as a library;
//! `linewarden-switch` is the command. The crate is not a P4 compiler and supports no other architecture than
//! v1model. BMv2's Thrift API is not provided.
//!
//! ```text
//!  p4c JSON ──load──► Program ──lower──► Executable ──┐
//!                                                     ▼
//!  controllers ──P4Runtime──► control ──batches──► Switch ──► Worker ──► ports
//!                                                     │
//!  appraisers ◄────────────── evidence ◄──────────────┘
//! ```
//!
//! | module | content |
//! |---|---|
//! | [`load`], [`program`] | reads the JSON of p4c; the program as checked data |
//! | [`executable`], [`layout`] | executable form of a program, memory layout of packets |
//! | [`lower`], [`exec`] | lowering of a program to its executable form, interpreter |
//! | [`engine`], [`serve`], [`switch`] | traffic manager, main loop of a worker, switch with its workers |
//! | [`tables`], [`forwarding`] | match-action tables and all other forwarding state |
//! | [`externs`], [`changed_arrays`] | registers and counters; the arrays that packets have changed |
//! | [`meter`], [`calculations`] | meters, hashes and checksums |
//! | [`ports`] | network interfaces (`AF_PACKET`, `AF_XDP`), capture files, memory |
//! | [`control`], [`host`] | P4Runtime control plane; switch hosted in a process |
//! | [`evidence`] | measurement of program and state, evidence in packets and statements |
//! | `reference`, `stf` | with the feature `lab`: reference interpreter for tests; packet tests in p4c's STF format |
//!
//! # Example
//! A packet test adds a route to the router of `p4/` and checks the forwarded packet:
//!
//! ```
//! use linewarden_switch::stf::{Test, run::run};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let json = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../p4/compiled/router.json"))?;
//! let test = Test::parse("route.stf", "
//! add routes4 hdr.ipv4.dst:0x0a****** forward4(port:2, next_hop:0x02000000bb02)
//! add ports standard.egress_port:2 set_source(mac:0x02000000aa02)
//! packet 1 02000000ff010200000000010800451000311234400040115c74c00002010a0200010fa00fa0001d1e5a7061796c6f6164206f662032312062797465732e2e
//! expect 2 02000000bb0202000000aa02080045100031123440003f115d74c00002010a0200010fa00fa0001d1e5a7061796c6f6164206f662032312062797465732e2e$
//! ")?;
//! run(&json, &test)?;
//! # Ok(())
//! # }
//! ```

pub mod calculations;
pub mod changed_arrays;
pub mod clock;
pub mod control;
pub mod engine;
pub mod evidence;
pub mod exec;
pub mod executable;
pub mod externs;
pub mod forwarding;
pub mod host;
pub mod layout;
pub mod load;
pub mod lower;
pub mod meter;
pub mod ports;
pub mod program;
#[cfg(feature = "lab")]
pub mod reference;
pub mod serve;
mod settings;
pub mod setup;
#[cfg(feature = "lab")]
pub mod stf;
pub mod switch;
pub mod tables;
