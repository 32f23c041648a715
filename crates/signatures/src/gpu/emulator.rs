//! The kernels compiled for this CPU as a [`Target`]: for tests of everything except CUDA itself.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_void};
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use zeroize::Zeroize as _;

use super::error::GpuLost;
use super::kernels::KernelInfo;
use super::source::Unit;
use super::target::{DeviceInfo, Target};

/// Behavior of an emulated device.
#[derive(Debug, Clone, Copy)]
pub struct Emulation {
    /// Number of streams, which only determines how batches are cut into slices.
    pub streams: usize,
    /// Blocks that the device claims to process at once.
    pub resident_blocks: u32,
    /// Number of calls until the device is lost and every call fails.
    pub calls: u64,
    /// Number of waits that complete; later waits time out, as for a device that does not respond.
    pub completed_waits: u64,
    /// Timeout of a wait.
    pub timeout: Duration,
}

impl Default for Emulation {
    fn default() -> Self {
        Self {
            streams: 2,
            resident_blocks: 1,
            calls: u64::MAX,
            completed_waits: u64::MAX,
            timeout: Duration::from_millis(1),
        }
    }
}

/// Executes a kernel in an emulation, given the number of items and the arguments; addresses in the arguments are
/// addresses of this process.
pub type Launcher = Box<dyn Fn(&'static KernelInfo, usize, *const c_void) + Send + Sync>;

pub(crate) struct Emulator {
    info: DeviceInfo,
    emulation: Emulation,
    launcher: Launcher,
    remaining_calls: AtomicU64,
    remaining_waits: AtomicU64,
    abandoned: AtomicBool,
    /// Device and host memory: number of 16-byte words by address; the kernels' arrays are aligned to 16 bytes.
    memory: Mutex<HashMap<u64, usize>>,
}

impl Emulator {
    /// An emulator with the kernels compiled for this CPU.
    pub(crate) fn new(emulation: Emulation) -> Self {
        let launch = |kernel: &'static KernelInfo, _: usize, arguments: *const c_void| {
            // SAFETY: the caller of the launch guarantees valid arguments and arrays.
            unsafe { kernel.run_on_host(arguments) };
        };
        Self::with_launcher(emulation, Box::new(launch))
    }

    pub(crate) fn with_launcher(emulation: Emulation, launcher: Launcher) -> Self {
        let info = DeviceInfo {
            ordinal: 0,
            name: "emulation".to_owned(),
            compute_capability: (0, 0),
            memory_bytes: 0,
            multiprocessors: 1,
            clock_khz: 0,
        };
        Self {
            info,
            emulation,
            launcher,
            remaining_calls: AtomicU64::new(emulation.calls),
            remaining_waits: AtomicU64::new(emulation.completed_waits),
            abandoned: AtomicBool::new(false),
            memory: Mutex::default(),
        }
    }

    fn count_call(&self, step: &'static str) -> Result<(), GpuLost> {
        let cause = match self.abandoned.load(Ordering::Relaxed) {
            true => "the device was abandoned after a timeout",
            false if count_down(&self.remaining_calls) => return Ok(()),
            false => "the emulated device is configured to fail",
        };
        Err(GpuLost {
            step,
            cause: cause.to_owned(),
        })
    }

    fn allocate_zeroed(&self, bytes: usize) -> *mut u8 {
        let words = vec![0u128; bytes.div_ceil(16)].into_boxed_slice();
        let count = words.len();
        let pointer: *mut u8 = Box::into_raw(words).cast();
        if let Ok(mut memory) = self.memory.lock() {
            memory.insert(pointer.expose_provenance() as u64, count);
        }
        pointer
    }

    fn free(&self, address: u64) {
        if self.abandoned.load(Ordering::Relaxed) {
            return;
        }
        let Some(count) = self
            .memory
            .lock()
            .ok()
            .and_then(|mut memory| memory.remove(&address))
        else {
            return;
        };
        let words = std::ptr::slice_from_raw_parts_mut(pointer_of(address).cast::<u128>(), count);
        // SAFETY: `allocate_zeroed` made the address from a box of this many words, and the entry was just removed.
        let mut words = unsafe { Box::from_raw(words) };
        words.zeroize();
    }
}

