//! A CUDA device as a [`Target`]: discovery, loading of kernels, and calls of the driver API.

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cudarc::driver::{CudaContext, CudaStream, DriverError, result, sys};
use sha2::{Digest as _, Sha256};

use super::cache;
use super::error::{GpuLost, GpuUnavailable};
use super::kernels::{self, BLOCK_THREADS, KernelInfo};
use super::nvrtc::Nvrtc;
use super::options::Options;
use super::source::{HEADERS, Unit};
use super::target::{DeviceInfo, Target, blocks_of};

/// Maximum length of the machine code of one unit, bytes; typical code has some hundred kilobytes.
const CUBIN_BYTES_MAX: usize = 16 << 20;

fn driver_failed(step: &'static str) -> impl Fn(DriverError) -> GpuUnavailable {
    move |error| GpuUnavailable::DriverFailed {
        step,
        cause: error.to_string(),
    }
}

fn gpu_lost(step: &'static str) -> impl Fn(DriverError) -> GpuLost {
    move |error| GpuLost {
        step,
        cause: error.to_string(),
    }
}

/// All devices that the driver lists.
pub(crate) fn discover() -> Result<Vec<DeviceInfo>, GpuUnavailable> {
    // SAFETY: the initializers of libcuda only set up the driver's client side. The check comes first, since the
    // binding ends the process if the library is missing.
    if !unsafe { sys::is_culib_present() } {
        return Err(GpuUnavailable::DriverMissing);
    }
    match result::init() {
        Err(DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE)) => return Err(GpuUnavailable::NoDevice),
        result => result.map_err(driver_failed("starting"))?,
    }
    let count = result::device::get_count().map_err(driver_failed("counting devices"))?;
    if count == 0 {
        return Err(GpuUnavailable::NoDevice);
    }
    (0..count).map(describe).collect()
}

