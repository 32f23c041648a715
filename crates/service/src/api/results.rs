//! Attestation rounds and results. A result is valid only while the gateway of the device continues its rounds.

use std::collections::{BTreeSet, HashMap};

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use linewarden_api::{
    AttestationResult, ErrorBody, List, Location, ResultQuery, Round, RoundQuery, SignedResults,
};
use linewarden_controller::attest::{DeviceResult, SUBMODULES_MAX, Signer};
use linewarden_protocol::gateway::Configuration;
use linewarden_protocol::ids::{DeviceId, GatewayId};
use linewarden_registry::{
    Appraisal, AttestationError, AttestationState, DeviceError, DeviceInfo, ProverRecord, Registry,
    RegistryError, RoundRecord,
};
use linewarden_types::{GroupName, GroupPolicy, ReleaseMode};

use super::devices::protection_name;
use super::lists::{log_damaged, parse_cursor, parse_device_id, parse_gateway_id, parse_limit};
use crate::auth::Viewer;
use crate::clock::now_s;
use crate::error::{ApiError, Result};
use crate::extract::{Json, Path, Query};
use crate::state::App;

/// The states of devices in results.
const STATES: [&str; 8] = [
    "ok",
    "late",
    "missed",
    "quarantined",
    "awaiting_first_round",
    "unproven",
    "stale",
    "revoked",
];
/// Maximum number of devices that a query may name.
const NAMED_DEVICES_MAX: usize = 1_000;
/// Validity of signed results of devices without a current proof, seconds.
const STALE_VALIDITY_S: u64 = 60;

/// Converts a round of the registry.
pub(crate) fn round_from_record(round: RoundRecord) -> Round {
    Round {
        gateway: round.gateway.0,
        number: round.number,
        group: round.group.as_str().to_owned(),
        period: round.period.0,
        started_at_s: round.started_at_s,
        ended_at_s: round.ended_at_s,
        requested: round.requested,
        ok: round.ok,
        late: round.late,
        missed: round.missed,
        last_proof_ms: round.last_proof_ms,
    }
}

/// Lists stored rounds, newest first.
#[utoipa::path(get, path = "/api/v1/rounds", params(RoundQuery), responses((status = 200, body = List<Round>), (status = 422, body = ErrorBody)))]
pub(crate) async fn rounds(
    _: Viewer,
    State(app): State<App>,
    Query(query): Query<RoundQuery>,
) -> Result<Json<List<Round>>> {
    let gateway = query.gateway.as_deref().map(parse_gateway_id).transpose()?;
    let group = query
        .group
        .map(|group| GroupName::new(group).map_err(|error| ApiError::invalid("group", error.to_string())))
        .transpose()?;
    let page = app
        .registry
        .rounds_page(
            gateway,
            group.as_ref(),
            parse_cursor(query.after.as_deref())?,
            parse_limit(query.limit)?,
        )
        .await?;
    Ok(Json(List {
        items: page.rounds.into_iter().map(round_from_record).collect(),
        next: page.next.map(|cursor| cursor.to_string()),
        damaged_records: 0,
    }))
}

/// The records from which the result of a device follows.
struct DeviceRecords {
    prover: ProverRecord,
    info: DeviceInfo,
    appraisal: Option<Appraisal>,
    /// The policy of the device's group; `None` if its record is damaged.
    policy: Option<GroupPolicy>,
    /// The newest round of the group at the device's gateway.
    round: Option<RoundRecord>,
}

impl DeviceRecords {
    /// End of the validity of the newest round's results; `None` if the round or the policy is unknown.
    fn valid_until_s(&self) -> Option<u64> {
        let validity_s = self.policy.as_ref().map(GroupPolicy::validity_s);
        let round = self.round.as_ref();
        round
            .zip(validity_s)
            .map(|(round, validity_s)| round.ended_at_s.saturating_add(validity_s))
    }

    /// Whether the newest round ended less than the validity of its results before now, or after now, if clocks differ.
    fn is_fresh(&self, now_s: u64) -> bool {
        let validity_s = self.policy.as_ref().map(GroupPolicy::validity_s);
        let age_s = self.round.as_ref().map(|round| now_s.abs_diff(round.ended_at_s));
        age_s
            .zip(validity_s)
            .is_some_and(|(age_s, validity_s)| age_s <= validity_s)
    }

