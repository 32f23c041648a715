//! Conversion of attestation plans, provers and rounds.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use linewarden_protocol::attest::{PeriodStart, ProofKey, RequestKey};
use linewarden_protocol::gateway::{Configuration, ProverKeys};
use linewarden_protocol::ids::{DeviceId, Period, RoundNumber};
use linewarden_types::{
    EnrollmentTime, GroupName, GroupOutage, GroupPlan, GroupPolicy, Plan, PlanRequest, ProofOutcome,
    ProverIds, ProverObservation, ProverProvision, Provers, QuarantinedDevice, ReleaseMode, Revision,
    RoundAppraisal, RoundOutcome,
};

use super::{Malformed, exact_bytes, optional_bytes};
use crate::proto;

fn group(name: String) -> Result<GroupName, Malformed> {
    GroupName::new(name).map_err(|_| Malformed("invalid group name"))
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
        4 => Ok(Some(
            Ipv4Addr::from(exact_bytes::<4>(bytes, "address of a wrong length")?).into(),
        )),
        _ => Ok(Some(
            Ipv6Addr::from(exact_bytes::<16>(bytes, "address of a wrong length")?).into(),
        )),
    }
}

/// Encodes the start of a period.
pub fn start_to_wire(start: &PeriodStart) -> proto::PeriodStart {
    proto::PeriodStart {
        period: start.period.0,
        salt: start.salt.to_vec(),
    }
}

/// Decodes the start of a period.
pub fn start_from_wire(start: Option<proto::PeriodStart>) -> Result<PeriodStart, Malformed> {
    let start = start.ok_or(Malformed("no period"))?;
    Ok(PeriodStart {
        period: Period(start.period),
        salt: exact_bytes(&start.salt, "salt of a wrong length")?,
    })
}

/// Encodes a request for the attestation plan.
pub fn plan_request_to_wire(request: &PlanRequest) -> proto::GetPlanRequest {
    proto::GetPlanRequest {
        registration: None,
        start_period: request.start_period.map(|period| period.0),
        period_s: request.period_s,
        needs_round_numbers: request.needs_round_numbers,
    }
}

/// Decodes a request for the attestation plan.
pub fn plan_request_from_wire(request: &proto::GetPlanRequest) -> PlanRequest {
    PlanRequest {
        start_period: request.start_period.map(Period),
        period_s: request.period_s,
        needs_round_numbers: request.needs_round_numbers,
    }
}

/// Encodes an attestation plan.
pub fn plan_to_wire(plan: Option<&Plan>) -> proto::GetPlanResponse {
    let Some(plan) = plan else {
        return proto::GetPlanResponse::default();
    };
    let group = |group: &GroupPlan| proto::GroupPlan {
        name: group.name.as_str().to_owned(),
        every_s: group.policy.every_s,
        jitter_s: group.policy.jitter_s,
        proof_timeout_ms: group.policy.proof_timeout_ms,
        missed_limit: group.policy.missed_limit,
        window_rounds: group.policy.window_rounds,
        late_is_missed: group.policy.late_is_missed,
        manual_release: group.policy.release_mode == ReleaseMode::Manual,
        rounds_requested: group.rounds_requested,
    };
    proto::GetPlanResponse {
        has_plan: true,
        running: Some(start_to_wire(&plan.running)),
        age_s: plan.age_s,
        next: Some(start_to_wire(&plan.next)),
        revision: plan.revision,
        reference_digest: plan.reference_digest,
        groups: plan.groups.iter().map(group).collect(),
        rounds_start: plan.rounds.start,
        rounds_end: plan.rounds.end,
    }
}

