//! The rows of a pool that the device has answered, and the accepted rows (rows whose ACK has verified), stored beside
//! the helper data (LAP/1 1.5).
//!
//! A row whose ACK verified is never answered again, by any process of this device, even if a registry is restored to
//! an earlier state. A row that was answered but not acknowledged may be requested again, because its RESPONSE may be
//! lost. The file is written before the RESPONSE is sent, and again after the ACK: some hundred bytes, replaced twice
//! per authentication. A failed write is repeated with the next write.
//!
//! The file covers the last four pools that were in use: if older helper data are restored, the record of their pool is
//! still there.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use linewarden_files::{read_bounded, replace};
use linewarden_protocol::ids::RowIndex;
use sha2::{Digest as _, Sha256};

use crate::credential::Credential;
use crate::error::SpentError;

const MAGIC: &[u8; 8] = b"LWSPENT\x02";
const HEAD_BYTES: usize = POOL_BYTES + 4 + 4;
const POOL_BYTES: usize = 16;
const DIGEST_BYTES: usize = 32;
/// Maximum number of pools, including the one in use.
const POOLS_MAX: usize = 4;
/// Maximum number of ranges per pool. With one more range, the rows between the lowest two ranges count as spent, and
/// the device uses other rows.
const RANGES_MAX: usize = 4096;
const RANGE_BYTES: usize = 4 + 4;
const FILE_BYTES_MAX: usize =
    MAGIC.len() + POOLS_MAX * (HEAD_BYTES + RANGES_MAX * RANGE_BYTES) + DIGEST_BYTES;

/// The answered and the accepted rows of one pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpentRows {
    /// Identifies the pool, because the rows of another enrollment have the same numbers.
    pool: [u8; POOL_BYTES],
    /// The lowest number above every answered row.
    unanswered_from: u32,
    /// Rows whose ACK verified, as ranges: from the first row (the map's key) to the row after the last row (the map's
    /// value). Ranges do not touch.
    accepted: BTreeMap<u32, u32>,
}

impl SpentRows {
    /// An empty record for a pool. `None` in key mode.
    #[must_use]
    pub fn for_pool(credential: &Credential) -> Option<Self> {
        let Credential::Pool(helper) = credential else {
            return None;
        };
        let first = helper.first_idx();
        let mut hash = Sha256::new();
        hash.update(b"linewarden pool");
        hash.update(first.to_be_bytes());
        // The first row never changes: rows are only appended.
        hash.update(helper.digest(first).unwrap_or_default());
        let mut pool = [0; POOL_BYTES];
        pool.copy_from_slice(hash.finalize().get(..POOL_BYTES)?);
        Some(Self {
            pool,
            ..Self::default()
        })
    }

    /// The row after the highest answered row; row 0 if none was answered.
    #[must_use]
    pub fn unanswered_from(&self) -> RowIndex {
        RowIndex(self.unanswered_from)
    }

    /// Whether the ACK of a row has verified.
    #[must_use]
    pub fn is_accepted(&self, row: RowIndex) -> bool {
        let lower_range = self.accepted.range(..=row.0).next_back();
        lower_range.is_some_and(|(_, end)| row.0 < *end)
    }

    /// Records a row before its RESPONSE is sent; returns whether the row is above all rows answered before.
    pub fn mark_answered(&mut self, row: RowIndex) -> bool {
        let above = row.0.saturating_add(1);
        let is_new = above > self.unanswered_from;
        self.unanswered_from = self.unanswered_from.max(above);
        is_new
    }

    /// Records a row after its ACK has verified; returns whether the row was not accepted before.
    pub fn mark_accepted(&mut self, row: RowIndex) -> bool {
        if self.is_accepted(row) {
            return false;
        }
        self.mark_answered(row);
        let (mut first, mut end) = (row.0, row.0.saturating_add(1));
        if let Some(next_end) = self.accepted.remove(&end) {
            end = next_end;
        }
        if let Some((previous_first, _)) = self
            .accepted
            .range(..first)
            .next_back()
            .filter(|(_, e)| **e == first)
        {
            first = *previous_first;
        }
        self.accepted.insert(first, end);
        if self.accepted.len() > RANGES_MAX
            && let (Some((lowest, _)), Some((_, end))) =
                (self.accepted.pop_first(), self.accepted.pop_first())
        {
            self.accepted.insert(lowest, end);
        }
        true
    }

