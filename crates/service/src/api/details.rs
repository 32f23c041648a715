//! One device, with all that is known of it.

use std::borrow::Cow;

use axum::extract::State;
use linewarden_protocol::ids::DeviceId;
use linewarden_registry::{self as registry, Appraisal, JournalFilter, Protection, ProverRecord, Registry};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::devices::{Device, state_name};
use super::lists::device;
use crate::auth::Viewer;
use crate::error::{ErrorBody, Result};
use crate::extract::{Json, Path};
use crate::state::App;
use crate::stream::Happening;

/// Entries of the journal that come with a device.
const HISTORY_MAX: u32 = 100;

/// A device, and what is known of it beside its record.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct DeviceDetails {
    /// Its record.
    #[serde(flatten)]
    pub device: Device,
    /// Which gateways hold rows of it.
    pub leases: Vec<Lease>,
    /// How it stands; null if nobody asks what it runs.
    pub attestation: Option<Attestation>,
    /// What happened to it, newest first: the last hundred things.
    pub history: Vec<Happening>,
}

/// Rows of a device that a gateway may spend.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Lease {
    /// Which gateway.
    pub gateway: u32,
    /// The first row, and the one behind the last; in key mode the number that the gateway counts from, and the next.
    pub rows: [u32; 2],
    /// Rows below it may have been spent.
    pub mark: u32,
    /// The gateway's registration that may spend them.
    pub fence: u64,
}

/// How a device stands that is asked what it runs.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Attestation {
    /// Its group.
    pub group: String,
    /// Where its key lies: software or tpm
    pub protection: Cow<'static, str>,
    /// ok, late, silent, quarantined or unproven
    pub state: Cow<'static, str>,
    /// Since when; null before anybody has noted it.
    pub since_s: Option<u64>,
    /// Which gateway asks it.
    pub gateway: Option<u32>,
}

impl From<registry::Lease> for Lease {
    fn from(lease: registry::Lease) -> Self {
        Self {
            gateway: lease.gateway.0,
            rows: [lease.rows.start, lease.rows.end],
            mark: lease.mark.0,
            fence: lease.fence,
        }
    }
}

impl Attestation {
    fn of(prover: &ProverRecord, appraisal: Option<&Appraisal>) -> Self {
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

/// A device with all that is known of it: its leases, how it stands, what happened.
#[utoipa::path(get, path = "/api/v1/devices/{id}", responses((status = 200, body = DeviceDetails), (status = 404, body = ErrorBody)))]
pub(crate) async fn show(
    _: Viewer,
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<Json<DeviceDetails>> {
    Ok(Json(whole(&app.registry, device(&id, "id")?).await?))
}

async fn whole(registry: &Registry, device: DeviceId) -> Result<DeviceDetails> {
    let info = registry.get(device).await?;
    let leases = registry.leases_of(device).await?;
    let attestation = match registry.prover(device).await? {
        Some(prover) if !prover.removed => {
            let appraisal = registry.appraisal(device).await?;
            Some(Attestation::of(&prover, appraisal.as_ref()))
        }
        _ => None,
    };
    let filter = JournalFilter {
        device: Some(device),
        without_refused: true,
        ..JournalFilter::default()
    };
    let history = registry.journal(&filter, None, HISTORY_MAX).await?;
    Ok(DeviceDetails {
        device: info.into(),
        leases: leases.into_iter().map(Lease::from).collect(),
        attestation,
        history: history.entries.iter().filter_map(Happening::of).collect(),
    })
}
