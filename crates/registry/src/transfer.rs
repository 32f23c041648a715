//! Export and import in JSON lines: one header, then one device per line.
//!
//! By default only public information is exported. With an [`ExportKey`] each line also contains the device's
//! credentials, sealed under that key and bound to every other field of the line. So an edited line (for example with a
//! lower `idx_floor`, or without a revocation) does not open.
//!
//! ```text
//! {"linewarden_export":1,"salt":"…32 hex digits…","devices":2}
//! {"device_id":"00000000000000d1","name":"pump 7","mode":"pool","suite":1,"status":"active", … ,"sealed":"…"}
//! {"device_id":"00000000000000d2", … }
//! ```

use std::collections::HashMap;
use std::io::Write;

use linewarden_protocol::ids::{DeviceId, Mode, RowIndex, Suite};
use linewarden_types::Revision;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::credentials::Credentials;
use crate::device::{DeviceInfo, DeviceRecord, Quarantine, Status, TEXT_BYTES_MAX, check_text};
use crate::enroll::{NewDevice, Progress};
use crate::error::{DatabaseError, RegistryError, Result};
use crate::fingerprint::Fingerprint;
use crate::key::ExportKey;
use crate::sql::{self, Connection};

use crate::sqlite::{draft_path, publish, refuse_existing};
use crate::store::Registry;
use crate::walk::StoredDevice;
use linewarden_files::seal::Sealer;

/// Version of the file format.
const FORMAT: u32 = 1;
const SEALING_PURPOSE: &str = "linewarden export sealing v1";
const SEALING_LABEL: &[u8] = b"linewarden export device v1";
const CHUNK_DEVICES: u32 = 1000;

/// First line of an export file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Header {
    linewarden_export: u32,
    /// Salt of the sealing key, 16 bytes in hexadecimal; absent if the file contains no credentials.
    #[serde(skip_serializing_if = "Option::is_none")]
    salt: Option<String>,
    /// Number of lines that follow.
    pub(crate) devices: u64,
}

/// A device as one line of JSON, in export files and in the output of commands.
// There are more than 15 fields because a line of the file is a flat JSON object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceLine {
    /// The device id, 16 hexadecimal digits.
    pub device_id: String,
    /// The name, for display.
    pub name: String,
    /// "pool" or "key".
    pub mode: String,
    /// Number of the suite.
    pub suite: u8,
    /// "active", "quarantined" or "revoked".
    pub status: String,
    /// Time of the enrollment, seconds since 1970-01-01 UTC.
    pub enrolled_at_s: u64,
    /// Time of the revocation, seconds since 1970-01-01 UTC; only for revoked devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at_s: Option<u64>,
    /// The reason of the revocation; only for revoked devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_reason: Option<String>,
    /// Start of the quarantine, seconds since 1970-01-01 UTC; only for devices in quarantine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quarantined_at_s: Option<u64>,
    /// The reason of the quarantine; only for devices in quarantine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quarantined_reason: Option<String>,
    /// First row of the pool; 0 in key mode.
    pub first_idx: u32,
    /// Rows in the pool; 0 in key mode.
    pub rows_total: u32,
    /// From this row on, no row is leased or was used ([`DeviceInfo::idx_floor`]).
    pub idx_floor: u32,
    /// Number of replacements of the credentials.
    pub epoch: u32,
    /// PUF and error correction.
    pub puf_profile: String,
    /// Sealed credentials in hexadecimal; only in export files with an export key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sealed: Option<String>,
}

impl From<&DeviceInfo> for DeviceLine {
    fn from(info: &DeviceInfo) -> Self {
        let (status, revoked_at_s, revoked_reason) = match &info.status {
            Status::Active if info.quarantine.is_some() => ("quarantined", None, None),
            Status::Active => ("active", None, None),
            Status::Revoked { at_s, reason } => ("revoked", Some(*at_s), Some(reason.clone())),
        };
        // Revocation is permanent and supersedes a quarantine.
        let quarantine = info.quarantine.as_ref().filter(|_| info.status.is_active());
        let mode = match info.mode {
            Mode::Pool => "pool",
            Mode::Key => "key",
        };
        Self {
            device_id: info.device.to_string(),
            name: info.name.clone(),
            mode: mode.to_owned(),
            suite: info.suite.number(),
            status: status.to_owned(),
            enrolled_at_s: info.enrolled_at_s,
            revoked_at_s,
            revoked_reason,
            quarantined_at_s: quarantine.map(|quarantine| quarantine.at_s),
            quarantined_reason: quarantine.map(|quarantine| quarantine.reason.clone()),
            first_idx: info.first_idx.0,
            rows_total: info.rows_total,
            idx_floor: info.idx_floor.0,
            epoch: info.epoch,
            puf_profile: info.puf_profile.clone(),
            sealed: None,
        }
    }
}

