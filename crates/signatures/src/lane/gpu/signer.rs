//! A signer's work on a device: masks while the device is idle, and messages signed with available masks.

use std::sync::Arc;

use super::GpuLane;
use super::device_signer::{DeviceSigner, DeviceTable, MaskDelivery, NO_RANDOM_BYTES, SIGNED_MAX};
use crate::gpu::{BatchError, Gpu, takes_layout};
use crate::key::PrivateKey;
use crate::lane::VerifierLost;
use crate::ra::{Digits, Mask, Table};
use crate::signer::{NamedSignature, new_mask_name};

impl GpuLane {
    /// Messages signed in one batch.
    pub const SIGNED_MAX: usize = SIGNED_MAX;

    /// Lets the device also make masks and signatures for this key. Has no effect for a key of a plain scheme.
    #[must_use]
    pub fn with_signer(mut self, key: Arc<PrivateKey>, deliver: MaskDelivery) -> Self {
        self.signer = key.ra().is_some().then_some(DeviceSigner {
            key,
            deliver,
            mask_key: None,
            table: None,
        });
        self
    }

    /// Whether the device can also sign messages of this signer: the device must be able to verify these messages.
    pub(super) fn can_sign(&self) -> bool {
        let key = self
            .signer
            .as_ref()
            .and_then(|device_signer| device_signer.key.ra());
        key.is_some_and(|key| takes_layout(key.public().layout()))
    }

    /// Makes masks with new random names, delivers all these masks, and returns their number. After an error, the
    /// function delivers no mask.
    ///
    /// # Errors
    /// No random bytes, a failed check of a mask, or a lost device: in each case the lane is lost.
    pub fn make_masks(&mut self, count: usize) -> Result<usize, VerifierLost> {
        if self.signer.is_none() {
            return Ok(0);
        }
        self.run_for_signer(|gpu, device_signer| {
            let Some(key) = device_signer.key.ra() else {
                return Ok(0);
            };
            let names: Result<Vec<_>, _> = std::iter::repeat_with(new_mask_name).take(count).collect();
            let names = names.map_err(|_| NO_RANDOM_BYTES)?;
            let mask_key = match device_signer.mask_key.take() {
                Some(mask_key) => mask_key,
                None => gpu.mask_key(key)?,
            };
            let masks = gpu.make_masks(device_signer.mask_key.insert(mask_key), &names)?;
            let count = masks.len();
            (device_signer.deliver)(masks);
            Ok(count)
        })
    }

    /// Prepares signing: the first call uploads the table to the device, and signs these components with a mask that is
    /// then discarded. Call this before taking masks, so that a failure loses no masks.
    ///
    /// # Errors
    /// The device is lost, returned a wrong result, or has no signer.
    pub(crate) fn prepare(&mut self, table: &Table, digits: &Digits) -> Result<(), VerifierLost> {
        self.run_for_signer(
            |gpu, device_signer| match (&device_signer.table, device_signer.key.ra()) {
                (Some(_), _) => Ok(()),
                (None, None) => Err(NO_SIGNER),
                (None, Some(key)) => {
                    device_signer.table = Some(DeviceTable::new(gpu, key, table, digits)?);
                    Ok(())
                }
            },
        )
    }

    /// Signs up to [`GpuLane::SIGNED_MAX`] messages, in order, each with one mask, which is consumed even after an
    /// error. All signatures are verified on the device, and one of them on the CPU: a wrong signature could reveal
    /// parts of the table.
    ///
    /// # Errors
    /// The device is lost, returned a wrong result, or was not prepared.
    pub(crate) fn sign(
        &mut self,
        masks: Vec<Mask>,
        digits: &[&Digits],
    ) -> Result<Vec<NamedSignature>, VerifierLost> {
        self.run_for_signer(
            |gpu, device_signer| match (&mut device_signer.table, device_signer.key.ra()) {
                (Some(table), Some(key)) => table.sign(gpu, key.public(), masks, digits),
                _ => Err(NO_SIGNER),
            },
        )
    }

    /// Runs an operation for the signer, and closes the device on an error.
    fn run_for_signer<T>(
        &mut self,
        run: impl FnOnce(&mut Gpu, &mut DeviceSigner) -> Result<T, BatchError>,
    ) -> Result<T, VerifierLost> {
        let Some(device) = &mut self.device else {
            return Err(self.lost_error());
        };
        let result = match &mut self.signer {
            Some(device_signer) => run(&mut device.gpu, device_signer),
            None => Err(NO_SIGNER),
        };
        result.map_err(|error| self.close(&error))
    }

    pub(super) fn forget_signer(&mut self) {
        if let Some(device_signer) = &mut self.signer {
            (device_signer.mask_key, device_signer.table) = (None, None);
        }
    }
}

const NO_SIGNER: BatchError = BatchError::Malformed("the device is not prepared for a signer");

