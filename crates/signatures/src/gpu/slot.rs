//! One stream with its buffers, and the division of a batch into slices for several streams: while the device computes
//! one slice, the next slice is uploaded and the results of the previous slice are downloaded.

use std::sync::Arc;

use zeroize::Zeroize as _;

use super::error::GpuLost;
use super::target::{DeviceMemory, HostMemory, Target};

/// Alignment of arrays in a buffer: the alignment of device allocations.
const ALIGNMENT: usize = 256;

/// An array of the batch with a fixed number of bytes per item.
#[derive(Clone, Copy)]
pub(crate) struct Field<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) item_bytes: usize,
}

impl<'a> Field<'a> {
    pub(crate) fn new(bytes: &'a [u8], item_bytes: usize) -> Self {
        Self { bytes, item_bytes }
    }

    fn item(&self, index: usize) -> &'a [u8] {
        let first = index * self.item_bytes;
        self.bytes.get(first..first + self.item_bytes).unwrap_or_default()
    }
}

/// A batch: input arrays and output arrays.
pub(crate) struct Job<'a, const I: usize, const O: usize> {
    pub(crate) count: usize,
    /// Number of items in a slice.
    pub(crate) slice: usize,
    /// The item at each position, if the items are reordered.
    pub(crate) order: Option<&'a [u32]>,
    pub(crate) inputs: [Field<'a>; I],
    /// Output bytes per item.
    pub(crate) outputs: [usize; O],
    /// Additional device memory per slice, bytes.
    pub(crate) scratch_bytes: usize,
    /// Whether buffers are wiped after the batch.
    pub(crate) secret: bool,
}

/// Addresses of the arrays of a slice on the device.
pub(crate) struct Slice<'a, const I: usize, const O: usize> {
    pub(crate) target: &'a dyn Target,
    pub(crate) stream: usize,
    /// Index of the slice's first item in the batch.
    pub(crate) first: usize,
    pub(crate) count: usize,
    pub(crate) inputs: [u64; I],
    pub(crate) outputs: [u64; O],
    pub(crate) scratch: u64,
}

/// A stream and its buffers.
pub(crate) struct Slot {
    target: Arc<dyn Target>,
    stream: usize,
    host_in: HostMemory,
    host_out: HostMemory,
    device_in: DeviceMemory,
    device_out: DeviceMemory,
    scratch: DeviceMemory,
    /// First item and number of items of the slice in progress.
    pending: Option<(usize, usize)>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        // Copies from and to the dropped buffers may be in progress; a lost device copies nothing any more.
        let _ = self.target.synchronize(self.stream);
    }
}

impl Slot {
    pub(crate) fn new(target: &Arc<dyn Target>, stream: usize) -> Result<Self, GpuLost> {
        Ok(Self {
            stream,
            host_in: HostMemory::new(target, 0)?,
            host_out: HostMemory::new(target, 0)?,
            device_in: DeviceMemory::new(target, 0)?,
            device_out: DeviceMemory::new(target, 0)?,
            scratch: DeviceMemory::new(target, 0)?,
            pending: None,
            target: Arc::clone(target),
        })
    }

    /// Writes a few bytes to the device and waits. The host buffer is wiped.
    pub(crate) fn write(&mut self, to: &DeviceMemory, offset: usize, bytes: &[u8]) -> Result<(), GpuLost> {
        if bytes.is_empty() {
            return Ok(());
        }
        check_inside(to, offset, bytes.len())?;
        reserve_host(&self.target, &mut self.host_in, bytes.len())?;
        // SAFETY: no slice is in progress, and earlier copies were waited for.
        copy(unsafe { self.host_in.bytes() }, 0, bytes);
        // SAFETY: source and destination have room, as just checked, and the stream is synchronized before any other operation.
        let started = unsafe {
            self.target.upload(
                self.stream,
                to.address() + offset as u64,
                self.host_in.pointer(),
                bytes.len(),
            )
        };
        started?;
        self.target.synchronize(self.stream)?;
        // SAFETY: the copy was just waited for.
        unsafe { self.host_in.wipe(bytes.len()) };
        Ok(())
    }

