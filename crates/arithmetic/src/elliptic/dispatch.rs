//! Code compiled for each backend, as functions that enable its instructions.
//!
//! Code with vector instructions must be inlined into such a function, or each instruction becomes a call. This module
//! uses traits instead of closures: methods can be `#[inline(always)]`, while the compiler decides whether to inline a
//! closure.

use std::marker::PhantomData;

use super::Words;
use crate::simd::{Backend, Kind, Portable, WordVector};
#[cfg(target_arch = "x86_64")]
use crate::simd::{Fma, Ifma};

/// Code with the instructions of one backend, see [`BackendWords::call`]. Implementations of `run` are
/// `#[inline(always)]`.
pub(crate) trait BackendCode {
    type Output;
    fn run(self) -> Self::Output;
}

/// Code for any backend, see [`run`]. Implementations of `run` are `#[inline(always)]`.
pub(crate) trait BackendTask {
    type Output;
    fn run<W: BackendWords>(self) -> Self::Output;
}

/// Code that computes a number from N numbers, see [`BackendWords::run_kernel`]. Implementations of `run` are
/// `#[inline(always)]`.
pub(crate) trait WordKernel<const N: usize> {
    fn run<W: BackendWords>(&self, numbers: [&Words<W>; N]) -> Words<W>;
}

/// The words of a backend, and functions that enable the backend's instructions.
pub(crate) trait BackendWords: WordVector {
    /// Whether kernels are inlined into formulas, with all loops unrolled.
    ///
    /// If a word occupies one of 32 registers, a multiplication has a hundred instructions, and a formula of eight
    /// multiplications hardly uses memory. If a word occupies two of 16 registers, a multiplication has four hundred
    /// instructions, and formulas would not fit in the instruction cache; columns in memory are faster by a third.
    const INLINE: bool;

    /// Runs code as a separate function.
    ///
    /// `inline(never)` has no effect on a function that enables instructions, so the attribute is on the caller of that
    /// function.
    fn call<C: BackendCode>(code: C) -> C::Output;

    /// Runs a kernel, as a separate function unless kernels are inlined.
    #[inline(always)]
    fn run_kernel<const N: usize>(kernel: &impl WordKernel<N>, numbers: [&Words<Self>; N]) -> Words<Self> {
        if Self::INLINE {
            kernel.run(numbers)
        } else {
            Self::call(KernelCall(kernel, numbers))
        }
    }
}

/// Runs a task with the backend's words.
pub(crate) fn run<T: BackendTask>(backend: Backend, task: T) -> T::Output {
    match backend.kind() {
        Kind::Portable => run_with_words::<Portable, T>(task),
        #[cfg(target_arch = "x86_64")]
        Kind::Fma => run_with_words::<Fma, T>(task),
        #[cfg(target_arch = "x86_64")]
        Kind::Ifma => run_with_words::<Ifma, T>(task),
    }
}

/// Runs a task with the words of a backend that this CPU supports.
pub(crate) fn run_with_words<W: BackendWords, T: BackendTask>(task: T) -> T::Output {
    struct TaskWithWords<W, T>(T, PhantomData<W>);

    impl<W: BackendWords, T: BackendTask> BackendCode for TaskWithWords<W, T> {
        type Output = T::Output;
        #[inline(always)]
        fn run(self) -> T::Output {
            self.0.run::<W>()
        }
    }

    W::call(TaskWithWords(task, PhantomData::<W>))
}

struct KernelCall<'a, K, W, const N: usize>(&'a K, [&'a Words<W>; N]);

impl<K: WordKernel<N>, W: BackendWords, const N: usize> BackendCode for KernelCall<'_, K, W, N> {
    type Output = Words<W>;
    #[inline(always)]
    fn run(self) -> Words<W> {
        self.0.run(self.1)
    }
}

impl BackendWords for Portable {
    const INLINE: bool = false;

    #[inline(never)]
    fn call<C: BackendCode>(code: C) -> C::Output {
        code.run()
    }
}

#[cfg(target_arch = "x86_64")]
impl BackendWords for Ifma {
    const INLINE: bool = true;

    #[inline(never)]
    fn call<C: BackendCode>(code: C) -> C::Output {
        #[target_feature(enable = "avx512f,avx512ifma")]
        fn call<C: BackendCode>(code: C) -> C::Output {
            code.run()
        }
        // SAFETY: code uses this type only if the CPU has these instructions.
        unsafe { call(code) }
    }
}

#[cfg(target_arch = "x86_64")]
impl BackendWords for Fma {
    const INLINE: bool = false;

    #[inline(never)]
    fn call<C: BackendCode>(code: C) -> C::Output {
        #[target_feature(enable = "avx2,fma")]
        fn call<C: BackendCode>(code: C) -> C::Output {
            code.run()
        }
        // SAFETY: code uses this type only if the CPU has these instructions.
        unsafe { call(code) }
    }
}