    /// `pool 16 | unanswered_from u32 | n u32 | n × (first u32 | end u32)`.
    fn write_to(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.pool);
        bytes.extend_from_slice(&self.unanswered_from.to_be_bytes());
        let ranges = u32::try_from(self.accepted.len()).unwrap_or(u32::MAX);
        bytes.extend_from_slice(&ranges.to_be_bytes());
        for (first, end) in &self.accepted {
            bytes.extend_from_slice(&first.to_be_bytes());
            bytes.extend_from_slice(&end.to_be_bytes());
        }
    }

    fn read_from(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (pool, rest) = bytes.split_first_chunk::<POOL_BYTES>()?;
        let (unanswered_from, rest) = rest.split_first_chunk::<4>()?;
        let (ranges, mut rest) = rest.split_first_chunk::<4>()?;
        let mut rows = Self {
            pool: *pool,
            unanswered_from: u32::from_be_bytes(*unanswered_from),
            accepted: BTreeMap::new(),
        };
        let mut previous_end = None;
        for _ in 0..u32::from_be_bytes(*ranges) {
            let (first, remaining) = rest.split_first_chunk::<4>()?;
            let (end, remaining) = remaining.split_first_chunk::<4>()?;
            let (first, end) = (u32::from_be_bytes(*first), u32::from_be_bytes(*end));
            // Ranges as they are written: ordered, not touching, not empty.
            if previous_end.is_some_and(|previous_end| first <= previous_end)
                || end <= first
                || end > rows.unanswered_from
            {
                return None;
            }
            previous_end = Some(end);
            rows.accepted.insert(first, end);
            rest = remaining;
        }
        Some((rows, rest))
    }
}

/// Encodes the file: `"LWSPENT" 2 | pools, the one in use first | SHA-256 of all before`.
fn to_bytes<'a>(pools: impl Iterator<Item = &'a SpentRows>) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    pools.for_each(|rows| rows.write_to(&mut bytes));
    let digest = Sha256::digest(&bytes);
    bytes.extend_from_slice(&digest);
    bytes
}

/// Decodes a file of [`to_bytes`]; `None` if it is damaged.
fn from_bytes(bytes: &[u8]) -> Option<Vec<SpentRows>> {
    let (content, digest) = bytes.split_at_checked(bytes.len().checked_sub(DIGEST_BYTES)?)?;
    if Sha256::digest(content)[..] != *digest {
        return None;
    }
    let mut rest = content.strip_prefix(MAGIC)?;
    let mut pools = Vec::new();
    while !rest.is_empty() {
        let (rows, remaining) = SpentRows::read_from(rest)?;
        pools.push(rows);
        rest = remaining;
    }
    Some(pools)
}

/// The records with their file.
#[derive(Debug)]
pub struct SpentFile {
    rows: SpentRows,
    /// Records of other pools, the most recently used pool first.
    other_pools: Vec<SpentRows>,
    /// Whether the records in memory differ from the records on disk.
    is_dirty: bool,
    /// `None`: not stored.
    path: Option<PathBuf>,
}

impl SpentFile {
    /// Reads the file beside the helper data file `helper`. `None` in key mode.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged.
    pub fn read_for(helper: &Path, credential: &Credential) -> Result<Option<Self>, SpentError> {
        let Some(empty) = SpentRows::for_pool(credential) else {
            return Ok(None);
        };
        let path = spent_path(helper);
        let mut pools = match read_bounded(&path, FILE_BYTES_MAX) {
            Ok(bytes) => from_bytes(&bytes).ok_or_else(|| SpentError::Damaged { path: path.clone() })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(source) => return Err(SpentError::Read { path, source }),
        };
        let index = pools.iter().position(|rows| rows.pool == empty.pool);
        Ok(Some(Self {
            rows: index.map_or(empty, |index| pools.remove(index)),
            other_pools: pools,
            is_dirty: false,
            path: Some(path),
        }))
    }

