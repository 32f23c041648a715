//! The GPU lane: batches of verifications, of online signatures and of private operations on a CUDA device.
//!
//! | operation | kernels | per item to the device | per item from the device |
//! |---|---|---|---|
//! | RSA-PSS verification ([`Gpu::verify_pss`]) | `pss_*` | signature, digest, key's index | validity |
//! | RA verification ([`Gpu::verify_ra`]) | `ra_verify_*` | signature, r, digits, key's index | validity |
//! | RA online signing ([`Gpu::put_masks`], [`Gpu::sign_ra`]) | `ra_sign_*` | mask, digits, mask's slot | signature |
//! | masks and tables ([`Gpu::make_masks`], [`Gpu::fill_masks`], [`Gpu::ra_signer`]) | `fdh_*`, `crt_*` | bytes to hash | status, and the masks of `make_masks` |
//! | RSA private operation ([`Gpu::private`]) | `crt_*` | number | number, status |
//! | ECDSA P-256 verification ([`Gpu::verify_p256`]) | `p256_*` | signature, digest, key's index | validity |
//!
//! Neither building nor running this crate requires CUDA: [`Gpu::discover`] reports what is missing, and the CPU does
//! the work. When a device is opened, NVRTC compiles the kernels for this device from the sources in `cuda/`.
//!
//! Keys, tables and masks stay on the device; batches are arrays with one entry per item. A batch that is not sorted by
//! key is sorted first. The batch is then cut into slices of as many items as the device processes at once. The slices
//! alternate between several streams, so that copies overlap with computation.
//!
//! An operation never changes its batch, even on an error. After the first [`GpuLost`] every call on a [`Gpu`] returns that error.
//! Secrets in memory, on the device and in copies, are wiped after use.

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
mod options;
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

pub use bench::{BenchEnvironment, BenchKey, Measurement, Multiplier, Plan, Stage, measure};
pub use constants::RsaSecret;
pub use cubin::Cubin;
#[cfg(feature = "host-kernels")]
pub use emulator::{Emulation, Launcher, host_layouts};
pub use engine::{Goal, Gpu};
pub use error::{BatchError, GpuLost, GpuUnavailable};
pub use keys::{RsaKeys, RsaSecrets};
pub use nvrtc::{DIRECTORY_VARIABLE, Nvrtc};
pub use options::Options;
pub(crate) use p256::P256_KEY_BYTES;
pub use p256::{P256Batch, P256Keys};
pub use private::PrivateBatch;
#[cfg(feature = "host-kernels")]
pub use probe::{ProbeOperands, ProbeOperation};
pub use pss::PssBatch;
pub use ra::{Components, RaBatch, RaKeys, RaSignature, RaSigner};
pub use rapid::{MaskKey, takes_layout};
pub use rows::{BenchRow, BenchRows, rows, rows_of, stage_of};
pub use self_test::self_test;
pub use source::Unit;
pub use target::DeviceInfo;
