//! Enrollment of devices, one by one or by import.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// A device to enroll.
#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NewDevice {
    /// 1 to 16 hexadecimal digits.
    pub id: String,
    /// The display name.
    #[serde(default)]
    pub name: String,
    /// The cipher suite, default 1.
    pub suite: Option<u8>,
    /// PUF and error correction.
    #[serde(default)]
    pub puf_profile: String,
    /// The credentials.
    pub credentials: NewCredentials,
    /// The reason; omitted in imports, which have one reason for all devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Time of an enrollment in another registry; default: now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enrolled_at_s: Option<u64>,
    /// `idx_floor` of the device in another registry: lower rows may have been used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idx_floor: Option<u32>,
    /// Number of replacements of the credentials in another registry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u32>,
    /// Revocation or quarantine by another registry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restriction: Option<Restriction>,
    /// Fingerprint of the PUF, hexadecimal: position (4 digits) and bits (6 digits) of each band.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
}

/// The credentials of a device.
#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum NewCredentials {
    /// Key mode: 32 hexadecimal digits.
    Key(String),
    /// Pool mode: rows of a challenge (16 hexadecimal digits) and a key (32), and the number of the first row.
    #[serde(untagged)]
    Pool {
        /// Number of the first row.
        #[serde(default)]
        first_idx: u32,
        /// Challenge and key of each row.
        rows: Vec<(String, String)>,
    },
}

/// A revocation or quarantine by another registry.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Restriction {
    /// revoked or quarantined
    pub status: Cow<'static, str>,
    /// Time of the revocation or quarantine.
    pub since_s: u64,
    /// The reason of the revocation or quarantine.
    pub reason: String,
}

/// Parameters of an import.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub struct ImportQuery {
    /// Action for devices that are already enrolled: refuse (default), or replace their credentials.
    pub on_conflict: Option<String>,
}

/// The result of an import.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ImportResult {
    /// Number of stored devices of the body, including the devices that an earlier attempt stored.
    pub stored: u64,
}

/// Maximum number of devices in a transaction. Ids are in random order. In a larger transaction, more devices share a page
/// of the database, so that fewer pages are written per device. Other writers wait until the transaction ends, about a
/// third of a second.
pub const CHUNK_DEVICES: usize = 10_000;
/// Size of the devices at which a transaction is complete, bytes of JSON. The last device may exceed this size.
pub const CHUNK_BYTES: usize = 8 << 20;
