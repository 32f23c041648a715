//! Conversion of rows, leases, sessions and changes.

use linewarden_protocol::gateway::Row;
use linewarden_protocol::ids::{DeviceId, GatewayId, Mode, RowIndex};
use linewarden_protocol::keys::AuthKey;
use linewarden_types::{
    AdmissionRequest, AdmissionResponse, Change, Changes, LeasedCursor, NewerSession, Provision,
    RefusalReason, Revision, RowRefusal, RowRequest, SessionReport, SessionReportResult, UnusedRows,
};

use super::{Malformed, exact_bytes};
use crate::proto;

/// Encodes rows of a device.
pub fn provision_to_wire(provision: &Provision) -> proto::Provision {
    let row = |row: &Row| proto::Row {
        challenge: row.challenge.to_vec(),
        auth_key: row.auth_key.as_bytes().to_vec(),
    };
    let mode = match provision.mode {
        Mode::Pool => proto::Mode::Pool,
        Mode::Key => proto::Mode::Key,
    };
    proto::Provision {
        device: provision.device.0,
        mode: mode.into(),
        epoch: provision.epoch,
        first: provision.first.0,
        rows: provision.rows.iter().map(row).collect(),
        mark: provision.mark.0,
    }
}

/// Decodes rows of a device.
pub fn provision_from_wire(provision: proto::Provision) -> Result<Provision, Malformed> {
    let mode = match provision.mode() {
        proto::Mode::Pool => Mode::Pool,
        proto::Mode::Key => Mode::Key,
        proto::Mode::Unspecified => return Err(Malformed("no mode of a provision")),
    };
    let row = |row: proto::Row| {
        Ok(Row {
            challenge: exact_bytes(&row.challenge, "challenge of a wrong length")?,
            auth_key: AuthKey::from_bytes(exact_bytes(&row.auth_key, "row key of a wrong length")?),
        })
    };
    Ok(Provision {
        device: DeviceId(provision.device),
        mode,
        epoch: provision.epoch,
        first: RowIndex(provision.first),
        rows: provision.rows.into_iter().map(row).collect::<Result<_, _>>()?,
        mark: RowIndex(provision.mark),
    })
}

/// Decodes rows of devices.
pub fn provisions_from_wire(provisions: Vec<proto::Provision>) -> Result<Vec<Provision>, Malformed> {
    provisions.into_iter().map(provision_from_wire).collect()
}

/// Encodes a request for rows.
pub fn row_request_to_wire(request: &RowRequest) -> proto::RowRequest {
    proto::RowRequest {
        device: request.device.0,
        epoch: request.epoch,
        from: request.from.0,
        received: request.received.0,
        hold_rows: request.hold_rows,
        spendable_rows: request.spendable_rows,
    }
}

/// Decodes a request for rows.
pub fn row_request_from_wire(request: &proto::RowRequest) -> RowRequest {
    RowRequest {
        device: DeviceId(request.device),
        epoch: request.epoch,
        from: RowIndex(request.from),
        received: RowIndex(request.received),
        hold_rows: request.hold_rows,
        spendable_rows: request.spendable_rows,
    }
}

/// Encodes a device that got no rows.
pub fn refusal_to_wire(refusal: &RowRefusal) -> proto::RowRefusal {
    let (reason, detail) = match &refusal.reason {
        RefusalReason::Exhausted => (proto::row_refusal::Reason::Exhausted, ""),
        RefusalReason::Inactive => (proto::row_refusal::Reason::Inactive, ""),
        RefusalReason::NotHeld => (proto::row_refusal::Reason::NotHeld, ""),
        RefusalReason::Damaged(detail) => (proto::row_refusal::Reason::Damaged, detail.as_str()),
    };
    proto::RowRefusal {
        device: refusal.device.0,
        reason: reason.into(),
        detail: detail.to_owned(),
    }
}

