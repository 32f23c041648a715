//! What a device runs, its one encoding, and its hash h. Source: docs/measurement.md, 3; LAP/1 3.3.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use sha2::{Digest as _, Sha256};

use crate::digest::{Digest, HashAlgorithm};
use crate::fields::Fields;
use crate::files::{ContentHash, FileEntry, FilePath, LinkTarget, Mode};
use crate::pcr::{PcrIndex, PcrValues};

/// What every encoding begins with, so that no other hash is of such bytes.
const DOMAIN: &[u8; 24] = b"linewarden configuration";
const VERSION: u8 = 1;
/// The longest encoding. 16,384 files with paths of 100 bytes take 2.3 MB.
pub const CONFIGURATION_BYTES_MAX: usize = 16 << 20;

/// Why there is no such configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigurationError {
    /// Two configurations could be made that have the same values.
    #[error("values of the bank {0} prove nothing: its hash is broken")]
    WeakBank(HashAlgorithm),
    /// One configuration cannot be laid over another.
    #[error("values of the bank {over} cannot be laid over values of the bank {bank}")]
    OtherBank {
        /// Of the one below.
        bank: HashAlgorithm,
        /// Of the one that is laid over it.
        over: HashAlgorithm,
    },
    /// Longer than any that is meant.
    #[error("the configuration takes {0} bytes, more than {CONFIGURATION_BYTES_MAX}: list fewer files")]
    TooLong(usize),
    /// The bytes are no configuration, or are not written in the one way.
    #[error("byte {at} of the configuration: {problem}")]
    Encoding {
        /// Where the field that is wrong ends, or where there is not enough left for it.
        at: usize,
        /// What is wrong.
        problem: EncodingProblem,
    },
}

/// What is wrong with an encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodingProblem {
    /// It ends too early.
    #[error("it ends before its {0}")]
    Truncated(&'static str),
    /// It begins with something else.
    #[error("this is no configuration of version {VERSION}")]
    Domain,
    /// Not one of TPM_ALG_ID's that are known.
    #[error("no bank has the number {0:#06x}")]
    Bank(u16),
    /// PCRs or paths are not in strictly ascending order.
    #[error("the {0} does not come after the one before it")]
    Order(&'static str),
    /// An index above 23.
    #[error("there is no PCR {0}")]
    Pcr(u8),
    /// Not in its shortest form, or longer than paths are.
    #[error("a path is not in its one form")]
    Path,
    /// A number that stands for no kind of entry.
    #[error("no kind of entry has the number {0}")]
    Kind(u8),
    /// More than twelve bits, or a link's text that none can have.
    #[error("a mode or a link's text is none")]
    Value,
    /// It goes on after its end.
    #[error("bytes follow its end")]
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

/// Values of selected PCRs of one bank, and what lies at configured paths. Two of them are equal exactly if their encodings
/// are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Configuration {
    pcrs: PcrValues,
    files: BTreeMap<FilePath, FileEntry>,
}

impl Configuration {
    /// Without a TPM there are no values of PCRs, and without configured paths no files.
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

    /// The PCRs' values.
    pub const fn pcrs(&self) -> &PcrValues {
        &self.pcrs
    }

    /// What lies at each path.
    pub const fn files(&self) -> &BTreeMap<FilePath, FileEntry> {
        &self.files
    }

    /// This configuration with another one laid over it: PCRs and paths of that one take the place of those of the same index
    /// or path, or are added.
    ///
    /// # Errors
    /// PCRs of another bank, or an encoding above [`CONFIGURATION_BYTES_MAX`].
    pub fn overlaid(&self, over: &Self) -> Result<Self, ConfigurationError> {
        // Without values there is no bank to keep to.
        let takes_bank = self.pcrs.selection().is_empty() && !over.pcrs.selection().is_empty();
        let mut pcrs = match takes_bank {
            true => PcrValues::new(over.pcrs.bank()),
            false => self.pcrs.clone(),
        };
        for (index, value) in over.pcrs.iter() {
            pcrs.set(index, *value)
                .map_err(|_| ConfigurationError::OtherBank {
                    bank: self.pcrs.bank(),
                    over: over.pcrs.bank(),
                })?;
        }
        let mut files = self.files.clone();
        files.extend(
            over.files
                .iter()
                .map(|(path, entry)| (path.clone(), entry.clone())),
        );
        Self::new(pcrs, files)
    }

    /// h.
    pub fn hash(&self) -> ConfigurationHash {
        ConfigurationHash(Sha256::digest(self.encode()).into())
    }

    /// Its one encoding (docs/measurement.md, 3). Numbers are big-endian.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = DOMAIN.to_vec();
        bytes.push(VERSION);
        bytes.extend(self.pcrs.bank().tcg_id().to_be_bytes());
        // At most 24, and as many entries as fit into memory have a number of 32 bits within the length's limit.
        bytes.push(self.pcrs.selection().len() as u8);
        for (index, value) in self.pcrs.iter() {
            bytes.push(index.get() as u8);
            bytes.extend(value.as_bytes());
        }
        bytes.extend((self.files.len() as u32).to_be_bytes());
        for (path, entry) in &self.files {
            sized(&mut bytes, path.as_bytes());
            encode_entry(&mut bytes, entry);
        }
        bytes
    }

    /// Reads an encoding: the only one of what it stands for, or none.
    ///
    /// # Errors
    /// [`ConfigurationError`], with the place of the first field that is wrong.
    pub fn decode(bytes: &[u8]) -> Result<Self, ConfigurationError> {
        if bytes.len() > CONFIGURATION_BYTES_MAX {
            return Err(ConfigurationError::TooLong(bytes.len()));
        }
        let mut fields = Fields::new(bytes);
        let decoded = decode(&mut fields).map_err(|problem| ConfigurationError::Encoding {
            at: bytes.len() - fields.rest().len(),
            problem,
        });
        let (pcrs, files) = decoded?;
        Self::new(pcrs, files)
    }
}

