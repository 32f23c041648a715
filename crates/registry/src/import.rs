//! Import of export files: the whole file is checked before anything is stored.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Read as _, Seek as _};
use std::path::{Path, PathBuf};

use linewarden_files::open_regular;
use linewarden_protocol::ids::DeviceId;

use crate::enroll::{BulkOptions, IDS_PER_QUERY, NewDevice, OnConflict, Progress};
use crate::error::{BulkError, LineProblem, RegistryError, Result};
use crate::key::ExportKey;
use crate::store::Registry;
use crate::transfer::{parse_device, parse_header};
use linewarden_files::seal::Sealer;

/// Maximum length of a line, bytes: a device with the maximum number of rows has 48 MiB of hexadecimal digits.
const LINE_BYTES_MAX: u64 = 64 << 20;
/// Maximum number of problems that are reported with their text; for further problems only the lines are reported.
const PROBLEMS_SHOWN_MAX: usize = 20;

impl Registry {
    /// Imports an export file that was created with `key`; returns the number of devices stored.
    ///
    /// `idx_floor`, epochs, revocations and quarantines are imported, too. The whole file is checked before anything is
    /// stored. Then its devices are stored in chunks, as [`Registry::enroll_bulk`] does; `progress` is called after each
    /// chunk.
    ///
    /// # Errors
    /// [`BulkError::InvalidImportLines`] names file, lines and fields; nothing is stored then.
    /// [`BulkError::ChunkRefused`] if an error, such as a full disk, occurs after some chunks were stored.
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
        let import = ImportReader::begin(path, &file, key)?;
        self.store_bulk(import, Some(devices), options, progress).await
    }

    /// The first pass: checks that every line opens, that no device occurs twice, and that no device conflicts with an
    /// enrolled device. Returns the number of devices.
    async fn check_import(
        &self,
        path: &Path,
        file: &File,
        key: &ExportKey,
        on_conflict: OnConflict,
    ) -> Result<u64> {
        let mut import = ImportReader::begin(path, file, key)?;
        let mut problems = Problems::default();
        let lines = import.read_all(&mut problems);
        self.check_conflicts(lines, on_conflict, &mut problems).await?;
        match problems.into_error(path) {
            Some(error) => Err(error),
            None => Ok(import.devices),
        }
    }

    /// Adds conflicts with enrolled devices to `problems`.
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
                    (Some(Ok(info)), _) if !info.status.is_active() && line.is_active => {
                        REVOKED_PROBLEM.to_owned()
                    }
                    (Some(_), OnConflict::Refuse) => ENROLLED_PROBLEM.to_owned(),
                    (Some(Ok(_)), OnConflict::Replace) => continue,
                    (Some(Err(error)), OnConflict::Replace) => error.to_string(),
                };
                problems.add(line.number, problem);
            }
        }
        Ok(())
    }
}

/// The text does not contain the device id, so that the problem of many lines is reported once.
const REVOKED_PROBLEM: &str = "the device is revoked in this registry permanently; remove the line";
const ENROLLED_PROBLEM: &str =
    "the device is already enrolled; remove the line, or replace its credentials with `--replace`";

/// An export file in which every line was checked. Used by programs that store the devices elsewhere than in a local
/// registry.
#[derive(Debug)]
pub struct ExportFile {
    path: PathBuf,
    file: File,
    devices: u64,
}

impl ExportFile {
    /// Checks the whole file: every line opens with `key`, and no device occurs twice.
    ///
    /// # Errors
    /// A file that cannot be read, or [`BulkError::InvalidImportLines`] with all problems.
    pub fn check(path: impl AsRef<Path>, key: &ExportKey) -> Result<Self> {
        let path = path.as_ref();
        let file = open_export(path)?;
        let mut import = ImportReader::begin(path, &file, key)?;
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

    /// The number of devices in the file.
    #[must_use]
    pub fn devices(&self) -> u64 {
        self.devices
    }

    /// Reads the file again, device by device.
    ///
    /// # Errors
    /// A file that cannot be read, or that has changed since the check.
    pub fn read(&mut self, key: &ExportKey) -> Result<impl Iterator<Item = Result<NewDevice>> + use<'_>> {
        self.file
            .rewind()
            .map_err(RegistryError::io(format!("read {}", self.path.display())))?;
        ImportReader::begin(&self.path, &self.file, key)
    }
}

/// An export file must be a regular file, because it is read twice. Its lines have a maximum length, and its first
/// line names the number of lines.
fn open_export(path: &Path) -> Result<File> {
    open_regular(path, OpenOptions::new().read(true))
        .map_err(RegistryError::io(format!("open {}", path.display())))
}

/// The line of a device in the file, and its status.
struct Line {
    number: u64,
    is_active: bool,
}

/// Problems by line.
#[derive(Default)]
struct Problems {
    reported: Vec<LineProblem>,
    /// Lines with further problems.
    unreported_lines: Vec<u64>,
}

