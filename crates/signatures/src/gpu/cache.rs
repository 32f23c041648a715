//! Machine code as it lies in the cache: behind its SHA-256. The driver reads as much as the code's own header says, so that it gets none
//! that was cut or changed.

use sha2::{Digest as _, Sha256};

const DIGEST_BYTES: usize = 32;

/// What is written.
pub fn seal(code: &[u8]) -> Vec<u8> {
    let mut bytes = Sha256::digest(code).to_vec();
    bytes.extend_from_slice(code);
    bytes
}

/// The code of what was read, if it is what was written.
pub fn open(bytes: &[u8]) -> Option<&[u8]> {
    let (digest, code) = bytes.split_at_checked(DIGEST_BYTES)?;
    (Sha256::digest(code).as_slice() == digest).then_some(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_code_is_taken() {
        let sealed = seal(b"\x7fELF and more");
        assert_eq!(open(&sealed), Some(&b"\x7fELF and more"[..]));
        for length in 0..sealed.len() {
            assert_eq!(open(sealed.get(..length).unwrap_or_default()), None, "{length}");
        }
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert_eq!(open(&changed), None, "{at}");
        }
    }
}
