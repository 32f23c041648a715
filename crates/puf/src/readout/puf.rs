//! Stored readouts as a PUF.

use std::path::Path;

use super::{ReadoutError, SPAN_BYTES_MAX, Span, read_directory, read_dump};
use crate::{
    bits::Bits,
    puf::{Challenge, Puf, PufError},
};

/// A weak PUF that serves stored readouts in order; after the last readout, it serves the first readout again.
#[derive(Debug)]
pub struct ReadoutPuf {
    first: Bits,
    others: Vec<Bits>,
    /// Index of the next readout to serve; 0 is `first`.
    next: usize,
}

impl ReadoutPuf {
    /// Serves one dump or, in natural order of names, all dumps of a directory, from the byte `start` on, at most
    /// [`SPAN_BYTES_MAX`] bytes.
    ///
    /// # Errors
    /// [`ReadoutError`] if there are no dumps, a dump cannot be read, or a dump has no byte `start`.
    pub fn open(path: &Path, start: usize) -> Result<Self, ReadoutError> {
        let span = Span { start, end: None };
        if !path.is_dir() {
            let bits = read_dump(path)?;
            let first_bit = start.saturating_mul(8);
            let part_bits = bits.len().saturating_sub(first_bit).min(8 * SPAN_BYTES_MAX);
            let part = bits.window(first_bit, part_bits).filter(|part| !part.is_empty());
            let first = part.ok_or_else(|| ReadoutError::EndsBeforeRange {
                path: path.to_owned(),
                bytes: bits.len() / 8,
                span,
            })?;
            return Ok(Self::new(first, Vec::new()));
        }
        let mut dumps = read_directory(path, &span)?.into_iter().map(|dump| dump.bits);
        let first = dumps.next().ok_or_else(|| ReadoutError::NoDumps {
            path: path.to_owned(),
        })?;
        Ok(Self::new(first, dumps.collect()))
    }

    /// Serves the given readouts.
    pub fn new(first: Bits, others: Vec<Bits>) -> Self {
        Self {
            first,
            others,
            next: 0,
        }
    }

    /// The number of readouts.
    pub fn readouts(&self) -> usize {
        1 + self.others.len()
    }

    /// The number of cells in the first readout.
    pub fn cells(&self) -> usize {
        self.first.len()
    }
}

impl Puf for ReadoutPuf {
    fn read(&mut self, challenge: Challenge, bits: usize) -> Result<Bits, PufError> {
        if challenge != Challenge::PowerUp {
            return Err(PufError::WrongMode {
                has: "is a stored memory readout",
                enroll_in: "key",
            });
        }
        let readout = self
            .next
            .checked_sub(1)
            .and_then(|i| self.others.get(i))
            .unwrap_or(&self.first);
        self.next = (self.next + 1) % self.readouts();
        readout.window(0, bits).ok_or(PufError::TooFewBits {
            requested: bits,
            available: readout.len(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readouts_are_returned_in_order() {
        let dump = |byte| Bits::from_bytes(&[byte, byte]);
        let mut puf = ReadoutPuf::new(dump(1), vec![dump(2), dump(3)]);
        let mut read = || puf.read(Challenge::PowerUp, 8).unwrap().to_bytes();
        assert_eq!([read(), read(), read(), read()], [[1], [2], [3], [1]]);
        assert!(matches!(
            puf.read(Challenge::PowerUp, 17),
            Err(PufError::TooFewBits {
                requested: 17,
                available: 16
            })
        ));
        assert!(matches!(
            puf.read(Challenge::Pool([0; 8]), 8),
            Err(PufError::WrongMode { .. })
        ));
    }
}
