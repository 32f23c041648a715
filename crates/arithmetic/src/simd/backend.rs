//! The vector instructions of this CPU.

#[cfg(target_arch = "x86_64")]
use super::{Fma, Ifma};
use super::{Portable, WordVector};

/// An implementation of arithmetic on eight numbers side by side; a value exists only if this CPU supports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backend(Kind);

/// The backends, named after their word types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Fma,
    #[cfg(target_arch = "x86_64")]
    Ifma,
}

#[cfg(target_arch = "x86_64")]
cpufeatures::new!(has_fma, "avx2", "fma");
#[cfg(target_arch = "x86_64")]
cpufeatures::new!(has_ifma, "avx512f", "avx512ifma");

impl Backend {
    /// The backend that every CPU supports: the reference for the others, slower than code for single numbers.
    pub const PORTABLE: Self = Self(Kind::Portable);

    /// The fastest backend of this CPU, determined once. `None` if single numbers are faster than eight at a time.
    #[must_use]
    pub fn widest() -> Option<Self> {
        Self::available()
            .last()
            .filter(|widest| *widest != Self::PORTABLE)
    }

    /// All backends that this CPU supports, the fastest last.
    pub fn available() -> impl Iterator<Item = Self> {
        let kinds = [
            Some(Kind::Portable),
            #[cfg(target_arch = "x86_64")]
            has_fma::get().then_some(Kind::Fma),
            #[cfg(target_arch = "x86_64")]
            has_ifma::get().then_some(Kind::Ifma),
        ];
        kinds.into_iter().flatten().map(Self)
    }

    /// Name for reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.0 {
            Kind::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Kind::Fma => "avx2-fma",
            #[cfg(target_arch = "x86_64")]
            Kind::Ifma => "avx512-ifma",
        }
    }

    pub(crate) fn kind(self) -> Kind {
        self.0
    }

    /// Runs a task with the vectors of this backend.
    pub(crate) fn run<T: BackendTask>(self, task: T) -> T::Output {
        match self.0 {
            Kind::Portable => task.run::<Portable>(),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: this value exists only if the CPU has AVX2 and FMA.
            Kind::Fma => unsafe { run_fma(task) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: this value exists only if the CPU has AVX-512F and AVX-512 IFMA.
            Kind::Ifma => unsafe { run_ifma(task) },
        }
    }
}

/// A task on eight numbers, for any vector backend.
///
/// `run` and all functions with vectors that it calls are `#[inline(always)]`, except for the kernels: code that is not inlined is not
/// compiled for the vector instructions.
pub(crate) trait BackendTask {
    type Output;

    fn run<W: WordVector>(self) -> Self::Output;
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn run_fma<T: BackendTask>(task: T) -> T::Output {
    task.run::<Fma>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512ifma")]
fn run_ifma<T: BackendTask>(task: T) -> T::Output {
    task.run::<Ifma>()
}