    fn state(&self, now_s: u64) -> &'static str {
        result_state(
            self.info.status.is_active(),
            self.info.quarantine.is_some(),
            self.appraisal.as_ref().map(|appraisal| appraisal.state),
            self.is_fresh(now_s),
        )
    }

    fn result(self, now_s: u64) -> AttestationResult {
        let state = self.state(now_s);
        let (is_fresh, valid_until_s) = (self.is_fresh(now_s), self.valid_until_s());
        let appraisal = self.appraisal.as_ref();
        let round = self.round.as_ref();
        let round_age_s = round.map(|round| now_s.abs_diff(round.ended_at_s));
        let state_age_s = appraisal.map(|appraisal| now_s.abs_diff(appraisal.since_s));
        AttestationResult {
            device: self.prover.device.to_string(),
            group: self.prover.group.as_str().to_owned(),
            protection: protection_name(self.prover.protection).into(),
            state: state.into(),
            since_s: match (state, &self.info.quarantine) {
                ("quarantined", Some(quarantine)) => Some(quarantine.at_s),
                _ => appraisal.map(|appraisal| appraisal.since_s),
            },
            age_s: round_age_s.or(state_age_s),
            valid_until_s: valid_until_s.filter(|_| is_fresh),
            gateway: appraisal.map(|appraisal| appraisal.gateway.0),
            since_round: appraisal.map(|appraisal| appraisal.since_round),
            last_round: round.map(|round| round.number),
            last_round_ended_s: round.map(|round| round.ended_at_s),
            last_round_requested: round.map(|round| round.requested),
            reference: appraisal
                .filter(|_| matches!(state, "ok" | "late"))
                .map(|appraisal| {
                    match appraisal.configuration {
                        Configuration::Current => "base",
                        Configuration::Alternate => "roll-out",
                    }
                    .into()
                }),
            address: appraisal.and_then(|appraisal| appraisal.address),
            port: self.prover.port,
            location: self.prover.location.map(|location| Location {
                gateway: location.gateway.0,
                address: location.address,
            }),
            enrolled_at_s: self.prover.enrolled_at_s,
            needs_release: self
                .policy
                .is_some_and(|policy| policy.release_mode == ReleaseMode::Manual),
            name: self.info.name,
            reason: self.info.quarantine.map(|quarantine| quarantine.reason),
        }
    }

    /// The result for a signed token; `None` if the device was never attested, or is revoked.
    fn signable(&self, now_s: u64) -> Option<DeviceResult> {
        let mut appraisal = self.appraisal.clone()?;
        let state = self.state(now_s);
        appraisal.state = match state {
            "revoked" => return None,
            "quarantined" => AttestationState::Quarantined,
            "missed" => AttestationState::Missed,
            _ => appraisal.state,
        };
        Some(DeviceResult {
            appraisal,
            protection: self.prover.protection,
            group: self.prover.group.as_str().to_owned(),
            is_stale: state == "stale",
        })
    }
}

/// The state of a device. `is_fresh`: the result of the newest round is still valid.
fn result_state(
    is_active: bool,
    is_quarantined: bool,
    state: Option<AttestationState>,
    is_fresh: bool,
) -> &'static str {
    match state {
        _ if !is_active => "revoked",
        _ if is_quarantined => "quarantined",
        None => "awaiting_first_round",
        // A state without a proof cannot become stale.
        Some(AttestationState::Unproven) => "unproven",
        Some(_) if !is_fresh => "stale",
        Some(AttestationState::Ok) => "ok",
        Some(AttestationState::Late) => "late",
        // A device that was released by a command has not proven itself yet.
        Some(AttestationState::Missed | AttestationState::Quarantined) => "missed",
    }
}

/// Reads the records of devices. Groups and rounds, which many devices share, are read once.
struct RecordReader<'a> {
    registry: &'a Registry,
    policies: HashMap<GroupName, GroupPolicy>,
    rounds: HashMap<(GatewayId, GroupName), Option<RoundRecord>>,
}

impl<'a> RecordReader<'a> {
    /// Also returns the number of damaged groups.
    async fn new(app: &'a App) -> Result<(Self, u64)> {
        let _permit = app.group_permits.read().await;
        let groups = app.registry.groups().await?;
        let policies = groups.groups.into_iter().map(|group| (group.name, group.policy));
        let reader = Self {
            registry: &app.registry,
            policies: policies.collect(),
            rounds: HashMap::new(),
        };
        Ok((reader, log_damaged(&groups.damaged)))
    }

    async fn read(&mut self, prover: ProverRecord) -> Result<DeviceRecords, RegistryError> {
        let info = self.registry.get(prover.device).await?;
        let appraisal = self.registry.appraisal(prover.device).await?;
        let round = match &appraisal {
            Some(appraisal) => self.newest_round(appraisal.gateway, &prover.group).await?,
            None => None,
        };
        Ok(DeviceRecords {
            policy: self.policies.get(&prover.group).copied(),
            prover,
            info,
            appraisal,
            round,
        })
    }

