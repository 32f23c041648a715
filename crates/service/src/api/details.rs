//! Details of a device.

use std::borrow::Cow;

use axum::extract::State;
use linewarden_protocol::ids::DeviceId;
use linewarden_registry::{self as registry, Appraisal, EventFilter, Protection, ProverRecord, Registry};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::devices::{Device, state_name};
use super::lists::parse_device_id;
use crate::auth::Viewer;
use crate::error::{ErrorBody, Result};
use crate::extract::{Json, Path};
use crate::state::App;
use crate::stream::EventRecord;

/// Maximum number of events in the history of a device.
const HISTORY_EVENTS_MAX: u32 = 100;

/// A device with leases, attestation state and history.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
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
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
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

/// The attestation state of a device.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Attestation {
    /// The group.
    pub group: String,
    /// The protection of the attestation key: software or tpm
    pub protection: Cow<'static, str>,
    /// ok, late, missed, quarantined or unproven
    pub state: Cow<'static, str>,
    /// Time of the last state change; null before the first round.
    pub since_s: Option<u64>,
    /// The gateway of the last round.
    pub gateway: Option<u32>,
}

impl From<registry::Lease> for Lease {
    fn from(lease: registry::Lease) -> Self {
        Self {
            gateway: lease.gateway.0,
            rows: [lease.rows.start, lease.rows.end],
            mark: lease.mark.0,
            fencing_token: lease.fencing_token,
        }
    }
}

impl Attestation {
    fn new(prover: &ProverRecord, appraisal: Option<&Appraisal>) -> Self {
        Self {
            group: prover.group.as_str().to_owned(),
            protection: match prover.protection {
                Protection::Software => "software",
                Protection::Tpm => "tpm",
            }
            .into(),
            state: appraisal
                .map_or("unproven", |appraisal| state_name(appraisal.state))
                .into(),
            since_s: appraisal.map(|appraisal| appraisal.since_s),
            gateway: appraisal.map(|appraisal| appraisal.gateway.0),
        }
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
            Some(Attestation::new(&prover, appraisal.as_ref()))
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
        device: info.into(),
        leases: leases.into_iter().map(Lease::from).collect(),
        attestation,
        history: history
            .entries
            .iter()
            .filter_map(EventRecord::from_public_entry)
            .collect(),
    })
}
