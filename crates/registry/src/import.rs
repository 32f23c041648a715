//! Import of export files: read and check everything first, then store.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Read as _, Seek as _};
use std::path::{Path, PathBuf};

use linewarden_files::open_regular;
use linewarden_protocol::ids::DeviceId;

use crate::enrol::{BulkOptions, IDS_PER_QUERY, NewDevice, OnConflict, Progress};
use crate::error::{LineMistake, RegistryError, Result};
use crate::key::ExportKey;
use crate::store::Registry;
use crate::transfer::{parse_device, parse_header};
use linewarden_files::seal::Sealer;

/// No line is longer: a device with the most rows has 50 MiB of hexadecimal digits.
const LINE_BYTES_MAX: u64 = 64 << 20;
/// Mistakes of a file that are told; of further ones, only the lines.
const TOLD_MAX: usize = 20;

impl Registry {
    /// Imports an export file that was made with `key`, and returns how many devices were stored.
    ///
    /// Marks, epochs and revocations come along. The whole file is read and checked before anything is stored;
    /// then it is stored in chunks as by [`Registry::enrol_bulk`], with `progress` after each.
    ///
    /// # Errors
    /// [`RegistryError::ImportLines`] names file, lines and fields, and nothing was stored.
    /// [`RegistryError::Chunk`] if storing failed midway (a full disk, another writer).
    pub async fn import_file(
        &self,
        path: impl AsRef<Path>,
        key: &ExportKey,
        options: BulkOptions,
        progress: impl FnMut(Progress),
    ) -> Result<u64> {
        let path = path.as_ref();
        let mut file = open_export(path)?;
        let devices = self.check_import(path, &file, key, options.on_conflict).await?;
        file.rewind()
            .map_err(RegistryError::io(format!("read {}", path.display())))?;
        let import = Import::begin(path, &file, key)?;
        self.store_bulk(import, Some(devices), options, progress).await
    }

    /// The first reading: every line opens, no device occurs twice, none is in the way.
    async fn check_import(
        &self,
        path: &Path,
        file: &File,
        key: &ExportKey,
        on_conflict: OnConflict,
    ) -> Result<u64> {
        let mut import = Import::begin(path, file, key)?;
        let mut problems = Problems::default();
        let lines = import.read_all(&mut problems);
        self.check_conflicts(lines, on_conflict, &mut problems).await?;
        match problems.into_error(path) {
            Some(error) => Err(error),
            None => Ok(import.devices),
        }
    }

    /// Which of these devices are in the way of what is to be stored.
    async fn check_conflicts(
        &self,
        lines: HashMap<DeviceId, Line>,
        on_conflict: OnConflict,
        problems: &mut Problems,
    ) -> Result<()> {
        let mut lines: Vec<(Line, DeviceId)> =
            lines.into_iter().map(|(device, line)| (line, device)).collect();
        lines.sort_unstable_by_key(|(line, _)| line.number);
        let mut reader = self.reader().acquire().await?;
        for batch in lines.chunks(IDS_PER_QUERY) {
            let devices = batch.iter().map(|(_, device)| *device);
            let enrolled = self.get_many_in(&mut reader, devices).await?;
            for (line, device) in batch {
                let problem = match (enrolled.get(device), on_conflict) {
                    (None, _) => continue,
                    (Some(Ok(info)), _) if !info.status.is_active() && line.is_active => REVOKED.to_owned(),
                    (Some(_), OnConflict::Refuse) => ENROLLED_ALREADY.to_owned(),
                    (Some(Ok(_)), OnConflict::Replace) => continue,
                    (Some(Err(error)), OnConflict::Replace) => error.to_string(),
                };
                problems.add(line.number, problem);
            }
        }
        Ok(())
    }
}

/// Without the device's id, as one mistake of many lines.
const REVOKED: &str = "the device is revoked in this registry, and stays so; take the line out";
const ENROLLED_ALREADY: &str =
    "the device is enrolled already; take the line out, or have its credentials replaced (`--replace`)";

/// An export file whose every line was found to be right, for who stores it elsewhere than in a registry at hand.
#[derive(Debug)]
pub struct ExportFile {
    path: PathBuf,
    file: File,
    devices: u64,
}

impl ExportFile {
    /// Reads the whole file: every line opens with `key`, and no device occurs twice.
    ///
    /// # Errors
    /// A file that cannot be read, or [`RegistryError::ImportLines`] with all its mistakes.
    pub fn check(path: impl AsRef<Path>, key: &ExportKey) -> Result<Self> {
        let path = path.as_ref();
        let file = open_export(path)?;
        let mut import = Import::begin(path, &file, key)?;
        let mut problems = Problems::default();
        import.read_all(&mut problems);
        let devices = import.devices;
        match problems.into_error(path) {
            Some(error) => Err(error),
            None => Ok(Self {
                path: path.to_owned(),
                file,
                devices,
            }),
        }
    }

    /// How many devices are in it.
    #[must_use]
    pub fn devices(&self) -> u64 {
        self.devices
    }

    /// Reads it once more, device by device.
    ///
    /// # Errors
    /// A file that cannot be read, or that has changed since.
    pub fn read(&mut self, key: &ExportKey) -> Result<impl Iterator<Item = Result<NewDevice>> + use<'_>> {
        self.file
            .rewind()
            .map_err(RegistryError::io(format!("read {}", self.path.display())))?;
        Import::begin(&self.path, &self.file, key)
    }
}

