//! The edge to the hardware: memory, copies, launches. Behind it are a CUDA device and, for tests, the kernels
//! compiled for this processor.

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

/// A device, as the driver describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its number.
    pub ordinal: usize,
    /// Such as "NVIDIA H200".
    pub name: String,
    /// Major and minor compute capability.
    pub compute_capability: (u32, u32),
    /// Its own memory; on a Jetson what it shares with the processor.
    pub memory_bytes: u64,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Their highest clock.
    pub clock_khz: u32,
}

impl DeviceInfo {
    /// What NVRTC calls its architecture.
    #[must_use]
    pub fn architecture(&self) -> String {
        let (major, minor) = self.compute_capability;
        format!("sm_{major}{minor}")
    }
}

/// What a device does. Work on one stream is done in order; a stream is synchronised before anything is read or given
/// back that it uses.
pub(crate) trait Target: Send + Sync {
    fn info(&self) -> &DeviceInfo;

    fn streams(&self) -> usize;

    /// Makes a unit's kernels ready, if they are not yet.
    #[cfg(feature = "host-kernels")]
    fn prepare(&self, unit: Unit) -> Result<(), GpuLost>;

    /// Blocks of a kernel that the whole device works on at once.
    fn resident_blocks(&self, kernel: &KernelInfo) -> Result<u32, GpuLost>;

    /// Device memory, aligned to 256 bytes (16 in emulation), all zero.
    fn allocate(&self, bytes: usize) -> Result<u64, GpuLost>;

    /// Wipes memory and gives it back. No stream may be using it.
    fn release(&self, address: u64, bytes: usize);

    /// Host memory that copies reach without a detour, aligned to 16 bytes, all zero.
    fn allocate_host(&self, bytes: usize) -> Result<NonNull<u8>, GpuLost>;

    /// Gives it back; it has been wiped.
    fn release_host(&self, pointer: NonNull<u8>, bytes: usize);

    /// Begins to copy to the device.
    ///
    /// # Safety
    /// Both sides are allocations of this target with room for as many bytes, and stay as they are until the stream
    /// is synchronised.
    unsafe fn upload(&self, stream: usize, to: u64, from: *const u8, bytes: usize) -> Result<(), GpuLost>;

    /// Begins to copy from the device.
    ///
    /// # Safety
    /// As for [`Target::upload`]; nobody reads what is copied to before the stream is synchronised.
    unsafe fn download(&self, stream: usize, to: *mut u8, from: u64, bytes: usize) -> Result<(), GpuLost>;

    /// Begins to set device memory to zero.
    ///
    /// # Safety
    /// It is an allocation of this target and stays until the stream is synchronised.
    unsafe fn clear(&self, stream: usize, address: u64, bytes: usize) -> Result<(), GpuLost>;

    /// Begins to run a kernel for so many items.
    ///
    /// # Safety
    /// The arguments are of the kernel's type, and the arrays they name are allocations of this target, as long as
    /// `layouts.cuh` says, that stay until the stream is synchronised.
    unsafe fn launch(
        &self,
        stream: usize,
        kernel: &'static KernelInfo,
        items: usize,
        arguments: *const c_void,
    ) -> Result<(), GpuLost>;

    /// Whether all that was begun on the stream is done.
    fn is_done(&self, stream: usize) -> Result<bool, GpuLost>;

    /// How long a stream may take to be done.
    fn patience(&self) -> Duration;

    /// Gives a device up that does not answer: every later call fails, and as it may still be reading and writing, its
    /// memory is left to it.
    fn abandon(&self);

    /// Whether it was given up.
    fn is_abandoned(&self) -> bool;

    /// Waits until all that was begun on the stream is done, and no longer than the target's patience.
    fn synchronize(&self, stream: usize) -> Result<(), GpuLost> {
        let begin = Instant::now();
        while !self.is_done(stream)? {
            let waited = begin.elapsed();
            if waited > self.patience() {
                self.abandon();
                return Err(GpuLost {
                    step: "waiting",
                    cause: format!("no answer within {} ms", self.patience().as_millis()),
                });
            }
            nap(waited);
        }
        Ok(())
    }
}

