//! Code that is compiled for each backend, as functions that allow its instructions.
//!
//! Whatever has a vector's instructions in it has to be inlined into such a function, or each of them becomes a call. Closures are inlined as
//! the compiler pleases: hence traits, for whose methods it can be demanded.

use std::marker::PhantomData;

use super::Words;
use crate::eight::{Backend, Kind, Portable, Word8};
#[cfg(target_arch = "x86_64")]
use crate::eight::{Fma, Ifma};

/// Code with the instructions of one backend, see [`Outline::call`]. Its method is `#[inline(always)]`.
pub(crate) trait Code {
    type Output;
    fn run(self) -> Self::Output;
}

/// Code that each backend can run, see [`run`]. Its method is `#[inline(always)]`.
pub(crate) trait Task {
    type Output;
    fn run<W: Outline>(self) -> Self::Output;
}

/// Code that makes a number of N numbers, see [`Outline::outline`]. Its method is `#[inline(always)]`.
pub(crate) trait Kernel<const N: usize> {
    fn run<W: Outline>(&self, numbers: [&Words<W>; N]) -> Words<W>;
}

/// Words, and functions that allow their instructions.
pub(crate) trait Outline: Word8 {
    /// Whether kernels are inlined wherever a formula has one, with all loops written out.
    ///
    /// Where a word is one of 32 registers, a multiplication is a hundred instructions, and a formula of eight of them hardly needs memory.
    /// Where it is two of 16, a multiplication is four hundred, and formulas would not fit the instruction cache; and it is faster by a third
    /// with its columns in memory.
    const INLINE: bool;

    /// Runs code as a function of its own.
    ///
    /// `inline(never)` on what calls the function with the instructions: on that one itself, it is no help.
    fn call<C: Code>(code: C) -> C::Output;

    /// Runs a kernel, as a function of its own if it is not to be inlined.
    #[inline(always)]
    fn outline<const N: usize>(kernel: &impl Kernel<N>, numbers: [&Words<Self>; N]) -> Words<Self> {
        if Self::INLINE {
            kernel.run(numbers)
        } else {
            Self::call(Run(kernel, numbers))
        }
    }
}

/// Runs a task with the backend's words.
pub(crate) fn run<T: Task>(backend: Backend, task: T) -> T::Output {
    match backend.kind() {
        Kind::Portable => run_by::<Portable, T>(task),
        #[cfg(target_arch = "x86_64")]
        Kind::Fma => run_by::<Fma, T>(task),
        #[cfg(target_arch = "x86_64")]
        Kind::Ifma => run_by::<Ifma, T>(task),
    }
}

/// Runs a task with words that are those of a backend of this CPU.
pub(crate) fn run_by<W: Outline, T: Task>(task: T) -> T::Output {
    struct By<W, T>(T, PhantomData<W>);

    impl<W: Outline, T: Task> Code for By<W, T> {
        type Output = T::Output;
        #[inline(always)]
        fn run(self) -> T::Output {
            self.0.run::<W>()
        }
    }

    W::call(By(task, PhantomData::<W>))
}

struct Run<'a, K, W, const N: usize>(&'a K, [&'a Words<W>; N]);

impl<K: Kernel<N>, W: Outline, const N: usize> Code for Run<'_, K, W, N> {
    type Output = Words<W>;
    #[inline(always)]
    fn run(self) -> Words<W> {
        self.0.run(self.1)
    }
}

impl Outline for Portable {
    const INLINE: bool = false;

    #[inline(never)]
    fn call<C: Code>(code: C) -> C::Output {
        code.run()
    }
}

#[cfg(target_arch = "x86_64")]
impl Outline for Ifma {
    const INLINE: bool = true;

    #[inline(never)]
    fn call<C: Code>(code: C) -> C::Output {
        #[target_feature(enable = "avx512f,avx512ifma")]
        fn call<C: Code>(code: C) -> C::Output {
            code.run()
        }
        // SAFETY: this type is only named where the CPU has these instructions.
        unsafe { call(code) }
    }
}

#[cfg(target_arch = "x86_64")]
impl Outline for Fma {
    const INLINE: bool = false;

    #[inline(never)]
    fn call<C: Code>(code: C) -> C::Output {
        #[target_feature(enable = "avx2,fma")]
        fn call<C: Code>(code: C) -> C::Output {
            code.run()
        }
        // SAFETY: this type is only named where the CPU has these instructions.
        unsafe { call(code) }
    }
}
