//! A CUDA device as a lane: large batches, mixed in keys and schemes.

mod device;
mod keys;
mod known_answers;
mod places;
mod signer;

use std::sync::Arc;

use self::device::{Device, Placed};
use self::known_answers::known_answers;
pub use self::places::{KeyMemory, Places};
pub use self::signer::MaskDelivery;
use self::signer::SignerWork;
use super::{Eight, Lost, OneByOne, Verifier};
use crate::gpu::{BatchError, DeviceInfo, Gpu, NoGpu, Options, self_test};
use crate::receive::Checked;
use crate::scheduler::model::Line;
use crate::scheduler::{Class, LaneKind, LaneSpec, Span};

/// Messages of one batch: 300 bytes each go to the device, and verdicts are waited for some milliseconds.
const BATCH_MAX: usize = 1 << 16;
/// Messages whose threads fill one block, so that none is idle.
const GRAIN: usize = 128;

/// Opens the device, at the beginning and after each loss.
pub type Opener = Box<dyn FnMut() -> Result<Gpu, NoGpu> + Send>;

/// A device that verifies RSA-PSS, RA and ECDSA over P-256, and makes masks and signatures of a signer of RA.
///
/// Keys of the signers that [`Places`] knows stay on the device once a message of theirs has come (of ECDSA, of anybody), as many as there is
/// memory for; whose
/// messages are better not given to it, it says, too. The first message of a key of RA waits some milliseconds for its
/// components to be hashed, the first one of ECDSA for multiples of all keys that have places.
///
/// What no kernel does is done by the processor, in the caller's thread: Ed25519, keys that [`Places`] does not know, and RA with layouts
/// that few signers have, whose tables are longer than their share of memory, or that have texts of more than 81 bytes.
/// [`Graphics::spec`] does not name Ed25519, so that a scheduler never hands it over.
///
/// A device that fails, does not answer within its [patience](Options::patience) or computes wrongly is closed and the
/// lane lost, with no verdict given. [`Graphics::reopen`] tries it again, unless it hangs: then it is left alone as
/// long as the process lives. What is waited for is the end of what it was given to compute and to copy; a driver that never returns from
/// another call, such as one for memory, keeps the lane's thread.
pub struct Graphics {
    name: String,
    open: Opener,
    places: Arc<Places>,
    device: Option<Device>,
    /// How it was lost.
    reason: String,
    hangs: bool,
    rest: Box<dyn Verifier>,
    signer: Option<SignerWork>,
}

impl std::fmt::Debug for Graphics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Graphics({}, lost: {:?})", self.name, self.reason)
    }
}

impl Graphics {
    /// Opens a device that knows of what every one of its kernels verifies whether it holds, and asks it again when it was lost.
    ///
    /// # Errors
    /// It cannot be used.
    pub fn open(info: &DeviceInfo, options: &Options, places: Arc<Places>) -> Result<Self, NoGpu> {
        let (info, options) = (info.clone(), options.clone());
        let open = move || Gpu::open(&info, &options).and_then(known_answers);
        Self::opened_by(Box::new(open), places)
    }

    /// The same with another way of opening it.
    ///
    /// # Errors
    /// It cannot be used.
    pub fn opened_by(mut open: Opener, places: Arc<Places>) -> Result<Self, NoGpu> {
        let gpu = tested(open()?)?;
        let rest: Box<dyn Verifier> = match Eight::widest() {
            Some(eight) => Box::new(eight),
            None => Box::new(OneByOne::default()),
        };
        Ok(Self {
            name: format!("gpu {} ({})", gpu.info().ordinal, gpu.info().name),
            open,
            device: Some(Device::new(gpu, Arc::clone(&places))),
            places,
            reason: String::new(),
            hangs: false,
            rest,
            signer: None,
        })
    }

    /// What a scheduler is told of it, with what it does in a second where nothing has been measured yet.
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
            spec.with(class, Line::new(overhead, rate))
        });
        let spec = match self.signs() {
            false => spec,
            true => spec.with(Class::RA_SIGN, Line::new(overhead, 0.5e6)),
        };
        match self.signer {
            None => spec,
            Some(_) => spec
                .with(Class::MASK_REFILL, Line::new(overhead, 1e5))
                .refilling(),
        }
    }

    /// Whether each message is its signer's, in their order.
    ///
    /// # Errors
    /// The device is lost.
    pub fn holds(&mut self, messages: &[Checked]) -> Result<Vec<bool>, Lost> {
        let mut holds = vec![false; messages.len()];
        let others = self.on_device(|device| on_device(device, messages, &mut holds))?;
        let (places, others): (Vec<usize>, Vec<Checked>) = others
            .into_iter()
            .map(|(place, message)| (place, message.clone()))
            .unzip();
        let mut verdicts = Vec::new();
        self.rest.verify(&others, &mut verdicts)?;
        for (place, verdict) in places.into_iter().zip(verdicts) {
            if let Some(holds) = holds.get_mut(place) {
                *holds = verdict;
            }
        }
        Ok(holds)
    }

    /// Opens a device again that was lost; nothing if it was not.
    ///
    /// # Errors
    /// It cannot be used yet, or hangs.
    pub fn reopen(&mut self) -> Result<(), Lost> {
        if self.hangs {
            return Err(self.lost());
        }
        if self.device.is_none() {
            match (self.open)().and_then(tested) {
                Ok(gpu) => self.device = Some(Device::new(gpu, Arc::clone(&self.places))),
                Err(error) => {
                    self.reason = error.to_string();
                    self.hangs = matches!(error, NoGpu::Hangs(_));
                    return Err(self.lost());
                }
            }
        }
        Ok(())
    }

    /// Runs something on the device, which is closed if that fails.
    fn on_device<T>(&mut self, run: impl FnOnce(&mut Device) -> Result<T, BatchError>) -> Result<T, Lost> {
        let Some(device) = &mut self.device else {
            return Err(self.lost());
        };
        run(device).map_err(|error| self.close(&error))
    }

    /// Closes the device for this.
    fn close(&mut self, error: &BatchError) -> Lost {
        self.reason = error.to_string();
        self.hangs = self.device.take().is_some_and(Device::close);
        self.forget_signer();
        self.lost()
    }

    fn lost(&self) -> Lost {
        Lost {
            lane: self.name.clone(),
            reason: self.reason.clone(),
        }
    }
}

impl Verifier for Graphics {
    fn name(&self) -> &str {
        &self.name
    }

    fn verify(&mut self, messages: &[Checked], holds: &mut Vec<bool>) -> Result<(), Lost> {
        holds.extend(self.holds(messages)?);
        Ok(())
    }
}

fn tested(mut gpu: Gpu) -> Result<Gpu, NoGpu> {
    match self_test(&mut gpu) {
        Ok(()) => Ok(gpu),
        Err(error) => Err(error.closing(gpu)),
    }
}

/// Does what the device can; the others come back.
fn on_device<'a>(
    device: &mut Device,
    messages: &'a [Checked],
    holds: &mut [bool],
) -> Result<Vec<Placed<'a>>, BatchError> {
    let placed: Vec<Placed> = (0..).zip(messages).collect();
    device.verify(&placed, holds)
}
