//! A signer's work on a device: masks while it is idle, and messages that it signs with those that there are.

use std::sync::Arc;

use super::Graphics;
use crate::gpu::{BatchError, Goal, Gpu, MaskKey, RaSigner};
use crate::key::PrivateKey;
use crate::lane::Lost;
use crate::ra::{Digits, Mask, RaPrivate, Table};
use crate::signer::{NamedSignature, fresh_name};

/// Takes masks over: [`Signer::add_masks`](crate::signer::Signer::add_masks), or a file of masks.
pub type MaskDelivery = Box<dyn FnMut(Vec<Mask>) + Send>;

/// For whom a device works.
pub(super) struct SignerWork {
    key: Arc<PrivateKey>,
    deliver: MaskDelivery,
    on_device: OnDevice,
}

/// What a device has of a signer, once it was needed and as long as it is open.
#[derive(Default)]
struct OnDevice {
    for_masks: Option<MaskKey>,
    for_messages: Option<RaSigner>,
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
            on_device: OnDevice::default(),
        });
        self
    }

    /// Makes so many masks of fresh random names and delivers them, all or, after an error, none; how many.
    ///
    /// # Errors
    /// No random bytes, a mask that does not check, or the device is lost: with all of them the lane is.
    pub fn make_masks(&mut self, count: usize) -> Result<usize, Lost> {
        let Some(mut work) = self.signer.take() else {
            return Ok(0);
        };
        let made = self.make(&mut work, count).map(|masks| {
            let count = masks.len();
            (work.deliver)(masks);
            count
        });
        self.put_back(work, made)
    }

    /// Signs up to [`Graphics::SIGNED_MAX`] messages, each with a mask, which is gone then whatever happens; in their order. One of them is
    /// verified here: what the device makes of the others is a product of results that were checked before, and a wrong one says nothing of
    /// the key.
    ///
    /// # Errors
    /// The device is lost, or computes wrongly, or works for no signer.
    pub(crate) fn sign(
        &mut self,
        table: &Table,
        masks: Vec<Mask>,
        digits: &[&Digits],
    ) -> Result<Vec<NamedSignature>, Lost> {
        let Some(mut work) = self.signer.take() else {
            return Err(self.lost());
        };
        let SignerWork { key, on_device, .. } = &mut work;
        let signed = match key.ra() {
            Some(ra) => self.on_device(|device| on_device.sign(&mut device.gpu, ra, table, masks, digits)),
            None => Err(self.lost()),
        };
        self.put_back(work, signed)
    }

    /// A device that is closed has nothing of the signer any more.
    fn put_back<T>(&mut self, mut work: SignerWork, done: Result<T, Lost>) -> Result<T, Lost> {
        if done.is_err() {
            work.on_device = OnDevice::default();
        }
        self.signer = Some(work);
        done
    }

    fn make(&mut self, work: &mut SignerWork, count: usize) -> Result<Vec<Mask>, Lost> {
        let names: Result<Vec<_>, _> = std::iter::repeat_with(fresh_name).take(count).collect();
        let names = names.map_err(|error| Lost {
            lane: self.name.clone(),
            reason: error.to_string(),
        })?;
        let Some(key) = work.key.ra() else {
            return Ok(Vec::new());
        };
        let key_on_device = &mut work.on_device.for_masks;
        self.on_device(|device| {
            let on_device = match key_on_device.take() {
                Some(on_device) => on_device,
                None => device.gpu.mask_key(key)?,
            };
            device.gpu.make_masks(key_on_device.insert(on_device), &names)
        })
    }

    pub(super) fn forget_signer(&mut self) {
        if let Some(work) = &mut self.signer {
            work.on_device = OnDevice::default();
        }
    }
}

impl OnDevice {
    fn sign(
        &mut self,
        gpu: &mut Gpu,
        ra: &RaPrivate,
        table: &Table,
        masks: Vec<Mask>,
        digits: &[&Digits],
    ) -> Result<Vec<NamedSignature>, BatchError> {
        let signer = match self.for_messages.take() {
            Some(signer) => signer,
            None => gpu.ra_signer_of(ra, table, Graphics::SIGNED_MAX)?,
        };
        let signer = self.for_messages.insert(signer);
        gpu.put_masks(signer, masks)?;
        let all: Vec<u16> = digits
            .iter()
            .flat_map(|digits| digits.as_slice())
            .copied()
            .collect();
        let signed = gpu.sign_ra(signer, &all, Goal::Best)?;
        let numbers = signed.numbers.chunks_exact(ra.public().rsa().size().bytes());
        let signed: Vec<NamedSignature> = signed
            .seeds
            .into_iter()
            .zip(numbers.map(<[u8]>::to_vec))
            .collect();
        match (signed.last(), digits.last()) {
            (Some((name, number)), Some(digits)) if !ra.public().verify(name, digits, number) => {
                Err(BatchError::Unchecked(signed.len()))
            }
            _ => Ok(signed),
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
                unsafe { *(arguments.signatures as *mut u8).add(256 * arguments.count as usize - 1) ^= 1 };
            }
        });
        let mut device = device.with_signer(Arc::clone(&key), Box::new(|_| panic!("none was asked for")));
        for round in 0..2 {
            let signed = device.sign(&table, masks(10 + 3 * round), &digits).unwrap();
            for ((name, number), digits) in signed.iter().zip(&digits) {
                assert!(ra.public().verify(name, digits, number));
            }
        }
        spoil.store(true, Ordering::Relaxed);
        let lost = device.sign(&table, masks(30), &digits).unwrap_err();
        assert!(lost.reason.contains("failed their check"), "{lost}");
        spoil.store(false, Ordering::Relaxed);
        assert!(device.sign(&table, masks(40), &digits).is_err(), "it stays lost");
        device.reopen().unwrap();
        assert_eq!(device.sign(&table, masks(50), &digits).unwrap().len(), 3);
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
