//! A simulated disk under the real SQLite: it loses power, fills up and fails.
//!
//! Programs see a real directory; the disk records what has been synced. A power loss keeps, loses or tears (in sectors
//! of 512 B) each write since the last sync. It keeps or loses each name that was created or removed since the last sync.
//! The seed decides. A failed sync writes some of the unsynced changes, and the other changes are lost (as on Linux).

mod calls;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libc::c_int;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

const SECTOR: usize = 512;

/// Disks by directory.
static DISKS: Mutex<BTreeMap<PathBuf, Arc<Drive>>> = Mutex::new(BTreeMap::new());

/// A fault of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskFault {
    /// No file can grow.
    Full,
    /// Writes and syncs fail sometimes.
    Failing,
    /// The process has ended: nothing is written any more.
    Gone,
}

/// The file of a descriptor.
#[derive(Clone, Copy, Debug)]
enum OpenFile {
    File(usize),
    Directory,
}

enum Change {
    Write { offset: u64, bytes: Vec<u8> },
    Truncate(u64),
}

#[derive(Default)]
struct File {
    /// The content after a power loss.
    synced: Vec<u8>,
    /// Changes since the last sync, in order.
    unsynced: Vec<Change>,
    length: u64,
    is_log: bool,
}

type Names = BTreeMap<Vec<u8>, usize>;

struct State {
    rng: ChaCha8Rng,
    files: Vec<File>,
    names: Names,
    synced_names: Names,
    fault: Option<DiskFault>,
    /// The fault becomes [`DiskFault::Gone`] after this many calls.
    calls_left: Option<u32>,
    ignores_syncs: bool,
}

struct Drive {
    state: Mutex<State>,
}

/// The disk of a directory; after it is dropped, the directory is an ordinary one again.
pub struct Disk {
    directory: PathBuf,
    drive: Arc<Drive>,
}

impl Disk {
    /// Creates a disk whose present content is synced.
    pub fn new(directory: &Path, seed: u64) -> Self {
        calls::install();
        let mut state = State {
            rng: ChaCha8Rng::seed_from_u64(seed),
            files: Vec::new(),
            names: Names::new(),
            synced_names: Names::new(),
            fault: None,
            calls_left: None,
            ignores_syncs: false,
        };
        state.read(directory);
        let drive = Arc::new(Drive {
            state: Mutex::new(state),
        });
        let mut disks = DISKS.lock().unwrap_or_else(PoisonError::into_inner);
        disks.insert(directory.to_owned(), Arc::clone(&drive));
        Self {
            directory: directory.to_owned(),
            drive,
        }
    }

    fn of(directory: &Path) -> Option<Arc<Drive>> {
        let disks = DISKS.lock().unwrap_or_else(PoisonError::into_inner);
        disks.get(directory).cloned()
    }

    /// Sets the fault.
    pub fn set_fault(&self, fault: Option<DiskFault>) {
        let mut state = self.drive.lock();
        state.fault = fault;
        state.calls_left = None;
    }

    pub fn fault(&self) -> Option<DiskFault> {
        self.drive.lock().fault
    }

    /// After `calls` more calls, the process ends in the middle of the next call.
    pub fn end_after(&self, calls: u32) {
        self.drive.lock().calls_left = Some(calls);
    }

    /// The disk confirms syncs of the log without writing them.
    pub fn ignore_syncs(&self) {
        self.drive.lock().ignores_syncs = true;
    }

    /// Reads the directory again after its files were replaced. No file may be open. The new files count as synced.
    pub fn reread(&self) {
        self.drive.lock().read(&self.directory);
    }

    /// Simulates a power loss. No file may be open. Unsynced changes are kept or lost; afterwards the disk has no fault.
    pub fn lose_power(&self) {
        let mut state = self.drive.lock();
        let surviving = state.after_power_loss();
        // Surviving files are not removed, so their extended attributes stay. From the attribute, the registry
        // recognizes that its file was not replaced.
        let is_gone = |name: &&Vec<u8>| surviving.iter().all(|(survivor, _)| survivor != *name);
        for name in state
            .names
            .keys()
            .chain(state.synced_names.keys())
            .filter(is_gone)
        {
            let _ = std::fs::remove_file(self.directory.join(name_of(name)));
        }
        for (name, content) in &surviving {
            std::fs::write(self.directory.join(name_of(name)), content).unwrap();
        }
        state.read(&self.directory);
        state.fault = None;
        state.calls_left = None;
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let mut disks = DISKS.lock().unwrap_or_else(PoisonError::into_inner);
        disks.remove(&self.directory);
    }
}

fn name_of(name: &[u8]) -> &Path {
    use std::os::unix::ffi::OsStrExt as _;
    Path::new(std::ffi::OsStr::from_bytes(name))
}