    /// Records without a file, for helper data without a file. `None` in key mode.
    #[must_use]
    pub fn in_memory(credential: &Credential) -> Option<Self> {
        SpentRows::for_pool(credential).map(|rows| Self {
            rows,
            other_pools: Vec::new(),
            is_dirty: false,
            path: None,
        })
    }

    /// The record of the pool in use.
    #[must_use]
    pub fn rows(&self) -> &SpentRows {
        &self.rows
    }

    /// Records a row durably before its RESPONSE is sent.
    ///
    /// # Errors
    /// Writing fails; the row is recorded in memory, and the next call writes it.
    pub fn mark_answered(&mut self, row: RowIndex) -> io::Result<()> {
        self.is_dirty |= self.rows.mark_answered(row);
        self.write()
    }

    /// Records a row durably after its ACK has verified.
    ///
    /// # Errors
    /// As [`SpentFile::mark_answered`].
    pub fn mark_accepted(&mut self, row: RowIndex) -> io::Result<()> {
        self.is_dirty |= self.rows.mark_accepted(row);
        self.write()
    }

    fn write(&mut self) -> io::Result<()> {
        if let (true, Some(path)) = (self.is_dirty, &self.path) {
            let others = self.other_pools.iter().take(POOLS_MAX - 1);
            replace(path, &to_bytes([&self.rows].into_iter().chain(others)))?;
        }
        self.is_dirty = false;
        Ok(())
    }
}