/// An export file is read twice: it is a regular file. Its lines are bounded, and its first line says how many there are.
fn open_export(path: &Path) -> Result<File> {
    open_regular(path, OpenOptions::new().read(true))
        .map_err(RegistryError::io(format!("open {}", path.display())))
}

/// Where a device stands in the file, and how.
struct Line {
    number: u64,
    is_active: bool,
}

/// What is wrong with which lines.
#[derive(Default)]
struct Problems {
    told: Vec<LineMistake>,
    /// With further mistakes.
    untold: Vec<u64>,
}

impl Problems {
    /// Many lines have one mistake often: it is told once.
    fn add(&mut self, line: u64, problem: String) {
        if let Some(mistake) = self.told.iter_mut().find(|mistake| mistake.problem == problem) {
            mistake.lines.push(line);
        } else if self.told.len() < TOLD_MAX {
            self.told.push(LineMistake {
                lines: vec![line],
                problem,
            });
        } else {
            self.untold.push(line);
        }
    }

    fn into_error(mut self, path: &Path) -> Option<RegistryError> {
        // Of what is in the file before what is in the registry, but told by line.
        self.told.sort_by(|a, b| a.lines.cmp(&b.lines));
        if !self.untold.is_empty() {
            self.untold.sort_unstable();
            self.told.push(LineMistake {
                lines: self.untold,
                problem: "other mistakes".to_owned(),
            });
        }
        (!self.told.is_empty()).then(|| RegistryError::ImportLines {
            path: path.to_owned(),
            mistakes: self.told,
        })
    }
}

fn refused(path: &Path, line: u64, problem: String) -> RegistryError {
    RegistryError::ImportLines {
        path: path.to_owned(),
        mistakes: vec![LineMistake {
            lines: vec![line],
            problem,
        }],
    }
}

/// Why a line gives no device.
struct Wrong {
    problem: String,
    /// What follows cannot be told apart any more.
    is_last: bool,
}

/// An export file while it is read; yields its devices.
struct Import<'file> {
    path: PathBuf,
    input: BufReader<&'file File>,
    /// Number of the line read last, from 1.
    line: u64,
    sealer: Sealer,
    /// As the header says.
    devices: u64,
    finished: bool,
}

impl<'file> Import<'file> {
    fn begin(path: &Path, file: &'file File, key: &ExportKey) -> Result<Self> {
        let mut input = BufReader::with_capacity(1 << 18, file);
        let refuse = |problem| refused(path, 1, problem);
        let text = read_line(&mut input)
            .map_err(refuse)?
            .ok_or_else(|| refuse("the file is empty".to_owned()))?;
        let (header, sealer) = parse_header(&text, key).map_err(refuse)?;
        Ok(Self {
            path: path.to_owned(),
            input,
            line: 1,
            sealer,
            devices: header.devices,
            finished: false,
        })
    }

    /// All lines, and what is wrong with which; no device occurs twice.
    fn read_all(&mut self, problems: &mut Problems) -> HashMap<DeviceId, Line> {
        let mut lines: HashMap<DeviceId, Line> = HashMap::new();
        loop {
            match self.read_device() {
                Ok(None) => return lines,
                Ok(Some(device)) => match lines.entry(device.record.device) {
                    Entry::Vacant(place) => drop(place.insert(Line {
                        number: self.line,
                        is_active: device.status.is_active(),
                    })),
                    Entry::Occupied(earlier) => {
                        let (device, earlier) = (earlier.key(), earlier.get().number);
                        problems.add(
                            self.line,
                            format!("field device_id: {device} is on line {earlier} already"),
                        );
                    }
                },
                Err(wrong) => {
                    problems.add(self.line, wrong.problem);
                    if wrong.is_last {
                        return lines;
                    }
                }
            }
        }
    }

    fn problem(&self, problem: String) -> RegistryError {
        refused(&self.path, self.line, problem)
    }

    fn read_device(&mut self) -> Result<Option<NewDevice>, Wrong> {
        let last = |problem: String| Wrong {
            problem,
            is_last: true,
        };
        let text = read_line(&mut self.input);
        let expected = self.devices;
        let before = self.line - 1;
        self.line += 1;
        match text.map_err(last)? {
            Some(_) if before >= expected => Err(last(format!(
                "the header announces {expected} devices, here is one more"
            ))),
            Some(text) => parse_device(&text, &self.sealer)
                .map(Some)
                .map_err(|problem| Wrong {
                    problem,
                    is_last: false,
                }),
            None if before < expected => Err(last(format!(
                "the file ends after {before} of {expected} devices; it was cut off, export again"
            ))),
            None => Ok(None),
        }
    }
}

impl Iterator for Import<'_> {
    type Item = Result<NewDevice>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.finished {
            return None;
        }
        let device = self.read_device();
        self.finished = !matches!(device, Ok(Some(_)));
        device.map_err(|wrong| self.problem(wrong.problem)).transpose()
    }
}

/// The next line without its end; `None` at the end of the file.
fn read_line(input: &mut BufReader<&File>) -> Result<Option<Vec<u8>>, String> {
    let mut text = Vec::new();
    let read = input
        .take(LINE_BYTES_MAX)
        .read_until(b'\n', &mut text)
        .map_err(|error| format!("cannot be read: {error}"))?;
    match text.pop() {
        None => Ok(None),
        Some(b'\n') => Ok(Some(text)),
        Some(_) if u64::try_from(read) == Ok(LINE_BYTES_MAX) => {
            Err(format!("longer than {LINE_BYTES_MAX} B"))
        }
        Some(_) => Err("the line has no end; the file was cut off, export again".to_owned()),
    }
}
