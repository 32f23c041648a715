//! Import of export files: read and check everything first, then store.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _};
use std::path::{Path, PathBuf};

use linewarden_protocol::ids::DeviceId;

use crate::enrol::{BulkOptions, IDS_PER_QUERY, NewDevice, OnConflict, Progress};
use crate::error::{RegistryError, Result};
use crate::key::ExportKey;
use crate::seal::Sealer;
use crate::store::Registry;
use crate::transfer::{parse_device, parse_header};

/// No line is longer: a device with the most rows has 50 MiB of hexadecimal digits.
const LINE_BYTES_MAX: u64 = 64 << 20;
/// Lines of a file that are told to be wrong; further ones are counted.
const TOLD_MAX: usize = 20;

impl Registry {
    /// Imports an export file that was made with `key`, and returns how many devices were stored.
    ///
    /// Marks, epochs and revocations come along. The whole file is read and checked before anything is stored;
    /// then it is stored in chunks as by [`Registry::enrol_bulk`], with `progress` after each.
    ///
    /// # Errors
    /// [`RegistryError::ImportLine`] names file, lines and fields, and nothing was stored.
    /// [`RegistryError::Chunk`] if storing failed midway (a full disk, another writer).
    pub async fn import_file(
        &self,
        path: impl AsRef<Path>,
        key: &ExportKey,
        options: BulkOptions,
        progress: impl FnMut(Progress),
    ) -> Result<u64> {
        let path = path.as_ref();
        let mut file = File::open(path).map_err(RegistryError::io(format!("open {}", path.display())))?;
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
        let mut lines: HashMap<DeviceId, u64> = HashMap::new();
        let mut problems = Problems::default();
        loop {
            match import.read_device() {
                Ok(None) => break,
                Ok(Some(device)) => match lines.entry(device.record.device) {
                    Entry::Vacant(place) => drop(place.insert(import.line)),
                    Entry::Occupied(earlier) => {
                        let (device, earlier) = (earlier.key(), earlier.get());
                        problems.add(
                            import.line,
                            format!("field device_id: {device} is on line {earlier} already"),
                        );
                    }
                },
                Err(wrong) => {
                    problems.add(import.line, wrong.problem);
                    if wrong.is_last {
                        break;
                    }
                }
            }
        }
        if on_conflict == OnConflict::Refuse {
            let mut ids: Vec<(u64, DeviceId)> =
                lines.into_iter().map(|(device, line)| (line, device)).collect();
            ids.sort_unstable();
            for batch in ids.chunks(IDS_PER_QUERY) {
                let devices: Vec<DeviceId> = batch.iter().map(|(_, device)| *device).collect();
                let enrolled = self.enrolled_among(&devices).await?;
                for (line, device) in batch.iter().filter(|(_, device)| enrolled.contains(device)) {
                    problems.add(
                        *line,
                        RegistryError::AlreadyEnrolled { device: *device }.to_string(),
                    );
                }
            }
        }
        match problems.into_error(path) {
            Some(error) => Err(error),
            None => Ok(import.devices),
        }
    }
}

/// What is wrong with which lines.
#[derive(Default)]
struct Problems {
    first: Vec<(u64, String)>,
    more: u64,
}

impl Problems {
    fn add(&mut self, line: u64, problem: String) {
        match self.first.len() < TOLD_MAX {
            true => self.first.push((line, problem)),
            false => self.more += 1,
        }
    }

    fn into_error(mut self, path: &Path) -> Option<RegistryError> {
        // Of what is in the file before what is in the registry, but told by line.
        self.first.sort_by_key(|(line, _)| *line);
        let mut told = self.first.into_iter();
        let (line, problem) = told.next()?;
        let mut further: String = told
            .map(|(line, problem)| format!("; line {line}: {problem}"))
            .collect();
        if self.more > 0 {
            further.push_str(&format!("; and {} lines more", self.more));
        }
        Some(RegistryError::ImportLine {
            path: path.to_owned(),
            line,
            problem,
            further,
        })
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
        let refuse = |problem| RegistryError::ImportLine {
            path: path.to_owned(),
            line: 1,
            problem,
            further: String::new(),
        };
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

    fn problem(&self, problem: String) -> RegistryError {
        RegistryError::ImportLine {
            path: self.path.clone(),
            line: self.line,
            problem,
            further: String::new(),
        }
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
