//! Encryption of blobs at rest: XChaCha20-Poly1305 with a random nonce. The additional data (`aad`) name the storage
//! location of the blob, so a blob that was moved does not authenticate.
//!
//! A sealed blob is `nonce[24] | ciphertext | tag[16]`. Each blob has a random 192-bit nonce from the operating system,
//! not a counter, because a counter would repeat nonces after the restore of a backup. The key is derived from a secret,
//! a public salt and a purpose, so one secret can serve several stores.

use chacha20poly1305::aead::inout::InOutBuf;
use chacha20poly1305::{AeadInOut as _, Key, KeyInit as _, Tag, XChaCha20Poly1305, XNonce};
use hkdf::Hkdf;
use sha2::Sha256;
use zeroize::Zeroizing;

const NONCE_BYTES: usize = 24;
const TAG_BYTES: usize = 16;
/// Bytes that sealing adds to a plaintext.
pub const SEAL_OVERHEAD_BYTES: usize = NONCE_BYTES + TAG_BYTES;

/// The blob does not authenticate: the blob was damaged, was moved, or was sealed under another key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("blob does not authenticate: it is damaged, from another location, or sealed under another key")]
pub struct NotAuthentic;

/// Seals and opens blobs under one derived key.
pub struct Sealer {
    cipher: XChaCha20Poly1305,
}

impl Sealer {
    /// Derives the sealing key from 32 secret bytes, a public salt and a label that separates purposes.
    #[must_use]
    pub fn derive(secret: &[u8; 32], salt: &[u8], purpose: &str) -> Self {
        let key = derive_key::<32>(secret, salt, purpose);
        Self {
            cipher: XChaCha20Poly1305::new(&Key::from(*key)),
        }
    }