/// An eighth of the time that has been waited: what is noticed too late is no more than that, and a processor that
/// waits is free for the lanes that compute on it. The first microseconds are not worth a nap.
fn nap(waited: Duration) {
    const LONGEST: Duration = Duration::from_micros(200);
    match waited < Duration::from_micros(20) {
        true => std::thread::yield_now(),
        false => std::thread::sleep((waited / 8).min(LONGEST)),
    }
}

/// Begins to run a kernel for `items` items of its arguments.
///
/// # Safety
/// The arrays that the arguments name are allocations of this target, as long as `layouts.cuh` says for that many
/// items, and stay until the stream is synchronised.
pub(crate) unsafe fn launch<A: Shared>(
    target: &dyn Target,
    stream: usize,
    kernel: Kernel<A>,
    items: usize,
    arguments: &A,
) -> Result<(), GpuLost> {
    // SAFETY: the kernel's type says what its arguments are; for the rest the caller vouches.
    unsafe { target.launch(stream, kernel.info, items, std::ptr::from_ref(arguments).cast()) }
}

/// Blocks that do so many items of a kernel.
pub(crate) fn blocks_of(kernel: &KernelInfo, items: usize) -> u32 {
    let items_per_block = (BLOCK_THREADS / kernel.threads_per_item) as usize;
    u32::try_from(items.div_ceil(items_per_block)).unwrap_or(u32::MAX)
}

/// Threads that a launch of so many items has.
pub(crate) fn threads_of(kernel: &KernelInfo, items: usize) -> usize {
    blocks_of(kernel, items) as usize * BLOCK_THREADS as usize
}

/// Items of a kernel that the whole device works on at once.
pub(crate) fn items_at_once(target: &dyn Target, kernel: &KernelInfo) -> Result<usize, GpuLost> {
    let threads = target.resident_blocks(kernel)? as usize * BLOCK_THREADS as usize;
    Ok((threads / kernel.threads_per_item as usize).max(1))
}

/// Memory of a device, wiped when it is given back.
pub(crate) struct DeviceMemory {
    target: Arc<dyn Target>,
    address: u64,
    bytes: usize,
}

impl DeviceMemory {
    pub(crate) fn new(target: &Arc<dyn Target>, bytes: usize) -> Result<Self, GpuLost> {
        // A device gives out no empty memory, yet an empty array needs an address.
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

    /// Whether it is this target's.
    pub(crate) fn is_of(&self, target: &Arc<dyn Target>) -> bool {
        Arc::ptr_eq(&self.target, target)
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        self.target.release(self.address, self.bytes);
    }
}

/// Host memory for copies, wiped when it is given back.
pub(crate) struct HostMemory {
    target: Arc<dyn Target>,
    pointer: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is the only owner of its memory.
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

    /// Its bytes.
    ///
    /// # Safety
    /// No copy to or from them is under way on a device that still works.
    pub(crate) unsafe fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the memory is ours, all of it was zeroed when it was allocated, and copies write bytes only; none does now.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.bytes) }
    }

    /// Wipes so many bytes at its beginning, or all of them.
    ///
    /// # Safety
    /// As for [`HostMemory::bytes`].
    pub(crate) unsafe fn wipe(&mut self, bytes: usize) {
        // SAFETY: the caller's.
        let all = unsafe { self.bytes() };
        let bytes = bytes.min(all.len());
        all.get_mut(..bytes).unwrap_or_default().zeroize();
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // SAFETY: whoever had copies begun has waited for them, or given the device up as hanging. Then bytes that it writes yet are bytes of
        // memory that `release_host` leaves allocated.
        unsafe { self.wipe(usize::MAX) };
        self.target.release_host(self.pointer, self.bytes);
    }
}
