//! Keys of [`crate::ra`] on the device: for verification, signing, and making masks.

use std::sync::Arc;

use zeroize::Zeroizing;

use super::constants::{RsaSecret, reverse_rows};
use super::engine::{Goal, Gpu};
use super::error::BatchError;
use super::hash::Messages;
use super::keys::RsaSecrets;
use super::layouts::MESSAGE_BYTES_MAX;
use super::private::{PrivateInput, PrivateOutput};
use super::ra::{RaKeys, RaSigner, SignerKeys, check_statuses};
use crate::message::MASK_NAME_BYTES;
use crate::ra::hash::{COMPONENT_HEAD_BYTES, component_input, mask_head};
use crate::ra::{Layout, Mask, RaPrivate, RaPublic, Table};

/// Whether the device can hash all components of a layout. A device does not support texts of more than 81 bytes.
#[must_use]
pub fn takes_layout(layout: &Layout) -> bool {
    COMPONENT_HEAD_BYTES + layout.value_bytes_max() <= MESSAGE_BYTES_MAX
}

/// Writes the bytes to hash for a value of a component.
fn components(key: &RaPublic) -> impl Fn(usize, u32, &mut Vec<u8>) {
    let offsets: Vec<usize> = key
        .layout()
        .domains()
        .scan(0, |end, values| {
            let first = *end;
            *end += values as usize;
            Some(first)
        })
        .collect();
    move |position, value, out| {
        let row = offsets.get(position).map(|first| first + value as usize);
        if let Some((component, value)) = row.and_then(|row| key.layout().row(row)) {
            component_input(key.pad(), component, value.as_bytes(), out);
        }
    }
}

/// A private key of Rapid Authentication on the device, for making masks. The device checks the results with e.
pub struct MaskKey {
    public: Arc<RaPublic>,
    secrets: RsaSecrets,
}

impl std::fmt::Debug for MaskKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MaskKey({:?})", self.public)
    }
}

impl Gpu {
    /// Stores a key under a number and hashes all its components, which must match the domains of `keys`.
    ///
    /// # Errors
    /// A number or layout that does not fit ([`takes_layout`]), or a lost device.
    pub fn put_ra_public(
        &mut self,
        keys: &mut RaKeys,
        number: usize,
        key: &RaPublic,
    ) -> Result<(), BatchError> {
        let head = mask_head(key.pad());
        self.put_ra_key(keys, number, key.rsa().as_bytes(), &head, &components(key))
    }

    /// Stores a signer's table on the device, and room for masks that are made elsewhere: the private key is not
    /// required.
    ///
    /// # Errors
    /// The device is lost or has not enough memory.
    pub fn ra_signer_of(&mut self, table: &Table, masks: usize) -> Result<RaSigner, BatchError> {
        let public = table.public();
        let mut keys = self.rsa_keys(public.rsa().size(), 1)?;
        self.put_rsa_key(&mut keys, 0, public.rsa().as_bytes())?;
        let domains: Vec<u32> = public.layout().domains().collect();
        let rows = table.montgomery_forms();
        let keys = SignerKeys::Public(keys);
        self.signer_with(
            keys,
            &mask_head(public.pad()),
            &domains,
            masks,
            |gpu, _, _, memory| Ok(gpu.write(memory, 0, &rows)?),
        )
    }

    /// Stores one signer's public key on the device, for verifying the signatures that the device makes.
    ///
    /// # Errors
    /// An unsupported layout ([`takes_layout`]), or a device that is lost or has not enough memory.
    pub fn ra_verifier_of(&mut self, key: &RaPublic) -> Result<RaKeys, BatchError> {
        let domains: Vec<u32> = key.layout().domains().collect();
        let mut keys = self.ra_keys(key.rsa().size(), &domains, 1)?;
        self.put_ra_public(&mut keys, 0, key)?;
        Ok(keys)
    }

    /// Stores a private key on the device, for making masks.
    ///
    /// # Errors
    /// The device is lost or has not enough memory.
    pub fn mask_key(&mut self, key: &RaPrivate) -> Result<MaskKey, BatchError> {
        let public = key.public();
        let mut secrets = self.rsa_secrets(public.rsa().size(), 1)?;
        with_secret(key, |secret| {
            self.put_rsa_secret(&mut secrets, 0, public.rsa().as_bytes(), &[], secret)
        })?;
        Ok(MaskKey {
            public: Arc::clone(public),
            secrets,
        })
    }

    /// Makes masks with these names, which must be random and unused.
    ///
    /// # Errors
    /// The check of a result failed (then no mask is made), or a lost device.
    pub fn make_masks(
        &mut self,
        key: &MaskKey,
        names: &[[u8; MASK_NAME_BYTES]],
    ) -> Result<Vec<Mask>, BatchError> {
        let head = mask_head(key.public.pad());
        let inputs = names.iter().map(|name| [head.as_slice(), name].concat());
        let numbers = self.signatures(key, inputs)?;
        let numbers = numbers.chunks(key.public.rsa().size().bytes());
        let masks = names.iter().zip(numbers);
        Ok(masks
            .map(|(name, number)| Mask::from_unused_parts(*name, Zeroizing::new(number.to_vec())))
            .collect())
    }