/// Decrements the counter; false if it was zero.
fn count_down(counter: &AtomicU64) -> bool {
    let result = counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| count.checked_sub(1));
    result.is_ok()
}

fn pointer_of(address: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

impl Target for Emulator {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn streams(&self) -> usize {
        self.emulation.streams
    }

    fn prepare(&self, _: Unit) -> Result<(), GpuLost> {
        Ok(())
    }

    fn resident_blocks(&self, _: &KernelInfo) -> Result<u32, GpuLost> {
        Ok(self.emulation.resident_blocks)
    }

    fn allocate(&self, bytes: usize) -> Result<u64, GpuLost> {
        self.count_call("allocating memory")?;
        Ok(self.allocate_zeroed(bytes).expose_provenance() as u64)
    }

    fn release(&self, address: u64, _: usize) {
        self.free(address);
    }

    fn allocate_host(&self, bytes: usize) -> Result<NonNull<u8>, GpuLost> {
        self.count_call("allocating host memory")?;
        let lost = || GpuLost {
            step: "allocating host memory",
            cause: "out of memory".to_owned(),
        };
        NonNull::new(self.allocate_zeroed(bytes)).ok_or_else(lost)
    }

    fn release_host(&self, pointer: NonNull<u8>, _: usize) {
        self.free(pointer.as_ptr().expose_provenance() as u64);
    }

    unsafe fn upload(&self, _: usize, to: u64, from: *const u8, bytes: usize) -> Result<(), GpuLost> {
        self.count_call("copying to the device")?;
        // SAFETY: the caller guarantees source and destination, which are different allocations.
        unsafe { pointer_of(to).copy_from_nonoverlapping(from, bytes) };
        Ok(())
    }

    unsafe fn download(&self, _: usize, to: *mut u8, from: u64, bytes: usize) -> Result<(), GpuLost> {
        self.count_call("copying from the device")?;
        // SAFETY: as above.
        unsafe { to.copy_from_nonoverlapping(pointer_of(from), bytes) };
        Ok(())
    }

    unsafe fn clear(&self, _: usize, address: u64, bytes: usize) -> Result<(), GpuLost> {
        self.count_call("wiping memory")?;
        // SAFETY: the caller guarantees the memory.
        unsafe { pointer_of(address).write_bytes(0, bytes) };
        Ok(())
    }

    unsafe fn launch(
        &self,
        _: usize,
        kernel: &'static KernelInfo,
        items: usize,
        arguments: *const c_void,
    ) -> Result<(), GpuLost> {
        self.count_call(kernel.name)?;
        (self.launcher)(kernel, items, arguments);
        Ok(())
    }

    fn is_done(&self, _: usize) -> Result<bool, GpuLost> {
        self.count_call("waiting")?;
        Ok(count_down(&self.remaining_waits))
    }

    fn timeout(&self) -> Duration {
        self.emulation.timeout
    }

    fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
    }

    fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }
}

/// Sizes and field offsets of the structures for the C++ compiler, by names such as `PssArgs` and `PssArgs.count`.
#[must_use]
pub fn host_layouts() -> Vec<(&'static str, u64)> {
    #[repr(C)]
    struct Entry {
        name: *const c_char,
        value: u64,
    }
    unsafe extern "C" {
        fn linewarden_host_layouts() -> *const Entry;
    }
    let mut layouts = Vec::new();
    // SAFETY: the function has no arguments, and returns the start of a constant array.
    let mut entry = unsafe { linewarden_host_layouts() };
    loop {
        // SAFETY: the array ends with an entry without a name, where the loop stops.
        let Entry { name, value } = unsafe { entry.read() };
        if name.is_null() {
            return layouts;
        }
        // SAFETY: names are string literals.
        layouts.push((
            unsafe { CStr::from_ptr(name) }.to_str().unwrap_or_default(),
            value,
        ));
        // SAFETY: the previous entry was not the last.
        entry = unsafe { entry.add(1) };
    }
}
