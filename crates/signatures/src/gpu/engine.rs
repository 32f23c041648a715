//! An open device, and the parts that all batches share: choice of kernel, order, slices.

use std::sync::Arc;

use super::cuda::{self, Cuda};
use super::error::{BatchError, GpuLost, GpuUnavailable};
use super::kernels::{Kernel, KernelInfo};
use super::options::Options;
use super::slot::Slot;
use super::target::{DeviceInfo, DeviceMemory, Target, items_at_once};

/// Optimization goal of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    /// Few threads per item: the highest throughput, for thousands of items.
    Throughput,
    /// Four or eight threads per item: a small batch finishes several times sooner.
    Latency,
    /// `Latency` if the latency kernel can process the whole batch at once, otherwise `Throughput`.
    Automatic,
}

/// An open device. Its methods block until their batch is done, so a device needs a thread of its own.
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
    /// Lists the devices. Nothing needs to be installed for this call.
    ///
    /// # Errors
    /// No device is available, with the reason.
    pub fn discover() -> Result<Vec<DeviceInfo>, GpuUnavailable> {
        cuda::discover()
    }

    /// Opens a device and compiles the kernels for the device. The compilation takes some ten seconds of one CPU,
    /// unless the compiled kernels are cached.
    ///
    /// # Errors
    /// The device cannot be used, or the compiler is missing or fails.
    pub fn open(device: &DeviceInfo, options: &Options) -> Result<Self, GpuUnavailable> {
        let target = Arc::new(Cuda::open(device, options)?);
        let convert = |lost: GpuLost| match target.is_abandoned() {
            true => GpuUnavailable::Unresponsive(lost.to_string()),
            false => BatchError::Lost(lost).into(),
        };
        Self::with_target(Arc::<Cuda>::clone(&target)).map_err(convert)
    }

    /// A device emulated with the same kernels on this CPU, for tests.
    ///
    /// # Errors
    /// The emulation is configured to fail during this call.
    #[cfg(feature = "host-kernels")]
    pub fn emulated(emulation: super::Emulation) -> Result<Self, GpuLost> {
        Self::with_target(Arc::new(super::emulator::Emulator::new(emulation)))
    }

    /// An emulated device whose kernels `launcher` executes, for tests.
    ///
    /// # Errors
    /// The emulation is configured to fail during this call.
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

    /// Properties of the device.
    #[must_use]
    pub fn info(&self) -> &DeviceInfo {
        self.target.info()
    }

    /// The error with which the device was lost; `None` if the device works.
    #[must_use]
    pub fn lost(&self) -> Option<&GpuLost> {
        self.lost.as_ref()
    }

    /// Closes the device, and returns whether it did not respond in time, before or during the call. The memory of a
    /// device that does not respond is leaked, and the device cannot be opened again in this process: the driver would
    /// wait for the device.
    #[must_use]
    pub fn close(self) -> bool {
        let target = Arc::clone(&self.target);
        drop(self);
        target.is_abandoned()
    }

    /// Closes the device after an error, and returns the error; the error becomes `Unresponsive` if the device stopped
    /// responding.
    pub(crate) fn close_after(self, error: GpuUnavailable) -> GpuUnavailable {
        match self.close() {
            true => GpuUnavailable::Unresponsive(error.to_string()),
            false => error,
        }
    }

    /// Runs one operation, and records the loss of the device.
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

    /// Refuses memory of another device, whose addresses are invalid here.
    pub(super) fn check_owner(&self, memory: &DeviceMemory) -> Result<(), BatchError> {
        match memory.belongs_to(&self.target) {
            true => Ok(()),
            false => Err(BatchError::Malformed(
                "the keys or the signer belong to another device",
            )),
        }
    }

    pub(super) fn allocate(&self, bytes: usize) -> Result<DeviceMemory, GpuLost> {
        DeviceMemory::new(&self.target, bytes)
    }

    /// Writes a few bytes to the device and waits.
    pub(super) fn write(&mut self, to: &DeviceMemory, offset: usize, bytes: &[u8]) -> Result<(), GpuLost> {
        let no_stream = GpuLost {
            step: "writing",
            cause: "the device has no stream".to_owned(),
        };
        self.slots.first_mut().ok_or(no_stream)?.write(to, offset, bytes)
    }

    /// Reads a few bytes from the device.
    pub(super) fn read(
        &mut self,
        from: &DeviceMemory,
        offset: usize,
        bytes: &mut [u8],
    ) -> Result<(), GpuLost> {
        let no_stream = GpuLost {
            step: "reading",
            cause: "the device has no stream".to_owned(),
        };
        self.slots.first_mut().ok_or(no_stream)?.read(from, offset, bytes)
    }

    /// Chooses the kernel for a batch. Returns the kernel and the number of items in a slice.
    pub(super) fn choose<A>(
        &self,
        goal: Goal,
        count: usize,
        throughput: Kernel<A>,
        latency: Kernel<A>,
    ) -> Result<(Kernel<A>, usize), GpuLost> {
        let latency_items = self.items_at_once(latency.info)?;
        match goal == Goal::Latency || goal == Goal::Automatic && count <= latency_items {
            true => Ok((latency, latency_items)),
            false => Ok((throughput, self.items_at_once(throughput.info)?)),
        }
    }

    pub(super) fn items_at_once(&self, kernel: &KernelInfo) -> Result<usize, GpuLost> {
        items_at_once(&*self.target, kernel)
    }
}

