//! Helper data of a weak PUF (key mode).

use std::path::Path;

use sha2::{Digest, Sha256};

use super::format::{self, Cursor, FileError, FormatError, Problem};
use crate::{bits::Bits, code::Profile, readout::DUMP_BYTES_MAX};

const MAGIC: &str = "LWHK";
const KIND: &str = "key-mode helper data";

/// Public helper data of a device in key mode.
///
/// Canonical encoding, integers big-endian: `"LWHK" | version u8 = 1 | zero[3] | profile u32 | readout_bits
/// u32 | cell_count u32 | cell u32 … | offset`. The cell list is empty when the first cells are used in
/// order, else it has one cell per response bit of the profile, ascending. The offset is packed from the
/// least significant bit of each byte, unused bits zero. One value has one encoding, so the digest is
/// unambiguous.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HelperData {
    profile: Profile,
    readout_bits: u32,
    cells: Vec<u32>,
    offset: Bits,
}

impl HelperData {
    /// Joins the parts. `cells` is empty or ascending, which enrollment ensures.
    pub(super) fn new(profile: Profile, readout_bits: u32, cells: Vec<u32>, offset: Bits) -> Self {
        Self {
            profile,
            readout_bits,
            cells,
            offset,
        }
    }

    /// The error-correction profile.
    pub fn profile(&self) -> Profile {
        self.profile
    }

    /// Number of cells that a readout must have.
    pub fn readout_bits(&self) -> usize {
        self.readout_bits as usize
    }

    /// The cells in use, ascending; empty if the first cells are in use.
    pub fn cells(&self) -> &[u32] {
        &self.cells
    }

    /// The code offset.
    pub(super) fn offset(&self) -> &Bits {
        &self.offset
    }

    /// The bits of a readout that the profile uses.
    pub(super) fn used_bits(&self, readout: &Bits) -> Bits {
        match self.cells.as_slice() {
            [] => readout
                .window(0, self.profile.response_bits())
                .unwrap_or_else(|| readout.clone()),
            cells => readout.gather(cells),
        }
    }

    /// The canonical encoding.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = format::header(MAGIC, self.profile);
        bytes.extend(self.readout_bits.to_be_bytes());
        bytes.extend((self.cells.len() as u32).to_be_bytes());
        bytes.extend(self.cells.iter().flat_map(|cell| cell.to_be_bytes()));
        bytes.extend(self.offset.to_bytes());
        bytes
    }

    /// Reads the canonical encoding and refuses any other.
    ///
    /// # Errors
    /// [`FormatError`] with the byte and the problem: an unknown version or profile, a wrong count, repeated,
    /// unordered or impossible cells, set padding bits, missing or extra bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new(bytes);
        let profile = cursor.header(MAGIC, KIND)?;
        let expected = profile.response_bits();
        let readout_bits = cursor.u32()?;
        if (readout_bits as usize) < expected || readout_bits as usize > 8 * DUMP_BYTES_MAX {
            return cursor.fail(Problem::ReadoutLength {
                found: readout_bits as usize,
                expected,
            });
        }
        let found = cursor.u32()? as usize;
        if found != 0 && found != expected {
            return cursor.fail(Problem::CellCount { found, expected });
        }
        let listed = cursor.take(found * 4)?.chunks_exact(4);
        let cells: Vec<u32> = listed
            .map(|c| c.iter().fold(0, |n, &b| n << 8 | u32::from(b)))
            .collect();
        if let Some((index, problem)) = cell_problem(&cells, readout_bits) {
            return Err(FormatError {
                offset: HEADER_BYTES + 4 * index,
                problem,
            });
        }
        let offset = format::unpack(profile, cursor.offset_bytes(profile)?);
        cursor.finish()?;
        Ok(Self {
            profile,
            readout_bits,
            cells,
            offset,
        })
    }

    /// SHA-256 of the canonical encoding: the HKDF salt of key mode (LAP/1 1.1).
    pub fn digest(&self) -> [u8; 32] {
        Sha256::digest(self.to_bytes()).into()
    }

    /// Writes the canonical encoding to a file.
    ///
    /// # Errors
    /// [`FileError`] with the file.
    pub fn write_to(&self, path: &Path) -> Result<(), FileError> {
        format::write_file(path, &self.to_bytes())
    }

    /// Reads a file that [`HelperData::write_to`] wrote.
    ///
    /// # Errors
    /// [`FileError`] with the file, and the byte and problem of a bad content.
    pub fn read_from(path: &Path) -> Result<Self, FileError> {
        format::read_file(path, Self::from_bytes)
    }
}

/// Size of the fields before the cell list.
const HEADER_BYTES: usize = 20;

/// The first problem of a cell list, with the index of the cell.
fn cell_problem(cells: &[u32], limit: u32) -> Option<(usize, Problem)> {
    let position = |cell: u32| cells.iter().rposition(|&c| c == cell).unwrap_or(0);
    if let Some(index) = cells.iter().position(|&cell| cell >= limit) {
        return cells
            .get(index)
            .map(|&cell| (index, Problem::CellOutOfRange { cell, limit }));
    }
    let mut sorted = cells.to_vec();
    sorted.sort_unstable();
    let repeated = sorted.iter().zip(sorted.iter().skip(1)).find(|(a, b)| a == b);
    if let Some((&cell, _)) = repeated {
        return Some((position(cell), Problem::RepeatedCell { cell }));
    }
    let unordered = cells.iter().zip(cells.iter().skip(1)).position(|(a, b)| a > b)? + 1;
    cells
        .get(unordered)
        .map(|&cell| (unordered, Problem::UnorderedCells { cell }))
}
