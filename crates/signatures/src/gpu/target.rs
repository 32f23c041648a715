//! The interface to the hardware: memory, copies, launches. Implemented by a CUDA device and, for tests, by the kernels compiled for this
//! CPU.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use zeroize::Zeroize as _;

use super::error::GpuLost;
use super::kernels::{BLOCK_THREADS, Kernel, KernelInfo};
use super::layouts::Shared;
#[cfg(feature = "host-kernels")]
use super::source::Unit;

/// Properties of a device, from the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Index of the device in the driver.
    pub ordinal: usize,
    /// For example "NVIDIA H200".
    pub name: String,
    /// Major and minor compute capability.
    pub compute_capability: (u32, u32),
    /// Device memory, bytes; on a Jetson the memory shared with the CPU.
    pub memory_bytes: u64,
    /// Number of multiprocessors.
    pub multiprocessors: u32,
    /// Highest clock of the multiprocessors.
    pub clock_khz: u32,
}

impl DeviceInfo {
    /// The architecture name for NVRTC.
    #[must_use]
    pub fn architecture(&self) -> String {
        let (major, minor) = self.compute_capability;
        format!("sm_{major}{minor}")
    }
}

/// Operations of a device. Work on one stream is done in order. A stream is synchronized before memory that the stream
/// uses is read or released.
pub(crate) trait Target: Send + Sync {
    fn info(&self) -> &DeviceInfo;

    fn streams(&self) -> usize;

    /// Loads a unit's kernels, if they are not loaded yet.
    #[cfg(feature = "host-kernels")]
    fn prepare(&self, unit: Unit) -> Result<(), GpuLost>;

    /// Blocks of a kernel that the whole device processes at once.
    fn resident_blocks(&self, kernel: &KernelInfo) -> Result<u32, GpuLost>;

    /// Allocates device memory, aligned to 256 bytes (16 in emulation), all zero.
    fn allocate(&self, bytes: usize) -> Result<u64, GpuLost>;

    /// Wipes and releases memory. No stream may use this memory.
    fn release(&self, address: u64, bytes: usize);

    /// Allocates host memory for direct copies, aligned to 16 bytes, all zero.
    fn allocate_host(&self, bytes: usize) -> Result<NonNull<u8>, GpuLost>;

    /// Releases host memory that has been wiped.
    fn release_host(&self, pointer: NonNull<u8>, bytes: usize);

    /// Starts a copy to the device.
    ///
    /// # Safety
    /// Source and destination are allocations of this target with enough room, and stay unchanged until the stream is
    /// synchronized.
    unsafe fn upload(&self, stream: usize, to: u64, from: *const u8, bytes: usize) -> Result<(), GpuLost>;

    /// Starts a copy from the device.
    ///
    /// # Safety
    /// As for [`Target::upload`]; the destination is not read before the stream is synchronized.
    unsafe fn download(&self, stream: usize, to: *mut u8, from: u64, bytes: usize) -> Result<(), GpuLost>;

    /// Starts setting device memory to zero.
    ///
    /// # Safety
    /// The memory is an allocation of this target that lives until the stream is synchronized.
    unsafe fn clear(&self, stream: usize, address: u64, bytes: usize) -> Result<(), GpuLost>;

    /// Starts a kernel for `items` items.
    ///
    /// # Safety
    /// The arguments have the kernel's type, and the arrays to which they point are allocations of this target with the
    /// lengths of `layouts.cuh` that live until the stream is synchronized.
    unsafe fn launch(
        &self,
        stream: usize,
        kernel: &'static KernelInfo,
        items: usize,
        arguments: *const c_void,
    ) -> Result<(), GpuLost>;

    /// Whether all work on the stream is done.
    fn is_done(&self, stream: usize) -> Result<bool, GpuLost>;

    /// Timeout of [`Target::synchronize`].
    fn timeout(&self) -> Duration;

    /// Abandons a device that does not respond: every later call fails. The device may still read and write its memory, which is therefore
    /// leaked.
    fn abandon(&self);

    /// Whether the device was abandoned.
    fn is_abandoned(&self) -> bool;

    /// Waits until all work on the stream is done, up to the timeout of the target.
    fn synchronize(&self, stream: usize) -> Result<(), GpuLost> {
        let begin = Instant::now();
        while !self.is_done(stream)? {
            let waited = begin.elapsed();
            if waited > self.timeout() {
                self.abandon();
                return Err(GpuLost {
                    step: "waiting",
                    cause: format!("no response within {} ms", self.timeout().as_millis()),
                });
            }
            poll_delay(waited);
        }
        Ok(())
    }
}