impl Problems {
    /// Adds a problem. A problem that many lines have in common is reported once.
    fn add(&mut self, line: u64, problem: String) {
        if let Some(known_problem) = self
            .reported
            .iter_mut()
            .find(|known_problem| known_problem.problem == problem)
        {
            known_problem.lines.push(line);
        } else if self.reported.len() < PROBLEMS_SHOWN_MAX {
            self.reported.push(LineProblem {
                lines: vec![line],
                problem,
            });
        } else {
            self.unreported_lines.push(line);
        }
    }

    fn into_error(mut self, path: &Path) -> Option<RegistryError> {
        // Problems of the file are found before conflicts, but reported in the order of lines.
        self.reported.sort_by(|a, b| a.lines.cmp(&b.lines));
        if !self.unreported_lines.is_empty() {
            self.unreported_lines.sort_unstable();
            self.reported.push(LineProblem {
                lines: self.unreported_lines,
                problem: "other problems".to_owned(),
            });
        }
        (!self.reported.is_empty()).then(|| {
            RegistryError::Bulk(BulkError::InvalidImportLines {
                path: path.to_owned(),
                problems: self.reported,
            })
        })
    }
}

fn import_error(path: &Path, line: u64, problem: String) -> RegistryError {
    RegistryError::Bulk(BulkError::InvalidImportLines {
        path: path.to_owned(),
        problems: vec![LineProblem {
            lines: vec![line],
            problem,
        }],
    })
}

/// Why a line could not be read as a device.
struct LineFailure {
    problem: String,
    /// Whether the remaining lines of the file cannot be read either.
    ends_reading: bool,
}

/// A reader of an export file; yields its devices.
struct ImportReader<'file> {
    path: PathBuf,
    input: BufReader<&'file File>,
    /// Number of the last line read, from 1.
    line: u64,
    sealer: Sealer,
    /// The number of devices that the header announces.
    devices: u64,
    finished: bool,
}

impl<'file> ImportReader<'file> {
    fn begin(path: &Path, file: &'file File, key: &ExportKey) -> Result<Self> {
        let mut input = BufReader::with_capacity(1 << 18, file);
        let refuse = |problem| import_error(path, 1, problem);
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

    /// Reads all lines, and collects problems and duplicate devices.
    fn read_all(&mut self, problems: &mut Problems) -> HashMap<DeviceId, Line> {
        let mut lines: HashMap<DeviceId, Line> = HashMap::new();
        loop {
            match self.read_device() {
                Ok(None) => return lines,
                Ok(Some(device)) => match lines.entry(device.record.device) {
                    Entry::Vacant(entry) => drop(entry.insert(Line {
                        number: self.line,
                        is_active: device.status.is_active(),
                    })),
                    Entry::Occupied(earlier) => {
                        let (device, earlier) = (earlier.key(), earlier.get().number);
                        problems.add(
                            self.line,
                            format!("field device_id: {device} already occurs on line {earlier}"),
                        );
                    }
                },
                Err(failure) => {
                    problems.add(self.line, failure.problem);
                    if failure.ends_reading {
                        return lines;
                    }
                }
            }
        }
    }

    fn error_at_line(&self, problem: String) -> RegistryError {
        import_error(&self.path, self.line, problem)
    }

    fn read_device(&mut self) -> Result<Option<NewDevice>, LineFailure> {
        let unreadable_file = |problem: String| LineFailure {
            problem,
            ends_reading: true,
        };
        let text = read_line(&mut self.input);
        let expected = self.devices;
        let devices_read = self.line - 1;
        self.line += 1;
        match text.map_err(unreadable_file)? {
            Some(_) if devices_read >= expected => Err(unreadable_file(format!(
                "the header announces {expected} devices, but the file has more"
            ))),
            Some(text) => parse_device(&text, &self.sealer)
                .map(Some)
                .map_err(|problem| LineFailure {
                    problem,
                    ends_reading: false,
                }),
            None if devices_read < expected => Err(unreadable_file(format!(
                "the file ends after {devices_read} of {expected} devices: the file was truncated; export again"
            ))),
            None => Ok(None),
        }
    }
}

impl Iterator for ImportReader<'_> {
    type Item = Result<NewDevice>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.finished {
            return None;
        }
        let device = self.read_device();
        self.finished = !matches!(device, Ok(Some(_)));
        device
            .map_err(|failure| self.error_at_line(failure.problem))
            .transpose()
    }
}

/// The next line without its line feed; `None` at the end of the file.
fn read_line(input: &mut BufReader<&File>) -> Result<Option<Vec<u8>>, String> {
    let mut text = Vec::new();
    let length = input
        .take(LINE_BYTES_MAX)
        .read_until(b'\n', &mut text)
        .map_err(|error| format!("read failed: {error}"))?;
    match text.pop() {
        None => Ok(None),
        Some(b'\n') => Ok(Some(text)),
        Some(_) if u64::try_from(length) == Ok(LINE_BYTES_MAX) => {
            Err(format!("the line is longer than {LINE_BYTES_MAX} B"))
        }
        Some(_) => Err("the line has no line feed: the file was truncated; export again".to_owned()),
    }
}
