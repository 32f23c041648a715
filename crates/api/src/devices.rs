//! Devices: records, details, revocation.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::attestation::Attestation;
use crate::events::EventRecord;

/// A device.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Device {
    /// 16 hexadecimal digits.
    pub id: String,
    /// The display name.
    pub name: String,
    /// pool or key
    pub mode: Cow<'static, str>,
    /// The cipher suite.
    pub suite: u8,
    /// active, revoked or quarantined
    pub status: Cow<'static, str>,
    /// The reason of the revocation or quarantine.
    pub reason: Option<String>,
    /// Time of the revocation or quarantine, seconds since 1970-01-01 UTC.
    pub since_s: Option<u64>,
    /// Time of the enrollment, seconds since 1970-01-01 UTC.
    pub enrolled_at_s: u64,
    /// First row of the pool; 0 in key mode.
    pub first_idx: u32,
    /// Number of rows in the pool; 0 in key mode.
    pub rows_total: u32,
    /// From this row on, no row is leased or was used.
    pub idx_floor: u32,
    /// Number of rows from `idx_floor` on; null in key mode, which has no limit.
    pub rows_left: Option<u32>,
    /// Number of replacements of the credentials.
    pub epoch: u32,
    /// Revision of the last change.
    pub revision: u64,
    /// PUF and error correction.
    pub puf_profile: String,
}

/// A query for devices.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub struct DeviceQuery {
    /// Only devices whose name starts with this prefix; the list is then sorted by name.
    pub name_prefix: Option<String>,
    /// Only devices whose 16-digit id starts with these 1 to 16 hexadecimal digits.
    pub id_prefix: Option<String>,
    /// active, revoked or quarantined
    pub status: Option<String>,
    /// pool or key
    pub mode: Option<String>,
    /// Maximum number of items: 1 to 1000, default 100.
    pub limit: Option<u32>,
    /// The cursor: `next` of the previous page.
    pub after: Option<String>,
}

/// A device with leases, attestation state and history.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeviceDetails {
    /// The device record.
    #[serde(flatten)]
    pub device: Device,
    /// The leases of the device's rows.
    pub leases: Vec<Lease>,
    /// The attestation state; null if the device is not attested.
    pub attestation: Option<Attestation>,
    /// The last 100 events of the device, newest first.
    pub history: Vec<EventRecord>,
}

/// A lease of a device's rows to a gateway.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Lease {
    /// The gateway id.
    pub gateway: u32,
    /// The first row, and the number after the last row. In key mode the lease has one number, the start of the gateway's
    /// counter: `rows` has this number and the following number.
    pub rows: [u32; 2],
    /// The mark: rows below the mark may have been used.
    pub mark: u32,
    /// The fencing token of the registration that may use the rows.
    pub fencing_token: u64,
}

/// Devices to revoke.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RevokeRequest {
    /// Device ids, at most 10,000.
    pub ids: Vec<String>,
    /// The reason of the revocation.
    pub reason: String,
}

/// The result of a revocation of many devices.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RevokeResult {
    /// Number of devices that this request revoked. Devices that were revoked before are not counted.
    pub revoked: u64,
    /// An error for each device that is not enrolled.
    pub problems: Vec<String>,
}

/// A device with which another device may communicate.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Pair {
    /// Device id of the peer.
    pub peer: String,
}

/// A pair after a change.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ChangedPair {
    /// Device id of the peer.
    pub peer: String,
    /// Whether the request has changed the pair; false: the pair existed, or did not exist, before.
    pub changed: bool,
}