impl DeviceLine {
    /// The associated data of the sealed credentials: the line without the credentials, as this program writes the line.
    fn aad(&self) -> Result<Vec<u8>> {
        let mut aad = SEALING_LABEL.to_vec();
        let without_sealed = Self {
            sealed: None,
            ..self.clone()
        };
        serde_json::to_writer(&mut aad, &without_sealed).map_err(|error| export_error(error.into()))?;
        Ok(aad)
    }
}

/// The action of an export for damaged records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDamage {
    /// Refuse the export.
    Refuse,
    /// Skip damaged records and report them.
    Skip,
}

/// The result of an export.
#[derive(Debug)]
pub struct ExportSummary {
    /// Devices in the file.
    pub devices: u64,
    /// Errors of the devices that were skipped, with their ids.
    pub damaged: Vec<RegistryError>,
}

/// Reads all devices as lines, in chunks.
struct DeviceLines<'a> {
    registry: &'a Registry,
    /// Seals the credentials for the export; `None`: the credentials are only checked.
    sealer: Option<Sealer>,
    after: Revision,
}

impl<'a> DeviceLines<'a> {
    fn new(registry: &'a Registry, sealer: Option<Sealer>) -> Self {
        Self {
            registry,
            sealer,
            after: Revision::ZERO,
        }
    }

    /// The lines of the next devices; `None` at the end. If `opens_credentials` is true, the credentials are decrypted and
    /// checked, too.
    async fn next_chunk(
        &mut self,
        snapshot: &mut Connection,
        opens_credentials: bool,
    ) -> Result<Option<Vec<Result<DeviceLine>>>> {
        let (records, up_to) = self
            .registry
            .records_after(snapshot, self.after, CHUNK_DEVICES)
            .await?;
        self.after = up_to;
        let devices: Vec<DeviceId> = records
            .iter()
            .filter_map(|record| Some(record.as_ref().ok()?.info.device))
            .collect();
        let mut fingerprints = match opens_credentials {
            true => self.registry.fingerprints_of(snapshot, &devices).await?,
            false => HashMap::new(),
        };
        let mut line = |record: Result<StoredDevice>| {
            let record = record?;
            let mut line = DeviceLine::from(&record.info);
            if opens_credentials {
                let credentials = self.registry.unseal(&record.info, record.sealed.as_deref())?;
                let fingerprint = fingerprints.remove(&record.info.device).transpose()?;
                if let Some(sealer) = &self.sealer {
                    line.sealed = Some(seal_line(sealer, &line, &credentials, fingerprint.as_ref())?);
                }
            }
            Ok(line)
        };
        Ok((!records.is_empty()).then(|| records.into_iter().map(&mut line).collect()))
    }
}

async fn count(snapshot: &mut Connection) -> Result<u64> {
    let (count,): (i64,) = sql::query("SELECT COUNT(*) FROM device")
        .fetch_one(snapshot)
        .await?;
    Ok(u64::try_from(count).unwrap_or(0))
}

impl Registry {
    /// Writes all devices as JSON lines, as a consistent snapshot.
    ///
    /// Without `key` only public information is written, which cannot be imported.
    ///
    /// # Errors
    /// A failure of `out` or of the database. With [`OnDamage::Refuse`] also a damaged record and, if there is a `key`,
    /// damaged credentials.
    pub async fn export(
        &self,
        out: &mut (impl Write + Send),
        key: Option<&ExportKey>,
        on_damage: OnDamage,
        mut progress: impl FnMut(Progress),
    ) -> Result<ExportSummary> {
        // One read transaction: later changes are not visible, so the number in the header is right.
        let mut snapshot = self.reader().snapshot().await?;
        let total = count(&mut snapshot).await?;
        let mut damaged = Vec::new();
        if on_damage == OnDamage::Skip {
            // The header precedes the lines and contains their number, so damaged records are counted first.
            let mut reader = DeviceLines::new(self, None);
            while let Some(lines) = reader.next_chunk(&mut snapshot, key.is_some()).await? {
                damaged.extend(lines.into_iter().filter_map(Result::err));
            }
        }
        let devices = total.saturating_sub(damaged.len() as u64);
        let (header, sealer) = header(devices, key)?;
        write_line(out, &header)?;
        let mut reader = DeviceLines::new(self, sealer);
        let mut done = 0u64;
        while let Some(lines) = reader.next_chunk(&mut snapshot, key.is_some()).await? {
            for line in lines {
                match line {
                    Ok(line) => write_line(out, &line)?,
                    Err(_) if on_damage == OnDamage::Skip => continue,
                    Err(error) => return Err(error),
                }
                done += 1;
            }
            progress(Progress {
                done,
                total: Some(devices),
            });
        }
        if done != devices {
            let detail = format!("only {done} of {devices} devices have a valid revision");
            return Err(RegistryError::Database(DatabaseError::Damaged { detail }));
        }
        out.flush().map_err(export_error)?;
        Ok(ExportSummary { devices, damaged })
    }