    /// Reads a few bytes from the device.
    pub(crate) fn read(
        &mut self,
        from: &DeviceMemory,
        offset: usize,
        bytes: &mut [u8],
    ) -> Result<(), GpuLost> {
        check_inside(from, offset, bytes.len())?;
        reserve_host(&self.target, &mut self.host_out, bytes.len())?;
        // SAFETY: as above.
        let started = unsafe {
            self.target.download(
                self.stream,
                self.host_out.pointer(),
                from.address() + offset as u64,
                bytes.len(),
            )
        };
        started?;
        self.target.synchronize(self.stream)?;
        // SAFETY: the copy was just waited for.
        let downloaded = unsafe { self.host_out.bytes() };
        copy(bytes, 0, downloaded.get(..bytes.len()).unwrap_or_default());
        // SAFETY: as above.
        unsafe { self.host_out.wipe(bytes.len()) };
        Ok(())
    }

    /// Uploads a slice, starts its kernels, and starts the download of the results.
    fn begin<const I: usize, const O: usize>(
        &mut self,
        job: &Job<I, O>,
        first: usize,
        count: usize,
        launch: &mut dyn FnMut(&Slice<I, O>) -> Result<(), GpuLost>,
    ) -> Result<(), GpuLost> {
        let (in_offsets, in_bytes) = offsets(job.inputs.map(|field| field.item_bytes), count);
        let (out_offsets, out_bytes) = offsets(job.outputs, count);
        reserve_host(&self.target, &mut self.host_in, in_bytes)?;
        reserve_host(&self.target, &mut self.host_out, out_bytes)?;
        reserve_device(&self.target, &mut self.device_in, in_bytes)?;
        reserve_device(&self.target, &mut self.device_out, out_bytes)?;
        reserve_device(&self.target, &mut self.scratch, job.scratch_bytes)?;
        // SAFETY: the previous slice was finished, or there is none.
        let host_in = unsafe { self.host_in.bytes() };
        for (field, offset) in job.inputs.iter().zip(in_offsets) {
            let array = host_in.get_mut(offset..).unwrap_or_default();
            gather(array, field, job.order, first, count);
        }
        self.pending = Some((first, count));
        // SAFETY: source and destination have room, as just checked; neither is accessed or released
        // before `finish` has synchronized the stream.
        unsafe {
            self.target.upload(
                self.stream,
                self.device_in.address(),
                self.host_in.pointer(),
                in_bytes,
            )
        }?;
        launch(&Slice {
            target: &*self.target,
            stream: self.stream,
            first,
            count,
            inputs: in_offsets.map(|offset| self.device_in.address() + offset as u64),
            outputs: out_offsets.map(|offset| self.device_out.address() + offset as u64),
            scratch: self.scratch.address(),
        })?;
        if out_bytes == 0 {
            return Ok(());
        }
        // SAFETY: as above.
        unsafe {
            self.target.download(
                self.stream,
                self.host_out.pointer(),
                self.device_out.address(),
                out_bytes,
            )
        }
    }

    /// Waits for the slice in progress, if there is one, and stores its results.
    fn finish<const I: usize, const O: usize>(
        &mut self,
        job: &Job<I, O>,
        results: &mut [Vec<u8>; O],
    ) -> Result<(), GpuLost> {
        let Some((first, count)) = self.pending else {
            return Ok(());
        };
        self.target.synchronize(self.stream)?;
        self.pending = None;
        let (out_offsets, _) = offsets(job.outputs, count);
        // SAFETY: all work on the stream was just waited for.
        let host_out = unsafe { self.host_out.bytes() };
        for ((result, item_bytes), offset) in results.iter_mut().zip(job.outputs).zip(out_offsets) {
            let bytes = host_out.get(offset..).unwrap_or_default();
            scatter(result, bytes, item_bytes, job.order, first, count);
        }
        Ok(())
    }

    /// Wipes the data of a batch in the buffers.
    fn wipe(&mut self) -> Result<(), GpuLost> {
        for memory in [&self.device_in, &self.device_out, &self.scratch] {
            // SAFETY: the memory belongs to this slot; the stream is synchronized below.
            unsafe { self.target.clear(self.stream, memory.address(), memory.bytes()) }?;
        }
        self.target.synchronize(self.stream)?;
        for memory in [&mut self.host_in, &mut self.host_out] {
            // SAFETY: all copies were just waited for.
            unsafe { memory.wipe(usize::MAX) };
        }
        Ok(())
    }
}

