//! Format of cached machine code: the SHA-256 of the code, then the code. The driver reads as many bytes as the header
//! of the code states, so truncated or changed code must never reach the driver.

use sha2::{Digest as _, Sha256};

const DIGEST_BYTES: usize = 32;

/// The cache entry of this code.
pub fn seal(code: &[u8]) -> Vec<u8> {
    let mut bytes = Sha256::digest(code).to_vec();
    bytes.extend_from_slice(code);
    bytes
}

/// The code of a cache entry, if the entry is intact.
pub fn open(bytes: &[u8]) -> Option<&[u8]> {
    let (digest, code) = bytes.split_at_checked(DIGEST_BYTES)?;
    (Sha256::digest(code).as_slice() == digest).then_some(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_intact_code_is_used() {
        let sealed = seal(b"\x7fELF and more");
        assert_eq!(open(&sealed), Some(&b"\x7fELF and more"[..]));
        for length in 0..sealed.len() {
            assert_eq!(open(sealed.get(..length).unwrap_or_default()), None, "{length}");
        }
        for index in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[index] ^= 1;
            assert_eq!(open(&changed), None, "{index}");
        }
    }
}
