//! Attestation: plans, provers, rounds.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use linewarden_controller::attest::{
    Appraised, GroupPlan, Plan, PlanWish, ProverIds, ProverProvision, Provers, Quarantined, RoundOutcome,
    Seen, Unanswered, Verdict,
};
use linewarden_protocol::attest::{PeriodStart, ProofKey, RequestKey};
use linewarden_protocol::gateway::{Configuration, ProverKeys};
use linewarden_protocol::ids::{DeviceId, Period, RoundNumber};
use linewarden_registry::{EnrolledAt, GroupName, GroupPolicy, Reopen, Revision};

use super::{Malformed, exactly, optional};
use crate::proto;

fn group(name: String) -> Result<GroupName, Malformed> {
    GroupName::new(name).map_err(|_| Malformed("a group's name"))
}

fn address_to_wire(address: Option<IpAddr>) -> Vec<u8> {
    match address {
        None => Vec::new(),
        Some(IpAddr::V4(address)) => address.octets().to_vec(),
        Some(IpAddr::V6(address)) => address.octets().to_vec(),
    }
}

fn address_from_wire(bytes: &[u8]) -> Result<Option<IpAddr>, Malformed> {
    match bytes.len() {
        0 => Ok(None),
        4 => Ok(Some(Ipv4Addr::from(exactly::<4>(bytes, "an address")?).into())),
        _ => Ok(Some(Ipv6Addr::from(exactly::<16>(bytes, "an address")?).into())),
    }
}

pub(crate) fn start_to_wire(start: &PeriodStart) -> proto::PeriodStart {
    proto::PeriodStart {
        period: start.period.0,
        salt: start.salt.to_vec(),
    }
}

pub(crate) fn start_from_wire(start: Option<proto::PeriodStart>) -> Result<PeriodStart, Malformed> {
    let start = start.ok_or(Malformed("a period that is missing"))?;
    Ok(PeriodStart {
        period: Period(start.period),
        salt: exactly(&start.salt, "a period's salt")?,
    })
}

pub(crate) fn wish_from_wire(request: &proto::PlanRequest) -> PlanWish {
    PlanWish {
        begin: request.begin.map(Period),
        period_s: request.period_s,
        numbers: request.numbers,
    }
}

pub(crate) fn plan_to_wire(plan: Option<&Plan>) -> proto::PlanReply {
    let Some(plan) = plan else {
        return proto::PlanReply::default();
    };
    let group = |group: &GroupPlan| proto::GroupPlan {
        name: group.name.as_str().to_owned(),
        every_s: group.policy.every_s,
        jitter_s: group.policy.jitter_s,
        answer_ms: group.policy.answer_ms,
        silent: group.policy.silent,
        of: group.policy.of,
        late_is_silent: group.policy.late_is_silent,
        reopen_by_command: group.policy.reopen == Reopen::ByCommand,
        rounds_wanted: group.rounds_wanted,
    };
    proto::PlanReply {
        drawn: true,
        running: Some(start_to_wire(&plan.running)),
        age_s: plan.age_s,
        next: Some(start_to_wire(&plan.next)),
        revision: plan.revision,
        references: plan.references,
        groups: plan.groups.iter().map(group).collect(),
        rounds_start: plan.rounds.start,
        rounds_end: plan.rounds.end,
    }
}

pub(crate) fn plan_from_wire(reply: proto::PlanReply) -> Result<Option<Plan>, Malformed> {
    if !reply.drawn {
        return Ok(None);
    }
    let plan_of = |plan: proto::GroupPlan| {
        Ok(GroupPlan {
            name: group(plan.name)?,
            policy: GroupPolicy {
                every_s: plan.every_s,
                jitter_s: plan.jitter_s,
                answer_ms: plan.answer_ms,
                silent: plan.silent,
                of: plan.of,
                late_is_silent: plan.late_is_silent,
                reopen: match plan.reopen_by_command {
                    true => Reopen::ByCommand,
                    false => Reopen::Automatic,
                },
            },
            rounds_wanted: plan.rounds_wanted,
        })
    };
    Ok(Some(Plan {
        running: start_from_wire(reply.running)?,
        age_s: reply.age_s,
        next: start_from_wire(reply.next)?,
        revision: reply.revision,
        references: reply.references,
        groups: reply.groups.into_iter().map(plan_of).collect::<Result<_, _>>()?,
        rounds: reply.rounds_start..reply.rounds_end,
    }))
}

