//! A CUDA device as a lane: large batches of mixed keys and schemes.

mod device;
mod device_signer;
mod keys;
mod known_answers;
mod placement;
mod signer;

use std::sync::Arc;

use self::device::{GpuVerifier, verify_on_device};
use self::device_signer::DeviceSigner;
pub use self::device_signer::MaskDelivery;
use self::known_answers::test_with_known_answers;
pub use self::placement::{KeyMemory, KeyPlacement};
use super::{BatchLane, SingleLane, Verifier, VerifierLost};
use crate::gpu::{BatchError, DeviceInfo, Gpu, GpuUnavailable, Options, self_test};
use crate::receive::Checked;
use crate::scheduler::model::CostModel;
use crate::scheduler::{Class, LaneKind, LaneSpec, Span};

/// Maximum number of messages in one batch. The lane uploads 300 bytes per message, and a batch takes some
/// milliseconds.
const BATCH_MAX: usize = 1 << 16;
/// Number of messages whose threads fill one block, so that no thread is idle.
const GRAIN: usize = 128;

/// Function that opens the device, at the start and after each loss.
pub type Opener = Box<dyn FnMut() -> Result<Gpu, GpuUnavailable> + Send>;

/// A device that verifies RSA-PSS, RA and ECDSA over P-256, and makes masks and signatures for a signer of RA.
///
/// Keys of the signers that [`KeyPlacement`] places on devices stay in device memory after the first message (for
/// ECDSA: the first message of any signer), as many as fit. [`KeyPlacement`] also selects the messages for the device.
/// The first message of a key of RA waits some milliseconds for the hashing of its components, the first message of
/// ECDSA for the tables of all placed keys.
///
/// Messages that no kernel supports are verified on the CPU in the caller's thread: Ed25519, keys unknown to
/// [`KeyPlacement`], and RA with certain layouts. These are layouts that few signers use, layouts with tables that
/// exceed their share of memory, and layouts with texts of more than 81 bytes. [`GpuLane::spec`] does not list Ed25519,
/// so that a scheduler never assigns it.
///
/// If a device fails, does not respond within its [timeout](Options::timeout) or returns wrong results, the lane closes
/// the device and is lost. The batch then has no results. [`GpuLane::reopen`] opens the device again. A device that
/// does not respond is not used again in this process. The timeout covers only the wait for kernels and copies. If the
/// driver never returns from another call, such as an allocation, the thread of the lane blocks.
pub struct GpuLane {
    name: String,
    open: Opener,
    placement: Arc<KeyPlacement>,
    device: Option<GpuVerifier>,
    /// Reason of the latest loss.
    reason: String,
    is_unresponsive: bool,
    fallback: Box<dyn Verifier>,
    signer: Option<DeviceSigner>,
}

impl std::fmt::Debug for GpuLane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GpuLane({}, lost: {:?})", self.name, self.reason)
    }
}

impl GpuLane {
    /// Opens a device that passes the known-answer tests of every verification kernel; the tests are repeated after a loss.
    ///
    /// # Errors
    /// The device cannot be used.
    pub fn open(
        info: &DeviceInfo,
        options: &Options,
        placement: Arc<KeyPlacement>,
    ) -> Result<Self, GpuUnavailable> {
        let (info, options) = (info.clone(), options.clone());
        let open = move || Gpu::open(&info, &options).and_then(test_with_known_answers);
        Self::open_with(Box::new(open), placement)
    }

    /// Like [`GpuLane::open`], with another function that opens the device. The lane itself runs only the [`self_test`].
    ///
    /// # Errors
    /// The device cannot be used.
    pub fn open_with(mut open: Opener, placement: Arc<KeyPlacement>) -> Result<Self, GpuUnavailable> {
        let gpu = run_self_test(open()?)?;
        let fallback: Box<dyn Verifier> = match BatchLane::widest() {
            Some(batch_lane) => Box::new(batch_lane),
            None => Box::new(SingleLane::default()),
        };
        Ok(Self {
            name: format!("gpu {} ({})", gpu.info().ordinal, gpu.info().name),
            open,
            device: Some(GpuVerifier::new(gpu, Arc::clone(&placement))),
            placement,
            reason: String::new(),
            is_unresponsive: false,
            fallback,
            signer: None,
        })
    }

