//! The GPU lane: batches of verifications, of online signatures and of private operations on a CUDA device.
//!
//! | operation | kernels | per item to the device | back |
//! |---|---|---|---|
//! | RSA-PSS verification ([`Gpu::verify_pss`]) | `pss_*` | signature, digest, key's index | a verdict |
//! | RA verification ([`Gpu::verify_ra`]) | `ra_verify_*` | signature, r, digits, key's index | a verdict |
//! | RA online signing ([`Gpu::put_masks`], [`Gpu::sign_ra`]) | `ra_sign_*` | mask, digits, mask's slot | signature |
//! | masks and tables ([`Gpu::make_masks`], [`Gpu::fill_masks`], [`Gpu::ra_signer`]) | `fdh_*`, `crt_*` | bytes to hash | a status |
//! | RSA private operation ([`Gpu::private`]) | `crt_*` | number | number, status |
//! | ECDSA P-256 verification ([`Gpu::verify_p256`]) | `p256_*` | signature, digest, key's index | a verdict |
//!
//! Nothing of CUDA is needed to build this, nor to run it: [`Gpu::discover`] says what is missing, and the CPU does
//! the work. Kernels are compiled for the device that is found by NVRTC, from the sources in `cuda/`, when it is
//! opened.
//!
//! Keys, tables and masks stay on the device; batches are arrays with one entry an item. A batch is sorted by key
//! where that gathers equal keys, cut into slices of as many items as the device works on at once, and the slices
//! take turns on several streams, so that copies go on behind computing.
//!
//! Each operation leaves the batch as it was, whatever happens. After the first [`GpuLost`] a [`Gpu`] answers every
//! call with it. Secret memory, on the device and on the way to it, is wiped when it has served.

mod bench;
mod cache;
mod constants;
mod cubin;
mod cuda;
#[cfg(feature = "host-kernels")]
mod emulator;
mod engine;
mod error;
mod hash;
pub mod kernels;
mod keys;
pub mod layouts;
mod nvrtc;
mod p256;
mod private;
#[cfg(feature = "host-kernels")]
mod probe;
mod pss;
mod ra;
pub(crate) mod rapid;
mod rows;
mod self_test;
mod slot;
mod source;
mod target;

pub use bench::{BenchKey, Measurement, Multiplier, Plan, Sources, Stage, measure};
pub use constants::RsaSecret;
pub use cubin::Cubin;
#[cfg(feature = "host-kernels")]
pub use emulator::{Emulation, Launcher, host_layouts};
pub use engine::{Goal, Gpu, Options};
pub use error::{BatchError, GpuLost, NoGpu};
pub use keys::{RsaKeys, RsaSecrets};
pub use nvrtc::{DIRECTORY_VARIABLE, Nvrtc};
pub(crate) use p256::P256_KEY_BYTES;
pub use p256::{P256Batch, P256Keys};
pub use private::Numbers;
#[cfg(feature = "host-kernels")]
pub use probe::{ProbeOperands, ProbeOperation};
pub use pss::PssBatch;
pub use ra::{Components, RaBatch, RaKeys, RaSignature, RaSigner};
pub use rapid::{MaskKey, takes_layout};
pub use rows::{Row, Rows, rows, rows_of, stage_of};
pub use self_test::self_test;
pub use source::Unit;
pub use target::DeviceInfo;
