//! Exit codes for the errors of the crates that a program links.

#[cfg(feature = "client")]
mod client;
#[cfg(feature = "dataplane")]
mod dataplane;
#[cfg(feature = "registry")]
mod registry;
#[cfg(feature = "signatures")]
mod signatures;
