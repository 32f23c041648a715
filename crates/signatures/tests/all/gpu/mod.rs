//! Batches on a GPU, and the kernels without a GPU.
//!
//! | module | execution of the kernels |
//! |---|---|
//! | [`host`] | on this CPU, compiled by a C++ compiler |
//! | [`ptx`] | by an interpreter of the PTX that NVRTC makes of arithmetic and hashing |
//! | [`nvrtc`] | not executed: compiled for each supported architecture, to check their resource usage |
//! | [`device`] | on a device, if available: `make test-gpu` |

mod device;
mod host;
mod nvrtc;
mod ptx;
mod support;
