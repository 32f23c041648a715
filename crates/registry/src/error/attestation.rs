//! Errors of provers, groups, periods and rounds.

use linewarden_protocol::ids::{DeviceId, GatewayId, Period};
use linewarden_types::GroupName;

/// Errors of provers, groups, periods and rounds.
#[derive(Debug, thiserror::Error)]
pub enum AttestationError {
    /// The device is not a prover.
    #[error("device {device} is not enrolled for attestation; enroll it first")]
    NotAProver {
        /// The id.
        device: DeviceId,
    },
    /// The group does not exist.
    #[error("group {group} does not exist; create it, or check the name")]
    UnknownGroup {
        /// The requested name.
        group: GroupName,
    },
    /// A group that cannot be deleted because it has provers.
    #[error(
        "group {group} has provers, for example {device}; enroll them into another group, or remove them first"
    )]
    GroupInUse {
        /// The group.
        group: GroupName,
        /// One of its provers.
        device: DeviceId,
    },
    /// A field of a group is invalid.
    #[error("group {group}: field {field}: {problem}")]
    InvalidGroup {
        /// The group.
        group: GroupName,
        /// The field's name.
        field: &'static str,
        /// The problem and the accepted values.
        problem: String,
    },
    /// A stored group does not authenticate or is invalid.
    #[error(
        "the record of group {group} is damaged or was modified; set the group again, or restore a backup"
    )]
    DamagedGroup {
        /// The stored name.
        group: String,
    },
    /// A period that does not exist.
    #[error("period {period} does not exist; create it first")]
    UnknownPeriod {
        /// The number of the period.
        period: Period,
    },
    /// A stored period does not authenticate.
    #[error("the record of period {period} is damaged or was modified; create and start a later period")]
    DamagedPeriod {
        /// The number of the period.
        period: Period,
    },
    /// A reported round that is invalid.
    #[error("round {number} of gateway {gateway}: {problem}")]
    InvalidRound {
        /// The gateway.
        gateway: GatewayId,
        /// The round's number.
        number: u32,
        /// The problem.
        problem: String,
    },
    /// The round counter of a gateway does not authenticate, or is lower than its rounds.
    #[error(
        "the round counter of gateway {gateway} is damaged, missing or was modified; the gateway's next reservation repairs it (restart the gateway to repair it now); check write access to the database"
    )]
    DamagedRoundCounter {
        /// The gateway.
        gateway: GatewayId,
    },
    /// A stored round does not authenticate.
    #[error(
        "the record of round {number} of gateway {gateway} is damaged or was modified; lists skip the round"
    )]
    DamagedRound {
        /// The gateway.
        gateway: GatewayId,
        /// The round's number.
        number: u32,
    },
    /// All round numbers of a gateway are used.
    #[error("gateway {gateway} has used all round numbers; configure another id")]
    RoundNumbersExhausted {
        /// The gateway.
        gateway: GatewayId,
    },
}
