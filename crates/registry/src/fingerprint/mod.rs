//! By what a PUF is recognized that is enrolled already, as another device's.
//!
//! The enrolling side takes *bands* of bits from the PUF, at places that are the same for every device and that no
//! secret depends on. Of each band the registry keeps a keyed hash, by which it finds the devices that have the same one,
//! and all bands sealed, so that they are hashed anew where a device moves to another registry.

mod agreement;
mod table;

use zeroize::{Zeroize, ZeroizeOnDrop};

pub(crate) use self::agreement::agreement;
pub(crate) use self::table::FingerprintKeys;

/// Most bands of a fingerprint.
pub const BANDS_MAX: usize = 192;
/// Bytes of an encoded band: `place u16 | bits u24`.
const BAND_BYTES: usize = 5;
const BITS_MAX: u32 = 1 << 20;

/// Bits of a PUF at one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Zeroize)]
pub struct Band {
    /// The same for every device.
    pub place: u16,
    /// 20 bits.
    pub bits: u32,
}

/// A PUF's bands, in ascending order of their places; erased on drop.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub struct Fingerprint(Vec<Band>);

impl std::fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fingerprint({} bands)", self.0.len())
    }
}

impl Fingerprint {
    /// `None` without bands, with too many, with bits that are more than 20, or places that do not ascend.
    #[must_use]
    pub fn new(bands: Vec<Band>) -> Option<Self> {
        let fingerprint = Self(bands);
        let bands = &fingerprint.0;
        let ascend = bands.is_sorted_by(|a, b| a.place < b.place);
        let fit = (1..=BANDS_MAX).contains(&bands.len()) && bands.iter().all(|band| band.bits < BITS_MAX);
        (ascend && fit).then_some(fingerprint)
    }

    /// The bands.
    #[must_use]
    pub fn bands(&self) -> &[Band] {
        &self.0
    }

    /// The byte form: `place u16 | bits u24` of each band, big-endian.
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
            out.extend_from_slice(&band.place.to_be_bytes());
            out.extend(band.bits.to_be_bytes().iter().skip(1));
        }
    }

    /// Reads the byte form back; `None` for anything else.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (chunks, rest) = bytes.as_chunks::<BAND_BYTES>();
        let band = |&[p0, p1, b0, b1, b2]: &[u8; BAND_BYTES]| Band {
            place: u16::from_be_bytes([p0, p1]),
            bits: u32::from_be_bytes([0, b0, b1, b2]),
        };
        let all =
            (rest.is_empty() && chunks.len() <= BANDS_MAX).then(|| chunks.iter().map(band).collect())?;
        Self::new(all)
    }
}
