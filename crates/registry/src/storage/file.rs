//! The storage of a registry on SQLite: a random number and a count, in the database and beside it.
//!
//! Inodes and times of creation are not stable on every file system, so the number is drawn. It lies at three places:
//! * in the database, with the count;
//! * in the *record*, a file beside the database (`fleet.registry.storage`), with the newest count;
//! * in the extended attribute `user.linewarden.storage` of the database file, if the file system has extended attributes.
//!
//! Leases, at most once a second, and each registration of a gateway raise the count: first in the database, durably, then in the
//! record. So does the close of a registry that has leased since. A restart therefore finds a count that is not below the record's. An older content has a lower
//! count, however it came into the file: written over the file (`cp`, which keeps the attribute), moved into its place, also with
//! its attributes (`cp -a`, `rsync -X`), or made by `VACUUM INTO`. A database that is found without the record is another one.
//!
//! The attribute detects what the record alone cannot: a directory that was restored with its record by means that
//! do not carry attributes (`tar`, `rsync` without `-X`). Where the attribute cannot be read or kept, the record decides alone.

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

use crate::error::{RegistryError, Result};

const ID_BYTES: usize = 16;
const ATTRIBUTE: &str = "user.linewarden.storage";
/// The record is this text, the tag, and whether there is an attribute.
const RECORD_VERSION: &str = "1";
const RECORD_BYTES_MAX: usize = 128;
/// SQL's numbers.
const COUNT_MAX: u64 = i64::MAX.cast_unsigned();

/// A storage, and how often its content was taken up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag {
    id: [u8; ID_BYTES],
    count: u64,
}

impl Tag {
    pub(super) fn draw() -> Result<Self> {
        let mut id = [0; ID_BYTES];
        getrandom::fill(&mut id).map_err(RegistryError::Entropy)?;
        Ok(Self { id, count: 0 })
    }

    /// The same storage, one later; `None` at the end of all numbers.
    pub(super) fn next(self) -> Option<Self> {
        let count = self.count.checked_add(1).filter(|count| *count <= COUNT_MAX)?;
        Some(Self { count, ..self })
    }

    /// Reads what `Display` has written.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (id, count) = text.split_once(' ')?;
        let mut bytes = [0; ID_BYTES];
        hex::decode_to_slice(id, &mut bytes).ok()?;
        let count = count.parse().ok()?;
        Some(Self { id: bytes, count })
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", hex::encode(self.id), self.count)
    }
}

/// The content of the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Record {
    tag: Tag,
    /// The database file had the attribute when the number was drawn.
    has_attribute: bool,
}

impl Record {
    fn parse(text: &str) -> Option<Self> {
        let text = text.strip_suffix('\n')?;
        let (version, rest) = text.split_once(' ')?;
        let (tag, attribute) = rest.rsplit_once(' ')?;
        let has_attribute = match attribute {
            "attribute" => true,
            "alone" => false,
            _ => return None,
        };
        let tag = Tag::parse(tag).filter(|_| version == RECORD_VERSION)?;
        Some(Self { tag, has_attribute })
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let attribute = if self.has_attribute { "attribute" } else { "alone" };
        writeln!(f, "{RECORD_VERSION} {} {attribute}", self.tag)
    }
}

/// The extended attribute of the database file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attribute {
    /// The file system has none, or does not let this process read it.
    Unsupported,
    /// Absent, or of another form.
    Absent,
    Id([u8; ID_BYTES]),
}

/// What lies beside a database.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    /// `None`: absent, or of another form.
    record: Option<Record>,
    attribute: Attribute,
}

impl Found {
    /// Whether gateways were served from a database beside which this lies.
    pub(super) fn has_record(&self) -> bool {
        self.record.is_some()
    }