/// Decodes a device that got no rows.
pub fn refusal_from_wire(refusal: proto::RowRefusal) -> Result<RowRefusal, Malformed> {
    let reason = match refusal.reason() {
        proto::row_refusal::Reason::Exhausted => RefusalReason::Exhausted,
        proto::row_refusal::Reason::Inactive => RefusalReason::Inactive,
        proto::row_refusal::Reason::NotHeld => RefusalReason::NotHeld,
        proto::row_refusal::Reason::Damaged => RefusalReason::Damaged(refusal.detail),
        proto::row_refusal::Reason::Unspecified => return Err(Malformed("no reason of a row refusal")),
    };
    Ok(RowRefusal {
        device: DeviceId(refusal.device),
        reason,
    })
}

/// Encodes a message of a device.
pub fn admission_request_to_wire(request: &AdmissionRequest) -> proto::AdmissionRequest {
    proto::AdmissionRequest {
        message: request.message.to_vec(),
        loc: request.loc.to_vec(),
    }
}

/// Decodes a message of a device.
pub fn admission_request_from_wire(request: &proto::AdmissionRequest) -> Result<AdmissionRequest, Malformed> {
    Ok(AdmissionRequest {
        message: exact_bytes(&request.message, "device message of a wrong length")?,
        loc: exact_bytes(&request.loc, "loc of a wrong length")?,
    })
}

/// Encodes the response to a message of a device.
pub fn admission_response_to_wire(response: &AdmissionResponse) -> proto::AdmissionResponse {
    use proto::admission_response::Outcome;
    proto::AdmissionResponse {
        outcome: match response {
            AdmissionResponse::Challenge(message) => Some(Outcome::Challenge(message.to_vec())),
            AdmissionResponse::Admit(provision) => Some(Outcome::Admit(provision_to_wire(provision))),
            AdmissionResponse::Nak(message) => Some(Outcome::Nak(message.to_vec())),
            AdmissionResponse::NakForStatement(message) => Some(Outcome::NakForStatement(message.to_vec())),
            AdmissionResponse::NoResponse => None,
        },
    }
}

/// Decodes the response to a message of a device.
pub fn admission_response_from_wire(
    response: proto::AdmissionResponse,
) -> Result<AdmissionResponse, Malformed> {
    use proto::admission_response::Outcome;
    Ok(match response.outcome {
        Some(Outcome::Challenge(message)) => {
            AdmissionResponse::Challenge(Box::new(exact_bytes(&message, "CHALLENGE of a wrong length")?))
        }
        Some(Outcome::Admit(provision)) => AdmissionResponse::Admit(provision_from_wire(provision)?),
        Some(Outcome::Nak(message)) => {
            AdmissionResponse::Nak(Box::new(exact_bytes(&message, "NAK of a wrong length")?))
        }
        Some(Outcome::NakForStatement(message)) => {
            AdmissionResponse::NakForStatement(Box::new(exact_bytes(&message, "NAK of a wrong length")?))
        }
        None => AdmissionResponse::NoResponse,
    })
}

/// Encodes unused rows of a device.
pub fn unused_rows_to_wire(unused: &UnusedRows) -> proto::UnusedRows {
    proto::UnusedRows {
        device: unused.device.0,
        epoch: unused.epoch,
        unused_from: unused.unused_from.0,
        keep_leased: unused.keep_leased,
    }
}

/// Decodes unused rows of a device.
pub fn unused_rows_from_wire(unused: &proto::UnusedRows) -> UnusedRows {
    UnusedRows {
        device: DeviceId(unused.device),
        epoch: unused.epoch,
        unused_from: RowIndex(unused.unused_from),
        keep_leased: unused.keep_leased,
    }
}

/// Encodes a session report, and adds `elapsed_ns`, the time since the report was created, to its age.
pub fn report_to_wire(report: &SessionReport, elapsed_ns: u64) -> proto::SessionReport {
    proto::SessionReport {
        message: report.message.to_vec(),
        loc: report.loc.to_vec(),
        age_ns: report.age_ns.saturating_add(elapsed_ns),
    }
}

