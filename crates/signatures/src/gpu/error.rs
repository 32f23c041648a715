//! Errors: no usable GPU, a lost GPU, a malformed batch.

/// Why no GPU can be used. The CPU then does the work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GpuUnavailable {
    /// libcuda is missing.
    #[error("CUDA driver (libcuda) not found; install the NVIDIA driver")]
    DriverMissing,
    /// A call of the driver failed.
    #[error("CUDA driver call failed while {step}: {cause}")]
    DriverFailed {
        /// The operation.
        step: &'static str,
        /// The driver's error.
        cause: String,
    },
    /// The driver reports no device.
    #[error("no CUDA device found: the CUDA driver is installed but lists no device")]
    NoDevice,
    /// The device computed a wrong result.
    #[error("GPU self-test failed: the device returned a wrong result")]
    SelfTestFailed,
    /// The device does not respond. The device cannot be opened again in this process, since the driver would wait for
    /// the device.
    #[error("the GPU hangs: {0}")]
    Unresponsive(String),
    /// The compiler for kernels is missing.
    #[error(
        "NVRTC, the CUDA run-time compiler, not found ({0}); install the CUDA toolkit or set {name} to the directory of libnvrtc",
        name = super::nvrtc::DIRECTORY_VARIABLE
    )]
    CompilerMissing(String),
    /// The compiler rejected a kernel.
    #[error("compiling {unit} for {architecture} with NVRTC failed: {log}")]
    CompilationFailed {
        /// The source file.
        unit: &'static str,
        /// Architecture, such as `sm_90`.
        architecture: String,
        /// The compiler's log.
        log: String,
    },
}

/// A CUDA call failed. The device is not used any more; the batch is unchanged, and the CPU can process the
/// batch.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("GPU lost while {step}: {cause}")]
pub struct GpuLost {
    /// The operation.
    pub step: &'static str,
    /// The driver's error.
    pub cause: String,
}

/// Why a batch was not processed. Unless the method states otherwise, no item of the batch was processed then.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// The device failed.
    #[error(transparent)]
    Lost(#[from] GpuLost),
    /// Array lengths that do not match, or a number out of its range: an error of the caller.
    #[error("malformed batch: {0}")]
    Malformed(&'static str),
    /// The pool has fewer masks than messages to sign.
    #[error("{required} masks required, {available} available; make masks, or sign without masks")]
    TooFewMasks {
        /// Messages of the batch.
        required: usize,
        /// Masks in the pool.
        available: usize,
    },
    /// The device computed a private operation incorrectly. The check found the error, and no result was
    /// returned.
    #[error(
        "check of {0} results of private operations failed: the GPU computes incorrectly, or the key is inconsistent"
    )]
    CheckFailed(usize),
}

impl From<BatchError> for GpuUnavailable {
    /// A device that fails at its first operation counts as unavailable.
    fn from(error: BatchError) -> Self {
        let (step, cause) = match error {
            BatchError::Lost(GpuLost { step, cause }) => (step, cause),
            error => ("testing the device", error.to_string()),
        };
        Self::DriverFailed { step, cause }
    }
}
