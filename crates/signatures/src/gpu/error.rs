//! What can go wrong: no GPU, a GPU that is lost, a batch that is malformed.

/// Why there is no GPU to be used. The CPU does the work then.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoGpu {
    /// There is no libcuda.
    #[error("the CUDA driver (libcuda) is not installed")]
    Driver,
    /// The driver is there and refuses.
    #[error("the CUDA driver fails at {step}: {cause}")]
    Refused {
        /// What was asked of it.
        step: &'static str,
        /// Its answer.
        cause: String,
    },
    /// The driver knows of no device.
    #[error("the CUDA driver is installed, but there is no CUDA device")]
    NoDevice,
    /// What it computes is wrong.
    #[error("the GPU computes wrongly: the hash of a known text is another")]
    Wrong,
    /// It does not answer, and cannot be opened again in this process: the driver would wait for it.
    #[error("the GPU hangs: {0}")]
    Hangs(String),
    /// There is no compiler for kernels.
    #[error(
        "NVRTC, CUDA's run-time compiler, is not found ({0}): install the CUDA toolkit, or name the directory of libnvrtc in {name}",
        name = super::nvrtc::DIRECTORY_VARIABLE
    )]
    NoCompiler(String),
    /// The compiler refuses a kernel.
    #[error("NVRTC does not compile {unit} for {architecture}: {log}")]
    NotCompiled {
        /// The source file.
        unit: &'static str,
        /// Such as `sm_90`.
        architecture: String,
        /// What it says.
        log: String,
    },
}

/// A CUDA call failed. The device is not used any more; the batch is as it was, and the CPU can do it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the GPU is lost, at {step}: {cause}")]
pub struct GpuLost {
    /// What was asked of it.
    pub step: &'static str,
    /// The driver's answer.
    pub cause: String,
}

/// Why a batch was not done. None of it was then.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// The device failed.
    #[error(transparent)]
    Lost(#[from] GpuLost),
    /// Arrays whose lengths do not fit each other, or a number out of its range: a mistake of the caller's.
    #[error("malformed batch: {0}")]
    Malformed(&'static str),
    /// Too few masks are left to sign this many messages.
    #[error("{wanted} masks are wanted and {left} are left: make masks, or sign otherwise")]
    NoMasks {
        /// Messages of the batch.
        wanted: usize,
        /// Masks of the pool.
        left: usize,
    },
    /// The device computed a private operation wrongly; its check caught it, and nothing was let out.
    #[error(
        "{0} results of private operations failed their check: the GPU computes wrongly, or the key is not consistent"
    )]
    Unchecked(usize),
}

impl NoGpu {
    /// The same of a device that is closed for it, and of one that was given up for that.
    pub(crate) fn closing(self, gpu: super::Gpu) -> Self {
        match gpu.close() {
            true => Self::Hangs(self.to_string()),
            false => self,
        }
    }
}

impl From<BatchError> for NoGpu {
    /// A device that fails at the first thing it is asked is none.
    fn from(error: BatchError) -> Self {
        let (step, cause) = match error {
            BatchError::Lost(GpuLost { step, cause }) => (step, cause),
            other => ("trying it", other.to_string()),
        };
        Self::Refused { step, cause }
    }
}
