//! Several blocks side by side, by what the CPU has.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod four;
mod lanes;
#[cfg(target_arch = "x86_64")]
mod pair;
mod portable;
mod scalar;

use cipher::StreamCipherClosure;
use cipher::consts::U64;

pub(crate) use self::lanes::Counted;
use self::lanes::{Lanes, Stream, many, matching};
use crate::BLOCK_BYTES;
use crate::inputs::Inputs;
use crate::matrix::Matrix;
use crate::rounds::Rounds;

/// A way to compute several blocks side by side; a value of it says that this CPU has what it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backend(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
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
    /// One block at a time: what the others are compared with.
    pub const SCALAR: Self = Self(Kind::Scalar);
    /// What every CPU has.
    pub const PORTABLE: Self = Self(Kind::Portable);

    /// The fastest on this CPU. Looked up once.
    #[must_use]
    #[inline]
    pub fn widest() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if has_avx512::get() {
                return Self(Kind::Avx512);
            }
            if has_avx2::get() {
                return Self(Kind::Avx2);
            }
        }
        Self::PORTABLE
    }

    /// All that this CPU has, the widest last.
    pub fn available() -> impl Iterator<Item = Self> {
        let of_this_cpu: [Option<Self>; 4] = [
            Some(Self::SCALAR),
            Some(Self::PORTABLE),
            #[cfg(target_arch = "x86_64")]
            has_avx2::get().then_some(Self(Kind::Avx2)),
            #[cfg(not(target_arch = "x86_64"))]
            None,
            #[cfg(target_arch = "x86_64")]
            has_avx512::get().then_some(Self(Kind::Avx512)),
            #[cfg(not(target_arch = "x86_64"))]
            None,
        ];
        of_this_cpu.into_iter().flatten()
    }

    /// For people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.0 {
            Kind::Scalar => "scalar",
            Kind::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => "avx512",
        }
    }

    /// Blocks that are computed side by side.
    #[must_use]
    pub fn lanes(self) -> usize {
        match self.0 {
            Kind::Scalar => <u32 as Lanes>::LANES,
            Kind::Portable => <portable::Word4 as Lanes>::LANES,
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => <avx2::Word8 as Lanes>::LANES,
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => <pair::Pair<avx512::Word16> as Lanes>::LANES,
        }
    }

    /// Lets `closure` take keystream from the counter in `matrix` on, which goes on with it.
    pub(crate) fn process<R: Rounds, N: Counted>(
        self,
        matrix: &mut Matrix,
        closure: impl StreamCipherClosure<BlockSize = U64>,
    ) {
        match self.0 {
            Kind::Scalar => closure.call(&mut Stream::<R, u32, N>::new(matrix)),
            Kind::Portable => closure.call(&mut Stream::<R, portable::Word4, N>::new(matrix)),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a backend of this kind is only made where the CPU has AVX2.
            Kind::Avx2 => unsafe { avx2::process::<R, N>(matrix, closure) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: likewise, AVX-512F.
            Kind::Avx512 => unsafe { avx512::process::<R, N>(matrix, closure) },
        }
    }
}

/// The block of each matrix, whatever keys, counters and nonces these are of: as many as both slices have.
pub fn blocks<R: Rounds>(backend: Backend, matrices: &[Matrix], out: &mut [[u8; BLOCK_BYTES]]) {
    match backend.0 {
        Kind::Scalar => many::<R, u32>(matrices, out),
        Kind::Portable => many::<R, portable::Word4>(matrices, out),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a backend of this kind is only made where the CPU has AVX2.
        Kind::Avx2 => unsafe { avx2::blocks::<R>(matrices, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: likewise, AVX-512F.
        Kind::Avx512 => unsafe { avx512::blocks::<R>(matrices, out) },
    }
}

/// Which of the first blocks of these inputs are the ones that are given, a bit each. Of each block all 64 bytes are compared
/// before the answer, and no block is written anywhere. At most [`Inputs::ROOM`] are looked at.
#[must_use]
pub fn matching_blocks<R: Rounds>(backend: Backend, inputs: &Inputs, given: &[&[u8; BLOCK_BYTES]]) -> u64 {
    match backend.0 {
        Kind::Scalar => matching::<R, u32>(inputs, given),
        Kind::Portable => matching::<R, portable::Word4>(inputs, given),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a backend of this kind is only made where the CPU has AVX2.
        Kind::Avx2 => unsafe { avx2::equal::<R>(inputs, given) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: likewise, AVX-512F.
        Kind::Avx512 => unsafe { avx512::equal::<R>(inputs, given) },
    }
}
