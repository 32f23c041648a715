//! A signer's work on a device: masks while it is idle, and messages that it signs with those that there are.

use std::sync::Arc;

use super::Graphics;
use crate::gpu::{BatchError, Goal, Gpu, MaskKey, RaBatch, RaKeys, RaSigner, takes_layout};
use crate::key::PrivateKey;
use crate::lane::Lost;
use crate::ra::{Digits, Mask, RaPrivate, RaPublic, Table};
use crate::signer::{NamedSignature, fresh_name};

/// Takes masks over: [`Signer::add_masks`](crate::signer::Signer::add_masks), or a file of masks.
pub type MaskDelivery = Box<dyn FnMut(Vec<Mask>) + Send>;

/// For whom a device works.
pub(super) struct SignerWork {
    key: Arc<PrivateKey>,
    deliver: MaskDelivery,
    /// As long as the device is open, once it was needed.
    mask_key: Option<MaskKey>,
    table: Option<TableOnDevice>,
}

/// What messages are signed with on a device, and what the signatures are looked at with.
struct TableOnDevice {
    signer: RaSigner,
    verifier: RaKeys,
}

impl Graphics {
    /// Messages that are signed at once.
    pub const SIGNED_MAX: usize = 4_096;

    /// Lets the device work for this key too; nothing with a key of a plain scheme.
    #[must_use]
    pub fn with_signer(mut self, key: Arc<PrivateKey>, deliver: MaskDelivery) -> Self {
        self.signer = key.ra().is_some().then_some(SignerWork {
            key,
            deliver,
            mask_key: None,
            table: None,
        });
        self
    }

    /// Whether it signs this signer's messages, too: it must be able to verify them.
    pub(super) fn signs(&self) -> bool {
        let key = self.signer.as_ref().and_then(|work| work.key.ra());
        key.is_some_and(|key| takes_layout(key.public().layout()))
    }

    /// Makes so many masks of fresh random names and delivers them, all or, after an error, none; how many.
    ///
    /// # Errors
    /// No random bytes, a mask that does not check, or the device is lost: with all of them the lane is.
    pub fn make_masks(&mut self, count: usize) -> Result<usize, Lost> {
        if self.signer.is_none() {
            return Ok(0);
        }
        self.for_signer(|gpu, work| {
            let Some(key) = work.key.ra() else {
                return Ok(0);
            };
            let names: Result<Vec<_>, _> = std::iter::repeat_with(fresh_name).take(count).collect();
            let names = names.map_err(|_| NO_RANDOM_BYTES)?;
            let mask_key = match work.mask_key.take() {
                Some(mask_key) => mask_key,
                None => gpu.mask_key(key)?,
            };
            let masks = gpu.make_masks(work.mask_key.insert(mask_key), &names)?;
            let count = masks.len();
            (work.deliver)(masks);
            Ok(count)
        })
    }

    /// Sees to it that messages can be signed, before there are masks that would be lost if not: the first time, the table goes to the
    /// device, and these components are signed with a mask that nobody else gets.
    ///
    /// # Errors
    /// The device is lost, or computes wrongly, or works for no signer.
    pub(crate) fn prepare(&mut self, table: &Table, digits: &Digits) -> Result<(), Lost> {
        self.for_signer(|gpu, work| match (&work.table, work.key.ra()) {
            (Some(_), _) => Ok(()),
            (None, None) => Err(NO_SIGNER),
            (None, Some(key)) => {
                work.table = Some(TableOnDevice::new(gpu, key, table, digits)?);
                Ok(())
            }
        })
    }

    /// Signs up to [`Graphics::SIGNED_MAX`] messages, each with a mask, which is gone then whatever happens; in their order. All are
    /// verified on the device, and one of them here: a wrong one, beside the power that it should have, could tell of the table.
    ///
    /// # Errors
    /// The device is lost, or computes wrongly, or was not prepared.
    pub(crate) fn sign(&mut self, masks: Vec<Mask>, digits: &[&Digits]) -> Result<Vec<NamedSignature>, Lost> {
        self.for_signer(|gpu, work| match (&mut work.table, work.key.ra()) {
            (Some(table), Some(key)) => table.sign(gpu, key.public(), masks, digits),
            _ => Err(NO_SIGNER),
        })
    }

    /// Does something for the signer, and closes the device if that fails.
    fn for_signer<T>(
        &mut self,
        run: impl FnOnce(&mut Gpu, &mut SignerWork) -> Result<T, BatchError>,
    ) -> Result<T, Lost> {
        let Some(device) = &mut self.device else {
            return Err(self.lost());
        };
        let done = match &mut self.signer {
            Some(work) => run(&mut device.gpu, work),
            None => Err(NO_SIGNER),
        };
        done.map_err(|error| self.close(&error))
    }

