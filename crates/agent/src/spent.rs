//! Which rows of a pool the device has answered, and which were accepted, as they lie on disk beside the helper data (LAP/1 1.5).
//!
//! A row whose ACK verified is never answered again, by no process of this device, whatever a registry says that was put back to an
//! earlier state. A row that was answered and not acknowledged may be asked for again, for its RESPONSE may be lost. What is
//! written is on the disk before the RESPONSE leaves, and again when the ACK has come: one file of some hundred bytes, replaced twice
//! for each authentication. What could not be written is written with the next one.
//!
//! The file keeps the last four pools that were in use: earlier helper data that are put back find their rows.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use linewarden_files::{read_bounded, replace};
use linewarden_protocol::ids::RowIndex;
use sha2::{Digest as _, Sha256};

use crate::credential::Credential;

const MAGIC: &[u8; 8] = b"LWSPENT\x02";
const HEAD_BYTES: usize = POOL_BYTES + 4 + 4;
const POOL_BYTES: usize = 16;
const DIGEST_BYTES: usize = 32;
/// Pools that are kept, the one in use among them.
const POOLS_MAX: usize = 4;
/// Ranges of a pool that are kept apart. With one more, the rows between the lowest two count as spent: the registry has others.
const RANGES_MAX: usize = 4096;
const RANGE_BYTES: usize = 4 + 4;
const FILE_BYTES_MAX: usize =
    MAGIC.len() + POOLS_MAX * (HEAD_BYTES + RANGES_MAX * RANGE_BYTES) + DIGEST_BYTES;

/// Why a file of spent rows cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SpentError {
    /// It cannot be read.
    #[error("{}: {source}; it lists the rows that this device has spent", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Its content is not what was written.
    #[error(
        "{}: the list of spent rows is damaged; enrol the device anew, or remove the file if the registry was never put back to an earlier state",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
    },
}

/// The rows of one pool that were answered, and those of them that were accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpentRows {
    /// Which pool: rows of another enrolment have the same numbers.
    pool: [u8; POOL_BYTES],
    /// Above every row that was answered.
    unanswered_from: u32,
    /// Rows whose ACK verified, as first and end; none touches another.
    accepted: BTreeMap<u32, u32>,
}

impl SpentRows {
    /// Of a pool of which nothing is spent. `None` in key mode.
    #[must_use]
    pub fn of(credential: &Credential) -> Option<Self> {
        let Credential::Pool(helper) = credential else {
            return None;
        };
        let first = helper.first_idx();
        let mut hash = Sha256::new();
        hash.update(b"linewarden pool");
        hash.update(first.to_be_bytes());
        // Rows are added behind it, and it stays.
        hash.update(helper.digest(first).unwrap_or_default());
        let mut pool = [0; POOL_BYTES];
        pool.copy_from_slice(hash.finalize().get(..POOL_BYTES)?);
        Some(Self {
            pool,
            ..Self::default()
        })
    }

    /// The lowest row from which on nothing was answered.
    #[must_use]
    pub fn unanswered_from(&self) -> RowIndex {
        RowIndex(self.unanswered_from)
    }

    /// Whether its ACK has verified.
    #[must_use]
    pub fn is_accepted(&self, row: RowIndex) -> bool {
        let before = self.accepted.range(..=row.0).next_back();
        before.is_some_and(|(_, end)| row.0 < *end)
    }

    /// A RESPONSE with that row is about to leave; whether that is new.
    pub fn answer(&mut self, row: RowIndex) -> bool {
        let above = row.0.saturating_add(1);
        let is_new = above > self.unanswered_from;
        self.unanswered_from = self.unanswered_from.max(above);
        is_new
    }

