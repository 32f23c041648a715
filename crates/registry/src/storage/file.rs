//! The storage of a SQLite registry: a random number and a counter, in the database and beside the database.
//!
//! Inodes and creation times are not stable on every file system, so a random number identifies the storage. The number is
//! stored in three places: in the database (column `registry.storage`), in the *record* (a file beside the database,
//! `FILE.storage`), and in an extended *attribute* of the database file.
//!
//! The counter is raised by leases (at most once a second), by each registration of a gateway, and when a registry is
//! closed after a lease: first durably in the database, then in the record. So after a restart the counter in the
//! database is not lower than the counter in the record. An older database has a lower counter, regardless of how it was
//! restored: written over the file (`cp`, which keeps the attribute), moved into its place, also with its attributes
//! (`cp -a`, `rsync -X`), or created by `VACUUM INTO`. A database without the record is a different storage.
//!
//! The attribute detects a directory that was restored with its record by tools that do not copy attributes (`tar`,
//! `rsync` without `-X`). If the attribute cannot be read or stored, only the record is compared.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use linewarden_files::{read_bounded, replace_owned};
use rustix::fs::{XattrFlags, lgetxattr, lsetxattr};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::error::{DatabaseError, RegistryError, Result};

const ID_BYTES: usize = 16;
const ATTRIBUTE: &str = "user.linewarden.storage";
/// Format version, the first field of the record. The other fields are the tag, and `attribute` or `alone`.
const RECORD_VERSION: &str = "1";
const RECORD_BYTES_MAX: usize = 128;
/// Maximum of the counter, which must fit a BIGINT.
const COUNT_MAX: u64 = i64::MAX.cast_unsigned();

/// A storage number and its counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StorageTag {
    id: [u8; ID_BYTES],
    count: u64,
}

impl StorageTag {
    pub(super) fn random() -> Result<Self> {
        let mut id = [0; ID_BYTES];
        getrandom::fill(&mut id).map_err(DatabaseError::NoRandomBytes)?;
        Ok(Self { id, count: 0 })
    }

    /// This storage with the next counter; `None` at the maximum.
    pub(super) fn next(self) -> Option<Self> {
        let count = self.count.checked_add(1).filter(|count| *count <= COUNT_MAX)?;
        Some(Self { count, ..self })
    }

    /// Parses the output of `Display`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (id, count) = text.split_once(' ')?;
        let mut bytes = [0; ID_BYTES];
        hex::decode_to_slice(id, &mut bytes).ok()?;
        let count = count.parse().ok()?;
        Some(Self { id: bytes, count })
    }
}

impl fmt::Display for StorageTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", hex::encode(self.id), self.count)
    }
}

/// The content of the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StorageRecord {
    tag: StorageTag,
    /// Whether the database file had the attribute when the storage was recorded.
    has_attribute: bool,
}

impl StorageRecord {
    fn parse(text: &str) -> Option<Self> {
        let text = text.strip_suffix('\n')?;
        let (version, fields) = text.split_once(' ')?;
        let (tag, attribute) = fields.rsplit_once(' ')?;
        let has_attribute = match attribute {
            "attribute" => true,
            "alone" => false,
            _ => return None,
        };
        let tag = StorageTag::parse(tag).filter(|_| version == RECORD_VERSION)?;
        Some(Self { tag, has_attribute })
    }
}

impl fmt::Display for StorageRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let attribute = if self.has_attribute { "attribute" } else { "alone" };
        writeln!(f, "{RECORD_VERSION} {} {attribute}", self.tag)
    }
}

/// The extended attribute of the database file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attribute {
    /// The file system has no attributes, or this process may not read them.
    Unsupported,
    /// Absent or invalid.
    Absent,
    Id([u8; ID_BYTES]),
}

/// The record and the attribute of a database.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StorageFiles {
    /// `None`: absent or invalid.
    record: Option<StorageRecord>,
    attribute: Attribute,
}

impl StorageFiles {
    /// Whether a storage was recorded in these files.
    pub(super) fn has_record(&self) -> bool {
        self.record.is_some()
    }

    /// Whether these files match a database with that tag.
    pub(super) fn matches(&self, tag: StorageTag) -> bool {
        self.record.is_some_and(|record| {
            let is_same_file = match self.attribute {
                Attribute::Unsupported => true,
                Attribute::Absent => !record.has_attribute,
                Attribute::Id(id) => !record.has_attribute || id == tag.id,
            };
            record.tag.id == tag.id && record.tag.count <= tag.count && is_same_file
        })
    }
}