/// Decodes a session report.
pub fn report_from_wire(report: &proto::SessionReport) -> Result<SessionReport, Malformed> {
    Ok(SessionReport {
        message: exact_bytes(&report.message, "RESPONSE of a wrong length")?,
        loc: exact_bytes(&report.loc, "loc of a wrong length")?,
        age_ns: report.age_ns,
    })
}

/// Encodes the result of a session report.
pub fn report_result_to_wire(result: SessionReportResult) -> proto::SessionReportResult {
    use proto::session_report_result::{Outcome, Superseded};
    proto::SessionReportResult {
        outcome: match result {
            SessionReportResult::Newest => None,
            SessionReportResult::Superseded { by, age_ns } => Some(Outcome::Superseded(Superseded {
                gateway: by.0,
                age_ns,
            })),
            SessionReportResult::Rejected(reason) => Some(Outcome::Rejected(reason.to_owned())),
        },
    }
}

/// Decodes the result of a session report.
pub fn report_result_from_wire(result: proto::SessionReportResult) -> SessionReportResult {
    use proto::session_report_result::Outcome;
    match result.outcome {
        None => SessionReportResult::Newest,
        Some(Outcome::Superseded(superseded)) => SessionReportResult::Superseded {
            by: GatewayId(superseded.gateway),
            age_ns: superseded.age_ns,
        },
        Some(Outcome::Rejected(reason)) => {
            tracing::warn!(reason, "controller rejected a session report");
            SessionReportResult::Rejected("controller rejected the report")
        }
    }
}

/// Decodes changes of devices.
pub fn changes_from_wire(reply: &proto::ListChangesResponse) -> Changes {
    let change = |change: &proto::Change| Change {
        device: DeviceId(change.device),
        revision: Revision(change.revision),
        active: change.active,
        epoch: change.epoch,
    };
    let session = |session: &proto::NewerSession| NewerSession {
        device: DeviceId(session.device),
        gateway: GatewayId(session.gateway),
        age_ns: session.age_ns,
    };
    Changes {
        changes: reply.changes.iter().map(change).collect(),
        newer_sessions: reply.newer_sessions.iter().map(session).collect(),
        up_to_revision: Revision(reply.up_to_revision),
        has_more: reply.has_more,
    }
}

/// Encodes changes of devices.
pub fn changes_to_wire(changes: &Changes) -> proto::ListChangesResponse {
    let change = |change: &Change| proto::Change {
        device: change.device.0,
        revision: change.revision.0,
        active: change.active,
        epoch: change.epoch,
    };
    let session = |session: &NewerSession| proto::NewerSession {
        device: session.device.0,
        gateway: session.gateway.0,
        age_ns: session.age_ns,
    };
    proto::ListChangesResponse {
        changes: changes.changes.iter().map(change).collect(),
        newer_sessions: changes.newer_sessions.iter().map(session).collect(),
        up_to_revision: changes.up_to_revision.0,
        has_more: changes.has_more,
        trust: None,
    }
}

/// Encodes the position of a lease reader: two revisions, each after a byte that is 1 if the revision is present.
pub fn cursor_to_wire(position: LeasedCursor) -> Vec<u8> {
    let mut cursor = Vec::with_capacity(18);
    for revision in [position.after, position.started_at] {
        cursor.push(u8::from(revision.is_some()));
        cursor.extend_from_slice(&revision.unwrap_or(Revision::ZERO).0.to_be_bytes());
    }
    cursor
}

/// Decodes a position in the leases of a gateway.
pub fn cursor_from_wire(cursor: &[u8]) -> Result<LeasedCursor, Malformed> {
    if cursor.is_empty() {
        return Ok(LeasedCursor::default());
    }
    const INVALID: Malformed = Malformed("invalid cursor");
    let cursor: [u8; 18] = cursor.try_into().map_err(|_| INVALID)?;
    let ([after, started_at], _) = cursor.as_chunks::<9>() else {
        return Err(INVALID);
    };
    let revision = |[is_present, number @ ..]: &[u8; 9]| {
        (*is_present == 1).then(|| Revision(u64::from_be_bytes(*number)))
    };
    Ok(LeasedCursor {
        after: revision(after),
        started_at: revision(started_at),
    })
}