    /// The spec for the scheduler, with assumed rates until measurements replace them.
    #[must_use]
    pub fn spec(&self) -> LaneSpec {
        let rates = [
            (Class::RA_VERIFY, 1e6),
            (Class::RA3072_VERIFY, 0.5e6),
            (Class::RSA_VERIFY, 4e6),
            (Class::RSA3072_VERIFY, 2e6),
            (Class::P256_VERIFY, 2e6),
        ];
        let spec = LaneSpec::new(self.name.clone(), LaneKind::Accelerator)
            .with_batch_max(BATCH_MAX)
            .with_grain(GRAIN);
        let overhead = Span::from_micros(500);
        let spec = rates.into_iter().fold(spec, |spec, (class, rate)| {
            spec.with_class(class, CostModel::new(overhead, rate))
        });
        let spec = match self.can_sign() {
            false => spec,
            true => spec.with_class(Class::RA_SIGN, CostModel::new(overhead, 0.5e6)),
        };
        match self.signer {
            None => spec,
            Some(_) => spec
                .with_class(Class::MASK_REFILL, CostModel::new(overhead, 1e5))
                .with_refill(),
        }
    }

    /// Whether each message's signature is valid, in order.
    ///
    /// # Errors
    /// The device is lost.
    pub fn verify_all(&mut self, messages: &[Checked]) -> Result<Vec<bool>, VerifierLost> {
        let mut results = vec![false; messages.len()];
        let unsupported = self.run_on_device(|device| verify_on_device(device, messages, &mut results))?;
        let (indices, unsupported): (Vec<usize>, Vec<Checked>) = unsupported
            .into_iter()
            .map(|(index, message)| (index, message.clone()))
            .unzip();
        let mut fallback_results = Vec::new();
        self.fallback.verify(&unsupported, &mut fallback_results)?;
        for (index, is_valid) in indices.into_iter().zip(fallback_results) {
            if let Some(result) = results.get_mut(index) {
                *result = is_valid;
            }
        }
        Ok(results)
    }

    /// Opens a lost device again; does nothing if the device is not lost.
    ///
    /// # Errors
    /// The device cannot be used yet, or does not respond.
    pub fn reopen(&mut self) -> Result<(), VerifierLost> {
        if self.is_unresponsive {
            return Err(self.lost_error());
        }
        if self.device.is_none() {
            match (self.open)().and_then(run_self_test) {
                Ok(gpu) => self.device = Some(GpuVerifier::new(gpu, Arc::clone(&self.placement))),
                Err(error) => {
                    self.reason = error.to_string();
                    self.is_unresponsive = matches!(error, GpuUnavailable::Unresponsive(_));
                    return Err(self.lost_error());
                }
            }
        }
        Ok(())
    }

    /// Runs an operation on the device, and closes the device on an error.
    fn run_on_device<T>(
        &mut self,
        run: impl FnOnce(&mut GpuVerifier) -> Result<T, BatchError>,
    ) -> Result<T, VerifierLost> {
        let Some(device) = &mut self.device else {
            return Err(self.lost_error());
        };
        run(device).map_err(|error| self.close(&error))
    }

    /// Closes the device because of this error.
    fn close(&mut self, error: &BatchError) -> VerifierLost {
        self.reason = error.to_string();
        self.is_unresponsive = self.device.take().is_some_and(GpuVerifier::close);
        self.forget_signer();
        self.lost_error()
    }

    fn lost_error(&self) -> VerifierLost {
        VerifierLost {
            lane: self.name.clone(),
            reason: self.reason.clone(),
        }
    }
}

impl Verifier for GpuLane {
    fn name(&self) -> &str {
        &self.name
    }

    fn verify(&mut self, messages: &[Checked], results: &mut Vec<bool>) -> Result<(), VerifierLost> {
        results.extend(self.verify_all(messages)?);
        Ok(())
    }
}

fn run_self_test(mut gpu: Gpu) -> Result<Gpu, GpuUnavailable> {
    match self_test(&mut gpu) {
        Ok(()) => Ok(gpu),
        Err(error) => Err(gpu.close_after(error)),
    }
}
