//! Masks that an idle device makes.

use std::sync::Arc;

use super::Graphics;
use crate::gpu::MaskKey;
use crate::key::PrivateKey;
use crate::lane::Lost;
use crate::ra::Mask;
use crate::signer::fresh_name;

/// Takes masks over: [`Signer::add_masks`](crate::signer::Signer::add_masks), or a file of masks.
pub type MaskDelivery = Box<dyn FnMut(Vec<Mask>) + Send>;

/// For whom masks are made.
pub(super) struct MaskWork {
    key: Arc<PrivateKey>,
    deliver: MaskDelivery,
    /// As long as the device is open.
    on_device: Option<MaskKey>,
}

impl Graphics {
    /// Lets the device make masks of this key too, when it is idle; nothing with a key of a plain scheme.
    #[must_use]
    pub fn with_masks(mut self, key: Arc<PrivateKey>, deliver: MaskDelivery) -> Self {
        self.masks = key.ra().is_some().then_some(MaskWork {
            key,
            deliver,
            on_device: None,
        });
        self
    }

    /// Makes so many masks of fresh random names and delivers them, all or, after an error, none; how many.
    ///
    /// # Errors
    /// No random bytes, a mask that does not check, or the device is lost: with all of them the lane is.
    pub fn make_masks(&mut self, count: usize) -> Result<usize, Lost> {
        let Some(mut work) = self.masks.take() else {
            return Ok(0);
        };
        let made = self.make(&mut work, count);
        if made.is_err() {
            work.on_device = None;
        }
        let count = made.map(|masks| {
            let count = masks.len();
            (work.deliver)(masks);
            count
        });
        self.masks = Some(work);
        count
    }

    fn make(&mut self, work: &mut MaskWork, count: usize) -> Result<Vec<Mask>, Lost> {
        let names: Result<Vec<_>, _> = std::iter::repeat_with(fresh_name).take(count).collect();
        let names = names.map_err(|error| Lost {
            lane: self.name.clone(),
            reason: error.to_string(),
        })?;
        let Some(key) = work.key.ra() else {
            return Ok(Vec::new());
        };
        self.on_device(|device| {
            let on_device = match work.on_device.take() {
                Some(on_device) => on_device,
                None => device.gpu.mask_key(key)?,
            };
            device.gpu.make_masks(work.on_device.insert(on_device), &names)
        })
    }

    pub(super) fn forget_mask_key(&mut self) {
        if let Some(work) = &mut self.masks {
            work.on_device = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::gpu::rapid::tests::{PAYLOADS, key, stamp, table};
    use crate::gpu::{Emulation, Gpu, NoGpu};
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
        let mut device = device(u64::MAX).with_masks(Arc::new(copy()), Box::new(deliver));
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

    /// None is delivered then; when the device is back, the key is put there again.
    #[test]
    fn a_device_that_is_lost_makes_no_masks() {
        let count = Arc::new(Mutex::new(0));
        let counted = Arc::clone(&count);
        let deliver = move |masks: Vec<Mask>| *counted.lock().unwrap() += masks.len();
        let mut device = device(60).with_masks(Arc::new(key()), Box::new(deliver));
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
        let mut device = device(u64::MAX).with_masks(Arc::new(key), Box::new(|_| panic!("there are none")));
        assert!(!device.spec().refills);
        assert_eq!(device.make_masks(3), Ok(0));
    }
}