    /// [`Registry::export`] into a new file of mode 0600, which is created atomically.
    ///
    /// # Errors
    /// As [`Registry::export`]; an existing file is not overwritten.
    pub async fn export_file(
        &self,
        path: impl AsRef<std::path::Path>,
        key: Option<&ExportKey>,
        on_damage: OnDamage,
        progress: impl FnMut(Progress),
    ) -> Result<ExportSummary> {
        use std::os::unix::fs::OpenOptionsExt as _;
        let path = path.as_ref();
        refuse_existing(path)?;
        let draft = draft_path(path)?;
        let file = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&draft)
            .map_err(RegistryError::io(format!("create {}", draft.display())))?;
        let mut out = std::io::BufWriter::new(file);
        let result = self
            .export(&mut out, key, on_damage, progress)
            .await
            .and_then(|summary| {
                out.get_ref().sync_all().map_err(export_error)?;
                publish(&draft, path)?;
                Ok(summary)
            });
        // This removes only the temporary name: a published file keeps its final name.
        let _ = std::fs::remove_file(&draft);
        result
    }
}

fn header(devices: u64, key: Option<&ExportKey>) -> Result<(Header, Option<Sealer>)> {
    let Some(key) = key else {
        return Ok((
            Header {
                linewarden_export: FORMAT,
                salt: None,
                devices,
            },
            None,
        ));
    };
    let mut salt = [0u8; 16];
    getrandom::fill(&mut salt).map_err(DatabaseError::NoRandomBytes)?;
    let header = Header {
        linewarden_export: FORMAT,
        salt: Some(hex::encode(salt)),
        devices,
    };
    Ok((header, Some(Sealer::derive(key.expose(), &salt, SEALING_PURPOSE))))
}

/// Seals the credentials, followed by the fingerprint.
fn seal_line(
    sealer: &Sealer,
    line: &DeviceLine,
    credentials: &Credentials,
    fingerprint: Option<&Fingerprint>,
) -> Result<String> {
    let len = credentials.encoded_len() + fingerprint.map_or(0, Fingerprint::encoded_len);
    let sealed = sealer.seal(&line.aad()?, len, |out| {
        credentials.encode(out);
        if let Some(fingerprint) = fingerprint {
            fingerprint.encode(out);
        }
    })?;
    Ok(hex::encode(sealed))
}

fn write_line(out: &mut impl Write, line: &impl Serialize) -> Result<()> {
    serde_json::to_writer(&mut *out, line).map_err(|error| export_error(error.into()))?;
    out.write_all(b"\n").map_err(export_error)
}

fn export_error(error: std::io::Error) -> RegistryError {
    RegistryError::io("write the export")(error)
}

/// Parses a header; the error names the problem.
pub(crate) fn parse_header(text: &[u8], key: &ExportKey) -> Result<(Header, Sealer), String> {
    let header: Header = serde_json::from_slice(text).map_err(|error| {
        format!(
            "not the header of a Linewarden export: {}",
            json_problem(&error, text)
        )
    })?;
    if header.linewarden_export != FORMAT {
        return Err(format!(
            "the export has format {}, but this program reads format {FORMAT}; use the program that wrote it",
            header.linewarden_export
        ));
    }
    let Some(salt) = &header.salt else {
        return Err(
            "the export contains public information only; export again with an export key".to_owned(),
        );
    };
    let salt: [u8; 16] = decode_hex(salt).ok_or("field salt: expected 32 hexadecimal digits")?;
    let sealer = Sealer::derive(key.expose(), &salt, SEALING_PURPOSE);
    Ok((header, sealer))
}

/// Describes a JSON error in a line of the file. The parser's line number is omitted, because it is always 1.
fn json_problem(error: &serde_json::Error, line: &[u8]) -> String {
    if line.trim_ascii().is_empty() {
        return "the line is empty; remove it".to_owned();
    }
    if error.is_eof() {
        return format!(
            "the line ends after {} B: it was truncated; export again",
            line.len()
        );
    }
    let text = error.to_string();
    let position = format!(" at line {} column {}", error.line(), error.column());
    match text.strip_suffix(&position) {
        Some(problem) => format!("{problem} (column {})", error.column()),
        None => text,
    }
}