/// Decodes an attestation plan.
pub fn plan_from_wire(reply: proto::GetPlanResponse) -> Result<Option<Plan>, Malformed> {
    if !reply.has_plan {
        return Ok(None);
    }
    let plan_of = |plan: proto::GroupPlan| {
        Ok(GroupPlan {
            name: group(plan.name)?,
            policy: GroupPolicy {
                every_s: plan.every_s,
                jitter_s: plan.jitter_s,
                proof_timeout_ms: plan.proof_timeout_ms,
                missed_limit: plan.missed_limit,
                window_rounds: plan.window_rounds,
                late_is_missed: plan.late_is_missed,
                release_mode: match plan.manual_release {
                    true => ReleaseMode::Manual,
                    false => ReleaseMode::Automatic,
                },
            },
            rounds_requested: plan.rounds_requested,
        })
    };
    Ok(Some(Plan {
        running: start_from_wire(reply.running)?,
        age_s: reply.age_s,
        next: start_from_wire(reply.next)?,
        revision: reply.revision,
        reference_digest: reply.reference_digest,
        groups: reply.groups.into_iter().map(plan_of).collect::<Result<_, _>>()?,
        rounds: reply.rounds_start..reply.rounds_end,
    }))
}

/// Encodes provers with their keys.
pub fn provers_to_wire(provers: &Provers) -> proto::ListProversResponse {
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
        is_responsive: prover.is_responsive,
    };
    proto::ListProversResponse {
        start: Some(start_to_wire(&provers.start)),
        reference_digest: provers.reference_digest,
        provers: provers.provisions.iter().map(prover).collect(),
        removed: provers.removed.iter().map(|device| device.0).collect(),
        damaged: provers.damaged.clone(),
        up_to_revision: provers.up_to_revision,
        has_more: provers.has_more,
    }
}

/// Decodes provers with their keys.
pub fn provers_from_wire(reply: proto::ListProversResponse) -> Result<Provers, Malformed> {
    let prover = |prover: proto::Prover| {
        let alternate =
            optional_bytes(&prover.alternate, "proof key of a wrong length")?.map(ProofKey::from_bytes);
        let keys =
            optional_bytes(&prover.current, "proof key of a wrong length")?.map(|current| ProverKeys {
                current: ProofKey::from_bytes(current),
                alternate,
            });
        Ok(ProverProvision {
            device: DeviceId(prover.device),
            group: group(prover.group)?,
            enrolled_at: EnrollmentTime(prover.enrolled_at_s),
            port: u16::try_from(prover.port).map_err(|_| Malformed("invalid port of a prover"))?,
            keys,
            request_key: RequestKey::from_bytes(exact_bytes(
                &prover.request_key,
                "request key of a wrong length",
            )?),
            address: address_from_wire(&prover.address)?,
            is_responsive: prover.is_responsive,
        })
    };
    Ok(Provers {
        start: start_from_wire(reply.start)?,
        reference_digest: reply.reference_digest,
        provisions: reply.provers.into_iter().map(prover).collect::<Result<_, _>>()?,
        removed: reply.removed.into_iter().map(DeviceId).collect(),
        damaged: reply.damaged,
        up_to_revision: reply.up_to_revision,
        has_more: reply.has_more,
    })
}

/// Encodes ids of provers.
pub fn prover_ids_to_wire(ids: &ProverIds) -> proto::ListProverIdsResponse {
    proto::ListProverIdsResponse {
        provers: ids.provers.iter().map(|device| device.0).collect(),
        removed: ids.removed.iter().map(|device| device.0).collect(),
        up_to_revision: ids.up_to_revision,
        has_more: ids.has_more,
    }
}

/// Decodes ids of provers.
pub fn prover_ids_from_wire(reply: proto::ListProverIdsResponse) -> ProverIds {
    ProverIds {
        provers: reply.provers.into_iter().map(DeviceId).collect(),
        removed: reply.removed.into_iter().map(DeviceId).collect(),
        up_to_revision: reply.up_to_revision,
        has_more: reply.has_more,
    }
}

/// Values and flags in the byte of an outcome on the wire.
const MISSED: u8 = 1;
const OK: u8 = 2;
const LATE: u8 = 3;
const ALTERNATE: u8 = 4;
const IPV6: u8 = 8;

