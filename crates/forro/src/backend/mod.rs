//! Computation of several blocks side by side, with the instructions of the CPU.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod four_groups;
mod lanes;
mod portable;
mod scalar;
#[cfg(target_arch = "x86_64")]
mod two_groups;

use cipher::StreamCipherClosure;
use cipher::consts::U64;

pub(crate) use self::lanes::BlockCounter;
use self::lanes::{Lanes, Stream, matching, matrix_blocks};
use crate::BLOCK_BYTES;
use crate::inputs::Inputs;
use crate::matrix::Matrix;
use crate::rounds::Rounds;

/// A method to compute several blocks side by side. A value exists only if this CPU supports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backend(BackendKind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BackendKind {
    Scalar,
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

#[cfg(target_arch = "x86_64")]
cpufeatures::new!(has_avx2, "avx2");
#[cfg(target_arch = "x86_64")]
cpufeatures::new!(has_avx512, "avx512f");

impl Backend {
    /// One block at a time; the reference for tests of the other backends.
    pub const SCALAR: Self = Self(BackendKind::Scalar);
    /// Supported by every CPU.
    pub const PORTABLE: Self = Self(BackendKind::Portable);

    /// The fastest backend on this CPU. Detected once.
    #[must_use]
    #[inline]
    pub fn widest() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if has_avx512::get() {
                return Self(BackendKind::Avx512);
            }
            if has_avx2::get() {
                return Self(BackendKind::Avx2);
            }
        }
        Self::PORTABLE
    }

    /// All backends that this CPU supports, the widest last.
    pub fn available() -> impl Iterator<Item = Self> {
        let backends: [Option<Self>; 4] = [
            Some(Self::SCALAR),
            Some(Self::PORTABLE),
            #[cfg(target_arch = "x86_64")]
            has_avx2::get().then_some(Self(BackendKind::Avx2)),
            #[cfg(not(target_arch = "x86_64"))]
            None,
            #[cfg(target_arch = "x86_64")]
            has_avx512::get().then_some(Self(BackendKind::Avx512)),
            #[cfg(not(target_arch = "x86_64"))]
            None,
        ];
        backends.into_iter().flatten()
    }

    /// The display name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.0 {
            BackendKind::Scalar => "scalar",
            BackendKind::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            BackendKind::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            BackendKind::Avx512 => "avx512",
        }
    }

    /// Number of blocks computed side by side.
    #[must_use]
    pub fn lanes(self) -> usize {
        match self.0 {
            BackendKind::Scalar => <u32 as Lanes>::LANES,
            BackendKind::Portable => <portable::Word4 as Lanes>::LANES,
            #[cfg(target_arch = "x86_64")]
            BackendKind::Avx2 => <avx2::Word8 as Lanes>::LANES,
            #[cfg(target_arch = "x86_64")]
            BackendKind::Avx512 => <two_groups::TwoGroups<avx512::Word16> as Lanes>::LANES,
        }
    }

    /// Passes keystream to `closure`, starting at the counter in `matrix`, and advances the counter.
    pub(crate) fn process<R: Rounds, N: BlockCounter>(
        self,
        matrix: &mut Matrix,
        closure: impl StreamCipherClosure<BlockSize = U64>,
    ) {
        match self.0 {
            BackendKind::Scalar => closure.call(&mut Stream::<R, u32, N>::new(matrix)),
            BackendKind::Portable => closure.call(&mut Stream::<R, portable::Word4, N>::new(matrix)),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a backend of this kind exists only where the CPU has AVX2.
            BackendKind::Avx2 => unsafe { avx2::process::<R, N>(matrix, closure) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a backend of this kind exists only where the CPU has AVX-512F.
            BackendKind::Avx512 => unsafe { avx512::process::<R, N>(matrix, closure) },
        }
    }
}

/// Computes the block of each matrix, up to the end of the shorter slice. Matrices may have any keys, counters and
/// nonces.
pub fn blocks<R: Rounds>(backend: Backend, matrices: &[Matrix], out: &mut [[u8; BLOCK_BYTES]]) {
    match backend.0 {
        BackendKind::Scalar => matrix_blocks::<R, u32>(matrices, out),
        BackendKind::Portable => matrix_blocks::<R, portable::Word4>(matrices, out),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a backend of this kind exists only where the CPU has AVX2.
        BackendKind::Avx2 => unsafe { avx2::blocks::<R>(matrices, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a backend of this kind exists only where the CPU has AVX-512F.
        BackendKind::Avx512 => unsafe { avx512::blocks::<R>(matrices, out) },
    }
}

/// Compares the first blocks of `inputs` with `expected`. Returns one bit per block, 1 if the block equals its expected
/// block. All 64 bytes of a block are compared before the decision, and no block is written to memory. At most
/// [`Inputs::BLOCKS_MAX`] blocks are compared.
#[must_use]
pub fn matching_blocks<R: Rounds>(backend: Backend, inputs: &Inputs, expected: &[&[u8; BLOCK_BYTES]]) -> u64 {
    match backend.0 {
        BackendKind::Scalar => matching::<R, u32>(inputs, expected),
        BackendKind::Portable => matching::<R, portable::Word4>(inputs, expected),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a backend of this kind exists only where the CPU has AVX2.
        BackendKind::Avx2 => unsafe { avx2::equal::<R>(inputs, expected) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a backend of this kind exists only where the CPU has AVX-512F.
        BackendKind::Avx512 => unsafe { avx512::equal::<R>(inputs, expected) },
    }
}
