//! Self-test of a device.

use linewarden_arithmetic::rsa::{RsaPublic, Size, Table};
use sha2::{Digest as _, Sha256};

use super::engine::Gpu;
use super::error::GpuUnavailable;
use crate::ra::hash::mgf1;

/// An odd number with its topmost bit set, of unknown factors.
const MODULUS: [u8; 256] = [0xb5; 256];
const TEXT: &[u8] = b"linewarden gpu self-test";

/// Hashes a text to a full-domain number, on the device and on the CPU. Equal results show that byte order, the
/// compression function and the multiplier are correct. A lane also runs the known-answer tests of every verification
/// kernel.
///
/// # Errors
/// The device fails, or returns another result.
pub fn self_test(gpu: &mut Gpu) -> Result<(), GpuUnavailable> {
    let mut keys = gpu.rsa_keys(Size::Bits2048, 1)?;
    gpu.put_rsa_key(&mut keys, 0, &MODULUS)?;
    let actual = gpu.hash_full_domain(&keys, &[0], &[TEXT])?;
    match expected() {
        Some(expected) if expected == actual => Ok(()),
        _ => Err(GpuUnavailable::SelfTestFailed),
    }
}

fn expected() -> Option<Vec<u8>> {
    let key = RsaPublic::new(&MODULUS).ok()?;
    let mut wide = vec![0; key.size().wide_bytes()];
    mgf1(&Sha256::new().chain_update(TEXT), &mut wide);
    let mut hash = Table::new(key.size(), 1);
    hash.set(0, &key, &wide).ok()?;
    let (mut one, mut out) = (vec![0; MODULUS.len()], vec![0; MODULUS.len()]);
    *one.last_mut()? = 1;
    key.product(&mut out, &one, &[hash.get(0)?]).ok()?;
    Some(out)
}