fn outcome_to_byte(observation: &ProverObservation) -> u8 {
    let configuration_flag = |configuration| match configuration {
        Configuration::Current => 0,
        Configuration::Alternate => ALTERNATE,
    };
    let outcome = match observation.outcome {
        ProofOutcome::Ok(configuration) => OK | configuration_flag(configuration),
        ProofOutcome::Late(configuration) => LATE | configuration_flag(configuration),
        ProofOutcome::Missed => MISSED,
    };
    match observation.address {
        IpAddr::V4(_) => outcome,
        IpAddr::V6(_) => outcome | IPV6,
    }
}

fn outcome_from_byte(byte: u8) -> Result<ProofOutcome, Malformed> {
    let configuration = match byte & ALTERNATE {
        0 => Configuration::Current,
        _ => Configuration::Alternate,
    };
    match byte & !(ALTERNATE | IPV6) {
        OK => Ok(ProofOutcome::Ok(configuration)),
        LATE => Ok(ProofOutcome::Late(configuration)),
        MISSED => Ok(ProofOutcome::Missed),
        _ => Err(Malformed("invalid outcome of a prover")),
    }
}

fn observations_from_wire(
    request: &proto::AppraiseRoundRequest,
) -> Result<Vec<ProverObservation>, Malformed> {
    let count = request.devices.len();
    if request.enrolled_at_s.len() != count || request.outcomes.len() != count {
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
        .zip(&request.outcomes);
    let observations = columns.map(|((device, enrolled_at_s), byte)| {
        Ok(ProverObservation {
            device: DeviceId(*device),
            enrolled_at: EnrollmentTime(*enrolled_at_s),
            outcome: outcome_from_byte(*byte)?,
            address: address(*byte).ok_or(Malformed("no address of a prover"))?,
        })
    });
    let observations = observations.collect::<Result<_, _>>()?;
    match addresses.is_empty() {
        true => Ok(observations),
        false => Err(Malformed("more addresses than provers")),
    }
}

/// Encodes the round; `age_ns` is the time since the end of the round.
pub fn round_to_wire(outcome: &RoundOutcome, age_ns: u64) -> proto::AppraiseRoundRequest {
    proto::AppraiseRoundRequest {
        registration: None,
        number: outcome.number.0,
        group: outcome.group.as_str().to_owned(),
        period: outcome.period.0,
        feed_revision: outcome.feed_revision.0,
        duration_ms: outcome.duration_ms,
        age_ns,
        last_proof_ms: outcome.last_proof_ms,
        devices: outcome
            .observations
            .iter()
            .map(|observation| observation.device.0)
            .collect(),
        enrolled_at_s: outcome
            .observations
            .iter()
            .map(|observation| observation.enrolled_at.0)
            .collect(),
        outcomes: outcome.observations.iter().map(outcome_to_byte).collect(),
        addresses: outcome
            .observations
            .iter()
            .flat_map(|observation| address_to_wire(Some(observation.address)))
            .collect(),
    }
}

/// Decodes the round.
pub fn round_from_wire(request: proto::AppraiseRoundRequest) -> Result<RoundOutcome, Malformed> {
    Ok(RoundOutcome {
        observations: observations_from_wire(&request)?,
        number: RoundNumber(request.number),
        group: group(request.group)?,
        period: Period(request.period),
        feed_revision: Revision(request.feed_revision),
        duration_ms: request.duration_ms,
        last_proof_ms: request.last_proof_ms,
    })
}

/// Encodes the appraisal of a round.
pub fn appraisal_to_wire(appraisal: &RoundAppraisal) -> proto::AppraiseRoundResponse {
    let quarantined = |quarantined: &QuarantinedDevice| proto::QuarantinedDevice {
        device: quarantined.device.0,
        reason: quarantined.reason.clone(),
        revision: quarantined.revision.0,
    };
    let remediated = |(device, revision): &(DeviceId, Revision)| proto::RemediatedDevice {
        device: device.0,
        revision: revision.0,
    };
    proto::AppraiseRoundResponse {
        quarantined: appraisal.quarantined.iter().map(quarantined).collect(),
        remediated: appraisal.remediated.iter().map(remediated).collect(),
        attestation_results: appraisal.attestation_results.clone(),
        outage: appraisal.outage.map(|outage| proto::GroupOutage {
            requested: outage.requested,
            excused: outage.excused,
            excused_max: outage.excused_max,
        }),
    }
}

/// Decodes the appraisal of a round.
pub fn appraisal_from_wire(reply: proto::AppraiseRoundResponse) -> RoundAppraisal {
    let quarantined = |quarantined: proto::QuarantinedDevice| QuarantinedDevice {
        device: DeviceId(quarantined.device),
        reason: quarantined.reason,
        revision: Revision(quarantined.revision),
    };
    let remediated =
        |remediated: proto::RemediatedDevice| (DeviceId(remediated.device), Revision(remediated.revision));
    RoundAppraisal {
        quarantined: reply.quarantined.into_iter().map(quarantined).collect(),
        remediated: reply.remediated.into_iter().map(remediated).collect(),
        attestation_results: reply.attestation_results,
        outage: reply.outage.map(|outage| GroupOutage {
            requested: outage.requested,
            excused: outage.excused,
            excused_max: outage.excused_max,
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
        let outcomes = [
            ProofOutcome::Missed,
            ProofOutcome::Ok(Configuration::Current),
            ProofOutcome::Ok(Configuration::Alternate),
            ProofOutcome::Late(Configuration::Current),
            ProofOutcome::Late(Configuration::Alternate),
        ];
        let pairs = outcomes
            .into_iter()
            .flat_map(|outcome| [(outcome, v4), (outcome, v6)]);
        RoundOutcome {
            number: RoundNumber(3),
            group: GroupName::new("doors".to_owned()).unwrap(),
            period: Period(4),
            feed_revision: Revision(5),
            duration_ms: 6,
            last_proof_ms: 7,
            observations: pairs
                .zip(1..)
                .map(|((outcome, address), device)| ProverObservation {
                    device: DeviceId(device),
                    enrolled_at: EnrollmentTime(device << 40),
                    outcome,
                    address,
                })
                .collect(),
        }
    }

    #[test]
    fn a_round_is_decoded_as_it_was_encoded() {
        let request = round_to_wire(&round(), 9);
        assert_eq!(request.age_ns, 9);
        assert_eq!(round_from_wire(request).unwrap(), round());
    }

    #[test]
    fn columns_of_different_lengths_are_malformed() {
        type Change = fn(&mut proto::AppraiseRoundRequest);
        let changes: [(&str, Change); 8] = [
            ("a device more", |request| request.devices.push(1)),
            ("a device less", |request| request.devices.truncate(1)),
            ("an enrollment more", |request| request.enrolled_at_s.push(1)),
            ("a byte more", |request| request.outcomes.push(OK)),
            ("an address less", |request| request.addresses.truncate(1)),
            ("more addresses", |request| request.addresses.push(0)),
            ("no outcome", |request| request.outcomes[0] = 0),
            ("an undefined bit", |request| request.outcomes[0] |= 16),
        ];
        for (name, change) in changes {
            let mut request = round_to_wire(&round(), 9);
            change(&mut request);
            round_from_wire(request).expect_err(name);
        }
    }

    /// A sender with a gateway's certificate cannot make the controller allocate more memory than twice the length of the
    /// message. The limit matters because the controller decodes the message before it checks the registration.
    #[test]
    fn decoding_a_round_allocates_at_most_twice_its_length() {
        let mut request = round_to_wire(&round(), 9);
        request.devices = vec![0; 1_000];
        request.enrolled_at_s = vec![0; 1_000];
        request.outcomes = vec![0; 1_000];
        let bytes = request.encode_to_vec();
        let decoded = proto::AppraiseRoundRequest::decode(&*bytes).unwrap();
        let allocated =
            (decoded.devices.capacity() + decoded.enrolled_at_s.capacity()) * 8 + decoded.outcomes.capacity();
        assert!(allocated <= 2 * bytes.len(), "{allocated} of {}", bytes.len());
        // An unknown field is skipped without an allocation.
        let empty = [0x4a, 0].repeat(1_000);
        assert_eq!(
            proto::AppraiseRoundRequest::decode(&*empty).unwrap(),
            proto::AppraiseRoundRequest::default()
        );
    }
}