#[cfg(test)]
mod tests {
    use std::ffi::c_void;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::gpu::kernels::KernelInfo;
    use crate::gpu::layouts::RaSignArgs;
    use crate::gpu::rapid::tests::{PAYLOADS, key, stamp, table};
    use crate::gpu::{Emulation, GpuUnavailable};
    use crate::lane::{KeyMemory, KeyPlacement};
    use crate::message::PayloadKind;
    use crate::scheduler::engine::Lane;
    use crate::scheme::Scheme;
    use crate::signer::{Signed, Signer, SigningMethod};

    fn device(calls: u64) -> GpuLane {
        let open = move || {
            let emulation = Emulation {
                calls,
                ..Emulation::default()
            };
            Gpu::emulated(emulation).map_err(|lost| GpuUnavailable::from(crate::gpu::BatchError::from(lost)))
        };
        let memory = KeyMemory {
            table_bytes: 1 << 20,
            rsa_keys: 2,
            p256_keys: 2,
        };
        GpuLane::open_with(Box::new(open), Arc::new(KeyPlacement::new([], memory))).unwrap()
    }

    #[test]
    fn masks_of_a_device_sign_messages() {
        let key = key();
        let copy = || PrivateKey::from_bytes(&key.to_bytes().unwrap()).unwrap();
        let pool = Arc::new(Mutex::new(Vec::new()));
        let pool_of_device = Arc::clone(&pool);
        let deliver = move |masks| pool_of_device.lock().unwrap().extend::<Vec<Mask>>(masks);
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
            let Signed {
                bytes: message,
                method,
            } = signer.sign(&[&message]).unwrap().remove(0);
            assert_eq!(method, SigningMethod::Masked);
            let (head, number) = message.split_at(message.len() - 256);
            let digits = public
                .layout()
                .digits(stamp(), PayloadKind::Opaque, &payload)
                .unwrap();
            assert!(public.verify(head.last_chunk().unwrap(), &digits, number));
        }
        assert_eq!(signer.masks(), 0);
    }

    /// Kernels compiled for this CPU; `after` runs with the arguments of each signing kernel.
    fn signing_device(after: impl Fn(&RaSignArgs) + Send + Sync + Clone + 'static) -> GpuLane {
        let open = move || {
            let after = after.clone();
            let launcher = move |kernel: &'static KernelInfo, _: usize, arguments: *const c_void| {
                // SAFETY: the caller of the launch guarantees valid arguments and arrays.
                unsafe { kernel.run_on_host(arguments) };
                if kernel.name.starts_with("ra_sign") {
                    // SAFETY: the arguments are those of this kernel.
                    after(unsafe { &*arguments.cast::<RaSignArgs>() });
                }
            };
            Gpu::emulated_by(Emulation::default(), Box::new(launcher))
                .map_err(|lost| GpuUnavailable::from(BatchError::from(lost)))
        };
        let memory = KeyMemory {
            table_bytes: 1 << 20,
            rsa_keys: 2,
            p256_keys: 2,
        };
        GpuLane::open_with(Box::new(open), Arc::new(KeyPlacement::new([], memory))).unwrap()
    }

    #[test]
    fn a_device_signs_with_masks_and_is_closed_after_a_wrong_signature() {
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
        let corrupt = Arc::new(AtomicBool::new(false));
        let corrupt_in_device = Arc::clone(&corrupt);
        let device = signing_device(move |arguments| {
            if corrupt_in_device.load(Ordering::Relaxed) {
                // SAFETY: memory of the emulation for as many signatures as items, with no other user.
                unsafe { *(arguments.signatures as *mut u8).add(255) ^= 1 };
            }
        });
        let mut device = device.with_signer(Arc::clone(&key), Box::new(|_| panic!("no mask was requested")));
        assert!(device.sign(masks(1), &digits).is_err(), "not prepared");
        device.reopen().unwrap();
        device.prepare(&table, digits[0]).unwrap();
        for round in 0..2 {
            let signed = device.sign(masks(10 + 3 * round), &digits).unwrap();
            for ((name, number), digits) in signed.iter().zip(&digits) {
                assert!(ra.public().verify(name, digits, number));
            }
        }
        corrupt.store(true, Ordering::Relaxed);
        let lost = device.sign(masks(30), &digits).unwrap_err();
        assert!(
            lost.reason
                .contains("check of 1 results of private operations failed"),
            "{lost}"
        );
        assert!(device.prepare(&table, digits[0]).is_err(), "stays lost");
        device.reopen().unwrap();
        assert!(
            device.prepare(&table, digits[0]).is_err(),
            "before masks are taken"
        );
        corrupt.store(false, Ordering::Relaxed);
        device.reopen().unwrap();
        device.prepare(&table, digits[0]).unwrap();
        assert_eq!(device.sign(masks(50), &digits).unwrap().len(), 3);
    }

    /// A lost device delivers no masks; after reopening, the key is uploaded again.
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
        let mut device =
            device(u64::MAX).with_signer(Arc::new(key), Box::new(|_| panic!("a plain key has no masks")));
        assert!(!device.spec().refills);
        assert_eq!(device.make_masks(3), Ok(0));
    }
}
