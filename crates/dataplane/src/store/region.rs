//! Zeroed memory laid out as an array of shared structures: anonymous, or a BPF array mapped from the kernel.

use std::io;
use std::marker::PhantomData;
use std::ops::Deref;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::ptr::NonNull;

use crate::layout::Shared;

/// An array of `T` in mapped memory, unmapped on drop. The kernel keeps the memory of a BPF array.
#[derive(Debug)]
pub struct Region<T: Shared> {
    start: NonNull<T>,
    len: usize,
    bytes: usize,
    _owns: PhantomData<T>,
}

// SAFETY: the memory is reachable only through `&[T]`, and `T: Shared` is made of atomics.
unsafe impl<T: Shared> Send for Region<T> {}
// SAFETY: as above.
unsafe impl<T: Shared> Sync for Region<T> {}

impl<T: Shared> Region<T> {
    /// Allocates `len` zeroed private elements. Pages are allocated when they are first written.
    ///
    /// # Errors
    /// An error of `mmap`.
    pub fn anonymous(len: usize) -> io::Result<Self> {
        Self::map(
            len,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
        )
    }

    /// As [`Region::anonymous`], in large pages if the kernel has them: for memory that is soon fully written and read
    /// in random order.
    ///
    /// # Errors
    /// An error of `mmap`.
    pub fn anonymous_in_large_pages(len: usize) -> io::Result<Self> {
        let region = Self::anonymous(len)?;
        // SAFETY: the mapping of this region; advice does not change its content. A kernel without large pages returns
        // an error, which can be ignored.
        let _ = unsafe { libc::madvise(region.start.as_ptr().cast(), region.bytes, libc::MADV_HUGEPAGE) };
        Ok(region)
    }

    /// Maps the elements of a BPF array created with `BPF_F_MMAPABLE` whose value size is `size_of::<T>()`.
    ///
    /// # Errors
    /// An error of `mmap`.
    pub(crate) fn of_bpf_array(fd: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        Self::map(len, libc::MAP_SHARED, fd.as_raw_fd())
    }

    fn map(len: usize, flags: libc::c_int, fd: libc::c_int) -> io::Result<Self> {
        let page = 4096;
        let bytes = len
            .max(1)
            .checked_mul(size_of::<T>())
            .and_then(|bytes| bytes.checked_next_multiple_of(page))
            .ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        // SAFETY: a fresh mapping at an address of the kernel's choice; no existing memory is changed.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                fd,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or_else(io::Error::last_os_error)?;
        Ok(Self {
            start,
            len,
            bytes,
            _owns: PhantomData,
        })
    }
}

impl<T: Shared> Deref for Region<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: page-aligned, `len` elements long, zeroed or written by the other side as `T: Shared` allows, and
        // alive until drop.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: Shared> Drop for Region<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping that `map` created; no reference outlives `self`.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Starts to load a value into the cache, if the CPU supports this, and does not wait.
#[inline]
pub(crate) fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let (start, bytes) = (std::ptr::from_ref(value).cast::<i8>(), size_of::<T>());
        for offset in (0..bytes).step_by(64) {
            // SAFETY: a prefetch changes only caches; every address is permitted.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(offset)) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}
