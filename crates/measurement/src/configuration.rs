//! The configuration of a device, its canonical encoding, and its hash h. Source: docs/measurement.md, 3; LAP/1 3.3.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use sha2::{Digest as _, Sha256};

use crate::byte_reader::ByteReader;
use crate::digest::{Digest, HashAlgorithm};
use crate::files::{ContentHash, FileEntry, FilePath, LinkTarget, Mode};
use crate::pcr::{PcrIndex, PcrValues};

/// Start of every encoding, so that no hash of other data covers the same bytes.
const DOMAIN: &[u8; 24] = b"linewarden configuration";
const VERSION: u8 = 1;
/// Maximum length of an encoding. 16,384 files with paths of 100 bytes take 2.3 MB.
pub const CONFIGURATION_BYTES_MAX: usize = 16 << 20;

/// Why a configuration is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigurationError {
    /// Different configurations can have the same values in this bank.
    #[error("PCR bank {0} rejected: its hash algorithm is broken; use sha256")]
    WeakBank(HashAlgorithm),
    /// The two configurations have different banks.
    #[error("overlay rejected: its PCR bank is {overlay}, that of the base is {bank}")]
    BankMismatch {
        /// The bank of the base.
        bank: HashAlgorithm,
        /// The bank of the overlay.
        overlay: HashAlgorithm,
    },
    /// The encoding is longer than the maximum.
    #[error("configuration too long: {0} bytes, the maximum is {CONFIGURATION_BYTES_MAX}; list fewer files")]
    TooLong(usize),
    /// The bytes are not a configuration, or not its canonical encoding.
    #[error("invalid configuration at byte {offset}: {problem}")]
    InvalidEncoding {
        /// The end of the invalid field, or the position where bytes are missing.
        offset: usize,
        /// The problem.
        problem: EncodingProblem,
    },
}