/// The paths of a database and its record.
#[derive(Debug)]
pub(crate) struct FileStorage {
    database: PathBuf,
    record: PathBuf,
    /// Locked while the record is written: only one thread writes the record at a time.
    writing: Mutex<()>,
}

impl FileStorage {
    /// Returns the storage of an existing file. Symbolic links are resolved, as SQLite does for its own files.
    pub(crate) fn of(path: &Path) -> Result<Self> {
        let database = path.canonicalize();
        let database = database.map_err(RegistryError::io(format!("examine {}", path.display())))?;
        Ok(Self {
            record: record_path(&database),
            database,
            writing: Mutex::new(()),
        })
    }

    /// Reads the record and the attribute.
    ///
    /// # Errors
    /// A record that exists and cannot be read. A temporary failure must not look like a different storage.
    pub(super) fn read(&self) -> Result<StorageFiles> {
        let record = match read_bounded(&self.record, RECORD_BYTES_MAX) {
            Ok(bytes) => std::str::from_utf8(&bytes).ok().and_then(StorageRecord::parse),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => None,
            Err(error) => {
                return Err(RegistryError::io(format!("read {}", self.record.display()))(
                    error,
                ));
            }
        };
        let attribute = self.attribute();
        Ok(StorageFiles { record, attribute })
    }

    fn attribute(&self) -> Attribute {
        let mut value = [0; ID_BYTES];
        match lgetxattr(&self.database, ATTRIBUTE, &mut value) {
            Ok(ID_BYTES) => Attribute::Id(value),
            Ok(_) | Err(Errno::NODATA | Errno::RANGE) => Attribute::Absent,
            Err(_) => Attribute::Unsupported,
        }
    }

    /// Records a new storage and replaces an existing record, which belongs to another database.
    ///
    /// # Errors
    /// The record could not be written.
    pub(super) fn begin(&self, tag: StorageTag) -> io::Result<StorageTag> {
        let _lock = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        // lsetxattr sets the attribute of the file itself and not of the target of a link. The file is not opened: closing
        // the descriptor would release SQLite's locks.
        let result = lsetxattr(&self.database, ATTRIBUTE, &tag.id, XattrFlags::empty());
        let has_attribute = result.is_ok();
        let written = self.write(StorageRecord { tag, has_attribute });
        if written.is_err() {
            // An old record must not remain. The error of the write is returned, not an error of this removal.
            let _ = fs::remove_file(&self.record);
        }
        written.map(|()| tag)
    }

    /// Raises the counter of the record; another process or task may have raised the counter further. A record with another
    /// storage number is not changed: only [`FileStorage::begin`] replaces a record.
    ///
    /// # Errors
    /// The record could not be read or written.
    pub(super) fn advance(&self, tag: StorageTag) -> io::Result<()> {
        let _lock = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let files = self.read().map_err(io::Error::other)?;
        let is_kept = |record: StorageRecord| record.tag.id != tag.id || record.tag.count >= tag.count;
        if files.record.is_some_and(is_kept) {
            return Ok(());
        }
        let has_attribute = files.attribute == Attribute::Id(tag.id);
        self.write(StorageRecord { tag, has_attribute })
    }

    fn write(&self, record: StorageRecord) -> io::Result<()> {
        // As with SQLite's own files, root gives the record to the owner of the database, so that the service can read and
        // replace the record. A process without root privileges must not call chown, because the systemd unit of the service
        // forbids the system call.
        let owner = match geteuid().is_root() {
            true => {
                let database = self.database.symlink_metadata()?;
                Some((database.uid(), database.gid()))
            }
            false => None,
        };
        replace_owned(&self.record, record.to_string().as_bytes(), owner)
    }
}

fn record_path(database: &Path) -> PathBuf {
    let mut name = database.file_name().unwrap_or_default().to_owned();
    name.push(".storage");
    database.with_file_name(name)
}

