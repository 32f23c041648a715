//! Memory shared with the kernel.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};
use std::ptr::NonNull;

/// Memory shared with the kernel; unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: this value owns the mapping and no thread-local state is involved; users of the pointers of `at` are
// responsible for the order of accesses.
unsafe impl Send for Mapping {}
// SAFETY: as above; a shared reference only provides pointers.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the shared memory of a socket at an offset, with all pages populated.
    ///
    /// # Errors
    /// The kernel rejects the mapping, for example because the socket has no ring of this size.
    pub fn of(socket: impl AsFd, bytes: usize, offset: libc::off_t) -> io::Result<Self> {
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        Self::map(socket.as_fd().as_raw_fd(), bytes, offset, flags)
    }

    /// Maps zeroed anonymous pages.
    ///
    /// # Errors
    /// Not enough memory is available.
    pub fn anonymous(bytes: usize) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        Self::map(-1, bytes, 0, flags)
    }

    fn map(fd: libc::c_int, bytes: usize, offset: libc::off_t, flags: libc::c_int) -> io::Result<Self> {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: creates a new mapping at an address that the kernel chooses.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), bytes, rights, flags, fd, offset) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(address.cast()).ok_or_else(|| io::Error::other("mmap returned null"))?;
        Ok(Self { base, bytes })
    }

    /// Pointer to `bytes` bytes at an offset; `None` if the range is not inside of the mapping. The pointer is valid while the
    /// mapping lives.
    #[inline]
    #[must_use]
    pub fn at(&self, offset: usize, bytes: usize) -> Option<NonNull<u8>> {
        let end = offset.checked_add(bytes)?;
        // SAFETY: offset + bytes is inside the mapping.
        (end <= self.bytes).then(|| unsafe { self.base.add(offset) })
    }

    /// Address of the first byte, for the kernel.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// Length of the mapping, bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping created in `map`; owners of pointers into the mapping also own the mapping.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
