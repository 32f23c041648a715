//! Platform configuration registers of a TPM 2.0: their indices, selections of them, and the values of one bank.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::digest::{Digest, HashAlgorithm};

/// Why an index, a selection or a value is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PcrError {
    /// A PC has no PCR with this index.
    #[error("invalid PCR {0}: the range is 0 to {max}", max = PcrIndex::MAX)]
    Index(u32),
    /// The text is not a selection.
    #[error("invalid PCR selection {0:?}: write indices and ranges such as 0-7,11, or the word none")]
    Selection(String),
    /// The algorithm of the value is not that of the bank.
    #[error("PCR value rejected: its algorithm is {got}, the bank is {bank}")]
    Bank {
        /// The bank's algorithm.
        bank: HashAlgorithm,
        /// The algorithm of the value.
        got: HashAlgorithm,
    },
}

/// A PCR index: 0 to 23, the indices of a PC (TCG PC Client Platform TPM Profile, "PCR Attributes").
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct PcrIndex(u8);

impl PcrIndex {
    /// The highest index.
    pub const MAX: u32 = 23;

    /// The index as a number.
    pub const fn get(self) -> u32 {
        self.0 as u32
    }

    /// The value after a platform start without a locality event: zeros, but ones in 17 to 22, which only a dynamic
    /// launch sets to zero (TCG PC Client Platform TPM Profile, "PCR Initial and Reset Values").
    pub fn start_value(self, bank: HashAlgorithm) -> Digest {
        match self.0 {
            17..=22 => Digest::ones(bank),
            _ => Digest::zero(bank),
        }
    }
}

impl TryFrom<u32> for PcrIndex {
    type Error = PcrError;

    fn try_from(index: u32) -> Result<Self, PcrError> {
        match u8::try_from(index) {
            Ok(number) if index <= Self::MAX => Ok(Self(number)),
            _ => Err(PcrError::Index(index)),
        }
    }
}

impl From<PcrIndex> for u32 {
    fn from(index: PcrIndex) -> Self {
        index.get()
    }
}

impl fmt::Display for PcrIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A set of PCRs, ordered by index. Written `0-7,11`, and `none` if it is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PcrSelection(u32);

impl PcrSelection {
    /// The set with this PCR added.
    #[must_use]
    pub const fn with(self, index: PcrIndex) -> Self {
        Self(self.0 | 1 << index.get())
    }

    /// Whether this PCR is in the set.
    pub const fn contains(self, index: PcrIndex) -> bool {
        self.0 & 1 << index.get() != 0
    }

    /// Whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Number of PCRs.
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// The PCRs, by index.
    pub fn iter(self) -> impl Iterator<Item = PcrIndex> {
        (0u8..=23)
            .map(PcrIndex)
            .filter(move |index| self.contains(*index))
    }

    /// One bit for each PCR, PCR 0 in the lowest bit of the first byte: `pcrSelect` of TPMS_PCR_SELECTION.
    pub const fn to_bitmap(self) -> [u8; 3] {
        let [first, second, third, _] = self.0.to_le_bytes();
        [first, second, third]
    }

    /// The set with these bits.
    pub const fn from_bitmap([first, second, third]: [u8; 3]) -> Self {
        Self(u32::from_le_bytes([first, second, third, 0]))
    }
}

impl FromIterator<PcrIndex> for PcrSelection {
    fn from_iter<I: IntoIterator<Item = PcrIndex>>(indices: I) -> Self {
        indices.into_iter().fold(Self::default(), Self::with)
    }
}

impl FromStr for PcrSelection {
    type Err = PcrError;

    fn from_str(text: &str) -> Result<Self, PcrError> {
        if text == "none" {
            return Ok(Self::default());
        }
        let invalid = || PcrError::Selection(text.to_owned());
        let index = |text: &str| match text.bytes().all(|byte| byte.is_ascii_digit()) {
            true => PcrIndex::try_from(text.parse::<u32>().map_err(|_| invalid())?),
            false => Err(invalid()),
        };
        text.split(',').try_fold(Self::default(), |selection, part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (index(first.trim())?, index(last.trim())?);
            match first <= last {
                true => Ok((first.0..=last.0).map(PcrIndex).fold(selection, Self::with)),
                false => Err(invalid()),
            }
        })
    }
}

impl TryFrom<String> for PcrSelection {
    type Error = PcrError;