pub(crate) fn provers_to_wire(provers: &Provers) -> proto::ProversReply {
    let prover = |prover: &ProverProvision| proto::Prover {
        device: prover.device.0,
        group: prover.group.as_str().to_owned(),
        enrolled_at_s: prover.enrolled_at.0,
        port: prover.port.into(),
        current: prover
            .keys
            .as_ref()
            .map_or_else(Vec::new, |keys| keys.current.as_bytes().to_vec()),
        alternate: prover
            .keys
            .as_ref()
            .and_then(|keys| keys.alternate.as_ref())
            .map_or_else(Vec::new, |key| key.as_bytes().to_vec()),
        request_key: prover.request_key.as_bytes().to_vec(),
        address: address_to_wire(prover.address),
        is_answering: prover.is_answering,
    };
    proto::ProversReply {
        start: Some(start_to_wire(&provers.start)),
        references: provers.references,
        provers: provers.provisions.iter().map(prover).collect(),
        removed: provers.removed.iter().map(|device| device.0).collect(),
        damaged: provers.damaged.clone(),
        upto: provers.upto,
        more: provers.more,
    }
}

pub(crate) fn provers_from_wire(reply: proto::ProversReply) -> Result<Provers, Malformed> {
    let prover = |prover: proto::Prover| {
        let alternate = optional(&prover.alternate, "a proof key")?.map(ProofKey::from_bytes);
        let keys = optional(&prover.current, "a proof key")?.map(|current| ProverKeys {
            current: ProofKey::from_bytes(current),
            alternate,
        });
        Ok(ProverProvision {
            device: DeviceId(prover.device),
            group: group(prover.group)?,
            enrolled_at: EnrolledAt(prover.enrolled_at_s),
            port: u16::try_from(prover.port).map_err(|_| Malformed("a prover's port"))?,
            keys,
            request_key: RequestKey::from_bytes(exactly(&prover.request_key, "a request key")?),
            address: address_from_wire(&prover.address)?,
            is_answering: prover.is_answering,
        })
    };
    Ok(Provers {
        start: start_from_wire(reply.start)?,
        references: reply.references,
        provisions: reply.provers.into_iter().map(prover).collect::<Result<_, _>>()?,
        removed: reply.removed.into_iter().map(DeviceId).collect(),
        damaged: reply.damaged,
        upto: reply.upto,
        more: reply.more,
    })
}

pub(crate) fn ids_to_wire(ids: &ProverIds) -> proto::ProverIdsReply {
    proto::ProverIdsReply {
        provers: ids.provers.iter().map(|device| device.0).collect(),
        removed: ids.removed.iter().map(|device| device.0).collect(),
        upto: ids.upto,
        more: ids.more,
    }
}

pub(crate) fn ids_from_wire(reply: proto::ProverIdsReply) -> ProverIds {
    ProverIds {
        provers: reply.provers.into_iter().map(DeviceId).collect(),
        removed: reply.removed.into_iter().map(DeviceId).collect(),
        upto: reply.upto,
        more: reply.more,
    }
}

/// A verdict's byte on the wire.
const SILENT: u8 = 1;
const OK: u8 = 2;
const LATE: u8 = 3;
const ALTERNATE: u8 = 4;
const IPV6: u8 = 8;

fn seen_to_wire(verdict: &Verdict) -> u8 {
    let of = |configuration| match configuration {
        Configuration::Current => 0,
        Configuration::Alternate => ALTERNATE,
    };
    let seen = match verdict.seen {
        Seen::Ok(configuration) => OK | of(configuration),
        Seen::Late(configuration) => LATE | of(configuration),
        Seen::Silent => SILENT,
    };
    match verdict.address {
        IpAddr::V4(_) => seen,
        IpAddr::V6(_) => seen | IPV6,
    }
}