/// Parses and opens a device's line; the error names the field.
pub(crate) fn parse_device(text: &[u8], sealer: &Sealer) -> Result<NewDevice, String> {
    let line: DeviceLine = serde_json::from_slice(text).map_err(|error| json_problem(&error, text))?;
    let id: [u8; 8] = decode_hex(&line.device_id).ok_or_else(|| {
        format!(
            "field device_id: {:?} is not 16 hexadecimal digits",
            line.device_id
        )
    })?;
    let mode = match line.mode.as_str() {
        "pool" => Mode::Pool,
        "key" => Mode::Key,
        mode => {
            return Err(format!(
                "field mode: unknown mode {mode:?}; expected \"pool\" or \"key\""
            ));
        }
    };
    let suite = Suite::from_number(line.suite)
        .ok_or_else(|| format!("field suite: unsupported suite {}", line.suite))?;
    let (status, quarantine) = parse_status(&line)?;
    let end = line
        .first_idx
        .checked_add(line.rows_total)
        .ok_or("field rows_total: too many rows")?;
    let (credentials, fingerprint) = open_line(&line, sealer, mode, line.first_idx..end)?;
    let record = DeviceRecord {
        device: DeviceId(u64::from_be_bytes(id)),
        name: line.name,
        suite,
        enrolled_at_s: line.enrolled_at_s,
        puf_profile: line.puf_profile,
        credentials,
    };
    record.validate().map_err(|error| error.to_string())?;
    if let Some((first, second)) = record.credentials.repeated_row() {
        return Err(format!(
            "field sealed: rows {first} and {second} of the pool have the same key"
        ));
    }
    Ok(NewDevice {
        record,
        idx_floor: RowIndex(line.idx_floor),
        epoch: line.epoch,
        status,
        quarantine,
        fingerprint,
    })
}

/// Parses status and quarantine.
fn parse_status(line: &DeviceLine) -> Result<(Status, Option<Quarantine>), String> {
    for (field, reason) in [
        ("revoked_reason", &line.revoked_reason),
        ("quarantined_reason", &line.quarantined_reason),
    ] {
        let checked = reason
            .as_deref()
            .map_or(Ok(()), |reason| check_text(reason, TEXT_BYTES_MAX, true));
        checked.map_err(|problem| format!("field {field}: {problem}"))?;
    }
    let revoked = line.revoked_at_s.zip(line.revoked_reason.clone());
    let quarantined = line.quarantined_at_s.zip(line.quarantined_reason.clone());
    let is_incomplete = revoked.is_none() && (line.revoked_at_s.is_some() || line.revoked_reason.is_some())
        || quarantined.is_none() && (line.quarantined_at_s.is_some() || line.quarantined_reason.is_some());
    let is_time = |at_s: u64| i64::try_from(at_s).is_ok();
    match (line.status.as_str(), revoked, quarantined) {
        ("active", None, None) if !is_incomplete => Ok((Status::Active, None)),
        ("quarantined", None, Some((at_s, reason))) if !is_incomplete && is_time(at_s) => {
            Ok((Status::Active, Some(Quarantine { at_s, reason })))
        }
        ("revoked", Some((at_s, reason)), None) if !is_incomplete && is_time(at_s) => {
            Ok((Status::Revoked { at_s, reason }, None))
        }
        _ => Err("the fields for status, revocation and quarantine are inconsistent".to_owned()),
    }
}

fn open_line(
    line: &DeviceLine,
    sealer: &Sealer,
    mode: Mode,
    indices: std::ops::Range<u32>,
) -> Result<(Credentials, Option<Fingerprint>), String> {
    let sealed = line.sealed.as_ref().ok_or("field sealed is missing")?;
    let sealed = hex::decode(sealed).map_err(|error| format!("field sealed: {error}"))?;
    let aad = line.aad().map_err(|error| error.to_string())?;
    let plaintext: Zeroizing<Vec<u8>> = sealer.open(&aad, &sealed).map_err(|_| {
        "field sealed: does not authenticate; the export key is wrong, or the line was modified".to_owned()
    })?;
    let (credentials, tail) = plaintext
        .split_at_checked(Credentials::encoded_len_of(mode, &indices))
        .unwrap_or((&plaintext, &[]));
    let credentials = Credentials::decode(mode, &indices, credentials)
        .map_err(|problem| format!("field sealed: {problem}"))?;
    match (tail, Fingerprint::from_bytes(tail)) {
        ([], _) => Ok((credentials, None)),
        (_, Some(fingerprint)) => Ok((credentials, Some(fingerprint))),
        (_, None) => Err("field sealed: the data after the credentials is not a fingerprint".to_owned()),
    }
}

fn decode_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0u8; N];
    hex::decode_to_slice(text, &mut bytes).ok().map(|()| bytes)
}
