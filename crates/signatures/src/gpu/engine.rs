//! A device that has been opened, and what all batches share: choice of kernel, order, slices.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::cuda::{self, Cuda};
use super::error::{BatchError, GpuLost, NoGpu};
use super::kernels::{Kernel, KernelInfo};
use super::slot::Slot;
use super::target::{DeviceInfo, DeviceMemory, Target, items_at_once};

/// How a device is used.
#[derive(Debug, Clone)]
pub struct Options {
    /// Streams that slices take turns on: with two, copies go on behind computing.
    pub streams: usize,
    /// A directory for compiled kernels, which take seconds to make. Only files that nobody else may write are taken
    /// from it.
    pub cache: Option<PathBuf>,
    /// How long it may take to do what it works on at once, which is some milliseconds; one that takes longer is lost.
    pub patience: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            streams: 3,
            cache: None,
            patience: Duration::from_secs(5),
        }
    }
}

/// What a batch is to be done for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    /// Few threads an item: most items a second, if there are thousands.
    Throughput,
    /// Four or eight threads an item: a small batch is done several times sooner.
    Latency,
    /// Latency for a batch that the device then does all at once, else throughput.
    Best,
}

/// An open device. Its methods wait for their batch, so it belongs to a thread of its own.
pub struct Gpu {
    pub(super) target: Arc<dyn Target>,
    pub(super) slots: Vec<Slot>,
    pub(super) p256_base_table: Option<DeviceMemory>,
    lost: Option<GpuLost>,
}

impl std::fmt::Debug for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gpu")
            .field("info", self.info())
            .field("lost", &self.lost)
            .finish_non_exhaustive()
    }
}

impl Gpu {
    /// The devices that are there. Nothing has to be installed for this to answer.
    ///
    /// # Errors
    /// That there is none, and why.
    pub fn discover() -> Result<Vec<DeviceInfo>, NoGpu> {
        cuda::discover()
    }

    /// Opens a device and compiles the kernels for it, which takes some ten seconds of one processor unless they are
    /// in the cache.
    ///
    /// # Errors
    /// A device that cannot be used, no compiler, or one that refuses.
    pub fn open(device: &DeviceInfo, options: &Options) -> Result<Self, NoGpu> {
        let target = Arc::new(Cuda::open(device, options)?);
        let refused = |lost: GpuLost| match target.is_abandoned() {
            true => NoGpu::Hangs(lost.to_string()),
            false => BatchError::Lost(lost).into(),
        };
        Self::with_target(Arc::<Cuda>::clone(&target)).map_err(refused)
    }

    /// The same kernels on this processor, for tests.
    ///
    /// # Errors
    /// If the emulation is told to fail so soon.
    #[cfg(feature = "host-kernels")]
    pub fn emulated(emulation: super::Emulation) -> Result<Self, GpuLost> {
        Self::with_target(Arc::new(super::emulator::Emulator::new(emulation)))
    }

    /// Kernels run by something else, for tests.
    ///
    /// # Errors
    /// If the emulation is told to fail so soon.
    #[cfg(feature = "host-kernels")]
    pub fn emulated_by(emulation: super::Emulation, launcher: super::Launcher) -> Result<Self, GpuLost> {
        Self::with_target(Arc::new(super::emulator::Emulator::with_launcher(
            emulation, launcher,
        )))
    }

