//! The commands.

#[cfg(feature = "bench")]
pub mod bench;
pub mod demo;
#[cfg(feature = "bench")]
pub mod stf;