    /// The hash of each input raised to the private exponent, concatenated, most significant byte first.
    fn signatures(
        &mut self,
        key: &MaskKey,
        inputs: impl Iterator<Item = Vec<u8>>,
    ) -> Result<Zeroizing<Vec<u8>>, BatchError> {
        self.check_owner(&key.secrets.memory)?;
        let mut messages = Messages::default();
        for input in inputs {
            messages.push(&input)?;
        }
        self.guard(|gpu| {
            let key_of = vec![0; messages.len()];
            let source = PrivateInput::Hashes(&messages);
            let mut results = gpu.run_private(
                &key.secrets,
                &key_of,
                &source,
                PrivateOutput::Host,
                Goal::Automatic,
            )?;
            check_statuses(&results.statuses)?;
            reverse_rows(&mut results.rows, key.secrets.public.size.bytes());
            Ok(results.rows)
        })
    }
}

fn with_secret<T>(key: &RaPrivate, put: impl FnOnce(&RsaSecret) -> T) -> T {
    let [p, q, dp, dq, qinv] = key.rsa().numbers();
    put(&RsaSecret {
        p: &p,
        q: &q,
        dp: &dp,
        dq: &dq,
        qinv: &qinv,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::gpu::{Emulation, Goal};
    use crate::key::PrivateKey;
    use crate::message::{PayloadKind, Stamp, TimeMs};
    use crate::ra::Digits;
    use crate::scheme::Scheme;

    pub(crate) const PAYLOADS: [[u8; 1]; 3] = [[0], [7], [255]];

    pub(crate) fn stamp() -> Stamp {
        Stamp {
            time: TimeMs::since_2020(0x123_4567_89ab),
            priority: 3.try_into().unwrap(),
        }
    }

    pub(crate) fn key() -> PrivateKey {
        PrivateKey::generate(Scheme::RaRsa2048, Some(Layout::bytes(1).unwrap())).unwrap()
    }

    fn digits(key: &RaPrivate, payload: &[u8]) -> Digits {
        let layout = key.public().layout();
        layout.digits(stamp(), PayloadKind::Opaque, payload).unwrap()
    }

    /// The table of a key with only the rows that the payloads need: all rows take seconds.
    pub(crate) fn table(key: &RaPrivate) -> Table {
        let (public, size) = (key.public(), key.public().rsa().size().bytes());
        let mut bytes = vec![0; public.layout().rows() * size];
        for payload in PAYLOADS {
            for row in public.layout().rows_of(&digits(key, &payload)) {
                let out = &mut bytes[row * size..][..size];
                key.rsa()
                    .power(out, &public.component_bytes(row).unwrap())
                    .unwrap();
            }
        }
        Table::from_bytes(Arc::clone(public), &bytes).unwrap()
    }

    #[test]
    fn signatures_of_a_device_verify() {
        let key = key();
        let ra = key.ra().unwrap();
        let mut gpu = Gpu::emulated(Emulation::default()).unwrap();
        let mut signer = gpu.ra_signer_of(&table(ra), 3).unwrap();
        let missing = gpu.fill_masks(&mut signer, &[[1; 32]]);
        assert!(matches!(missing, Err(BatchError::Malformed(_))), "{missing:?}");
        let all_digits = PAYLOADS.map(|payload| digits(ra, &payload));
        let flat_digits: Vec<u16> = all_digits
            .iter()
            .flat_map(|digits| digits.as_slice().to_vec())
            .collect();
        // Masks made on the CPU; afterwards the ring of slots has wrapped once.
        for names in [[[4; 32], [5; 32], [6; 32]], [[7; 32], [8; 32], [9; 32]]] {
            gpu.put_masks(&mut signer, ra.masks(&names).unwrap()).unwrap();
            assert_eq!(
                gpu.put_masks(&mut signer, ra.masks(&[[10; 32]]).unwrap()),
                Err(super::super::ra::TOO_MANY_MASKS)
            );
            let signed = gpu.sign_ra(&mut signer, &flat_digits, Goal::Automatic).unwrap();
            assert_eq!(signed.seeds, names);
            for ((digits, number), name) in all_digits.iter().zip(signed.numbers.chunks(256)).zip(&names) {
                assert!(ra.public().verify(name, digits, number));
            }
            // One more slot, so that the next three do not begin at the same slot.
            gpu.put_masks(&mut signer, ra.masks(&[[names[0][0] + 100; 32]]).unwrap())
                .unwrap();
            let single = gpu
                .sign_ra(&mut signer, all_digits[0].as_slice(), Goal::Automatic)
                .unwrap();
            assert!(
                ra.public()
                    .verify(&single.seeds[0], &all_digits[0], &single.numbers)
            );
        }
    }

    #[test]
    fn components_of_at_most_81_bytes_are_supported() {
        use crate::ra::Domain;
        let layout = |bytes: usize| {
            let texts = vec!["x".repeat(bytes), "y".to_owned()];
            Layout::new(PayloadKind::Submessages, vec![Domain::Submessages(texts)]).unwrap()
        };
        assert!(takes_layout(&layout(81)) && !takes_layout(&layout(82)));
        assert!(takes_layout(&Layout::bsm().unwrap()));
    }
}