fn seen_from_wire(byte: u8) -> Result<Seen, Malformed> {
    let configuration = match byte & ALTERNATE {
        0 => Configuration::Current,
        _ => Configuration::Alternate,
    };
    match byte & !(ALTERNATE | IPV6) {
        OK => Ok(Seen::Ok(configuration)),
        LATE => Ok(Seen::Late(configuration)),
        SILENT => Ok(Seen::Silent),
        _ => Err(Malformed("what was seen of a prover")),
    }
}

fn verdicts_from_wire(request: &proto::AppraiseRequest) -> Result<Vec<Verdict>, Malformed> {
    let count = request.devices.len();
    if request.enrolled_at_s.len() != count || request.seen.len() != count {
        return Err(Malformed("columns of different lengths"));
    }
    let mut addresses = request.addresses.as_slice();
    let mut address = |byte: u8| {
        let length = if byte & IPV6 == 0 { 4 } else { 16 };
        let (address, rest) = addresses.split_at_checked(length)?;
        addresses = rest;
        address_from_wire(address).ok()?
    };
    let columns = request
        .devices
        .iter()
        .zip(&request.enrolled_at_s)
        .zip(&request.seen);
    let verdicts = columns.map(|((device, enrolled_at_s), byte)| {
        Ok(Verdict {
            device: DeviceId(*device),
            enrolled_at: EnrolledAt(*enrolled_at_s),
            seen: seen_from_wire(*byte)?,
            address: address(*byte).ok_or(Malformed("where a prover was asked"))?,
        })
    });
    let verdicts = verdicts.collect::<Result<_, _>>()?;
    match addresses.is_empty() {
        true => Ok(verdicts),
        false => Err(Malformed("more addresses than provers")),
    }
}

/// The round, `age_ns` after its end.
pub(crate) fn outcome_to_wire(outcome: &RoundOutcome, age_ns: u64) -> proto::AppraiseRequest {
    proto::AppraiseRequest {
        session: None,
        number: outcome.number.0,
        group: outcome.group.as_str().to_owned(),
        period: outcome.period.0,
        heard: outcome.heard.0,
        lasted_ms: outcome.lasted_ms,
        age_ns,
        last_verdict_ms: outcome.last_verdict_ms,
        devices: outcome.verdicts.iter().map(|verdict| verdict.device.0).collect(),
        enrolled_at_s: outcome
            .verdicts
            .iter()
            .map(|verdict| verdict.enrolled_at.0)
            .collect(),
        seen: outcome.verdicts.iter().map(seen_to_wire).collect(),
        addresses: outcome
            .verdicts
            .iter()
            .flat_map(|verdict| address_to_wire(Some(verdict.address)))
            .collect(),
    }
}

/// The round, and how long ago it ended; its own clock says nothing here.
pub(crate) fn outcome_from_wire(request: &proto::AppraiseRequest) -> Result<(RoundOutcome, u64), Malformed> {
    let outcome = RoundOutcome {
        number: RoundNumber(request.number),
        group: group(request.group.clone())?,
        period: Period(request.period),
        heard: Revision(request.heard),
        lasted_ms: request.lasted_ms,
        ended_ns: 0,
        last_verdict_ms: request.last_verdict_ms,
        verdicts: verdicts_from_wire(request)?,
    };
    Ok((outcome, request.age_ns))
}

pub(crate) fn appraised_to_wire(appraised: &Appraised) -> proto::AppraiseReply {
    let quarantined = |quarantined: &Quarantined| proto::Quarantined {
        device: quarantined.device.0,
        reason: quarantined.reason.clone(),
        revision: quarantined.revision.0,
    };
    let readmitted = |(device, revision): &(DeviceId, Revision)| proto::Readmitted {
        device: device.0,
        revision: revision.0,
    };
    proto::AppraiseReply {
        quarantined: appraised.quarantined.iter().map(quarantined).collect(),
        readmitted: appraised.readmitted.iter().map(readmitted).collect(),
        results: appraised.results.clone(),
        unanswered: appraised.unanswered.map(|unanswered| proto::Unanswered {
            asked: unanswered.asked,
            spared: unanswered.spared,
            of: unanswered.of,
        }),
    }
}