    async fn newest_round(
        &mut self,
        gateway: GatewayId,
        group: &GroupName,
    ) -> Result<Option<RoundRecord>, RegistryError> {
        if let Some(round) = self.rounds.get(&(gateway, group.clone())) {
            return Ok(round.clone());
        }
        let rounds = self
            .registry
            .rounds_of_group(Some(gateway), Some(group), 1)
            .await?;
        let newest = rounds.into_iter().next();
        self.rounds.insert((gateway, group.clone()), newest.clone());
        Ok(newest)
    }
}

/// A page of records, and the cursor of the next page.
struct RecordPage {
    records: Vec<DeviceRecords>,
    next: Option<String>,
    damaged: u64,
}

/// Reads the devices of a query. Without named devices, the cursor is the revision of an attestation record.
async fn read_page(app: &App, query: &ResultQuery, limit: u32) -> Result<RecordPage> {
    let registry = &app.registry;
    let (mut reader, damaged_groups) = RecordReader::new(app).await?;
    if let Some(devices) = &query.devices {
        let mut records = Vec::new();
        for device in parse_devices(devices)? {
            let prover = registry.prover(device).await?;
            // A device that is not enrolled at all has another error.
            registry.get(device).await?;
            let not_a_prover = RegistryError::Attestation(AttestationError::NotAProver { device });
            records.push(reader.read(prover.ok_or(not_a_prover)?).await?);
        }
        return Ok(RecordPage {
            records,
            next: None,
            damaged: damaged_groups,
        });
    }
    let after: Option<u64> = parse_cursor(query.after.as_deref())?;
    let group = query.group.clone().map(GroupName::new).transpose();
    let group = group.map_err(|error| ApiError::invalid("group", error.to_string()))?;
    if let Some(name) = &group
        && after.is_none()
        && !reader.policies.contains_key(name)
        && registry.group(name).await?.is_none()
    {
        return Err(
            RegistryError::Attestation(AttestationError::UnknownGroup { group: name.clone() }).into(),
        );
    }
    let page = registry.provers_since(after.unwrap_or_default(), limit).await?;
    let (mut records, mut damaged) = (Vec::new(), page.damaged);
    for prover in page.provers {
        if prover.removed || group.as_ref().is_some_and(|group| *group != prover.group) {
            continue;
        }
        match reader.read(prover).await {
            Ok(record) if record.info.status.is_active() => records.push(record),
            Ok(_) => {}
            Err(error @ RegistryError::Device(DeviceError::DamagedRecord { .. })) => {
                damaged.push(error.to_string());
            }
            Err(error) => return Err(error.into()),
        }
    }
    let damaged_groups = match after {
        None => damaged_groups,
        Some(_) => 0,
    };
    Ok(RecordPage {
        records,
        next: page.has_more.then(|| page.up_to_revision.to_string()),
        damaged: damaged_groups + log_damaged(&damaged),
    })
}

fn parse_devices(devices: &str) -> Result<BTreeSet<DeviceId>> {
    let devices: BTreeSet<DeviceId> = devices
        .split(',')
        .take(NAMED_DEVICES_MAX + 1)
        .map(|id| parse_device_id(id, "devices"))
        .collect::<Result<_>>()?;
    match devices.len() > NAMED_DEVICES_MAX {
        true => Err(ApiError::invalid("devices", "at most 1000 devices")),
        false => Ok(devices),
    }
}

/// Lists the results of attested devices in the order of their enrollment for attestation. With `group` or `state`, a page may
/// have fewer than `limit` items although another page follows.
#[utoipa::path(get, path = "/api/v1/results", params(ResultQuery), responses((status = 200, body = List<AttestationResult>), (status = 404, body = ErrorBody), (status = 422, body = ErrorBody)))]
pub(crate) async fn results(
    _: Viewer,
    State(app): State<App>,
    Query(query): Query<ResultQuery>,
) -> Result<Json<List<AttestationResult>>> {
    let state = parse_state(&query)?;
    let page = read_page(&app, &query, parse_limit(query.limit)?).await?;
    let now_s = now_s();
    let items = page.records.into_iter().map(|records| records.result(now_s));
    Ok(Json(List {
        items: items
            .filter(|item| state.is_none_or(|state| item.state == state))
            .collect(),
        next: page.next,
        damaged_records: page.damaged,
    }))
}

fn parse_state(query: &ResultQuery) -> Result<Option<&str>> {
    match query.state.as_deref() {
        Some(state) if !STATES.contains(&state) => Err(ApiError::invalid("state", STATES.join(", "))),
        state => Ok(state),
    }
}

fn signer(app: &App) -> Result<&Signer> {
    app.controller
        .signer()
        .ok_or_else(|| {
            ApiError::conflict(
                "no key signs attestation results; set `signing_key` in [attest] of the controller's configuration",
            )
        })
}

