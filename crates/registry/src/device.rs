//! Records of devices: for enrollment, and without credentials for display.

use linewarden_types::Revision;
use std::ops::Range;

use linewarden_protocol::ids::{DeviceId, Mode, RowIndex, Suite};

use crate::credentials::{Credentials, POOL_ROWS_MAX};
use crate::error::{DeviceError, RegistryError, Result};

/// Maximum length of a device name, bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Maximum length of a PUF profile, and of the reason of a revocation or quarantine, bytes.
pub const TEXT_BYTES_MAX: usize = 65_536;

/// A device to enroll.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceRecord {
    /// The device id, chosen at enrollment, never 0.
    pub device: DeviceId,
    /// A display name; may be empty, need not be unique.
    pub name: String,
    /// The cipher suite of the device.
    pub suite: Suite,
    /// Time of the enrollment, seconds since 1970-01-01 UTC.
    pub enrolled_at_s: u64,
    /// PUF and error correction, as text for the enrolling side only.
    pub puf_profile: String,
    /// The credentials.
    pub credentials: Credentials,
}

/// A device record without its credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The device id.
    pub device: DeviceId,
    /// The name, for display.
    pub name: String,
    /// Pool mode or key mode.
    pub mode: Mode,
    /// The cipher suite of the device.
    pub suite: Suite,
    /// Active or revoked.
    pub status: Status,
    /// The quarantine, if the device is in quarantine.
    pub quarantine: Option<Quarantine>,
    /// Time of the enrollment, seconds since 1970-01-01 UTC.
    pub enrolled_at_s: u64,
    /// Number of the first row of the pool; 0 in key mode.
    pub first_idx: RowIndex,
    /// Number of rows in the pool; 0 in key mode.
    pub rows_total: u32,
    /// From this row on, no row is leased or was used. Lower rows may be unleased, too, if a gateway has returned or
    /// skipped them. In key mode, the counter of the next lease starts at this value.
    pub idx_floor: RowIndex,
    /// Number of replacements of the credentials.
    pub epoch: u32,
    /// Revision of the last change.
    pub revision: Revision,
    /// PUF and error correction.
    pub puf_profile: String,
    /// Number of changes of `idx_floor`.
    pub(crate) floor_version: i64,
}

/// The quarantine of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quarantine {
    /// Start, seconds since 1970-01-01 UTC.
    pub at_s: u64,
    /// The reason, for display.
    pub reason: String,
}

impl DeviceInfo {
    /// Whether the device may authenticate: neither revoked nor in quarantine.
    #[must_use]
    pub fn may_authenticate(&self) -> bool {
        self.status.is_active() && self.quarantine.is_none()
    }

    /// Refuses a device that may not authenticate.
    pub(crate) fn check_may_authenticate(&self) -> Result<()> {
        let device = self.device;
        match (self.status.is_active(), &self.quarantine) {
            (false, _) => Err(RegistryError::Device(DeviceError::Revoked { device })),
            (true, Some(_)) => Err(RegistryError::Device(DeviceError::Quarantined { device })),
            (true, None) => Ok(()),
        }
    }

    /// The row numbers of the pool; in key mode all numbers except the highest, because `idx` is only a counter.
    #[must_use]
    pub fn indices(&self) -> Range<u32> {
        match self.mode {
            Mode::Pool => self.first_idx.0..self.first_idx.0.saturating_add(self.rows_total),
            // The last number is excluded, so that a next number always exists.
            Mode::Key => 0..u32::MAX,
        }
    }

    /// Number of rows from `idx_floor` on; `None` in key mode, which has no limit.
    #[must_use]
    pub fn rows_left(&self) -> Option<u32> {
        (self.mode == Mode::Pool).then(|| self.indices().end.saturating_sub(self.idx_floor.0))
    }
}

/// Whether a device is active or revoked; a [quarantine](Quarantine) is separate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// The device may authenticate, unless the device is in quarantine.
    Active,
    /// The device may never authenticate again under this id (LAP/1 1.4.8).
    Revoked {
        /// Time, seconds since 1970-01-01 UTC.
        at_s: u64,
        /// The reason, for display.
        reason: String,
    },
}

impl Status {
    /// Whether the status is [`Status::Active`].
    #[must_use]
    pub fn is_active(&self) -> bool {
        matches!(self, Self::Active)
    }
}

impl DeviceRecord {
    /// Validates the record before it is stored.
    pub(crate) fn validate(&self) -> Result<()> {
        let refuse = |field, problem: String| {
            Err(RegistryError::Device(DeviceError::InvalidRecord {
                device: self.device,
                field,
                problem,
            }))
        };
        if self.device.0 == 0 {
            return refuse("device_id", "0 is not a valid id; choose another one".to_owned());
        }
        if let Err(problem) = check_text(&self.name, NAME_BYTES_MAX, false) {
            return refuse("name", problem);
        }
        if let Err(problem) = check_text(&self.puf_profile, TEXT_BYTES_MAX, false) {
            return refuse("puf_profile", problem);
        }
        if i64::try_from(self.enrolled_at_s).is_err() {
            return refuse(
                "enrolled_at_s",
                "not a valid time in seconds since 1970".to_owned(),
            );
        }
        match self.credentials.problem() {
            Some(problem) => refuse("credentials", problem),
            None => Ok(()),
        }
    }
}

/// Refuses long texts and control characters, because texts are printed on terminals. If `permits_lines` is true, line
/// feeds are permitted.
pub(crate) fn check_text(text: &str, bytes_max: usize, permits_lines: bool) -> Result<(), String> {
    if text.len() > bytes_max {
        return Err(format!("{} B long; the maximum is {bytes_max} B", text.len()));
    }
    match text
        .chars()
        .find(|character| character.is_control() && !(permits_lines && *character == '\n'))
    {
        Some(character) => Err(format!("contains the control character {character:?}")),
        None => Ok(()),
    }
}

impl Credentials {
    fn problem(&self) -> Option<String> {
        let zero = [0u8; 16];
        match self {
            Self::Key(key) => (key.as_bytes() == &zero).then(|| "the key is all zero".to_owned()),
            Self::Pool { rows, .. } if rows.is_empty() || rows.len() > POOL_ROWS_MAX => {
                Some(format!("{} rows; 1 to {POOL_ROWS_MAX} are accepted", rows.len()))
            }
            Self::Pool { first_idx, rows } => {
                let end = u32::try_from(rows.len())
                    .ok()
                    .and_then(|count| first_idx.0.checked_add(count));
                let zero_row = rows.iter().position(|row| row.row_key.as_bytes() == &zero);
                match (end, zero_row) {
                    (None, _) => Some(format!(
                        "{} rows from {first_idx} exceed the highest row number",
                        rows.len()
                    )),
                    (_, Some(position)) => {
                        Some(format!("the key at position {position} of the pool is all zero"))
                    }
                    _ => None,
                }
            }
        }
    }
}
