//! Sessions at different gateways: reports, their results, and the clock that orders sessions.

use linewarden_protocol::ids::{DeviceId, GatewayId};
use linewarden_protocol::wire::MESSAGE_BYTES;

/// A session that was opened at the gateway, with its proof (LAP/1 1.4.11).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionReport {
    /// The accepted RESPONSE.
    pub message: [u8; MESSAGE_BYTES],
    /// As in [`AdmissionRequest::loc`](crate::AdmissionRequest::loc).
    pub loc: [u8; 8],
    /// The age of the session, ns.
    pub age_ns: u64,
}

/// The result of a [`SessionReport`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionReportResult {
    /// No newer session at another gateway is known.
    Newest,
    /// A newer session of the device exists at another gateway: this session must be closed.
    Superseded {
        /// The other gateway.
        by: GatewayId,
        /// The age of the newer session, ns.
        age_ns: u64,
    },
    /// The report proves no session and has no effect. The reporting gateway is faulty or compromised.
    Rejected(&'static str),
}

/// A device's newest session, at another gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewerSession {
    /// The device.
    pub device: DeviceId,
    /// The other gateway.
    pub gateway: GatewayId,
    /// The age of the session, ns.
    pub age_ns: u64,
}

/// Maximum difference between two readings of the clock that reach the registry in the wrong order, ns.
const CLOCK_SKEW_MAX_NS: i64 = 1_000_000_000;

/// Identifies a boot of the controller's machine: random and different for each boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootId(pub [u8; 16]);

/// A reading of the clock that orders sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootTimestamp {
    /// The boot that the time counts from.
    pub boot_id: BootId,
    /// Time since the boot, ns; negative for a time before the boot. On the clock of the database server: time since
    /// 1970-01-01 UTC.
    pub ns: i64,
}

impl BootTimestamp {
    /// The time that is `age_ns` before this time.
    #[must_use]
    pub fn earlier_by(self, age_ns: u64) -> Self {
        Self {
            ns: self.ns.saturating_sub_unsigned(age_ns),
            ..self
        }
    }

    /// The age of this time at `now`, ns. `None` if the times cannot be compared: they are of different boots, or this
    /// time is after `now`, for example because a snapshot of the machine was restored.
    #[must_use]
    pub fn age_ns(self, now: Self) -> Option<u64> {
        let is_ahead = self.ns > now.ns.saturating_add(CLOCK_SKEW_MAX_NS);
        let age_ns = u64::try_from(now.ns.saturating_sub(self.ns)).unwrap_or_default();
        (self.boot_id == now.boot_id && !is_ahead).then_some(age_ns)
    }
}
