//! Batches on a GPU, and the kernels without one.
//!
//! | module | what runs the kernels |
//! |---|---|
//! | [`host`] | this processor, as its C++ compiler made them |
//! | [`ptx`] | an interpreter of what NVRTC makes of arithmetic and hashing for a device |
//! | [`nvrtc`] | nothing: they are compiled for each architecture that is meant, and what they cost is read |
//! | [`device`] | a device, where there is one: `make test-gpu` |
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

mod device;
mod host;
mod nvrtc;
mod ptx;
mod support;
