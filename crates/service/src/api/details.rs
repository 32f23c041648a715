//! Details of a device.

use axum::extract::State;
use linewarden_api::{Attestation, DeviceDetails, ErrorBody, Lease};
use linewarden_protocol::ids::DeviceId;
use linewarden_registry::{self as registry, Appraisal, EventFilter, ProverRecord, Registry};

use super::devices::{device_from_info, protection_name, state_name};
use super::lists::parse_device_id;
use crate::auth::Viewer;
use crate::error::Result;
use crate::extract::{Json, Path};
use crate::state::App;
use crate::stream::event_from_public_entry;

/// Maximum number of events in the history of a device.
const HISTORY_EVENTS_MAX: u32 = 100;

fn lease_from_record(lease: registry::Lease) -> Lease {
    Lease {
        gateway: lease.gateway.0,
        rows: [lease.rows.start, lease.rows.end],
        mark: lease.mark.0,
        fencing_token: lease.fencing_token,
    }
}

fn attestation_from_records(prover: &ProverRecord, appraisal: Option<&Appraisal>) -> Attestation {
    Attestation {
        group: prover.group.as_str().to_owned(),
        protection: protection_name(prover.protection).into(),
        state: appraisal
            .map_or("unproven", |appraisal| state_name(appraisal.state))
            .into(),
        since_s: appraisal.map(|appraisal| appraisal.since_s),
        gateway: appraisal.map(|appraisal| appraisal.gateway.0),
    }
}

/// Shows a device with leases, attestation state and history.
#[utoipa::path(get, path = "/api/v1/devices/{id}", responses((status = 200, body = DeviceDetails), (status = 404, body = ErrorBody)))]
pub(crate) async fn show(
    _: Viewer,
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<Json<DeviceDetails>> {
    Ok(Json(
        device_details(&app.registry, parse_device_id(&id, "id")?).await?,
    ))
}

async fn device_details(registry: &Registry, device: DeviceId) -> Result<DeviceDetails> {
    let info = registry.get(device).await?;
    let leases = registry.leases_of(device).await?;
    let attestation = match registry.prover(device).await? {
        Some(prover) if !prover.removed => {
            let appraisal = registry.appraisal(device).await?;
            Some(attestation_from_records(&prover, appraisal.as_ref()))
        }
        _ => None,
    };
    let filter = EventFilter {
        device: Some(device),
        exclude_refused: true,
        ..EventFilter::default()
    };
    let history = registry.events(&filter, None, HISTORY_EVENTS_MAX).await?;
    Ok(DeviceDetails {
        device: device_from_info(info),
        leases: leases.into_iter().map(lease_from_record).collect(),
        attestation,
        history: history
            .entries
            .iter()
            .filter_map(event_from_public_entry)
            .collect(),
    })
}