/// Processes a batch slice by slice; the slices are distributed to all slots. `launch` is called for each slice, in the
/// order of the items, and starts kernels on the slice's stream. The kernels may only use the slice's own arrays and
/// memory that outlives this call. Results are in the order of the batch.
///
/// # Errors
/// The error of the first call that failed. After an error, no slot has work in progress.
pub(crate) fn run<const I: usize, const O: usize>(
    slots: &mut [Slot],
    job: &Job<I, O>,
    mut launch: impl FnMut(&Slice<I, O>) -> Result<(), GpuLost>,
) -> Result<[Vec<u8>; O], GpuLost> {
    let mut results = job.outputs.map(|item_bytes| vec![0; item_bytes * job.count]);
    let outcome = run_slices(slots, job, &mut launch, &mut results);
    if outcome.is_err() {
        for slot in slots.iter_mut() {
            let _ = slot.target.synchronize(slot.stream);
            slot.pending = None;
            for memory in [&mut slot.host_in, &mut slot.host_out] {
                // SAFETY: all copies were waited for, or the device does not respond and was abandoned.
                unsafe { memory.wipe(usize::MAX) };
            }
        }
        for result in &mut results {
            result.zeroize();
        }
    }
    outcome.map(|()| results)
}

fn run_slices<const I: usize, const O: usize>(
    slots: &mut [Slot],
    job: &Job<I, O>,
    launch: &mut dyn FnMut(&Slice<I, O>) -> Result<(), GpuLost>,
    results: &mut [Vec<u8>; O],
) -> Result<(), GpuLost> {
    let slice = job.slice.max(1);
    let mut first = 0;
    while first < job.count {
        for slot in slots.iter_mut() {
            slot.finish(job, results)?;
            if first < job.count {
                let count = slice.min(job.count - first);
                slot.begin(job, first, count, launch)?;
                first += count;
            }
        }
    }
    for slot in slots.iter_mut() {
        slot.finish(job, results)?;
    }
    if job.secret {
        for slot in slots.iter_mut() {
            slot.wipe()?;
        }
    }
    Ok(())
}

/// Offsets of arrays of `count` items in one buffer, and the buffer's length.
fn offsets<const F: usize>(item_bytes: [usize; F], count: usize) -> ([usize; F], usize) {
    let mut end = 0;
    let offsets = item_bytes.map(|bytes| {
        let offset = end;
        end = (offset + bytes * count).next_multiple_of(ALIGNMENT);
        offset
    });
    (offsets, end)
}

fn reserve_host(target: &Arc<dyn Target>, memory: &mut HostMemory, bytes: usize) -> Result<(), GpuLost> {
    if memory.len() < bytes {
        *memory = HostMemory::new(target, bytes)?;
    }
    Ok(())
}

fn reserve_device(target: &Arc<dyn Target>, memory: &mut DeviceMemory, bytes: usize) -> Result<(), GpuLost> {
    if memory.bytes() < bytes {
        *memory = DeviceMemory::new(target, bytes)?;
    }
    Ok(())
}

/// Checks that a range is inside an allocation. The check guards against errors of this crate: the device might not
/// refuse a copy beyond an allocation.
fn check_inside(memory: &DeviceMemory, offset: usize, bytes: usize) -> Result<(), GpuLost> {
    match offset.checked_add(bytes).is_some_and(|end| end <= memory.bytes()) {
        true => Ok(()),
        false => Err(GpuLost {
            step: "copying",
            cause: "range exceeds the allocation".to_owned(),
        }),
    }
}

fn copy(to: &mut [u8], offset: usize, from: &[u8]) {
    if let Some(to) = to.get_mut(offset..offset + from.len()) {
        to.copy_from_slice(from);
    }
}

/// Copies `count` items of a field into `to`, from position `first` of the order on.
fn gather(to: &mut [u8], field: &Field, order: Option<&[u32]>, first: usize, count: usize) {
    match order.filter(|_| field.item_bytes > 0) {
        None => {
            let from = field
                .bytes
                .get(first * field.item_bytes..(first + count) * field.item_bytes);
            copy(to, 0, from.unwrap_or_default());
        }
        Some(order) => {
            let order = order.get(first..first + count).unwrap_or_default();
            for (item, index) in to.chunks_exact_mut(field.item_bytes).zip(order) {
                copy(item, 0, field.item(*index as usize));
            }
        }
    }
}

/// Copies `count` results to the positions of their items in the batch, from position `first` of the order on.
fn scatter(to: &mut [u8], from: &[u8], item_bytes: usize, order: Option<&[u32]>, first: usize, count: usize) {
    match order.filter(|_| item_bytes > 0) {
        None => copy(
            to,
            first * item_bytes,
            from.get(..count * item_bytes).unwrap_or_default(),
        ),
        Some(order) => {
            let order = order.get(first..first + count).unwrap_or_default();
            for (item, index) in from.chunks_exact(item_bytes).zip(order) {
                copy(to, *index as usize * item_bytes, item);
            }
        }
    }
}