    /// Whether this belongs to a database with that tag.
    pub(super) fn is_of(&self, tag: Tag) -> bool {
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

/// Where the storage of one database file is recorded.
#[derive(Debug)]
pub(crate) struct FileStorage {
    database: PathBuf,
    record: PathBuf,
    /// One writer of the record at a time.
    writing: Mutex<()>,
}

impl FileStorage {
    /// Of an existing file. What a symbolic link names counts, as for SQLite's own files beside it.
    pub(crate) fn of(path: &Path) -> Result<Self> {
        let found = path.canonicalize();
        let database = found.map_err(RegistryError::io(format!("examine {}", path.display())))?;
        Ok(Self {
            record: record_of(&database),
            database,
            writing: Mutex::new(()),
        })
    }

    /// # Errors
    /// A record that is there and cannot be read: which storage it is must not depend on a failure.
    pub(super) fn read(&self) -> Result<Found> {
        let record = match read_bounded(&self.record, RECORD_BYTES_MAX) {
            Ok(bytes) => std::str::from_utf8(&bytes).ok().and_then(Record::parse),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => None,
            Err(error) => {
                return Err(RegistryError::io(format!("read {}", self.record.display()))(
                    error,
                ));
            }
        };
        let attribute = self.attribute();
        Ok(Found { record, attribute })
    }

    fn attribute(&self) -> Attribute {
        let mut value = [0; ID_BYTES];
        match lgetxattr(&self.database, ATTRIBUTE, &mut value) {
            Ok(ID_BYTES) => Attribute::Id(value),
            Ok(_) | Err(Errno::NODATA | Errno::RANGE) => Attribute::Absent,
            Err(_) => Attribute::Unsupported,
        }
    }

    /// Records a new storage. What is there already belongs to another content, and does not stay.
    ///
    /// # Errors
    /// No record could be written.
    pub(super) fn begin(&self, tag: Tag) -> io::Result<Tag> {
        let _only = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        // The file itself, not what a link in its place names. A descriptor of the file would end SQLite's locks when it is closed.
        let set = lsetxattr(&self.database, ATTRIBUTE, &tag.id, XattrFlags::empty());
        let has_attribute = set.is_ok();
        let written = self.write(Record { tag, has_attribute });
        if written.is_err() {
            // The write error is what matters.
            let _ = fs::remove_file(&self.record);
        }
        written.map(|()| tag)
    }

    /// Raises the count of the record; another process or task may have raised it further. A record of another number is left as found:
    /// only [`FileStorage::begin`] replaces one.
    ///
    /// # Errors
    /// The record could not be read or written.
    pub(super) fn advance(&self, tag: Tag) -> io::Result<()> {
        let _only = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let found = self.read().map_err(io::Error::other)?;
        let is_ahead = |record: Record| record.tag.id != tag.id || record.tag.count >= tag.count;
        if found.record.is_some_and(is_ahead) {
            return Ok(());
        }
        let has_attribute = found.attribute == Attribute::Id(tag.id);
        self.write(Record { tag, has_attribute })
    }

    fn write(&self, record: Record) -> io::Result<()> {
        // As SQLite does with its files: what root has made, the service can read and replace. A service must not even try, for its unit
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

fn record_of(database: &Path) -> PathBuf {
    let mut name = database.file_name().unwrap_or_default().to_owned();
    name.push(".storage");
    database.with_file_name(name)
}

/// Before a new database gets its name: a record that an earlier one has left there is not the new one's.
pub(crate) fn remove_left_record(database: &Path) -> Result<()> {
    // Another program was faster: the record is of its database.
    if database.symlink_metadata().is_ok() {
        return Ok(());
    }
    let record = record_of(database);
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

    fn tag(id: u8, count: u64) -> Tag {
        Tag {
            id: [id; ID_BYTES],
            count,
        }
    }

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        for has_attribute in [false, true] {
            let record = Record {
                tag: tag(0xab, 17),
                has_attribute,
            };
            let text = record.to_string();
            assert_eq!(Record::parse(&text), Some(record));
            for cut in 0..text.len() {
                assert_eq!(Record::parse(&text[..cut]), None, "{cut}");
            }
        }
        assert_eq!(tag(1, COUNT_MAX).next(), None);
    }

    #[test]
    fn an_older_count_another_number_and_a_lost_attribute_are_another_storage() {
        let found = |count, has_attribute, attribute| Found {
            record: Some(Record {
                tag: tag(1, count),
                has_attribute,
            }),
            attribute,
        };
        let (own, other) = (Attribute::Id([1; ID_BYTES]), Attribute::Id([2; ID_BYTES]));
        for (found, database, expected) in [
            (found(5, true, own), tag(1, 5), true),
            // Killed before the record was written.
            (found(5, true, own), tag(1, 6), true),
            (found(5, true, own), tag(1, 4), false),
            (found(5, true, own), tag(2, 5), false),
            (found(5, true, Attribute::Absent), tag(1, 5), false),
            (found(5, true, other), tag(1, 5), false),
            (found(5, true, Attribute::Unsupported), tag(1, 5), true),
            (found(5, false, Attribute::Absent), tag(1, 5), true),
            (found(5, false, Attribute::Absent), tag(1, 4), false),
        ] {
            assert_eq!(found.is_of(database), expected, "{found:?} {database:?}");
        }
        let without = Found {
            record: None,
            attribute: own,
        };
        assert!(!without.is_of(tag(1, 0)));
    }

    fn storage() -> (tempfile::TempDir, FileStorage) {
        let directory = tempfile::tempdir().unwrap();
        let database = directory.path().join("fleet.registry");
        fs::write(&database, "").unwrap();
        let storage = FileStorage::of(&database).unwrap();
        (directory, storage)
    }

    /// Two processes raise the count in the database in turn, and write the record in any order.
    #[test]
    fn the_record_of_one_number_is_never_lowered() {
        let (_directory, storage) = storage();
        let _begun = storage.begin(tag(1, 0)).unwrap();
        for (number, count, expected) in [(1, 2, 2), (1, 1, 2), (1, 3, 3), (2, 9, 3)] {
            storage.advance(tag(number, count)).unwrap();
            let record = storage.read().unwrap().record.unwrap();
            assert_eq!(record.tag, tag(1, expected), "{number}, {count}");
        }
    }

    /// The owner of the directory puts a link in the place of each record as soon as the record has its name.
    #[test]
    fn root_gives_away_no_file_that_a_link_in_the_records_place_names() {
        const WRITES: u64 = 30;
        if !geteuid().is_root() {
            println!("SKIPPED: needs root");
            return;
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
                    .write(Record {
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
    fn no_attribute_is_set_on_what_a_link_in_the_databases_place_names() {
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