    fn try_from(text: String) -> Result<Self, PcrError> {
        text.parse()
    }
}

impl From<PcrSelection> for String {
    fn from(selection: PcrSelection) -> Self {
        selection.to_string()
    }
}

impl fmt::Display for PcrSelection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut indices = self.iter().peekable();
        if indices.peek().is_none() {
            return f.write_str("none");
        }
        let mut separator = "";
        while let Some(first) = indices.next() {
            let mut last = first;
            while let Some(next) = indices.next_if(|next| next.0 == last.0 + 1) {
                last = next;
            }
            match first == last {
                true => write!(f, "{separator}{first}")?,
                false => write!(f, "{separator}{first}-{last}")?,
            }
            separator = ",";
        }
        Ok(())
    }
}

/// Values of PCRs of one bank, by index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PcrValues {
    bank: HashAlgorithm,
    values: BTreeMap<PcrIndex, Digest>,
}

impl PcrValues {
    /// An empty set of values of this bank.
    pub const fn new(bank: HashAlgorithm) -> Self {
        Self {
            bank,
            values: BTreeMap::new(),
        }
    }

    /// The bank's algorithm.
    pub const fn bank(&self) -> HashAlgorithm {
        self.bank
    }

    /// Sets a value and replaces an existing value.
    ///
    /// # Errors
    /// A value of another bank.
    pub fn set(&mut self, index: PcrIndex, value: Digest) -> Result<(), PcrError> {
        if value.algorithm() != self.bank {
            return Err(PcrError::Bank {
                bank: self.bank,
                got: value.algorithm(),
            });
        }
        self.values.insert(index, value);
        Ok(())
    }

    /// The value of this PCR, if present.
    pub fn get(&self, index: PcrIndex) -> Option<&Digest> {
        self.values.get(&index)
    }

    /// All values, by index.
    pub fn iter(&self) -> impl Iterator<Item = (PcrIndex, &Digest)> {
        self.values.iter().map(|(index, value)| (*index, value))
    }

    /// The PCRs with values.
    pub fn selection(&self) -> PcrSelection {
        self.values.keys().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(index: u32) -> PcrIndex {
        PcrIndex::try_from(index).unwrap()
    }

    #[test]
    fn indices_end_at_23() {
        assert_eq!(index(23).get(), 23);
        for invalid in [24, 255, 256, u32::MAX] {
            assert_eq!(PcrIndex::try_from(invalid), Err(PcrError::Index(invalid)));
        }
        assert_eq!(
            PcrError::Index(24).to_string(),
            "invalid PCR 24: the range is 0 to 23"
        );
    }

    #[test]
    fn selections_are_read_as_they_are_written() {
        for text in ["none", "0", "0-7", "0-7,11", "0,2,4", "22-23", "0-23"] {
            assert_eq!(text.parse::<PcrSelection>().unwrap().to_string(), text);
        }
        let loose: PcrSelection = "11, 0-3,2-7".parse().unwrap();
        assert_eq!(loose.to_string(), "0-7,11");
        assert_eq!((loose.len(), loose.to_bitmap()), (9, [0xff, 0x08, 0]));
        assert_eq!(PcrSelection::from_bitmap([0xff, 0x08, 0]), loose);
        assert_eq!(loose.iter().last(), Some(index(11)));
    }

    #[test]
    fn invalid_selections_are_rejected() {
        for text in [
            "",
            ",",
            "0,",
            "7-0",
            "-1",
            "0-",
            "a",
            "24",
            "0-24",
            "0-7-9",
            "+1",
            "4294967296",
        ] {
            assert!(text.parse::<PcrSelection>().is_err(), "{text}");
        }
    }

    #[test]
    fn values_are_of_one_bank() {
        let mut values = PcrValues::new(HashAlgorithm::Sha256);
        values.set(index(7), Digest::zero(HashAlgorithm::Sha256)).unwrap();
        assert_eq!(
            values.set(index(7), Digest::zero(HashAlgorithm::Sha1)),
            Err(PcrError::Bank {
                bank: HashAlgorithm::Sha256,
                got: HashAlgorithm::Sha1
            })
        );
        values.set(index(0), Digest::zero(HashAlgorithm::Sha256)).unwrap();
        assert_eq!(values.selection().to_string(), "0,7");
        assert_eq!(values.get(index(0)), Some(&Digest::zero(HashAlgorithm::Sha256)));
        assert_eq!(values.get(index(1)), None);
    }
}