    /// An ACK for that row has verified; whether that is new.
    pub fn accept(&mut self, row: RowIndex) -> bool {
        if self.is_accepted(row) {
            return false;
        }
        self.answer(row);
        let (mut first, mut end) = (row.0, row.0.saturating_add(1));
        if let Some(behind) = self.accepted.remove(&end) {
            end = behind;
        }
        if let Some((before, _)) = self
            .accepted
            .range(..first)
            .next_back()
            .filter(|(_, e)| **e == first)
        {
            first = *before;
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
        let mut above = None;
        for _ in 0..u32::from_be_bytes(*ranges) {
            let (first, behind) = rest.split_first_chunk::<4>()?;
            let (end, behind) = behind.split_first_chunk::<4>()?;
            let (first, end) = (u32::from_be_bytes(*first), u32::from_be_bytes(*end));
            // As they are written: in order, apart from each other, and none empty.
            if above.is_some_and(|above| first <= above) || end <= first || end > rows.unanswered_from {
                return None;
            }
            above = Some(end);
            rows.accepted.insert(first, end);
            rest = behind;
        }
        Some((rows, rest))
    }
}

/// The file's content: `"LWSPENT" 2 | pools, the one in use first | SHA-256 of all before`.
fn to_bytes<'a>(pools: impl Iterator<Item = &'a SpentRows>) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    pools.for_each(|rows| rows.write_to(&mut bytes));
    let digest = Sha256::digest(&bytes);
    bytes.extend_from_slice(&digest);
    bytes
}

/// Reads what [`to_bytes`] has made; `None` if it is anything else.
fn from_bytes(bytes: &[u8]) -> Option<Vec<SpentRows>> {
    let (text, digest) = bytes.split_at_checked(bytes.len().checked_sub(DIGEST_BYTES)?)?;
    if Sha256::digest(text)[..] != *digest {
        return None;
    }
    let mut rest = text.strip_prefix(MAGIC)?;
    let mut pools = Vec::new();
    while !rest.is_empty() {
        let (rows, behind) = SpentRows::read_from(rest)?;
        pools.push(rows);
        rest = behind;
    }
    Some(pools)
}

/// The same on disk.
#[derive(Debug)]
pub struct SpentFile {
    rows: SpentRows,
    /// Of other pools, those last in use first.
    others: Vec<SpentRows>,
    /// What is here is not all on the disk.
    is_dirty: bool,
    /// `None`: they are forgotten with this process.
    path: Option<PathBuf>,
}

impl SpentFile {
    /// Reads what lies beside the helper data in `helper`: the rows of their pool, and of those before. `None` in key mode.
    ///
    /// # Errors
    /// A file that cannot be read or is damaged.
    pub fn read_beside(helper: &Path, credential: &Credential) -> Result<Option<Self>, SpentError> {
        let Some(blank) = SpentRows::of(credential) else {
            return Ok(None);
        };
        let path = beside(helper);
        let mut pools = match read_bounded(&path, FILE_BYTES_MAX) {
            Ok(bytes) => from_bytes(&bytes).ok_or_else(|| SpentError::Damaged { path: path.clone() })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(source) => return Err(SpentError::Read { path, source }),
        };
        let known = pools.iter().position(|rows| rows.pool == blank.pool);
        Ok(Some(Self {
            rows: known.map_or(blank, |known| pools.remove(known)),
            others: pools,
            is_dirty: false,
            path: Some(path),
        }))
    }

    /// In memory only, for helper data that come from no file. `None` in key mode.
    #[must_use]
    pub fn in_memory(credential: &Credential) -> Option<Self> {
        SpentRows::of(credential).map(|rows| Self {
            rows,
            others: Vec::new(),
            is_dirty: false,
            path: None,
        })
    }

    /// The rows.
    #[must_use]
    pub fn rows(&self) -> &SpentRows {
        &self.rows
    }

    /// A RESPONSE with that row is about to leave: notes it, durably.
    ///
    /// # Errors
    /// The file's; in memory it is noted all the same, and the next call writes it again.
    pub fn answer(&mut self, row: RowIndex) -> io::Result<()> {
        self.is_dirty |= self.rows.answer(row);
        self.write()
    }

    /// An ACK for that row has verified: notes it, durably.
    ///
    /// # Errors
    /// As [`SpentFile::answer`].
    pub fn accept(&mut self, row: RowIndex) -> io::Result<()> {
        self.is_dirty |= self.rows.accept(row);
        self.write()
    }

    fn write(&mut self) -> io::Result<()> {
        if let (true, Some(path)) = (self.is_dirty, &self.path) {
            let others = self.others.iter().take(POOLS_MAX - 1);
            replace(path, &to_bytes([&self.rows].into_iter().chain(others)))?;
        }
        self.is_dirty = false;
        Ok(())
    }
}