fn describe(ordinal: i32) -> Result<DeviceInfo, GpuUnavailable> {
    use sys::CUdevice_attribute as Attribute;
    let step = driver_failed("querying device properties");
    let device = result::device::get(ordinal).map_err(&step)?;
    // SAFETY: the driver has just listed the device.
    let attribute = |attribute| unsafe { result::device::get_attribute(device, attribute) }.map_err(&step);
    let number = |kind| attribute(kind).map(|value| u32::try_from(value).unwrap_or(0));
    Ok(DeviceInfo {
        ordinal: usize::try_from(ordinal).unwrap_or(0),
        name: result::device::get_name(device).map_err(&step)?,
        compute_capability: (
            number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        // SAFETY: as above.
        memory_bytes: unsafe { result::device::total_mem(device) }.map_err(&step)? as u64,
        multiprocessors: number(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        clock_khz: number(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?,
    })
}

/// A function of a loaded module.
#[derive(Clone, Copy)]
struct Function(sys::CUfunction);

// SAFETY: the driver's handles may be used from any thread whose current context is their context; every call here binds the context first.
unsafe impl Send for Function {}

struct Module(sys::CUmodule);

// SAFETY: as above.
unsafe impl Send for Module {}

#[derive(Default)]
struct LoadedKernels {
    modules: Vec<(Unit, Module)>,
    functions: HashMap<&'static str, Function>,
}

/// A device with loaded kernels.
pub(crate) struct Cuda {
    info: DeviceInfo,
    compiler: Nvrtc,
    cache: Option<PathBuf>,
    timeout: Duration,
    /// Whether the device stopped responding; the driver is then not called any more.
    abandoned: AtomicBool,
    loaded: Mutex<LoadedKernels>,
    streams: Vec<Arc<CudaStream>>,
    context: Arc<CudaContext>,
}

impl Drop for Cuda {
    fn drop(&mut self) {
        if *self.abandoned.get_mut() {
            // The driver would wait for the device. Its resources are leaked until the process ends.
            std::mem::forget(std::mem::take(&mut self.streams));
            std::mem::forget(Arc::clone(&self.context));
            return;
        }
        let bound = self.context.bind_to_thread();
        let Ok(loaded) = self.loaded.get_mut() else {
            return;
        };
        for (_, Module(module)) in loaded.modules.drain(..) {
            if bound.is_ok() {
                // SAFETY: no kernel runs any more, since every launch was waited for, and the functions are dropped with the module. A lost
                // device returns an error, which can be ignored here.
                let _ = unsafe { result::module::unload(module) };
            }
        }
    }
}

impl Cuda {
    /// Opens a device and loads the kernels of [`Unit::PRODUCT`].
    pub(crate) fn open(info: &DeviceInfo, options: &Options) -> Result<Self, GpuUnavailable> {
        let compiler = Nvrtc::find()?;
        let context = CudaContext::new(info.ordinal).map_err(driver_failed("opening a device"))?;
        let streams = (0..options.streams.max(1))
            .map(|_| context.new_stream())
            .collect::<Result<_, _>>();
        let cuda = Self {
            info: info.clone(),
            compiler,
            cache: options.cache.clone(),
            timeout: options.timeout,
            abandoned: AtomicBool::new(false),
            loaded: Mutex::default(),
            streams: streams.map_err(driver_failed("creating a stream"))?,
            context,
        };
        cuda.load_product()?;
        Ok(cuda)
    }

    /// Loads one unit after the other: NVRTC compiles one unit at a time in a process, even if several threads call
    /// NVRTC.
    fn load_product(&self) -> Result<(), GpuUnavailable> {
        for unit in Unit::PRODUCT {
            self.load(unit, &self.machine_code(unit)?)?;
        }
        Ok(())
    }

    /// Reads the code from the cache, or compiles it and adds it to the cache.
    fn machine_code(&self, unit: Unit) -> Result<Vec<u8>, GpuUnavailable> {
        let architecture = self.info.architecture();
        let cached = self
            .cache
            .as_deref()
            .map(|cache| cache.join(self.cache_name(unit, &architecture)));
        if let Some(path) = &cached
            && let Ok(bytes) = linewarden_files::read_private(path, CUBIN_BYTES_MAX)
            && let Some(code) = cache::open(&bytes)
        {
            return Ok(code.to_vec());
        }
        let code = self.compiler.compile(unit, &architecture)?;
        if let Some(path) = &cached {
            // A failed write costs only compile time at the next start.
            let _ = linewarden_files::replace_private(path, &cache::seal(&code));
        }
        Ok(code)
    }

    /// The file name includes the compiler version and a hash of the source text.
    fn cache_name(&self, unit: Unit, architecture: &str) -> String {
        let mut hash = Sha256::new();
        for (name, text) in HEADERS.iter().copied().chain([unit.source()]) {
            for part in [name, text] {
                hash.update((part.len() as u64).to_be_bytes());
                hash.update(part);
            }
        }
        let (major, minor) = self.compiler.version();
        let digest = hex::encode(hash.finalize());
        format!(
            "{}-{architecture}-nvrtc-{major}.{minor}-{digest}.cubin",
            unit.source().0
        )
    }

    fn load(&self, unit: Unit, code: &[u8]) -> Result<(), GpuUnavailable> {
        let step = driver_failed("loading kernels");
        self.context.bind_to_thread().map_err(&step)?;
        // SAFETY: NVRTC returns a complete ELF file, and the cache returns only intact files; the driver reads as many
        // bytes as the header states, and copies them.
        let module =
            Module(unsafe { result::module::load_data(code.as_ptr().cast::<c_void>()) }.map_err(&step)?);
        let mut functions = Vec::new();
        for kernel in kernels::ALL
            .iter()
            .chain(kernels::probes::ALL)
            .filter(|kernel| kernel.unit == unit)
        {
            let name = CString::new(kernel.name).unwrap_or_default();
            // SAFETY: the module has just been loaded.
            let function = unsafe { result::module::get_function(module.0, name) }.map_err(&step)?;
            functions.push((kernel.name, Function(function)));
        }
        if let Ok(mut loaded) = self.loaded.lock() {
            loaded.functions.extend(functions);
            loaded.modules.push((unit, module));
        }
        Ok(())
    }

    fn function(&self, kernel: &KernelInfo) -> Result<Function, GpuLost> {
        let missing = || GpuLost {
            step: kernel.name,
            cause: "the unit of the kernel is not loaded".to_owned(),
        };
        let loaded = self.loaded.lock().map_err(|_| missing())?;
        loaded.functions.get(kernel.name).copied().ok_or_else(missing)
    }

    /// Zeroes memory that no stream uses, and waits: otherwise a later copy on another stream could be executed first.
    fn wipe(&self, address: u64, bytes: usize) -> Result<(), GpuLost> {
        // SAFETY: the memory is an allocation of this target, and the stream is synchronized before the memory can be released.
        unsafe { self.clear(0, address, bytes) }?;
        self.synchronize(0)
    }

    /// Makes the device's context current in this thread. Fails if the device was abandoned.
    fn bind(&self, step: &'static str) -> Result<(), GpuLost> {
        if self.abandoned.load(Ordering::Relaxed) {
            return Err(GpuLost {
                step,
                cause: "the device was abandoned after a timeout".to_owned(),
            });
        }
        self.context.bind_to_thread().map_err(gpu_lost(step))
    }

    fn stream(&self, stream: usize) -> Result<sys::CUstream, GpuLost> {
        let invalid = GpuLost {
            step: "choosing a stream",
            cause: "invalid stream number".to_owned(),
        };
        self.streams
            .get(stream)
            .map(|stream| stream.cu_stream())
            .ok_or(invalid)
    }
}

impl Target for Cuda {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn streams(&self) -> usize {
        self.streams.len()
    }

    #[cfg(feature = "host-kernels")]
    fn prepare(&self, unit: Unit) -> Result<(), GpuLost> {
        let is_loaded = self
            .loaded
            .lock()
            .is_ok_and(|loaded| loaded.modules.iter().any(|(loaded_unit, _)| *loaded_unit == unit));
        if is_loaded {
            return Ok(());
        }
        let failed = |error: GpuUnavailable| GpuLost {
            step: "loading kernels",
            cause: error.to_string(),
        };
        let code = self.machine_code(unit).map_err(failed)?;
        self.load(unit, &code).map_err(failed)
    }

    fn resident_blocks(&self, kernel: &KernelInfo) -> Result<u32, GpuLost> {
        let step = "querying occupancy";
        self.bind(step)?;
        let Function(function) = self.function(kernel)?;
        // At most 1,024.
        let threads = BLOCK_THREADS.cast_signed();
        // SAFETY: the function belongs to a loaded module.
        let blocks = unsafe { result::occupancy::max_active_block_per_multiprocessor(function, threads, 0) };
        let blocks = blocks.map_err(gpu_lost(step))?;
        Ok(u32::try_from(blocks).unwrap_or(0).max(1) * self.info.multiprocessors.max(1))
    }

    fn allocate(&self, bytes: usize) -> Result<u64, GpuLost> {
        let step = "allocating memory";
        self.bind(step)?;
        // SAFETY: nothing reads the memory before it is zeroed below.
        let address = unsafe { result::malloc_sync(bytes) }.map_err(gpu_lost(step))?;
        // Memory that cannot be wiped is not released either: releasing would wait for a device that does not respond.
        self.wipe(address, bytes)?;
        Ok(address)
    }

    fn release(&self, address: u64, bytes: usize) {
        // A lost device returns errors; its memory does not exist any more.
        if self.wipe(address, bytes).is_ok() {
            // SAFETY: `allocate` made the memory, no stream uses it, and its owner is being dropped.
            let _ = unsafe { result::free_sync(address) };
        }
    }

    fn allocate_host(&self, bytes: usize) -> Result<NonNull<u8>, GpuLost> {
        let step = "allocating host memory";
        self.bind(step)?;
        // SAFETY: the memory is zeroed below before use. Not write-combined: the host reads results from this memory.
        let pointer = unsafe { result::malloc_host(bytes, 0) }
            .map_err(gpu_lost(step))?
            .cast::<u8>();
        let pointer = NonNull::new(pointer).ok_or(GpuLost {
            step,
            cause: "out of memory".to_owned(),
        })?;
        // SAFETY: the memory was just allocated with this size.
        unsafe { pointer.write_bytes(0, bytes) };
        Ok(pointer)
    }

    fn release_host(&self, pointer: NonNull<u8>, _: usize) {
        if self.bind("releasing host memory").is_ok() {
            // SAFETY: `allocate_host` made the memory; its owner is being dropped.
            let _ = unsafe { result::free_host(pointer.as_ptr().cast()) };
        }
    }

    unsafe fn upload(&self, stream: usize, to: u64, from: *const u8, bytes: usize) -> Result<(), GpuLost> {
        let step = "copying to the device";
        self.bind(step)?;
        let stream = self.stream(stream)?;
        // SAFETY: the caller guarantees that source and destination are valid until the stream is synchronized.
        unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, stream) }
            .result()
            .map_err(gpu_lost(step))
    }

    unsafe fn download(&self, stream: usize, to: *mut u8, from: u64, bytes: usize) -> Result<(), GpuLost> {
        let step = "copying from the device";
        self.bind(step)?;
        let stream = self.stream(stream)?;
        // SAFETY: as above.
        unsafe { sys::cuMemcpyDtoHAsync_v2(to.cast(), from, bytes, stream) }
            .result()
            .map_err(gpu_lost(step))
    }

    unsafe fn clear(&self, stream: usize, address: u64, bytes: usize) -> Result<(), GpuLost> {
        let step = "wiping memory";
        self.bind(step)?;
        let stream = self.stream(stream)?;
        // SAFETY: as above.
        unsafe { result::memset_d8_async(address, 0, bytes, stream) }.map_err(gpu_lost(step))
    }

    unsafe fn launch(
        &self,
        stream: usize,
        kernel: &'static KernelInfo,
        items: usize,
        arguments: *const c_void,
    ) -> Result<(), GpuLost> {
        self.bind(kernel.name)?;
        let stream = self.stream(stream)?;
        let Function(function) = self.function(kernel)?;
        // The driver copies the arguments before it returns.
        let mut parameters = [arguments.cast_mut()];
        let blocks = blocks_of(kernel, items);
        // SAFETY: the kernel has one parameter, whose type and arrays the caller guarantees.
        unsafe {
            result::launch_kernel(
                function,
                (blocks, 1, 1),
                (BLOCK_THREADS, 1, 1),
                0,
                stream,
                &mut parameters,
            )
        }
        .map_err(gpu_lost(kernel.name))
    }

    fn is_done(&self, stream: usize) -> Result<bool, GpuLost> {
        let step = "waiting";
        self.bind(step)?;
        let stream = self.stream(stream)?;
        // SAFETY: the stream belongs to this device.
        match unsafe { sys::cuStreamQuery(stream) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => code.result().map(|()| true).map_err(gpu_lost(step)),
        }
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
    }

    fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }
}