/// Why an encoding is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodingProblem {
    /// The encoding ends too early.
    #[error("the encoding ends before the {0}")]
    Truncated(&'static str),
    /// The encoding does not begin with the expected text and version.
    #[error("not a configuration of version {VERSION}")]
    Domain,
    /// The TPM_ALG_ID is unknown.
    #[error("unknown bank {0:#06x}")]
    Bank(u16),
    /// PCRs or paths are not in strictly ascending order.
    #[error("the {0} is not in ascending order")]
    Order(&'static str),
    /// An index above 23.
    #[error("invalid PCR {0}")]
    Pcr(u8),
    /// A path is not in its shortest form, or too long.
    #[error("a path is not in canonical form")]
    Path,
    /// A number that is no entry type.
    #[error("unknown entry type {0}")]
    Kind(u8),
    /// More than twelve mode bits, or an impossible link target.
    #[error("invalid mode or link target")]
    Value,
    /// Bytes follow the end of the encoding.
    #[error("trailing bytes")]
    Trailing,
}

/// h: the SHA-256 of a configuration's encoding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConfigurationHash(pub [u8; 32]);

impl fmt::Display for ConfigurationHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for ConfigurationHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for ConfigurationHash {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Values of selected PCRs of one bank, and the files at configured paths. Two configurations are equal exactly if
/// their encodings are equal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Configuration {
    pcrs: PcrValues,
    files: BTreeMap<FilePath, FileEntry>,
}

impl Configuration {
    /// A configuration of these PCR values and files. Without a TPM there are no PCR values; without configured paths
    /// there are no files.
    ///
    /// # Errors
    /// A bank of SHA-1, or an encoding above [`CONFIGURATION_BYTES_MAX`].
    pub fn new(pcrs: PcrValues, files: BTreeMap<FilePath, FileEntry>) -> Result<Self, ConfigurationError> {
        if pcrs.bank() == HashAlgorithm::Sha1 {
            return Err(ConfigurationError::WeakBank(pcrs.bank()));
        }
        let configuration = Self { pcrs, files };
        match configuration.encode().len() {
            ..=CONFIGURATION_BYTES_MAX => Ok(configuration),
            bytes => Err(ConfigurationError::TooLong(bytes)),
        }
    }

    /// The PCR values.
    pub const fn pcrs(&self) -> &PcrValues {
        &self.pcrs
    }

    /// The entry at each path.
    pub const fn files(&self) -> &BTreeMap<FilePath, FileEntry> {
        &self.files
    }

    /// This configuration with an overlay: PCRs and paths of the overlay replace those with the same index or path,
    /// or are added.
    ///
    /// # Errors
    /// PCRs of another bank, or an encoding above [`CONFIGURATION_BYTES_MAX`].
    pub fn with_overlay(&self, overlay: &Self) -> Result<Self, ConfigurationError> {
        // Without values the bank is irrelevant.
        let takes_bank = self.pcrs.selection().is_empty() && !overlay.pcrs.selection().is_empty();
        let mut pcrs = match takes_bank {
            true => PcrValues::new(overlay.pcrs.bank()),
            false => self.pcrs.clone(),
        };
        for (index, value) in overlay.pcrs.iter() {
            pcrs.set(index, *value)
                .map_err(|_| ConfigurationError::BankMismatch {
                    bank: self.pcrs.bank(),
                    overlay: overlay.pcrs.bank(),
                })?;
        }
        let mut files = self.files.clone();
        files.extend(
            overlay
                .files
                .iter()
                .map(|(path, entry)| (path.clone(), entry.clone())),
        );
        Self::new(pcrs, files)
    }

    /// The hash h.
    pub fn hash(&self) -> ConfigurationHash {
        ConfigurationHash(Sha256::digest(self.encode()).into())
    }

    /// The canonical encoding (docs/measurement.md, 3). Numbers are big-endian.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = DOMAIN.to_vec();
        bytes.push(VERSION);
        bytes.extend(self.pcrs.bank().tcg_id().to_be_bytes());
        // At most 24 PCRs, and within the length limit the number of entries fits 32 bits.
        bytes.push(self.pcrs.selection().len() as u8);
        for (index, value) in self.pcrs.iter() {
            bytes.push(index.get() as u8);
            bytes.extend(value.as_bytes());
        }
        bytes.extend((self.files.len() as u32).to_be_bytes());
        for (path, entry) in &self.files {
            write_sized(&mut bytes, path.as_bytes());
            encode_entry(&mut bytes, entry);
        }
        bytes
    }

    /// Decodes a canonical encoding.
    ///
    /// # Errors
    /// [`ConfigurationError`], with the position at which decoding stopped.
    pub fn decode(bytes: &[u8]) -> Result<Self, ConfigurationError> {
        if bytes.len() > CONFIGURATION_BYTES_MAX {
            return Err(ConfigurationError::TooLong(bytes.len()));
        }
        let mut fields = ByteReader::new(bytes);
        let decoded = decode(&mut fields).map_err(|problem| ConfigurationError::InvalidEncoding {
            offset: bytes.len() - fields.rest().len(),
            problem,
        });
        let (pcrs, files) = decoded?;
        Self::new(pcrs, files)
    }
}

/// Writes the length in 16 bits, then the text. Paths and link targets have at most 4,095 bytes.
fn write_sized(bytes: &mut Vec<u8>, text: &[u8]) {
    bytes.extend((text.len() as u16).to_be_bytes());
    bytes.extend(text);
}

fn encode_entry(bytes: &mut Vec<u8>, entry: &FileEntry) {
    let mut write_kind_and_mode = |kind: u8, mode: &Mode| {
        bytes.push(kind);
        bytes.extend(mode.get().to_be_bytes());
    };
    match entry {
        FileEntry::Absent => bytes.push(0),
        FileEntry::File { mode, content } => {
            write_kind_and_mode(1, mode);
            bytes.extend(content.0);
        }
        FileEntry::Link { target } => {
            bytes.push(2);
            write_sized(bytes, target.as_bytes());
        }
        FileEntry::Directory { mode } => write_kind_and_mode(3, mode),
        FileEntry::Fifo { mode } => write_kind_and_mode(4, mode),
        FileEntry::Socket { mode } => write_kind_and_mode(5, mode),
        FileEntry::CharacterDevice { mode, device } => {
            write_kind_and_mode(6, mode);
            encode_device(bytes, *device);
        }
        FileEntry::BlockDevice { mode, device } => {
            write_kind_and_mode(7, mode);
            encode_device(bytes, *device);
        }
    }
}

