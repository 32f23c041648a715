//! Single operations of the kernels' arithmetic, for tests.

use super::engine::{Gpu, bytes_of, check_length};
use super::error::BatchError;
use super::kernels::Kernel;
use super::layouts::ProbeArgs;
use super::source::Unit;
use super::target::launch;

/// The operation; R is 2 to the power of the bits of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeOperation {
    /// `a b / R`, below R.
    Multiply = 0,
    /// `a (b / (R / 2^128)) / 2^128`, by the four topmost limbs of b, below R.
    MultiplyFour = 1,
    /// `a (b mod sqrt R) / sqrt R`, below R; with the field of P-256 `a a / R`.
    MultiplyHalf = 2,
    /// `a + b`, below R.
    Add = 3,
    /// `a - b`, below n for an a below n.
    Subtract = 4,
    /// `a`, below n.
    Canonical = 5,
}

/// Operands: concatenated rows of as many limbs as the kernel uses, least significant first.
#[derive(Debug, Clone, Copy)]
pub struct ProbeOperands<'a> {
    /// First operands.
    pub a: &'a [u32],
    /// Second operands.
    pub b: &'a [u32],
    /// Moduli with the topmost bit set.
    pub moduli: &'a [u32],
    /// `-n^-1 mod 2^32` of each modulus.
    pub n0: &'a [u32],
}

impl Gpu {
    /// Applies one operation to all operands.
    ///
    /// # Errors
    /// Arrays with different numbers of rows, or a lost device.
    pub fn probe(
        &mut self,
        kernel: Kernel<ProbeArgs>,
        operation: ProbeOperation,
        operands: &ProbeOperands,
    ) -> Result<Vec<u32>, BatchError> {
        let ProbeOperands { a, b, moduli, n0 } = *operands;
        let count = n0.len();
        let limbs = a.len() / count.max(1);
        for array in [a, b, moduli] {
            check_length(array.len(), count, limbs)?;
        }
        self.guard(|gpu| {
            gpu.target.prepare(Unit::Probe)?;
            let arrays = [a, b, moduli, n0]
                .into_iter()
                .map(|array| {
                    let memory = gpu.allocate(size_of_val(array))?;
                    gpu.write(&memory, 0, bytes_of(array))?;
                    Ok(memory)
                })
                .collect::<Result<Vec<_>, BatchError>>()?;
            let [a, b, moduli, n0] = arrays.as_slice() else {
                return Err(BatchError::Malformed("four arrays expected"));
            };
            let out = gpu.allocate(count * limbs * size_of::<u32>())?;
            let arguments = ProbeArgs {
                a: a.address(),
                b: b.address(),
                moduli: moduli.address(),
                n0: n0.address(),
                out: out.address(),
                count: count as u32,
                operation: operation as u32,
            };
            // SAFETY: all arrays have `count` rows and are released after `read` has synchronized the stream; the
            // tests guarantee that the kernel expects rows of this length.
            let launched = unsafe { launch(&*gpu.target, 0, kernel, count, &arguments) };
            let mut bytes = vec![0; count * limbs * size_of::<u32>()];
            launched.and_then(|()| gpu.read(&out, 0, &mut bytes))?;
            Ok(bytes
                .as_chunks()
                .0
                .iter()
                .map(|bytes_of_limb| u32::from_le_bytes(*bytes_of_limb))
                .collect())
        })
    }
}
