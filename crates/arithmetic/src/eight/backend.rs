//! Which vectors this CPU has.

#[cfg(target_arch = "x86_64")]
use super::{Fma, Ifma};
use super::{Portable, Word8};

/// A way to compute with eight numbers side by side; a value of it says that this CPU has what it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backend(Kind);

/// The types of its words.
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
    /// What every CPU has: what the others are compared with, and slower than one number at a time.
    pub const PORTABLE: Self = Self(Kind::Portable);

    /// The fastest on this CPU, looked up once. None where one number at a time is faster than eight.
    #[must_use]
    pub fn widest() -> Option<Self> {
        Self::available()
            .last()
            .filter(|widest| *widest != Self::PORTABLE)
    }

    /// All that this CPU has, the fastest last.
    pub fn available() -> impl Iterator<Item = Self> {
        let of_this_cpu = [
            Some(Kind::Portable),
            #[cfg(target_arch = "x86_64")]
            has_fma::get().then_some(Kind::Fma),
            #[cfg(target_arch = "x86_64")]
            has_ifma::get().then_some(Kind::Ifma),
        ];
        of_this_cpu.into_iter().flatten().map(Self)
    }

    /// For people.
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

    /// Runs a task on these vectors.
    pub(crate) fn run<T: Task>(self, task: T) -> T::Output {
        match self.0 {
            Kind::Portable => task.run::<Portable>(),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the CPU has AVX2 and FMA, or there would be no such value.
            Kind::Fma => unsafe { run_fma(task) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the CPU has AVX-512F and AVX-512 IFMA, or there would be no such value.
            Kind::Ifma => unsafe { run_ifma(task) },
        }
    }
}

/// Something to do with eight numbers, on vectors to be chosen.
///
/// `run` is `#[inline(always)]`, and all that it calls and that handles vectors, but for the kernels: code that is not inlined is not compiled
/// for the instructions.
pub(crate) trait Task {
    type Output;

    fn run<W: Word8>(self) -> Self::Output;
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn run_fma<T: Task>(task: T) -> T::Output {
    task.run::<Fma>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512ifma")]
fn run_ifma<T: Task>(task: T) -> T::Output {
    task.run::<Ifma>()
}
