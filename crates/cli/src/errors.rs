//! Exit codes for the errors of the crates that a program links.

#[cfg(feature = "agent")]
mod agent;
#[cfg(feature = "client")]
mod client;
#[cfg(feature = "gateway")]
mod gateway;
#[cfg(feature = "registry")]
mod registry;
#[cfg(feature = "signatures")]
mod signatures;