impl State {
    /// Reads the directory, whose content counts as synced.
    fn read(&mut self, directory: &Path) {
        use std::os::unix::ffi::OsStrExt as _;
        self.files.clear();
        self.names.clear();
        for entry in std::fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().as_bytes().to_vec();
            if name.ends_with(b"-shm") {
                // Shared memory does not survive the kernel.
                std::fs::remove_file(entry.path()).unwrap();
                continue;
            }
            if name.ends_with(b".storage") {
                // The registry replaces this file atomically and syncs it, without SQLite's calls.
                continue;
            }
            let synced = std::fs::read(entry.path()).unwrap();
            self.names.insert(name.clone(), self.files.len());
            self.files.push(File {
                length: synced.len() as u64,
                synced,
                unsynced: Vec::new(),
                is_log: name.ends_with(b"-wal"),
            });
        }
        self.synced_names = self.names.clone();
    }

    /// Counts a call. Returns an error if the process has ended.
    fn call(&mut self) -> Result<(), c_int> {
        if let Some(remaining) = &mut self.calls_left {
            match remaining.checked_sub(1) {
                Some(fewer) => *remaining = fewer,
                None => self.fault = Some(DiskFault::Gone),
            }
        }
        match self.fault {
            Some(DiskFault::Gone) => Err(libc::EIO),
            _ => Ok(()),
        }
    }

    fn fails(&mut self) -> bool {
        self.fault == Some(DiskFault::Failing) && self.rng.random_ratio(1, 4)
    }

    /// The files and their content after a power loss.
    fn after_power_loss(&mut self) -> Vec<(Vec<u8>, Vec<u8>)> {
        // 0: all changes survive; 1: no change survives; 2 or 3: some changes survive.
        let outcome = self.rng.random_range(0..4);
        let names: BTreeSet<Vec<u8>> = self
            .names
            .keys()
            .chain(self.synced_names.keys())
            .cloned()
            .collect();
        let mut surviving = Vec::new();
        for name in names {
            let is_new = match outcome {
                0 => true,
                1 => false,
                _ => self.rng.random_ratio(1, 2),
            };
            let directory = if is_new { &self.names } else { &self.synced_names };
            let Some(file) = directory.get(&name).copied() else {
                continue;
            };
            let content = self.files[file].after_power_loss(outcome, &mut self.rng);
            surviving.push((name, content));
        }
        surviving
    }
}

impl File {
    fn after_power_loss(&self, outcome: u32, rng: &mut ChaCha8Rng) -> Vec<u8> {
        let mut content = self.synced.clone();
        for change in &self.unsynced {
            let result = match outcome {
                0 => 0,
                1 => 1,
                _ => rng.random_range(0..5),
            };
            match (result, change) {
                (0 | 2, _) => change.apply(&mut content),
                (1 | 3, _) | (_, Change::Truncate(_)) => {}
                (_, Change::Write { offset, bytes }) => {
                    for (number, sector) in bytes.chunks(SECTOR).enumerate() {
                        if rng.random_ratio(1, 2) {
                            let offset = offset + (number * SECTOR) as u64;
                            write_at(&mut content, offset, sector);
                        }
                    }
                }
            }
        }
        content
    }
}

impl Change {
    fn apply(&self, content: &mut Vec<u8>) {
        match self {
            Self::Write { offset, bytes } => write_at(content, *offset, bytes),
            Self::Truncate(length) => content.resize(*length as usize, 0),
        }
    }
}

fn write_at(content: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    let (offset, end) = (offset as usize, offset as usize + bytes.len());
    if content.len() < end {
        content.resize(end, 0);
    }
    content[offset..end].copy_from_slice(bytes);
}

impl Drive {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn may_open(&self, name: &[u8], may_create: bool) -> Result<(), c_int> {
        let mut state = self.lock();
        if !may_create || state.names.contains_key(name) {
            return Ok(());
        }
        state.call()?;
        match state.fault {
            Some(DiskFault::Full) => Err(libc::ENOSPC),
            _ => Ok(()),
        }
    }

    fn open_file(&self, name: Vec<u8>) -> OpenFile {
        let mut state = self.lock();
        let next = state.files.len();
        let file = *state.names.entry(name).or_insert(next);
        if file == next {
            let is_log = state
                .names
                .iter()
                .any(|(name, file)| *file == next && name.ends_with(b"-wal"));
            state.files.push(File {
                is_log,
                ..File::default()
            });
        }
        OpenFile::File(file)
    }

    /// Returns how many bytes are accepted, or the error number with which the call fails.
    fn write(&self, file: usize, offset: u64, bytes: &[u8]) -> Result<usize, c_int> {
        let mut state = self.lock();
        state.call()?;
        if state.fails() {
            return Err(libc::EIO);
        }
        let length = state.files[file].length;
        let accepted = match state.fault {
            Some(DiskFault::Full) => length.saturating_sub(offset).min(bytes.len() as u64) as usize,
            _ => bytes.len(),
        };
        if accepted == 0 && !bytes.is_empty() {
            return Err(libc::ENOSPC);
        }
        let bytes = bytes[..accepted].to_vec();
        let file = &mut state.files[file];
        file.length = file.length.max(offset + accepted as u64);
        file.unsynced.push(Change::Write { offset, bytes });
        Ok(accepted)
    }

    fn truncate(&self, file: usize, length: u64) -> Result<(), c_int> {
        let mut state = self.lock();
        state.call()?;
        if state.fault == Some(DiskFault::Full) && length > state.files[file].length {
            return Err(libc::ENOSPC);
        }
        let file = &mut state.files[file];
        file.length = length;
        file.unsynced.push(Change::Truncate(length));
        Ok(())
    }

    fn unlink(&self, name: &[u8]) -> Result<(), c_int> {
        let mut state = self.lock();
        state.call()?;
        state.names.remove(name);
        Ok(())
    }

    fn sync(&self, open_file: OpenFile) -> Result<(), c_int> {
        let mut state = self.lock();
        state.call()?;
        let fails = state.fails();
        let State {
            rng,
            files,
            names,
            synced_names,
            ignores_syncs,
            ..
        } = &mut *state;
        match open_file {
            OpenFile::Directory if fails => {}
            OpenFile::Directory => *synced_names = names.clone(),
            OpenFile::File(file) if *ignores_syncs && files[file].is_log => {}
            OpenFile::File(file) => {
                let file = &mut files[file];
                for change in file.unsynced.drain(..) {
                    if !fails || rng.random_ratio(1, 2) {
                        change.apply(&mut file.synced);
                    }
                }
            }
        }
        match fails {
            true => Err(libc::EIO),
            false => Ok(()),
        }
    }
}