fn spent_path(helper: &Path) -> PathBuf {
    let mut name: OsString = helper.file_name().unwrap_or_default().to_owned();
    name.push(".spent");
    helper.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use linewarden_protocol::ids::DeviceId;
    use linewarden_puf::extractor::{PoolEnrollment, enroll_pool};
    use rand_chacha::ChaCha20Rng;
    use rand_chacha::rand_core::SeedableRng as _;

    use super::*;
    use crate::source::FleetSeed;

    #[test]
    fn accepted_rows_join_to_ranges_in_any_order() {
        let mut rows = SpentRows::default();
        for row in [5, 3, 16, 4, 15, 0] {
            assert!(rows.mark_accepted(RowIndex(row)));
            assert!(!rows.mark_accepted(RowIndex(row)));
        }
        assert_eq!(rows.accepted, BTreeMap::from([(0, 1), (3, 6), (15, 17)]));
        assert_eq!(rows.unanswered_from(), RowIndex(17));
        for (row, is_accepted) in [
            (0, true),
            (1, false),
            (3, true),
            (5, true),
            (6, false),
            (16, true),
            (17, false),
        ] {
            assert_eq!(rows.is_accepted(RowIndex(row)), is_accepted, "{row}");
        }
        assert_eq!(from_bytes(&to_bytes([&rows].into_iter())), Some(vec![rows]));
    }

    #[test]
    fn an_answered_row_is_not_accepted_but_raises_unanswered_from() {
        let mut rows = SpentRows::default();
        assert!(rows.mark_answered(RowIndex(7)));
        assert!(!rows.mark_answered(RowIndex(7)));
        assert!(!rows.is_accepted(RowIndex(7)));
        assert!(!rows.mark_answered(RowIndex(3)), "it never decreases");
        assert_eq!(rows.unanswered_from(), RowIndex(8));
        assert_eq!(from_bytes(&to_bytes([&rows].into_iter())), Some(vec![rows]));
    }

    #[test]
    fn an_altered_file_is_refused() {
        let mut rows = SpentRows::default();
        rows.mark_accepted(RowIndex(1));
        let bytes = to_bytes([&rows, &rows].into_iter());
        for index in 0..bytes.len() {
            let mut altered = bytes.clone();
            altered[index] ^= 1;
            assert_eq!(from_bytes(&altered), None, "byte {index}");
            assert_eq!(from_bytes(&bytes[..index]), None, "{index} bytes");
        }
    }

    #[test]
    fn invalid_ranges_are_refused() {
        for accepted in [
            &[(3, 3)][..],
            &[(4, 2)],
            &[(2, 9)],
            &[(0, 2), (2, 3)],
            &[(0, 3), (1, 2)],
        ] {
            let rows = SpentRows {
                unanswered_from: 8,
                accepted: accepted.iter().copied().collect(),
                ..SpentRows::default()
            };
            assert_eq!(from_bytes(&to_bytes([&rows].into_iter())), None, "{accepted:?}");
        }
    }

    #[test]
    fn the_lowest_of_too_many_ranges_are_joined() {
        let mut rows = SpentRows::default();
        let ranges = RANGES_MAX as u32 + 10;
        for row in 0..ranges {
            assert!(rows.mark_accepted(RowIndex(2 * row)));
        }
        assert_eq!(rows.accepted.len(), RANGES_MAX);
        assert_eq!(rows.accepted.first_key_value(), Some((&0, &21)));
        for (row, is_accepted) in [
            (19, true),
            (20, true),
            (21, false),
            (23, false),
            (2 * ranges - 2, true),
        ] {
            assert_eq!(rows.is_accepted(RowIndex(row)), is_accepted, "{row}");
        }
        let bytes = to_bytes(std::iter::repeat_n(&rows, POOLS_MAX));
        assert_eq!(bytes.len(), FILE_BYTES_MAX);
        assert_eq!(from_bytes(&bytes), Some(vec![rows; POOLS_MAX]));
    }

    fn pool(seed: u64) -> Credential {
        let mut rng = ChaCha20Rng::seed_from_u64(seed);
        let mut chip =
            toml::from_str::<crate::source::SimulatedPuf>("model = \"xor-arbiter\"\nseed_file = \"unused\"")
                .unwrap()
                .build(&FleetSeed::from_bytes([1; 32]), DeviceId(1), 1)
                .unwrap();
        Credential::Pool(
            enroll_pool(&mut chip, &PoolEnrollment::rows(1), &mut rng)
                .unwrap()
                .helper,
        )
    }

    #[test]
    fn the_records_of_the_last_four_pools_are_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("d1.helper");
        let pools: Vec<Credential> = (0..5).map(pool).collect();
        let read = |pool: &Credential| SpentFile::read_for(&path, pool).unwrap().unwrap();
        for (row, pool) in (1..).zip(&pools) {
            let mut file = read(pool);
            assert_eq!(file.rows(), &SpentRows::for_pool(pool).unwrap());
            file.mark_accepted(RowIndex(row)).unwrap();
        }
        let is_known = |row, pool| read(pool).rows().is_accepted(RowIndex(row));
        let known: Vec<bool> = (1..).zip(&pools).map(|(row, pool)| is_known(row, pool)).collect();
        assert_eq!(known, [false, true, true, true, true], "the last four");
        read(&pools[1]).mark_accepted(RowIndex(7)).unwrap();
        read(&pools[0]).mark_accepted(RowIndex(7)).unwrap();
        let known: Vec<bool> = (1..).zip(&pools).map(|(row, pool)| is_known(row, pool)).collect();
        assert_eq!(known, [false, true, false, true, true], "those last in use");
    }

    #[test]
    fn a_failed_write_is_repeated_by_the_next_call() {
        let directory = tempfile::tempdir().unwrap();
        let missing_directory = directory.path().join("not-there-yet");
        let path = missing_directory.join("d1.helper");
        let pool = pool(1);
        let mut file = SpentFile::read_for(&path, &pool).unwrap().unwrap();
        file.mark_answered(RowIndex(4)).unwrap_err();
        file.mark_accepted(RowIndex(4)).unwrap_err();
        file.mark_accepted(RowIndex(4)).unwrap_err();
        std::fs::create_dir(&missing_directory).unwrap();
        // A further copy of the same RESPONSE: no row is new.
        file.mark_answered(RowIndex(4)).unwrap();
        let second_read = SpentFile::read_for(&path, &pool).unwrap().unwrap();
        assert!(second_read.rows().is_accepted(RowIndex(4)));
        // Unchanged records are not written again.
        std::fs::remove_dir_all(&missing_directory).unwrap();
        file.mark_answered(RowIndex(4)).unwrap();
    }
}