pub(crate) fn appraised_from_wire(reply: proto::AppraiseReply) -> Appraised {
    let quarantined = |quarantined: proto::Quarantined| Quarantined {
        device: DeviceId(quarantined.device),
        reason: quarantined.reason,
        revision: Revision(quarantined.revision),
    };
    let readmitted =
        |readmitted: proto::Readmitted| (DeviceId(readmitted.device), Revision(readmitted.revision));
    Appraised {
        quarantined: reply.quarantined.into_iter().map(quarantined).collect(),
        readmitted: reply.readmitted.into_iter().map(readmitted).collect(),
        results: reply.results,
        unanswered: reply.unanswered.map(|unanswered| Unanswered {
            asked: unanswered.asked,
            spared: unanswered.spared,
            of: unanswered.of,
        }),
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    fn round() -> RoundOutcome {
        let v4 = IpAddr::from([192, 0, 2, 7]);
        let v6 = IpAddr::from([0x20; 16]);
        let seen = [
            Seen::Silent,
            Seen::Ok(Configuration::Current),
            Seen::Ok(Configuration::Alternate),
            Seen::Late(Configuration::Current),
            Seen::Late(Configuration::Alternate),
        ];
        let verdicts = seen.into_iter().flat_map(|seen| [(seen, v4), (seen, v6)]);
        RoundOutcome {
            number: RoundNumber(3),
            group: GroupName::new("doors".to_owned()).unwrap(),
            period: Period(4),
            heard: Revision(5),
            lasted_ms: 6,
            ended_ns: 0,
            last_verdict_ms: 7,
            verdicts: verdicts
                .zip(1..)
                .map(|((seen, address), device)| Verdict {
                    device: DeviceId(device),
                    enrolled_at: EnrolledAt(device << 40),
                    seen,
                    address,
                })
                .collect(),
        }
    }

    #[test]
    fn a_round_arrives_as_it_was_sent() {
        let request = outcome_to_wire(&round(), 9);
        let (arrived, age_ns) = outcome_from_wire(&request).unwrap();
        assert_eq!(format!("{arrived:?}"), format!("{:?}", round()));
        assert_eq!(age_ns, 9);
    }

    #[test]
    fn columns_that_do_not_fit_are_malformed() {
        type Change = fn(&mut proto::AppraiseRequest);
        let changes: [(&str, Change); 8] = [
            ("a device more", |request| request.devices.push(1)),
            ("a device less", |request| request.devices.truncate(1)),
            ("an enrolment more", |request| request.enrolled_at_s.push(1)),
            ("a byte more", |request| request.seen.push(OK)),
            ("an address less", |request| request.addresses.truncate(1)),
            ("more addresses", |request| request.addresses.push(0)),
            ("nothing seen", |request| request.seen[0] = 0),
            ("a bit that is none", |request| request.seen[0] |= 16),
        ];
        for (what, change) in changes {
            let mut request = outcome_to_wire(&round(), 9);
            change(&mut request);
            outcome_from_wire(&request).expect_err(what);
        }
    }

    /// Whoever has a gateway's certificate gets no more memory than it sends, before anything is known of its registration.
    #[test]
    fn a_round_takes_no_more_memory_than_it_is_long() {
        let mut request = outcome_to_wire(&round(), 9);
        request.devices = vec![0; 1_000];
        request.enrolled_at_s = vec![0; 1_000];
        request.seen = vec![0; 1_000];
        let sent = request.encode_to_vec();
        let read = proto::AppraiseRequest::decode(&*sent).unwrap();
        let held = (read.devices.capacity() + read.enrolled_at_s.capacity()) * 8 + read.seen.capacity();
        assert!(held <= 2 * sent.len(), "{held} of {}", sent.len());
        // As what nobody knows any more, which takes nothing.
        let empty = [0x4a, 0].repeat(1_000);
        assert_eq!(
            proto::AppraiseRequest::decode(&*empty).unwrap(),
            proto::AppraiseRequest::default()
        );
    }
}
