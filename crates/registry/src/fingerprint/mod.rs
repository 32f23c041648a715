//! Fingerprints of PUFs, which detect a PUF that is already enrolled as another device.
//!
//! The enrolling side reads *bands* of bits from the PUF, at positions that are the same for every device. No secret
//! depends on these bits. For each band the registry stores a keyed hash, which identifies the devices with the same
//! band. The registry also stores all bands sealed, so that another registry can compute its own hashes.

mod agreement;
mod table;

use zeroize::{Zeroize, ZeroizeOnDrop};

pub(crate) use self::agreement::agreement;
pub(crate) use self::table::FingerprintKeys;

/// Maximum number of bands of a fingerprint.
pub const BANDS_MAX: usize = 192;
/// Length of an encoded band, bytes: `position u16 | bits u24`.
const BAND_BYTES: usize = 5;
const BITS_MAX: u32 = 1 << 20;

/// Bits of a PUF at one position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Zeroize)]
pub struct Band {
    /// The position, the same for every device.
    pub position: u16,
    /// 20 bits.
    pub bits: u32,
}

/// The bands of a PUF, in ascending order of their positions; erased on drop.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub struct Fingerprint(Vec<Band>);

impl std::fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fingerprint({} bands)", self.0.len())
    }
}

impl Fingerprint {
    /// Creates a fingerprint. `None` without bands, with too many bands, with more than 20 bits in a band, or with
    /// positions that do not ascend.
    #[must_use]
    pub fn new(bands: Vec<Band>) -> Option<Self> {
        let fingerprint = Self(bands);
        let bands = &fingerprint.0;
        let is_ascending = bands.is_sorted_by(|a, b| a.position < b.position);
        let is_in_range =
            (1..=BANDS_MAX).contains(&bands.len()) && bands.iter().all(|band| band.bits < BITS_MAX);
        (is_ascending && is_in_range).then_some(fingerprint)
    }

    /// The bands.
    #[must_use]
    pub fn bands(&self) -> &[Band] {
        &self.0
    }

    /// The byte form: `position u16 | bits u24` for each band, big-endian.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.encoded_len());
        self.encode(&mut bytes);
        bytes
    }

    pub(crate) fn encoded_len(&self) -> usize {
        self.0.len() * BAND_BYTES
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        for band in &self.0 {
            out.extend_from_slice(&band.position.to_be_bytes());
            out.extend(band.bits.to_be_bytes().iter().skip(1));
        }
    }

    /// Decodes the byte form; `None` if it is invalid.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (chunks, rest) = bytes.as_chunks::<BAND_BYTES>();
        let band = |&[p0, p1, b0, b1, b2]: &[u8; BAND_BYTES]| Band {
            position: u16::from_be_bytes([p0, p1]),
            bits: u32::from_be_bytes([0, b0, b1, b2]),
        };
        let bands =
            (rest.is_empty() && chunks.len() <= BANDS_MAX).then(|| chunks.iter().map(band).collect())?;
        Self::new(bands)
    }
}
