//! CRC-32 of IEEE 802.3: reflected polynomial `edb88320`, initial value and final xor all ones. Computed bit by bit:
//! the reference implementation favors clarity over speed.

/// An intermediate CRC.
#[derive(Clone, Copy, Debug)]
pub struct Crc32(u32);

impl Default for Crc32 {
    fn default() -> Self {
        Self::new()
    }
}

impl Crc32 {
    /// The CRC of no bytes.
    #[must_use]
    pub fn new() -> Self {
        Self(u32::MAX)
    }

    /// Adds bytes.
    #[must_use]
    pub fn update(self, bytes: &[u8]) -> Self {
        let crc = bytes.iter().fold(self.0, |crc, byte| {
            (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
                (crc >> 1) ^ ((crc & 1) * 0xedb8_8320)
            })
        });
        Self(crc)
    }

    /// The final CRC.
    #[must_use]
    pub fn finish(self) -> u32 {
        !self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_check_value_of_the_catalogue() {
        assert_eq!(Crc32::new().update(b"123456789").finish(), 0xcbf4_3926);
        assert_eq!(
            Crc32::new().update(b"1234").update(b"56789").finish(),
            0xcbf4_3926
        );
        assert_eq!(Crc32::new().finish(), 0);
    }
}