    fn with_target(target: Arc<dyn Target>) -> Result<Self, GpuLost> {
        let slots = (0..target.streams())
            .map(|stream| Slot::new(&target, stream))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            target,
            slots,
            p256_base_table: None,
            lost: None,
        })
    }

    /// The device.
    #[must_use]
    pub fn info(&self) -> &DeviceInfo {
        self.target.info()
    }

    /// How it was lost, if it was.
    #[must_use]
    pub fn lost(&self) -> Option<&GpuLost> {
        self.lost.as_ref()
    }

    /// Closes it, and says whether it did not answer in time, before or at that. Its memory is left to it then, and it cannot be opened
    /// again in this process: the driver would wait for it.
    #[must_use]
    pub fn close(self) -> bool {
        let target = Arc::clone(&self.target);
        drop(self);
        target.is_abandoned()
    }

    /// Runs one operation, and remembers it if the device is lost in it.
    pub(super) fn guard<T>(
        &mut self,
        operation: impl FnOnce(&mut Self) -> Result<T, BatchError>,
    ) -> Result<T, BatchError> {
        if let Some(lost) = &self.lost {
            return Err(lost.clone().into());
        }
        let outcome = operation(self);
        if let Err(BatchError::Lost(lost)) = &outcome {
            self.lost = Some(lost.clone());
        }
        outcome
    }

    /// Refuses what belongs to another device, whose addresses mean nothing here.
    pub(super) fn check_owner(&self, memory: &DeviceMemory) -> Result<(), BatchError> {
        match memory.is_of(&self.target) {
            true => Ok(()),
            false => Err(BatchError::Malformed("keys or a signer of another device")),
        }
    }

    pub(super) fn allocate(&self, bytes: usize) -> Result<DeviceMemory, GpuLost> {
        DeviceMemory::new(&self.target, bytes)
    }

    /// Writes a few bytes to the device and waits.
    pub(super) fn write(&mut self, to: &DeviceMemory, offset: usize, bytes: &[u8]) -> Result<(), GpuLost> {
        let none = GpuLost {
            step: "writing",
            cause: "there is no stream".to_owned(),
        };
        self.slots.first_mut().ok_or(none)?.write(to, offset, bytes)
    }

    /// Reads a few bytes from the device.
    pub(super) fn read(
        &mut self,
        from: &DeviceMemory,
        offset: usize,
        bytes: &mut [u8],
    ) -> Result<(), GpuLost> {
        let none = GpuLost {
            step: "reading",
            cause: "there is no stream".to_owned(),
        };
        self.slots.first_mut().ok_or(none)?.read(from, offset, bytes)
    }

    /// The kernel for a batch, and the items of a slice.
    pub(super) fn choose<A>(
        &self,
        goal: Goal,
        count: usize,
        throughput: Kernel<A>,
        latency: Kernel<A>,
    ) -> Result<(Kernel<A>, usize), GpuLost> {
        let at_once = self.items_at_once(latency.info)?;
        match goal == Goal::Latency || goal == Goal::Best && count <= at_once {
            true => Ok((latency, at_once)),
            false => Ok((throughput, self.items_at_once(throughput.info)?)),
        }
    }

    pub(super) fn items_at_once(&self, kernel: &KernelInfo) -> Result<usize, GpuLost> {
        items_at_once(&*self.target, kernel)
    }
}

/// The order that puts items of one key together; none if they stand so already. By counting, unless there is room for
/// more keys than there are items.
pub(super) fn order_by_key(key_of: &[u32], keys: usize) -> Option<Vec<u32>> {
    if key_of.is_sorted() {
        return None;
    }
    if keys > key_of.len() {
        let mut order: Vec<u32> = (0u32..).zip(key_of).map(|(item, _)| item).collect();
        order.sort_by_key(|item| key_of.get(*item as usize));
        return Some(order);
    }
    let mut ends = vec![0u32; keys + 1];
    for key in key_of {
        *ends.get_mut(*key as usize + 1)? += 1;
    }
    let mut sum = 0;
    for end in &mut ends {
        sum += *end;
        *end = sum;
    }
    let mut order = vec![0; key_of.len()];
    for (item, key) in (0u32..).zip(key_of) {
        let place = ends.get_mut(*key as usize)?;
        *order.get_mut(*place as usize)? = item;
        *place += 1;
    }
    Some(order)
}

/// The bytes of an array of numbers, which are little-endian as the device's are.
pub(super) fn bytes_of<T: Plain>(array: &[T]) -> &[u8] {
    // SAFETY: `Plain` types have neither padding nor invalid bytes; the slice covers the array and lives as long.
    unsafe { std::slice::from_raw_parts(array.as_ptr().cast(), size_of_val(array)) }
}

/// Types that are bytes and nothing else.
///
/// # Safety
/// No padding, no pointers.
pub(super) unsafe trait Plain {}
// SAFETY: integers and arrays of bytes are.
unsafe impl Plain for u16 {}
// SAFETY: as above.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl<const N: usize> Plain for [u8; N] {}

#[cfg(not(target_endian = "little"))]
compile_error!("the device's words are little-endian, and arrays are copied to it as they are");

/// That all keys of a batch exist, as the device does not ask.
pub(super) fn check_keys(key_of: &[u32], keys: usize) -> Result<(), BatchError> {
    match key_of.iter().all(|key| (*key as usize) < keys) {
        true => Ok(()),
        false => Err(BatchError::Malformed("an item names a key that does not exist")),
    }
}

/// That an array has so many entries an item.
pub(super) fn check_length(length: usize, count: usize, each: usize) -> Result<(), BatchError> {
    match count.checked_mul(each) == Some(length) && u32::try_from(count).is_ok() {
        true => Ok(()),
        false => Err(BatchError::Malformed(
            "the arrays of a batch differ in their number of items",
        )),
    }
}

/// Verdicts from the device's bytes.
pub(super) fn verdicts(bytes: &[u8]) -> Vec<bool> {
    bytes.iter().map(|byte| *byte == 1).collect()
}