/// Paths and links' texts have at most 4,095 bytes.
fn sized(bytes: &mut Vec<u8>, text: &[u8]) {
    bytes.extend((text.len() as u16).to_be_bytes());
    bytes.extend(text);
}

fn encode_entry(bytes: &mut Vec<u8>, entry: &FileEntry) {
    let mut kind = |kind: u8, mode: &Mode| {
        bytes.push(kind);
        bytes.extend(mode.get().to_be_bytes());
    };
    match entry {
        FileEntry::Absent => bytes.push(0),
        FileEntry::File { mode, content } => {
            kind(1, mode);
            bytes.extend(content.0);
        }
        FileEntry::Link { target } => {
            bytes.push(2);
            sized(bytes, target.as_bytes());
        }
        FileEntry::Directory { mode } => kind(3, mode),
        FileEntry::Fifo { mode } => kind(4, mode),
        FileEntry::Socket { mode } => kind(5, mode),
        FileEntry::CharacterDevice { mode, device } => {
            kind(6, mode);
            encode_device(bytes, *device);
        }
        FileEntry::BlockDevice { mode, device } => {
            kind(7, mode);
            encode_device(bytes, *device);
        }
    }
}

fn encode_device(bytes: &mut Vec<u8>, (major, minor): (u32, u32)) {
    bytes.extend(major.to_be_bytes());
    bytes.extend(minor.to_be_bytes());
}

type Decoded<T> = Result<T, EncodingProblem>;

fn decode(fields: &mut Fields<'_>) -> Decoded<(PcrValues, BTreeMap<FilePath, FileEntry>)> {
    if fields.take(DOMAIN.len()) != Some(DOMAIN) || fields.u8() != Some(VERSION) {
        return Err(EncodingProblem::Domain);
    }
    let pcrs = decode_pcrs(fields)?;
    let count = need(fields.u32_be(), "number of files")?;
    let mut files = BTreeMap::new();
    for _ in 0..count {
        let path = FilePath::new(need(fields.sized_u16_be(), "path")?).map_err(|_| EncodingProblem::Path)?;
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

fn decode_pcrs(fields: &mut Fields<'_>) -> Decoded<PcrValues> {
    let bank = need(fields.u16_be(), "bank")?;
    let bank = HashAlgorithm::from_tcg_id(bank).ok_or(EncodingProblem::Bank(bank))?;
    let mut pcrs = PcrValues::new(bank);
    for _ in 0..need(fields.u8(), "number of PCRs")? {
        let index = need(fields.u8(), "PCR")?;
        let index = PcrIndex::try_from(u32::from(index)).map_err(|_| EncodingProblem::Pcr(index))?;
        if pcrs.iter().last().is_some_and(|(last, _)| last >= index) {
            return Err(EncodingProblem::Order("PCR"));
        }
        let value = fields.take(bank.digest_bytes());
        let value = value.and_then(|value| Digest::new(bank, value).ok());
        // It is of the bank.
        let _ = pcrs.set(index, need(value, "PCR's value")?);
    }
    Ok(pcrs)
}

fn decode_entry(fields: &mut Fields<'_>) -> Decoded<FileEntry> {
    Ok(match need(fields.u8(), "kind")? {
        0 => FileEntry::Absent,
        1 => FileEntry::File {
            mode: decode_mode(fields)?,
            content: ContentHash(need(fields.array(), "content's hash")?),
        },
        2 => {
            let text = need(fields.sized_u16_be(), "link's text")?;
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
        other => return Err(EncodingProblem::Kind(other)),
    })
}

fn decode_mode(fields: &mut Fields<'_>) -> Decoded<Mode> {
    Mode::new(need(fields.u16_be(), "mode")?).ok_or(EncodingProblem::Value)
}

fn decode_device(fields: &mut Fields<'_>) -> Decoded<(u32, u32)> {
    let mut number = || need(fields.u32_be(), "device's number");
    Ok((number()?, number()?))
}

fn need<T>(field: Option<T>, name: &'static str) -> Decoded<T> {
    field.ok_or(EncodingProblem::Truncated(name))
}