    /// Returns a sealed blob. `write` appends exactly `plaintext_len` bytes of plaintext to the blob. The ciphertext
    /// overwrites the plaintext in place, so no copy of the plaintext remains. The blob does not contain `aad`.
    ///
    /// # Errors
    /// The operating system provides no random bytes.
    pub fn seal(
        &self,
        aad: &[u8],
        plaintext_len: usize,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<Vec<u8>, getrandom::Error> {
        let mut nonce = [0u8; NONCE_BYTES];
        getrandom::fill(&mut nonce)?;
        Ok(self.seal_with_nonce(nonce, aad, plaintext_len, write))
    }

    fn seal_with_nonce(
        &self,
        nonce: [u8; NONCE_BYTES],
        aad: &[u8],
        plaintext_len: usize,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Vec<u8> {
        let mut blob = Vec::with_capacity(plaintext_len + SEAL_OVERHEAD_BYTES);
        blob.extend_from_slice(&nonce);
        write(&mut blob);
        debug_assert_eq!(blob.len(), NONCE_BYTES + plaintext_len);
        let (_, body) = blob.split_at_mut(NONCE_BYTES);
        match self
            .cipher
            .encrypt_inout_detached(&XNonce::from(nonce), aad, InOutBuf::from(&mut *body))
        {
            Ok(tag) => blob.extend_from_slice(&tag),
            // Encryption fails only for a plaintext of 256 GiB or more. The result is an empty blob, which never opens.
            Err(_) => {
                zeroize::Zeroize::zeroize(body);
                blob.clear();
            }
        }
        blob
    }

    /// Opens a blob that was sealed with the same `aad`.
    ///
    /// # Errors
    /// The blob was sealed with another `aad` or another key, or was altered.
    pub fn open(&self, aad: &[u8], sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, NotAuthentic> {
        let (nonce, rest) = sealed.split_first_chunk::<NONCE_BYTES>().ok_or(NotAuthentic)?;
        let (body, tag) = rest.split_last_chunk::<TAG_BYTES>().ok_or(NotAuthentic)?;
        let mut plaintext = Zeroizing::new(body.to_vec());
        self.cipher
            .decrypt_inout_detached(
                &XNonce::from(*nonce),
                aad,
                InOutBuf::from(plaintext.as_mut_slice()),
                &Tag::from(*tag),
            )
            .map_err(|_| NotAuthentic)?;
        Ok(plaintext)
    }
}

/// Derives a key of `N` bytes (at most 64) with HKDF-SHA-256 (RFC 5869). `purpose` is the `info` of HKDF.
#[must_use]
pub fn derive_key<const N: usize>(secret: &[u8; 32], salt: &[u8], purpose: &str) -> Zeroizing<[u8; N]> {
    let mut key = Zeroizing::new([0u8; N]);
    // HKDF fails only above 255 hash lengths (8160 bytes).
    let expanded = Hkdf::<Sha256>::new(Some(salt), secret).expand(purpose.as_bytes(), &mut *key);
    debug_assert!(expanded.is_ok());
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealer() -> Sealer {
        Sealer::derive(&[7; 32], b"salt", "test")
    }

    #[test]
    fn a_sealed_blob_opens_and_hides_its_content() {
        let blob = sealer()
            .seal(b"aad", 9, |out| out.extend_from_slice(b"plaintext"))
            .unwrap();
        assert_eq!(blob.len(), 9 + SEAL_OVERHEAD_BYTES);
        assert!(!blob.windows(9).any(|window| window == b"plaintext"));
        assert_eq!(*sealer().open(b"aad", &blob).unwrap(), b"plaintext");
    }

    #[test]
    fn every_bit_flip_and_every_truncation_is_rejected() {
        let blob = sealer()
            .seal(b"aad", 4, |out| out.extend_from_slice(b"text"))
            .unwrap();
        for bit in 0..blob.len() * 8 {
            let mut flipped = blob.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(sealer().open(b"aad", &flipped), Err(NotAuthentic), "bit {bit}");
        }
        for length in 0..blob.len() {
            assert_eq!(
                sealer().open(b"aad", &blob[..length]),
                Err(NotAuthentic),
                "length {length}"
            );
        }
    }

    #[test]
    fn a_wrong_location_key_salt_or_purpose_is_rejected() {
        let blob = sealer()
            .seal(b"aad", 4, |out| out.extend_from_slice(b"text"))
            .unwrap();
        assert!(sealer().open(b"aae", &blob).is_err());
        assert!(
            Sealer::derive(&[8; 32], b"salt", "test")
                .open(b"aad", &blob)
                .is_err()
        );
        assert!(
            Sealer::derive(&[7; 32], b"sale", "test")
                .open(b"aad", &blob)
                .is_err()
        );
        assert!(
            Sealer::derive(&[7; 32], b"salt", "rest")
                .open(b"aad", &blob)
                .is_err()
        );
    }

    #[test]
    fn two_seals_of_one_text_differ() {
        let seal = || {
            sealer()
                .seal(b"", 4, |out| out.extend_from_slice(b"text"))
                .unwrap()
        };
        assert_ne!(seal(), seal());
    }

    /// XChaCha20-Poly1305 itself, against draft-irtf-cfrg-xchacha-03, A.3.1.
    #[test]
    fn agrees_with_the_published_vector() {
        let key: [u8; 32] = core::array::from_fn(|i| 0x80 + i as u8);
        let nonce: [u8; 24] = core::array::from_fn(|i| 0x40 + i as u8);
        let aad = hex::decode("50515253c0c1c2c3c4c5c6c7").unwrap();
        let text: &[u8] = b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for \
                            the future, sunscreen would be it.";
        let sealer = Sealer {
            cipher: XChaCha20Poly1305::new(&Key::from(key)),
        };
        let blob = sealer.seal_with_nonce(nonce, &aad, text.len(), |out| out.extend_from_slice(text));
        assert_eq!(
            hex::encode(&blob[24..56]),
            "bd6d179d3e83d43b9576579493c0e939572a1700252bfaccbed2902c21396cbb"
        );
        assert_eq!(
            hex::encode(&blob[blob.len() - 16..]),
            "c0875924c1c7987947deafd8780acf49"
        );
    }
}