fn encode_device(bytes: &mut Vec<u8>, (major, minor): (u32, u32)) {
    bytes.extend(major.to_be_bytes());
    bytes.extend(minor.to_be_bytes());
}

type DecodeResult<T> = Result<T, EncodingProblem>;

fn decode(fields: &mut ByteReader<'_>) -> DecodeResult<(PcrValues, BTreeMap<FilePath, FileEntry>)> {
    if fields.take(DOMAIN.len()) != Some(DOMAIN) || fields.u8() != Some(VERSION) {
        return Err(EncodingProblem::Domain);
    }
    let pcrs = decode_pcrs(fields)?;
    let count = require(fields.u32_be(), "number of files")?;
    let mut files = BTreeMap::new();
    for _ in 0..count {
        let path =
            FilePath::new(require(fields.sized_u16_be(), "path")?).map_err(|_| EncodingProblem::Path)?;
        if files.last_key_value().is_some_and(|(last, _)| *last >= path) {
            return Err(EncodingProblem::Order("path"));
        }
        files.insert(path, decode_entry(fields)?);
    }
    match fields.rest() {
        [] => Ok((pcrs, files)),
        _ => Err(EncodingProblem::Trailing),
    }
}

fn decode_pcrs(fields: &mut ByteReader<'_>) -> DecodeResult<PcrValues> {
    let bank = require(fields.u16_be(), "bank")?;
    let bank = HashAlgorithm::from_tcg_id(bank).ok_or(EncodingProblem::Bank(bank))?;
    let mut pcrs = PcrValues::new(bank);
    for _ in 0..require(fields.u8(), "number of PCRs")? {
        let index = require(fields.u8(), "PCR")?;
        let index = PcrIndex::try_from(u32::from(index)).map_err(|_| EncodingProblem::Pcr(index))?;
        if pcrs.iter().last().is_some_and(|(last, _)| last >= index) {
            return Err(EncodingProblem::Order("PCR"));
        }
        let value = fields.take(bank.digest_bytes());
        let value = value.and_then(|value| Digest::new(bank, value).ok());
        // `set` cannot fail, because the value is of the bank.
        let _ = pcrs.set(index, require(value, "PCR's value")?);
    }
    Ok(pcrs)
}

fn decode_entry(fields: &mut ByteReader<'_>) -> DecodeResult<FileEntry> {
    Ok(match require(fields.u8(), "kind")? {
        0 => FileEntry::Absent,
        1 => FileEntry::File {
            mode: decode_mode(fields)?,
            content: ContentHash(require(fields.array(), "content's hash")?),
        },
        2 => {
            let text = require(fields.sized_u16_be(), "link's text")?;
            FileEntry::Link {
                target: LinkTarget::new(text).ok_or(EncodingProblem::Value)?,
            }
        }
        3 => FileEntry::Directory {
            mode: decode_mode(fields)?,
        },
        4 => FileEntry::Fifo {
            mode: decode_mode(fields)?,
        },
        5 => FileEntry::Socket {
            mode: decode_mode(fields)?,
        },
        6 => FileEntry::CharacterDevice {
            mode: decode_mode(fields)?,
            device: decode_device(fields)?,
        },
        7 => FileEntry::BlockDevice {
            mode: decode_mode(fields)?,
            device: decode_device(fields)?,
        },
        number => return Err(EncodingProblem::Kind(number)),
    })
}

fn decode_mode(fields: &mut ByteReader<'_>) -> DecodeResult<Mode> {
    Mode::new(require(fields.u16_be(), "mode")?).ok_or(EncodingProblem::Value)
}

fn decode_device(fields: &mut ByteReader<'_>) -> DecodeResult<(u32, u32)> {
    let mut number = || require(fields.u32_be(), "device's number");
    Ok((number()?, number()?))
}

fn require<T>(field: Option<T>, name: &'static str) -> DecodeResult<T> {
    field.ok_or(EncodingProblem::Truncated(name))
}
