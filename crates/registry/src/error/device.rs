//! Errors of devices and their rows.

use linewarden_protocol::ids::{DeviceId, GatewayId};

/// Errors of devices and their rows.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The device is not enrolled.
    #[error("device {device} is not enrolled; check the id")]
    UnknownDevice {
        /// The requested id.
        device: DeviceId,
    },
    /// The device is already enrolled.
    #[error(
        "device {device} is already enrolled; choose another id, or replace its credentials with `--replace`"
    )]
    AlreadyEnrolled {
        /// The id.
        device: DeviceId,
    },
    /// The PUF is already enrolled as another device.
    #[error(
        "device {device}: its PUF matches that of device {other} in {bands} of {bands_compared} samples: the same chip, or chips \
         with common memory content other than power-up state; revoke {other} if this is its chip, otherwise enroll another PUF or \
         another part of the memory (`--range`)"
    )]
    DuplicatePuf {
        /// The device to enroll.
        device: DeviceId,
        /// The device that has the PUF.
        other: DeviceId,
        /// Number of bands in which the PUFs agree.
        bands: usize,
        /// Number of bands that were compared.
        bands_compared: usize,
    },
    /// A device that occurs twice in one input.
    #[error("device {device} occurs twice in the input; remove one of the two")]
    DuplicateDevice {
        /// The id.
        device: DeviceId,
    },
    /// The device is revoked permanently.
    #[error("device {device} is revoked permanently; enroll it under another id")]
    Revoked {
        /// The id.
        device: DeviceId,
    },
    /// The device is in quarantine until its next valid proof, or until an operator releases the device.
    #[error("device {device} is in quarantine; check the reason, then release it")]
    Quarantined {
        /// The id.
        device: DeviceId,
    },
    /// A field of a device record is invalid.
    #[error("device {device}: field {field}: {problem}")]
    InvalidRecord {
        /// The device.
        device: DeviceId,
        /// The field's name.
        field: &'static str,
        /// The problem and the accepted values.
        problem: String,
    },
    /// A stored device record does not authenticate or is invalid.
    #[error(
        "the record of device {device} is damaged or was modified: {problem}; restore a backup, or enroll the device under another id"
    )]
    DamagedRecord {
        /// The device.
        device: DeviceId,
        /// The problem.
        problem: String,
    },

    /// The device has no rows left to lease.
    #[error("device {device} has no rows left: its pool ends at {rows_end}; enroll new rows")]
    RowsExhausted {
        /// The device.
        device: DeviceId,
        /// One past the last row of the device's pool.
        rows_end: u32,
    },
    /// A gateway reports unused rows that are not in its lease.
    #[error(
        "device {device}: gateway {gateway} reports unused rows from {unused_from}, but its lease is {rows_start}..{rows_end}"
    )]
    InvalidUnusedRows {
        /// The device.
        device: DeviceId,
        /// The gateway.
        gateway: GatewayId,
        /// The first row reported as unused.
        unused_from: u32,
        /// First row of the gateway's lease.
        rows_start: u32,
        /// One past the last row of the gateway's lease.
        rows_end: u32,
    },

    /// A gateway requests more rows for a device without a lease.
    #[error(
        "gateway {gateway} has no lease for device {device}; the device must authenticate at that gateway first"
    )]
    NoLease {
        /// The device.
        device: DeviceId,
        /// The gateway.
        gateway: GatewayId,
    },
}