/// The order of items (as indices) that groups items by key; `None` if the items are already sorted by key. Uses
/// counting sort, unless there are more possible keys than items.
pub(super) fn order_by_key(key_of: &[u32], keys: usize) -> Option<Vec<u32>> {
    if key_of.is_sorted() {
        return None;
    }
    if keys > key_of.len() {
        let mut order: Vec<u32> = (0u32..).zip(key_of).map(|(item, _)| item).collect();
        order.sort_by_key(|item| key_of.get(*item as usize));
        return Some(order);
    }
    let mut starts = vec![0u32; keys + 1];
    for key in key_of {
        *starts.get_mut(*key as usize + 1)? += 1;
    }
    // `starts` now has the number of items of the key before; the sums are the position of each key's first item.
    let mut sum = 0;
    for start in &mut starts {
        sum += *start;
        *start = sum;
    }
    let mut order = vec![0; key_of.len()];
    for (item, key) in (0u32..).zip(key_of) {
        let position = starts.get_mut(*key as usize)?;
        *order.get_mut(*position as usize)? = item;
        *position += 1;
    }
    Some(order)
}

/// The bytes of an array of numbers, which are little-endian like the device's.
pub(super) fn bytes_of<T: PlainData>(array: &[T]) -> &[u8] {
    // SAFETY: [`PlainData`] types have neither padding nor invalid bytes; the slice covers the array and has its
    // lifetime.
    unsafe { std::slice::from_raw_parts(array.as_ptr().cast(), size_of_val(array)) }
}

/// Types that consist of plain bytes.
///
/// # Safety
/// The type has no padding and no pointers.
pub(super) unsafe trait PlainData {}
// SAFETY: integers and arrays of bytes satisfy the requirement.
unsafe impl PlainData for u16 {}
// SAFETY: as above.
unsafe impl PlainData for u32 {}
// SAFETY: as above.
unsafe impl<const N: usize> PlainData for [u8; N] {}

#[cfg(not(target_endian = "little"))]
compile_error!("the device's words are little-endian, and arrays are copied to the device unchanged");

/// Checks that all keys of a batch exist, since the kernels do not check.
pub(super) fn check_keys(key_of: &[u32], keys: usize) -> Result<(), BatchError> {
    match key_of.iter().all(|key| (*key as usize) < keys) {
        true => Ok(()),
        false => Err(BatchError::Malformed("a key number is out of range")),
    }
}

/// Checks that an array has `each` entries per item.
pub(super) fn check_length(length: usize, count: usize, each: usize) -> Result<(), BatchError> {
    match count.checked_mul(each) == Some(length) && u32::try_from(count).is_ok() {
        true => Ok(()),
        false => Err(BatchError::Malformed(
            "the arrays of a batch have different numbers of items",
        )),
    }
}

/// Converts the device's results to booleans.
pub(super) fn to_bools(bytes: &[u8]) -> Vec<bool> {
    bytes.iter().map(|byte| *byte == 1).collect()
}