/// Deletes the record of an earlier database; called before a new database gets its final name.
pub(crate) fn remove_stale_record(database: &Path) -> Result<()> {
    // If another program has created a database in the meantime, the record belongs to that database.
    if database.symlink_metadata().is_ok() {
        return Ok(());
    }
    let record = record_path(database);
    match fs::remove_file(&record) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(RegistryError::io(format!("remove {}", record.display()))(error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    use super::*;

    fn tag(id: u8, count: u64) -> StorageTag {
        StorageTag {
            id: [id; ID_BYTES],
            count,
        }
    }

    #[test]
    fn records_round_trip_and_truncated_records_are_invalid() {
        for has_attribute in [false, true] {
            let record = StorageRecord {
                tag: tag(0xab, 17),
                has_attribute,
            };
            let text = record.to_string();
            assert_eq!(StorageRecord::parse(&text), Some(record));
            for cut in 0..text.len() {
                assert_eq!(StorageRecord::parse(&text[..cut]), None, "{cut}");
            }
        }
        assert_eq!(tag(1, COUNT_MAX).next(), None);
    }

    #[test]
    fn an_older_counter_another_number_or_a_lost_attribute_is_a_different_storage() {
        let files = |count, has_attribute, attribute| StorageFiles {
            record: Some(StorageRecord {
                tag: tag(1, count),
                has_attribute,
            }),
            attribute,
        };
        let (own, other) = (Attribute::Id([1; ID_BYTES]), Attribute::Id([2; ID_BYTES]));
        for (files, database, expected) in [
            (files(5, true, own), tag(1, 5), true),
            // The process was killed before the record was written.
            (files(5, true, own), tag(1, 6), true),
            (files(5, true, own), tag(1, 4), false),
            (files(5, true, own), tag(2, 5), false),
            (files(5, true, Attribute::Absent), tag(1, 5), false),
            (files(5, true, other), tag(1, 5), false),
            (files(5, true, Attribute::Unsupported), tag(1, 5), true),
            (files(5, false, Attribute::Absent), tag(1, 5), true),
            (files(5, false, Attribute::Absent), tag(1, 4), false),
        ] {
            assert_eq!(files.matches(database), expected, "{files:?} {database:?}");
        }
        let without_record = StorageFiles {
            record: None,
            attribute: own,
        };
        assert!(!without_record.matches(tag(1, 0)));
    }

    fn storage() -> (tempfile::TempDir, FileStorage) {
        let directory = tempfile::tempdir().unwrap();
        let database = directory.path().join("fleet.registry");
        fs::write(&database, "").unwrap();
        let storage = FileStorage::of(&database).unwrap();
        (directory, storage)
    }

    /// Two processes raise the counter in the database one after the other, and write the record in any order.
    #[test]
    fn the_counter_of_a_record_is_never_lowered() {
        let (_directory, storage) = storage();
        let _begun = storage.begin(tag(1, 0)).unwrap();
        for (number, count, expected) in [(1, 2, 2), (1, 1, 2), (1, 3, 3), (2, 9, 3)] {
            storage.advance(tag(number, count)).unwrap();
            let record = storage.read().unwrap().record.unwrap();
            assert_eq!(record.tag, tag(1, expected), "{number}, {count}");
        }
    }

    /// The owner of the directory replaces each record by a link as soon as the record exists.
    #[test]
    fn root_does_not_change_the_owner_of_a_file_to_which_a_link_in_place_of_the_record_points() {
        const WRITES: u64 = 30;
        if !geteuid().is_root() {
            linewarden_harness::skip!("needs root");
        }
        let (directory, storage) = storage();
        std::os::unix::fs::chown(&storage.database, Some(65_534), Some(65_534)).unwrap();
        let foreign = directory.path().join("foreign");
        fs::write(&foreign, "").unwrap();
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let link = directory.path().join("link");
                while !is_done.load(Relaxed) {
                    let record = storage.record.symlink_metadata();
                    if record.is_ok_and(|record| record.is_file()) {
                        symlink(&foreign, &link).unwrap();
                        fs::rename(&link, &storage.record).unwrap();
                    }
                }
            });
            for count in 0..WRITES {
                storage
                    .write(StorageRecord {
                        tag: tag(1, count),
                        has_attribute: false,
                    })
                    .unwrap();
            }
            is_done.store(true, Relaxed);
        });
        assert_eq!(foreign.metadata().unwrap().uid(), 0);
        storage.begin(tag(1, 0)).unwrap();
        assert_eq!(storage.record.symlink_metadata().unwrap().uid(), 65_534);
    }

    #[test]
    fn no_attribute_is_set_on_a_file_to_which_a_link_in_place_of_the_database_points() {
        let (directory, storage) = storage();
        let foreign = directory.path().join("foreign");
        fs::write(&foreign, "").unwrap();
        fs::remove_file(&storage.database).unwrap();
        symlink(&foreign, &storage.database).unwrap();
        let _begun = storage.begin(tag(1, 0)).unwrap();
        let mut value = [0; ID_BYTES];
        assert!(rustix::fs::getxattr(&foreign, ATTRIBUTE, &mut value).is_err());
        let record = storage.read().unwrap().record.unwrap();
        assert!(!record.has_attribute);
    }
}