/// Signs the results of up to [`SUBMODULES_MAX`] devices.
fn sign(signer: &Signer, records: &[&DeviceRecords], now_s: u64) -> Result<Option<SignedResults>> {
    let results: Vec<DeviceResult> = records
        .iter()
        .filter_map(|record| record.signable(now_s))
        .collect();
    if results.is_empty() {
        return Ok(None);
    }
    let fresh = records.iter().filter(|record| record.is_fresh(now_s));
    let valid_until_s = fresh.filter_map(|record| record.valid_until_s()).min();
    let expires_s = valid_until_s.unwrap_or_else(|| now_s.saturating_add(STALE_VALIDITY_S));
    let token = signer.sign(&results, now_s, expires_s).map_err(|error| {
        tracing::error!(%error, "signing an attestation result failed");
        ApiError::unavailable("signing the attestation result failed")
    })?;
    Ok(Some(SignedResults {
        token,
        devices: results.len() as u64,
        expires_s,
    }))
}

/// Lists signed results, each of up to 100 devices. Devices that were never attested are omitted.
#[utoipa::path(get, path = "/api/v1/results/signed", params(ResultQuery), responses((status = 200, body = List<SignedResults>), (status = 404, body = ErrorBody), (status = 422, body = ErrorBody)))]
pub(crate) async fn signed(
    _: Viewer,
    State(app): State<App>,
    Query(query): Query<ResultQuery>,
) -> Result<Json<List<SignedResults>>> {
    let state = parse_state(&query)?;
    let signer = signer(&app)?;
    let page = read_page(&app, &query, parse_limit(query.limit)?).await?;
    let now_s = now_s();
    let selected: Vec<&DeviceRecords> = page
        .records
        .iter()
        .filter(|record| state.is_none_or(|state| record.state(now_s) == state))
        .filter(|record| record.signable(now_s).is_some())
        .collect();
    let mut items = Vec::new();
    for batch in selected.chunks(SUBMODULES_MAX) {
        items.extend(sign(signer, batch, now_s)?);
    }
    Ok(Json(List {
        items,
        next: page.next,
        damaged_records: page.damaged,
    }))
}

/// Returns the signed attestation result of a device: an EAR (draft-ietf-rats-ear) as a JWT.
#[utoipa::path(get, path = "/api/v1/results/{device}", responses((status = 200, body = String, content_type = "application/eat+jwt"), (status = 404, body = ErrorBody)))]
pub(crate) async fn result(_: Viewer, State(app): State<App>, Path(id): Path<String>) -> Result<Response> {
    let device = parse_device_id(&id, "device")?;
    app.registry.get(device).await?;
    let signer = signer(&app)?;
    let prover = app.registry.prover(device).await?;
    let prover =
        prover.ok_or_else(|| ApiError::not_found("attestation result: the device is not attested"))?;
    let (mut reader, _) = RecordReader::new(&app).await?;
    let records = reader.read(prover).await?;
    let signed = sign(signer, &[&records], now_s())?;
    let signed = signed
        .ok_or_else(|| ApiError::not_found("attestation result: the device has not been in a round yet"))?;
    Ok(([(header::CONTENT_TYPE, "application/eat+jwt")], signed.token).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [Option<AttestationState>; 6] = [
        None,
        Some(AttestationState::Unproven),
        Some(AttestationState::Ok),
        Some(AttestationState::Late),
        Some(AttestationState::Missed),
        Some(AttestationState::Quarantined),
    ];

    #[test]
    fn only_a_proof_of_a_recent_round_is_ok() {
        for is_active in [true, false] {
            for is_quarantined in [true, false] {
                for is_fresh in [true, false] {
                    for state in STATES {
                        let is_ok = result_state(is_active, is_quarantined, state, is_fresh) == "ok";
                        let expected =
                            is_active && !is_quarantined && is_fresh && state == Some(AttestationState::Ok);
                        assert_eq!(
                            is_ok, expected,
                            "{is_active} {is_quarantined} {is_fresh} {state:?}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn without_recent_rounds_a_state_with_proofs_is_stale() {
        for state in STATES.into_iter().flatten() {
            let expected = match state {
                AttestationState::Unproven => "unproven",
                _ => "stale",
            };
            assert_eq!(result_state(true, false, Some(state), false), expected);
            assert_eq!(result_state(true, true, Some(state), false), "quarantined");
        }
        assert_eq!(result_state(true, false, None, false), "awaiting_first_round");
        assert_eq!(
            result_state(true, false, Some(AttestationState::Quarantined), true),
            "missed"
        );
    }
}
