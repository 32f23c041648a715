//! Hash algorithms of TPM 2.0 banks, and digests with their algorithm.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Hash algorithms of PCR banks. The numbers are TPM_ALG_IDs (TCG Algorithm Registry, table 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u16)]
pub enum HashAlgorithm {
    /// Not collision-resistant. Logs with SHA-1 digests are read and replayed, but no decision depends on them.
    Sha1 = 0x0004,
    /// Digests of 32 bytes.
    Sha256 = 0x000b,
    /// Digests of 48 bytes.
    Sha384 = 0x000c,
    /// Digests of 64 bytes.
    Sha512 = 0x000d,
}

impl HashAlgorithm {
    /// All algorithms, by number.
    pub const ALL: [Self; 4] = [Self::Sha1, Self::Sha256, Self::Sha384, Self::Sha512];

    /// The algorithm of this TPM_ALG_ID, if supported.
    pub fn from_tcg_id(id: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.tcg_id() == id)
    }

    /// The TPM_ALG_ID of the algorithm.
    pub const fn tcg_id(self) -> u16 {
        self as u16
    }

    /// Length of the digests in bytes.
    pub const fn digest_bytes(self) -> usize {
        match self {
            Self::Sha1 => 20,
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }

    /// The digest of the concatenated parts.
    pub fn digest(self, parts: &[&[u8]]) -> Digest {
        match self {
            Self::Sha1 => Digest::from_prefix(self, &hash_parts::<sha1::Sha1>(parts)),
            Self::Sha256 => Digest::from_prefix(self, &hash_parts::<sha2::Sha256>(parts)),
            Self::Sha384 => Digest::from_prefix(self, &hash_parts::<sha2::Sha384>(parts)),
            Self::Sha512 => Digest::from_prefix(self, &hash_parts::<sha2::Sha512>(parts)),
        }
    }
}

fn hash_parts<H: sha2::Digest>(parts: &[&[u8]]) -> Vec<u8> {
    let mut hash = H::new();
    for part in parts {
        hash.update(part);
    }
    hash.finalize().to_vec()
}

impl fmt::Display for HashAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sha1 => "sha1",
            Self::Sha256 => "sha256",
            Self::Sha384 => "sha384",
            Self::Sha512 => "sha512",
        })
    }
}

impl FromStr for HashAlgorithm {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        Self::ALL
            .into_iter()
            .find(|algorithm| algorithm.to_string() == text)
            .ok_or_else(|| DigestError::Unknown(text.to_owned()))
    }
}

/// Why an algorithm name or a digest is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DigestError {
    /// No such algorithm.
    #[error("unknown hash algorithm {0}; supported: sha1, sha256, sha384, sha512")]
    Unknown(String),
    /// The length does not match the algorithm.
    #[error("invalid length of a {algorithm} digest: expected {} bytes, got {got}", algorithm.digest_bytes())]
    Length {
        /// The algorithm.
        algorithm: HashAlgorithm,
        /// The given number of bytes.
        got: usize,
    },
}

/// A digest: an algorithm and exactly as many bytes as the algorithm produces. Displayed as hex.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest {
    algorithm: HashAlgorithm,
    // The bytes after the algorithm's length are zero, so that equality can compare all bytes.
    bytes: [u8; 64],
}

impl Digest {
    /// A digest from its bytes.
    ///
    /// # Errors
    /// The length does not match the algorithm.
    pub fn new(algorithm: HashAlgorithm, bytes: &[u8]) -> Result<Self, DigestError> {
        match bytes.len() == algorithm.digest_bytes() {
            true => Ok(Self::from_prefix(algorithm, bytes)),
            false => Err(DigestError::Length {
                algorithm,
                got: bytes.len(),
            }),
        }
    }

    /// All bytes zero: the start value of most PCRs.
    pub const fn zero(algorithm: HashAlgorithm) -> Self {
        Self {
            algorithm,
            bytes: [0; 64],
        }
    }

    /// All bits one: the start value of PCRs of a dynamic launch.
    pub fn ones(algorithm: HashAlgorithm) -> Self {
        Self::from_prefix(algorithm, &[0xff; 64])
    }

    /// The algorithm.
    pub const fn algorithm(&self) -> HashAlgorithm {
        self.algorithm
    }

    /// The bytes, without padding.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes
            .get(..self.algorithm.digest_bytes())
            .unwrap_or_default()
    }

    /// The PCR value after `event` was extended: the hash of the old value followed by the event's digest (TPM 2.0
    /// Library, Part 1, "Extend of a PCR").
    pub fn extended(&self, event: &Self) -> Self {
        self.algorithm.digest(&[self.as_bytes(), event.as_bytes()])
    }

    /// Creates a digest from the first bytes of `source`, as many as the algorithm's digests have.
    fn from_prefix(algorithm: HashAlgorithm, source: &[u8]) -> Self {
        let mut bytes = [0; 64];
        for (target, source) in bytes.iter_mut().zip(source).take(algorithm.digest_bytes()) {
            *target = *source;
        }
        Self { algorithm, bytes }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.as_bytes()))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{self}", self.algorithm)
    }
}

impl Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn algorithms_are_found_by_their_ids_and_names() {
        for algorithm in HashAlgorithm::ALL {
            assert_eq!(HashAlgorithm::from_tcg_id(algorithm.tcg_id()), Some(algorithm));
            assert_eq!(algorithm.to_string().parse(), Ok(algorithm));
            assert_eq!(algorithm.digest(&[]).as_bytes().len(), algorithm.digest_bytes());
        }
        assert_eq!(HashAlgorithm::from_tcg_id(0x0012), None);
        assert_eq!(
            "SHA256".parse::<HashAlgorithm>(),
            Err(DigestError::Unknown("SHA256".to_owned()))
        );
    }

    #[test]
    fn digests_are_those_of_fips_180() {
        let abc = |algorithm: HashAlgorithm| algorithm.digest(&[b"a", b"bc"]).to_string();
        assert_eq!(
            abc(HashAlgorithm::Sha1),
            "a9993e364706816aba3e25717850c26c9cd0d89d"
        );
        assert_eq!(
            abc(HashAlgorithm::Sha256),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert!(abc(HashAlgorithm::Sha384).starts_with("cb00753f45a35e8bb5a03d699ac65007272c32ab0eded163"));
        assert!(abc(HashAlgorithm::Sha512).starts_with("ddaf35a193617abacc417349ae20413112e6fa4e89a97ea2"));
    }

    #[test]
    fn digests_have_their_algorithms_length() {
        assert_eq!(
            Digest::new(HashAlgorithm::Sha256, &[0; 20]),
            Err(DigestError::Length {
                algorithm: HashAlgorithm::Sha256,
                got: 20
            })
        );
        assert_eq!(
            Digest::new(HashAlgorithm::Sha1, &[0; 20]),
            Ok(Digest::zero(HashAlgorithm::Sha1))
        );
    }
}