    pub(super) fn forget_signer(&mut self) {
        if let Some(work) = &mut self.signer {
            (work.mask_key, work.table) = (None, None);
        }
    }
}

const NO_SIGNER: BatchError = BatchError::Malformed("the device is not prepared for a signer");
const NO_RANDOM_BYTES: BatchError = BatchError::Malformed("there are no random bytes");
const BAD_KEY: BatchError = BatchError::Malformed("the signer's key makes no mask");

impl TableOnDevice {
    fn new(gpu: &mut Gpu, key: &RaPrivate, table: &Table, digits: &Digits) -> Result<Self, BatchError> {
        let mut made = Self {
            signer: gpu.ra_signer_of(table, Graphics::SIGNED_MAX)?,
            verifier: gpu.ra_verifier_of(key.public())?,
        };
        let name = fresh_name().map_err(|_| NO_RANDOM_BYTES)?;
        let masks = key.masks(&[name]).map_err(|_| BAD_KEY)?;
        made.sign(gpu, key.public(), masks, &[digits])?;
        Ok(made)
    }

    fn sign(
        &mut self,
        gpu: &mut Gpu,
        public: &RaPublic,
        masks: Vec<Mask>,
        digits: &[&Digits],
    ) -> Result<Vec<NamedSignature>, BatchError> {
        if masks.len() != digits.len() {
            return Err(BatchError::Malformed("not a mask for each message"));
        }
        gpu.put_masks(&mut self.signer, masks)?;
        let all: Vec<u16> = digits
            .iter()
            .flat_map(|digits| digits.as_slice())
            .copied()
            .collect();
        let signed = gpu.sign_ra(&mut self.signer, &all, Goal::Best)?;
        let holds = gpu.verify_ra(
            &RaBatch {
                keys: &self.verifier,
                key_of: &vec![0; digits.len()],
                digits: &all,
                seeds: &signed.seeds,
                signatures: &signed.numbers,
            },
            Goal::Best,
        )?;
        let wrong = holds.iter().filter(|holds| !**holds).count();
        let numbers = signed.numbers.chunks_exact(public.rsa().size().bytes());
        let signed: Vec<NamedSignature> = signed
            .seeds
            .into_iter()
            .zip(numbers.map(<[u8]>::to_vec))
            .collect();
        let last = signed.last().zip(digits.last());
        let last_holds = last.is_none_or(|((name, number), digits)| public.verify(name, digits, number));
        match (wrong, last_holds) {
            (0, true) => Ok(signed),
            (0, false) => Err(BatchError::Unchecked(signed.len())),
            _ => Err(BatchError::Unchecked(wrong)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::c_void;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::gpu::kernels::KernelInfo;
    use crate::gpu::layouts::RaSignArgs;
    use crate::gpu::rapid::tests::{PAYLOADS, key, stamp, table};
    use crate::gpu::{Emulation, NoGpu};
    use crate::lane::{KeyMemory, Places};
    use crate::message::PayloadKind;
    use crate::scheduler::engine::Lane;
    use crate::scheme::Scheme;
    use crate::signer::{Signed, Signer, Way};

    fn device(calls: u64) -> Graphics {
        let open = move || {
            let emulation = Emulation {
                calls,
                ..Emulation::default()
            };
            Gpu::emulated(emulation).map_err(|lost| NoGpu::from(crate::gpu::BatchError::from(lost)))
        };
        let memory = KeyMemory {
            table_bytes: 1 << 20,
            rsa_keys: 2,
            p256_keys: 2,
        };
        Graphics::opened_by(Box::new(open), Arc::new(Places::new([], memory))).unwrap()
    }

    #[test]
    fn masks_of_a_device_sign_messages() {
        let key = key();
        let copy = || PrivateKey::from_bytes(&key.to_bytes().unwrap()).unwrap();
        let pool = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&pool);
        let deliver = move |masks| into.lock().unwrap().extend::<Vec<Mask>>(masks);
        let mut device = device(u64::MAX).with_signer(Arc::new(copy()), Box::new(deliver));
        assert!(device.spec().refills);
        for count in [0, 1, 2] {
            assert_eq!(Lane::refill(&mut device, count), Ok(count));
        }
        let signer = Signer::new(copy(), Some(table(key.ra().unwrap())), None);
        signer.add_masks(pool.lock().unwrap().drain(..));
        let public = key.public().ra().unwrap();
        for payload in PAYLOADS {
            let message = signer.prepare(stamp(), PayloadKind::Opaque, &payload).unwrap();
            let Signed { bytes: message, way } = signer.sign(&[&message]).unwrap().remove(0);
            assert_eq!(way, Way::Masked);
            let (rest, number) = message.split_at(message.len() - 256);
            let digits = public
                .layout()
                .digits(stamp(), PayloadKind::Opaque, &payload)
                .unwrap();
            assert!(public.verify(rest.last_chunk().unwrap(), &digits, number));
        }
        assert_eq!(signer.masks(), 0);
    }

    /// Kernels for this processor, after which this happens with what a signing kernel was given.
    fn signing_device(after: impl Fn(&RaSignArgs) + Send + Sync + Clone + 'static) -> Graphics {
        let open = move || {
            let after = after.clone();
            let launcher = move |kernel: &'static KernelInfo, _: usize, arguments: *const c_void| {
                // SAFETY: whoever launches vouches for the arguments and what they name.
                unsafe { kernel.run_on_host(arguments) };
                if kernel.name.starts_with("ra_sign") {
                    // SAFETY: those of this kernel.
                    after(unsafe { &*arguments.cast::<RaSignArgs>() });
                }
            };
            Gpu::emulated_by(Emulation::default(), Box::new(launcher))
                .map_err(|lost| NoGpu::from(BatchError::from(lost)))
        };
        let memory = KeyMemory {
            table_bytes: 1 << 20,
            rsa_keys: 2,
            p256_keys: 2,
        };
        Graphics::opened_by(Box::new(open), Arc::new(Places::new([], memory))).unwrap()
    }

    #[test]
    fn a_device_signs_with_masks_and_a_wrong_signature_closes_it() {
        let key = Arc::new(key());
        let ra = key.ra().unwrap();
        let table = table(ra);
        let layout = ra.public().layout();
        let digits = PAYLOADS.map(|payload| layout.digits(stamp(), PayloadKind::Opaque, &payload).unwrap());
        let digits: Vec<&Digits> = digits.iter().collect();
        let masks = |first: u8| {
            ra.masks(&[first, first + 1, first + 2].map(|byte| [byte; 32]))
                .unwrap()
        };
        let spoil = Arc::new(AtomicBool::new(false));
        let spoilt = Arc::clone(&spoil);
        let device = signing_device(move |arguments| {
            if spoilt.load(Ordering::Relaxed) {
                // SAFETY: the emulation's memory, with room for as many signatures as there are items, and nobody else there.
                unsafe { *(arguments.signatures as *mut u8).add(255) ^= 1 };
            }
        });
        let mut device = device.with_signer(Arc::clone(&key), Box::new(|_| panic!("none was asked for")));
        assert!(device.sign(masks(1), &digits).is_err(), "it was not prepared");
        device.reopen().unwrap();
        device.prepare(&table, digits[0]).unwrap();
        for round in 0..2 {
            let signed = device.sign(masks(10 + 3 * round), &digits).unwrap();
            for ((name, number), digits) in signed.iter().zip(&digits) {
                assert!(ra.public().verify(name, digits, number));
            }
        }
        spoil.store(true, Ordering::Relaxed);
        let lost = device.sign(masks(30), &digits).unwrap_err();
        assert!(
            lost.reason
                .contains("1 results of private operations failed their check"),
            "{lost}"
        );
        assert!(device.prepare(&table, digits[0]).is_err(), "it stays lost");
        device.reopen().unwrap();
        assert!(
            device.prepare(&table, digits[0]).is_err(),
            "before there are masks to lose"
        );
        spoil.store(false, Ordering::Relaxed);
        device.reopen().unwrap();
        device.prepare(&table, digits[0]).unwrap();
        assert_eq!(device.sign(masks(50), &digits).unwrap().len(), 3);
    }

    /// None is delivered then; when the device is back, the key is put there again.
    #[test]
    fn a_device_that_is_lost_makes_no_masks() {
        let count = Arc::new(Mutex::new(0));
        let counted = Arc::clone(&count);
        let deliver = move |masks: Vec<Mask>| *counted.lock().unwrap() += masks.len();
        let mut device = device(60).with_signer(Arc::new(key()), Box::new(deliver));
        let mut made = 0;
        for turn in 0..2 {
            let lost = (0..100).find_map(|_| match device.make_masks(1) {
                Ok(count) => {
                    made += count;
                    None
                }
                Err(lost) => Some(lost),
            });
            assert!(lost.is_some(), "turn {turn}");
            assert_eq!(*count.lock().unwrap(), made);
            device.reopen().unwrap();
        }
        assert!(made >= 2, "{made}");
    }

    #[test]
    fn a_plain_key_has_no_masks() {
        let key = PrivateKey::generate(Scheme::Ed25519, None).unwrap();
        let mut device = device(u64::MAX).with_signer(Arc::new(key), Box::new(|_| panic!("there are none")));
        assert!(!device.spec().refills);
        assert_eq!(device.make_masks(3), Ok(0));
    }
}
