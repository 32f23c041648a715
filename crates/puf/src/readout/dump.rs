//! Reads dumps in pieces, so that large dumps need little memory.

use std::fs::OpenOptions;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use linewarden_files::open_regular;

use super::files::{Kind, dump_files};
use super::hex::HexParser;
use super::{DUMP_BYTES_MAX, ReadoutError};
use crate::bits::Bits;

/// Bytes of a file that are read at once.
const CHUNK_BYTES: usize = 256 << 10;

/// One readout from a file.
#[derive(Clone, Debug)]
pub struct Dump {
    /// The file of the readout.
    pub path: PathBuf,
    /// The bits, from the least significant bit of the first byte on.
    pub bits: Bits,
}

/// A file and the read position. The file is open only during a read, because a fleet may have more dumps than a
/// process may have open files.
#[derive(Debug)]
struct Reader {
    path: PathBuf,
    /// The parser of hex text; `None` for binary files.
    parser: Option<HexParser>,
    /// Offset in the file at which the next read begins.
    position: u64,
    is_at_end: bool,
    /// Bytes of the memory that were read but not yet returned.
    buffer: Vec<u8>,
    /// Number of bytes that were returned.
    returned_bytes: usize,
}

impl Reader {
    fn new(path: PathBuf, kind: &Kind) -> Self {
        Self {
            path,
            parser: (*kind == Kind::Text).then(HexParser::new),
            position: 0,
            is_at_end: false,
            buffer: Vec::new(),
            returned_bytes: 0,
        }
    }

    /// The next `bytes` bytes of the memory; fewer at the end of the memory.
    fn next(&mut self, bytes: usize) -> Result<Vec<u8>, ReadoutError> {
        if self.buffer.len() < bytes && !self.is_at_end {
            self.fill(bytes)?;
        }
        let rest = self.buffer.split_off(bytes.min(self.buffer.len()));
        let next = std::mem::replace(&mut self.buffer, rest);
        self.returned_bytes += next.len();
        match self.returned_bytes > DUMP_BYTES_MAX {
            true => Err(self.io(io::ErrorKind::FileTooLarge.into())),
            false => Ok(next),
        }
    }

    fn fill(&mut self, bytes: usize) -> Result<(), ReadoutError> {
        let mut file =
            open_regular(&self.path, OpenOptions::new().read(true)).map_err(|error| self.io(error))?;
        file.seek(SeekFrom::Start(self.position))
            .map_err(|error| self.io(error))?;
        let mut chunk = Vec::with_capacity(CHUNK_BYTES);
        while self.buffer.len() < bytes && !self.is_at_end {
            chunk.clear();
            let limit = CHUNK_BYTES as u64;
            let result = (&mut file).take(limit).read_to_end(&mut chunk);
            self.is_at_end = result.map_err(|error| self.io(error))? == 0;
            self.position += chunk.len() as u64;
            let Some(parser) = &mut self.parser else {
                self.buffer.extend(&chunk);
                continue;
            };
            let parsed = match self.is_at_end {
                false => parser.feed(&chunk, &mut self.buffer),
                true => parser.finish(&mut self.buffer),
            };
            parsed.map_err(|source| ReadoutError::Hex {
                path: self.path.clone(),
                source,
            })?;
        }
        Ok(())
    }

    fn io(&self, source: io::Error) -> ReadoutError {
        ReadoutError::Io {
            path: self.path.clone(),
            source,
        }
    }
}

/// All dumps of one device, in natural order of their names (`2.txt` before `10.txt`), read side by side.
#[derive(Debug)]
pub struct DumpSet {
    readers: Vec<Reader>,
}

impl DumpSet {
    /// The dumps of a directory. Files with extensions other than those of [`read_dump`](super::read_dump) are
    /// ignored.
    ///
    /// # Errors
    /// [`ReadoutError`] if the directory has no dumps or cannot be read.
    pub fn open(directory: &Path) -> Result<Self, ReadoutError> {
        let files = dump_files(directory)?;
        if files.is_empty() {
            return Err(ReadoutError::NoDumps {
                path: directory.to_owned(),
            });
        }
        let readers = files.into_iter().map(|(path, kind)| Reader::new(path, &kind));
        Ok(Self {
            readers: readers.collect(),
        })
    }

    /// The next `bytes` bytes of each dump; fewer at the end of the memory. After the end, an empty list.
    ///
    /// # Errors
    /// [`ReadoutError`] if a dump cannot be read, is empty, or ends before the other dumps.
    pub fn next(&mut self, bytes: usize) -> Result<Vec<Dump>, ReadoutError> {
        let mut dumps: Vec<Dump> = Vec::with_capacity(self.readers.len());
        let mut first_returned_bytes = None;
        for reader in &mut self.readers {
            let content = reader.next(bytes)?;
            if reader.returned_bytes == 0 {
                let path = reader.path.clone();
                return Err(ReadoutError::Empty { path });
            }
            let expected = *first_returned_bytes.get_or_insert(reader.returned_bytes);
            let first = dumps.first().map(|first| first.path.clone());
            if let Some(first) = first.filter(|_| reader.returned_bytes != expected) {
                return Err(ReadoutError::LengthMismatch {
                    path: reader.path.clone(),
                    bytes: reader.returned_bytes,
                    first,
                    expected,
                });
            }
            dumps.push(Dump {
                path: reader.path.clone(),
                bits: Bits::from_bytes(&content),
            });
        }
        match dumps.first().is_some_and(|first| first.bits.is_empty()) {
            true => Ok(Vec::new()),
            false => Ok(dumps),
        }
    }
}
