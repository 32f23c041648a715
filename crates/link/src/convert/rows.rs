//! Rows, leases, sessions and changes.

use linewarden_controller::{
    Changes, Elsewhere, Knock, Provision, Reception, Refusal, Refused, Reported, SessionReport, Want,
};
use linewarden_protocol::gateway::Row;
use linewarden_protocol::ids::{DeviceId, GatewayId, Mode, RowIndex};
use linewarden_protocol::keys::AuthKey;
use linewarden_registry::{Change, LeasedPlace, Revision, Settlement};

use super::{Malformed, exactly};
use crate::proto;

pub(crate) fn provision_to_wire(provision: &Provision) -> proto::Provision {
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

pub(crate) fn provision_from_wire(provision: proto::Provision) -> Result<Provision, Malformed> {
    let mode = match provision.mode() {
        proto::Mode::Pool => Mode::Pool,
        proto::Mode::Key => Mode::Key,
        proto::Mode::Unspecified => return Err(Malformed("a provision's mode")),
    };
    let row = |row: proto::Row| {
        Ok(Row {
            challenge: exactly(&row.challenge, "a row's challenge")?,
            auth_key: AuthKey::from_bytes(exactly(&row.auth_key, "a row's key")?),
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

pub(crate) fn provisions_from_wire(provisions: Vec<proto::Provision>) -> Result<Vec<Provision>, Malformed> {
    provisions.into_iter().map(provision_from_wire).collect()
}

pub(crate) fn want_to_wire(want: &Want) -> proto::Want {
    proto::Want {
        device: want.device.0,
        epoch: want.epoch,
        from: want.from.0,
        received: want.received.0,
        hold: want.hold,
        ahead: want.ahead,
    }
}

pub(crate) fn want_from_wire(want: &proto::Want) -> Want {
    Want {
        device: DeviceId(want.device),
        epoch: want.epoch,
        from: RowIndex(want.from),
        received: RowIndex(want.received),
        hold: want.hold,
        ahead: want.ahead,
    }
}

pub(crate) fn refused_to_wire(refused: &Refused) -> proto::Refused {
    let (why, detail) = match &refused.why {
        Refusal::Exhausted => (proto::refused::Why::Exhausted, ""),
        Refusal::Gone => (proto::refused::Why::Gone, ""),
        Refusal::NotHeld => (proto::refused::Why::NotHeld, ""),
        Refusal::Damaged(detail) => (proto::refused::Why::Damaged, detail.as_str()),
    };
    proto::Refused {
        device: refused.device.0,
        why: why.into(),
        detail: detail.to_owned(),
    }
}

pub(crate) fn refused_from_wire(refused: proto::Refused) -> Result<Refused, Malformed> {
    let why = match refused.why() {
        proto::refused::Why::Exhausted => Refusal::Exhausted,
        proto::refused::Why::Gone => Refusal::Gone,
        proto::refused::Why::NotHeld => Refusal::NotHeld,
        proto::refused::Why::Damaged => Refusal::Damaged(refused.detail),
        proto::refused::Why::Unspecified => return Err(Malformed("why a device got no rows")),
    };
    Ok(Refused {
        device: DeviceId(refused.device),
        why,
    })
}

pub(crate) fn knock_to_wire(knock: &Knock) -> proto::Knock {
    proto::Knock {
        message: knock.message.to_vec(),
        loc: knock.loc.to_vec(),
    }
}

pub(crate) fn knock_from_wire(knock: &proto::Knock) -> Result<Knock, Malformed> {
    Ok(Knock {
        message: exactly(&knock.message, "a device's message")?,
        loc: exactly(&knock.loc, "a message's loc")?,
    })
}

pub(crate) fn reception_to_wire(reception: &Reception) -> proto::Reception {
    use proto::reception::Outcome;
    proto::Reception {
        outcome: match reception {
            Reception::Challenge(message) => Some(Outcome::Challenge(message.to_vec())),
            Reception::Admit(provision) => Some(Outcome::Admit(provision_to_wire(provision))),
            Reception::Nak(message) => Some(Outcome::Nak(message.to_vec())),
            Reception::NakByStatement(message) => Some(Outcome::NakByStatement(message.to_vec())),
            Reception::Silence => None,
        },
    }
}

pub(crate) fn reception_from_wire(reception: proto::Reception) -> Result<Reception, Malformed> {
    use proto::reception::Outcome;
    Ok(match reception.outcome {
        Some(Outcome::Challenge(message)) => {
            Reception::Challenge(Box::new(exactly(&message, "a CHALLENGE")?))
        }
        Some(Outcome::Admit(provision)) => Reception::Admit(provision_from_wire(provision)?),
        Some(Outcome::Nak(message)) => Reception::Nak(Box::new(exactly(&message, "a NAK")?)),
        Some(Outcome::NakByStatement(message)) => {
            Reception::NakByStatement(Box::new(exactly(&message, "a NAK")?))
        }
        None => Reception::Silence,
    })
}

pub(crate) fn settlement_to_wire(settlement: &Settlement) -> proto::Settlement {
    proto::Settlement {
        device: settlement.device.0,
        epoch: settlement.epoch,
        unused_from: settlement.unused_from.0,
        keep: settlement.keep,
    }
}

pub(crate) fn settlement_from_wire(settlement: &proto::Settlement) -> Settlement {
    Settlement {
        device: DeviceId(settlement.device),
        epoch: settlement.epoch,
        unused_from: RowIndex(settlement.unused_from),
        keep: settlement.keep,
    }
}

pub(crate) fn report_to_wire(report: &SessionReport) -> proto::SessionReport {
    proto::SessionReport {
        message: report.message.to_vec(),
        loc: report.loc.to_vec(),
        age_ns: report.age_ns,
    }
}

pub(crate) fn report_from_wire(report: &proto::SessionReport) -> Result<SessionReport, Malformed> {
    Ok(SessionReport {
        message: exactly(&report.message, "a RESPONSE")?,
        loc: exactly(&report.loc, "a RESPONSE's loc")?,
        age_ns: report.age_ns,
    })
}

pub(crate) fn reported_to_wire(reported: Reported) -> proto::Reported {
    use proto::reported::{Older, Outcome};
    proto::Reported {
        outcome: match reported {
            Reported::Newest => None,
            Reported::Older { at, age_ns } => Some(Outcome::Older(Older {
                gateway: at.0,
                age_ns,
            })),
            Reported::Refused(why) => Some(Outcome::Refused(why.to_owned())),
        },
    }
}

pub(crate) fn reported_from_wire(reported: proto::Reported) -> Reported {
    use proto::reported::Outcome;
    match reported.outcome {
        None => Reported::Newest,
        Some(Outcome::Older(older)) => Reported::Older {
            at: GatewayId(older.gateway),
            age_ns: older.age_ns,
        },
        Some(Outcome::Refused(why)) => {
            tracing::warn!(why, "the controller refuses a session's report");
            Reported::Refused("the controller says that it proves nothing")
        }
    }
}

pub(crate) fn changes_from_wire(reply: &proto::ChangesReply) -> Changes {
    let change = |change: &proto::Change| Change {
        device: DeviceId(change.device),
        revision: Revision(change.revision),
        active: change.active,
        epoch: change.epoch,
    };
    let elsewhere = |elsewhere: &proto::Elsewhere| Elsewhere {
        device: DeviceId(elsewhere.device),
        gateway: GatewayId(elsewhere.gateway),
        age_ns: elsewhere.age_ns,
    };
    Changes {
        changes: reply.changes.iter().map(change).collect(),
        elsewhere: reply.elsewhere.iter().map(elsewhere).collect(),
        upto: Revision(reply.upto),
        more: reply.more,
    }
}

pub(crate) fn changes_to_wire(changes: &Changes) -> proto::ChangesReply {
    let change = |change: &Change| proto::Change {
        device: change.device.0,
        revision: change.revision.0,
        active: change.active,
        epoch: change.epoch,
    };
    let elsewhere = |elsewhere: &Elsewhere| proto::Elsewhere {
        device: elsewhere.device.0,
        gateway: elsewhere.gateway.0,
        age_ns: elsewhere.age_ns,
    };
    proto::ChangesReply {
        changes: changes.changes.iter().map(change).collect(),
        elsewhere: changes.elsewhere.iter().map(elsewhere).collect(),
        upto: changes.upto.0,
        more: changes.more,
        scrutiny: None,
    }
}

/// Where a walk stands: two revisions, each after a byte that says whether it is there.
pub(crate) fn cursor_to_wire(place: LeasedPlace) -> Vec<u8> {
    let mut cursor = Vec::with_capacity(18);
    for revision in [place.after, place.began_at] {
        cursor.push(u8::from(revision.is_some()));
        cursor.extend_from_slice(&revision.unwrap_or(Revision::ZERO).0.to_be_bytes());
    }
    cursor
}

pub(crate) fn cursor_from_wire(cursor: &[u8]) -> Result<LeasedPlace, Malformed> {
    if cursor.is_empty() {
        return Ok(LeasedPlace::default());
    }
    const WRONG: Malformed = Malformed("the cursor of a walk");
    let cursor: [u8; 18] = cursor.try_into().map_err(|_| WRONG)?;
    let ([after, began_at], _) = cursor.as_chunks::<9>() else {
        return Err(WRONG);
    };
    let revision =
        |[is_there, number @ ..]: &[u8; 9]| (*is_there == 1).then(|| Revision(u64::from_be_bytes(*number)));
    Ok(LeasedPlace {
        after: revision(after),
        began_at: revision(began_at),
    })
}