fn beside(helper: &Path) -> PathBuf {
    let mut name: OsString = helper.file_name().unwrap_or_default().to_owned();
    name.push(".spent");
    helper.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use linewarden_protocol::ids::DeviceId;
    use linewarden_puf::extractor::{PoolEnrolment, enrol_pool};
    use rand_chacha::ChaCha20Rng;
    use rand_chacha::rand_core::SeedableRng as _;

    use super::*;
    use crate::source::FleetSeed;

    #[test]
    fn accepted_rows_join_in_whatever_order_they_come() {
        let mut rows = SpentRows::default();
        for row in [5, 3, 16, 4, 15, 0] {
            assert!(rows.accept(RowIndex(row)));
            assert!(!rows.accept(RowIndex(row)));
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
    fn an_answered_row_is_not_spent_and_raises_the_statement() {
        let mut rows = SpentRows::default();
        assert!(rows.answer(RowIndex(7)));
        assert!(!rows.answer(RowIndex(7)));
        assert!(!rows.is_accepted(RowIndex(7)));
        assert!(!rows.answer(RowIndex(3)), "it never falls");
        assert_eq!(rows.unanswered_from(), RowIndex(8));
        assert_eq!(from_bytes(&to_bytes([&rows].into_iter())), Some(vec![rows]));
    }

    #[test]
    fn what_is_not_as_it_was_written_is_refused() {
        let mut rows = SpentRows::default();
        rows.accept(RowIndex(1));
        let bytes = to_bytes([&rows, &rows].into_iter());
        for at in 0..bytes.len() {
            let mut altered = bytes.clone();
            altered[at] ^= 1;
            assert_eq!(from_bytes(&altered), None, "byte {at}");
            assert_eq!(from_bytes(&bytes[..at]), None, "{at} bytes");
        }
    }

    #[test]
    fn ranges_that_no_device_writes_are_refused() {
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
    fn of_too_many_ranges_the_lowest_are_joined_and_the_file_stays_small() {
        let mut rows = SpentRows::default();
        let ranges = RANGES_MAX as u32 + 10;
        for row in 0..ranges {
            assert!(rows.accept(RowIndex(2 * row)));
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
            enrol_pool(&mut chip, &PoolEnrolment::rows(1), &mut rng)
                .unwrap()
                .helper,
        )
    }

    #[test]
    fn earlier_helper_data_that_are_put_back_find_their_rows() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("d1.helper");
        let pools: Vec<Credential> = (0..5).map(pool).collect();
        let read = |pool: &Credential| SpentFile::read_beside(&path, pool).unwrap().unwrap();
        for (row, pool) in (1..).zip(&pools) {
            let mut file = read(pool);
            assert_eq!(file.rows(), &SpentRows::of(pool).unwrap());
            file.accept(RowIndex(row)).unwrap();
        }
        let is_known = |row, pool| read(pool).rows().is_accepted(RowIndex(row));
        let known: Vec<bool> = (1..).zip(&pools).map(|(row, pool)| is_known(row, pool)).collect();
        assert_eq!(known, [false, true, true, true, true], "the last four");
        read(&pools[1]).accept(RowIndex(7)).unwrap();
        read(&pools[0]).accept(RowIndex(7)).unwrap();
        let known: Vec<bool> = (1..).zip(&pools).map(|(row, pool)| is_known(row, pool)).collect();
        assert_eq!(known, [false, true, false, true, true], "those last in use");
    }

    #[test]
    fn a_row_that_could_not_be_written_is_written_with_the_next_call() {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join("not-there-yet");
        let path = directory.join("d1.helper");
        let pool = pool(1);
        let mut file = SpentFile::read_beside(&path, &pool).unwrap().unwrap();
        file.answer(RowIndex(4)).unwrap_err();
        file.accept(RowIndex(4)).unwrap_err();
        file.accept(RowIndex(4)).unwrap_err();
        std::fs::create_dir(&directory).unwrap();
        // A further copy of the same RESPONSE: no row is new.
        file.answer(RowIndex(4)).unwrap();
        let read = SpentFile::read_beside(&path, &pool).unwrap().unwrap();
        assert!(read.rows().is_accepted(RowIndex(4)));
        // Nothing is written that is on the disk already.
        std::fs::remove_dir_all(&directory).unwrap();
        file.answer(RowIndex(4)).unwrap();
    }
}
