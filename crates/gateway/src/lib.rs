//! The node: one data plane, fed from the registry, kept fresh, its events turned into refills.
//!
//! ```text
//!              ┌──────────── control thread, every 10 ms ───────────┐
//!   packets    │                                                    │
//!  ─────────►  │  data plane ◄─── Node (no clock, no randomness,    │
//!              │     events ────►        no database of its own)    │
//!              └──────────────────────▲───────────┬─────────────────┘
//!                              Answer │           │ Ask
//!                                     │           ▼
//!                              registry threads (feed · rows)
//! ```
//!
//! [`Node`] decides everything and waits for nothing: it is told the time, draws randomness from its caller, drives a
//! [`DataPlane`](linewarden_dataplane::DataPlane), and asks the registry by [`Ask`]s whose [`Answer`]s come whenever
//! they come. [`Gateway`] is the shell around it: the threads, the clocks, the registry. While the registry is away,
//! the node goes on with what it holds (LAP/1 1.4.6); the packet path notices nothing.
#![forbid(unsafe_code)]

pub mod addresses;
pub mod classic;
pub mod config;
mod exchange;
mod feeder;
mod gateway;
mod node;
pub mod plane;
mod time;

pub use exchange::{Answer, Ask, Chunk, Provision, Refusal, Refused, Want};
pub use gateway::{Gateway, GatewayError, Stopped};
pub use node::{Node, RegistryState, Settings, SettingsError, Status};
pub use time::Clock;
