//! A device as it is enrolled, and as the registry shows it.

use std::ops::Range;

use linewarden_protocol::ids::{DeviceId, Mode, RowIndex, Suite};

use crate::credentials::{Credentials, POOL_ROWS_MAX};
use crate::error::{RegistryError, Result};

/// Longest device name, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Longest PUF profile and reason of a revocation or a quarantine, in bytes.
pub const TEXT_BYTES_MAX: usize = 65_536;

/// A device to be enrolled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceRecord {
    /// Its id, never 0, chosen at enrolment.
    pub device: DeviceId,
    /// For people; may be empty, need not be unique.
    pub name: String,
    /// The one suite it speaks.
    pub suite: Suite,
    /// Seconds since 1970-01-01 UTC.
    pub enrolled_at_s: u64,
    /// Which PUF and error correction it has, as text that only the enrolling side reads.
    pub puf_profile: String,
    /// What proves it.
    pub credentials: Credentials,
}

/// A device as the registry shows it: everything but its credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its id.
    pub device: DeviceId,
    /// For people.
    pub name: String,
    /// Pool or key.
    pub mode: Mode,
    /// The one suite it speaks.
    pub suite: Suite,
    /// Active, or revoked for good.
    pub status: Status,
    /// Why it is shut out for the time being, if it is.
    pub quarantine: Option<Quarantine>,
    /// Seconds since 1970-01-01 UTC.
    pub enrolled_at_s: u64,
    /// Number of the first row of its pool; 0 in key mode.
    pub first_idx: RowIndex,
    /// Rows in its pool; 0 in key mode.
    pub rows_total: u32,
    /// The durable mark: no row below it may be handed out any more. In key mode the next number to count with.
    pub idx_floor: RowIndex,
    /// How often its credentials have been replaced.
    pub epoch: u32,
    /// The registry's revision at its last change.
    pub revision: Revision,
    /// Which PUF and error correction it has.
    pub puf_profile: String,
    /// Counts every move of `idx_floor`.
    pub(crate) floor_version: i64,
}

/// Why a device is shut out for the time being.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quarantine {
    /// Since when, in seconds since 1970-01-01 UTC.
    pub at_s: u64,
    /// Why, for people.
    pub reason: String,
}

impl DeviceInfo {
    /// Whether it may authenticate: it is neither revoked nor in quarantine.
    #[must_use]
    pub fn may_authenticate(&self) -> bool {
        self.status.is_active() && self.quarantine.is_none()
    }

    /// Refuses one that may not authenticate.
    pub(crate) fn admit(&self) -> Result<()> {
        let device = self.device;
        match (self.status.is_active(), &self.quarantine) {
            (false, _) => Err(RegistryError::Revoked { device }),
            (true, Some(_)) => Err(RegistryError::Quarantined { device }),
            (true, None) => Ok(()),
        }
    }

    /// The row numbers of its pool; in key mode every number, since `idx` only counts there.
    #[must_use]
    pub fn indices(&self) -> Range<u32> {
        match self.mode {
            Mode::Pool => self.first_idx.0..self.first_idx.0.saturating_add(self.rows_total),
            // The last number is never reached, so that the one after it always exists.
            Mode::Key => 0..u32::MAX,
        }
    }

    /// Rows that may still be handed out; `None` in key mode, which never runs out.
    #[must_use]
    pub fn rows_left(&self) -> Option<u32> {
        (self.mode == Mode::Pool).then(|| self.indices().end.saturating_sub(self.idx_floor.0))
    }
}

/// Whether a device may authenticate, if it is not in [quarantine](Quarantine).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// It may.
    Active,
    /// It may not, ever again under this id (LAP/1 1.4.8).
    Revoked {
        /// When, in seconds since 1970-01-01 UTC.
        at_s: u64,
        /// Why, for people.
        reason: String,
    },
}

impl Status {
    /// Whether it is [`Status::Active`].
    #[must_use]
    pub fn is_active(&self) -> bool {
        matches!(self, Self::Active)
    }
}

/// A count of changes to the registry's devices; each change has its own, later ones higher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

impl Revision {
    /// Before any change: `changes_since(Revision::ZERO)` tells everything.
    pub const ZERO: Self = Self(0);
}

impl DeviceRecord {
    /// Refuses what must never be stored.
    pub(crate) fn validate(&self) -> Result<()> {
        let refuse = |field, problem: String| {
            Err(RegistryError::InvalidRecord {
                device: self.device,
                field,
                problem,
            })
        };
        if self.device.0 == 0 {
            return refuse("device_id", "0 is no device; choose another id".to_owned());
        }
        if let Err(problem) = check_text(&self.name, NAME_BYTES_MAX, false) {
            return refuse("name", problem);
        }
        if let Err(problem) = check_text(&self.puf_profile, TEXT_BYTES_MAX, false) {
            return refuse("puf_profile", problem);
        }
        if i64::try_from(self.enrolled_at_s).is_err() {
            return refuse("enrolled_at_s", "not a time in seconds since 1970".to_owned());
        }
        match self.credentials.problem() {
            Some(problem) => refuse("credentials", problem),
            None => Ok(()),
        }
    }
}

/// Texts are printed on terminals, so none holds what steers one; a reason may have several lines.
pub(crate) fn check_text(text: &str, bytes_max: usize, lines: bool) -> Result<(), String> {
    if text.len() > bytes_max {
        return Err(format!("{} B long, at most {bytes_max} B are stored", text.len()));
    }
    match text
        .chars()
        .find(|character| character.is_control() && !(lines && *character == '\n'))
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
                        "{} rows from {first_idx} pass the highest row number",
                        rows.len()
                    )),
                    (_, Some(position)) => Some(format!("the key of row {position} of the pool is all zero")),
                    _ => None,
                }
            }
        }
    }
}