/// Yields the CPU during the first 20 us, then sleeps for an eighth of the time waited so far. The thread therefore
/// notices the end of the work at most this delay later, and the CPU is free for other lanes.
fn poll_delay(waited: Duration) {
    const LONGEST: Duration = Duration::from_micros(200);
    match waited < Duration::from_micros(20) {
        true => std::thread::yield_now(),
        false => std::thread::sleep((waited / 8).min(LONGEST)),
    }
}

/// Starts a kernel for `items` items of its arguments.
///
/// # Safety
/// The arrays to which the arguments point are allocations of this target with the lengths of `layouts.cuh` for that
/// many items, and live until the stream is synchronized.
pub(crate) unsafe fn launch<A: Shared>(
    target: &dyn Target,
    stream: usize,
    kernel: Kernel<A>,
    items: usize,
    arguments: &A,
) -> Result<(), GpuLost> {
    // SAFETY: the kernel's type determines the type of its arguments; the caller guarantees the rest.
    unsafe { target.launch(stream, kernel.info, items, std::ptr::from_ref(arguments).cast()) }
}

/// Blocks for this number of items of a kernel.
pub(crate) fn blocks_of(kernel: &KernelInfo, items: usize) -> u32 {
    let items_per_block = (BLOCK_THREADS / kernel.threads_per_item) as usize;
    u32::try_from(items.div_ceil(items_per_block)).unwrap_or(u32::MAX)
}

/// Threads in a launch of this number of items.
pub(crate) fn threads_of(kernel: &KernelInfo, items: usize) -> usize {
    blocks_of(kernel, items) as usize * BLOCK_THREADS as usize
}

/// Items of a kernel that the whole device processes at once.
pub(crate) fn items_at_once(target: &dyn Target, kernel: &KernelInfo) -> Result<usize, GpuLost> {
    let threads = target.resident_blocks(kernel)? as usize * BLOCK_THREADS as usize;
    Ok((threads / kernel.threads_per_item as usize).max(1))
}

/// Device memory, wiped when released.
pub(crate) struct DeviceMemory {
    target: Arc<dyn Target>,
    address: u64,
    bytes: usize,
}

impl DeviceMemory {
    pub(crate) fn new(target: &Arc<dyn Target>, bytes: usize) -> Result<Self, GpuLost> {
        // A device refuses an allocation of 0 bytes, but an empty array also needs an address.
        let bytes = bytes.max(16);
        Ok(Self {
            address: target.allocate(bytes)?,
            target: Arc::clone(target),
            bytes,
        })
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether the memory belongs to this target.
    pub(crate) fn belongs_to(&self, target: &Arc<dyn Target>) -> bool {
        Arc::ptr_eq(&self.target, target)
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        self.target.release(self.address, self.bytes);
    }
}

/// Host memory for copies, wiped when released.
pub(crate) struct HostMemory {
    target: Arc<dyn Target>,
    pointer: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the value is the only owner of its memory.
unsafe impl Send for HostMemory {}

impl HostMemory {
    pub(crate) fn new(target: &Arc<dyn Target>, bytes: usize) -> Result<Self, GpuLost> {
        let bytes = bytes.max(16);
        Ok(Self {
            pointer: target.allocate_host(bytes)?,
            target: Arc::clone(target),
            bytes,
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    pub(crate) fn pointer(&self) -> *mut u8 {
        self.pointer.as_ptr()
    }

    /// The bytes of the memory.
    ///
    /// # Safety
    /// No copy from or to the memory is in progress on a device that still works.
    pub(crate) unsafe fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the memory belongs to this value, all of it was zeroed at allocation, and copies write bytes only; none is in progress.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.bytes) }
    }

    /// Wipes `bytes` bytes at the beginning, at most all.
    ///
    /// # Safety
    /// As for [`HostMemory::bytes`].
    pub(crate) unsafe fn wipe(&mut self, bytes: usize) {
        // SAFETY: guaranteed by the caller.
        let memory = unsafe { self.bytes() };
        let bytes = bytes.min(memory.len());
        memory.get_mut(..bytes).unwrap_or_default().zeroize();
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // SAFETY: every copy was waited for, or the device was abandoned. Then the device may still write into memory that `release_host`
        // leaves allocated.
        unsafe { self.wipe(usize::MAX) };
        self.target.release_host(self.pointer, self.bytes);
    }
}
