//! Trusted signers of broadcast messages.

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use linewarden_api::{ErrorBody, List, NewSigner, PageQuery, Reason, Signer};
use linewarden_registry::SignerRecord;
use linewarden_signatures::key::PublicKey;

use super::devices::{new_event, run_action};
use super::lists::{Records, paginate};
use crate::auth::{Admin, Operator, Viewer};
use crate::clock::now_s;
use crate::error::{ApiError, Result};
use crate::extract::{Json, Path, Query};
use crate::state::App;

/// Converts a signer of the registry.
fn signer_from_record(record: SignerRecord) -> Signer {
    Signer {
        id: hex::encode(&record.id),
        name: record.name,
        scheme: record.scheme,
        status: match record.revoked_at_s {
            Some(_) => "revoked",
            None => "active",
        }
        .into(),
        added_at_s: record.added_at_s,
        revoked_at_s: record.revoked_at_s,
        public_key: String::from_utf8(record.public_key).unwrap_or_default(),
    }
}

async fn list_all<T>(app: &App, convert: impl Fn(SignerRecord) -> T) -> Result<Records<T>> {
    Ok(Records::read(app.registry.signers().await?, convert))
}

/// Lists signers by id.
#[utoipa::path(get, path = "/api/v1/signers", params(PageQuery), responses((status = 200, body = List<Signer>), (status = 422, body = ErrorBody)))]
pub(crate) async fn list(
    _: Viewer,
    State(app): State<App>,
    Query(page_query): Query<PageQuery>,
) -> Result<Json<List<Signer>>> {
    let signers = list_all(&app, signer_from_record).await?;
    paginate(&page_query, signers, |signer: &Signer| signer.id.clone()).map(Json)
}

/// Lists revoked signers in the format of `linewarden signed receive --revoked`.
#[utoipa::path(get, path = "/api/v1/signers/revoked", responses((status = 200, body = String, content_type = "text/plain")))]
pub(crate) async fn revoked(_: Viewer, State(app): State<App>) -> Result<Response> {
    let mut list = String::from("linewarden revoked 1\n");
    for signer in list_all(&app, |signer| signer)
        .await?
        .items
        .iter()
        .filter(|signer| signer.revoked_at_s.is_some())
    {
        list.push_str(&hex::encode(&signer.id));
        list.push('\n');
    }
    list.push_str("end\n");
    Ok(([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], list).into_response())
}

/// Converts a request to a record of the registry.
fn signer_record(request: &NewSigner, now_s: u64) -> Result<SignerRecord> {
    let key = PublicKey::from_json(&request.public_key)
        .map_err(|problem| ApiError::invalid("public_key", problem.to_string()))?;
    Ok(SignerRecord {
        id: hex::decode(key.id().to_string()).unwrap_or_default(),
        name: request.name.clone(),
        scheme: key.scheme().name().to_owned(),
        public_key: request.public_key.clone().into_bytes(),
        added_at_s: now_s,
        revoked_at_s: None,
    })
}

/// Adds a trusted signer.
#[utoipa::path(post, path = "/api/v1/signers", request_body = NewSigner, responses((status = 201, body = Signer), (status = 422, body = ErrorBody)))]
pub(crate) async fn add(
    Admin(principal): Admin,
    State(app): State<App>,
    Json(new): Json<NewSigner>,
) -> Result<(StatusCode, Json<Signer>)> {
    let record = signer_record(&new, now_s())?;
    let event = new_event(
        "signer_changed",
        None,
        format!("added {} {}", hex::encode(&record.id), record.name),
    );
    run_action(&app, &principal, &new.reason, event, async |registry| {
        Ok(registry.add_signer(&record).await?)
    })
    .await?;
    Ok((StatusCode::CREATED, Json(signer_from_record(record))))
}

/// Revokes a signer permanently.
#[utoipa::path(post, path = "/api/v1/signers/{id}/revoke", request_body = Reason, responses((status = 200, body = Signer), (status = 404, body = ErrorBody)))]
pub(crate) async fn revoke(
    Operator(principal): Operator,
    State(app): State<App>,
    Path(id): Path<String>,
    Json(Reason { reason }): Json<Reason>,
) -> Result<Json<Signer>> {
    let bytes = hex::decode(&id).map_err(|_| ApiError::invalid("id", "a signer id is hexadecimal"))?;
    let event = new_event("signer_changed", None, format!("revoked {}", hex::encode(&bytes)));
    run_action(&app, &principal, &reason, event, async |registry| match registry
        .revoke_signer(&bytes, now_s())
        .await?
    {
        true => Ok(()),
        false => Err(ApiError::not_found(&format!("signer {id}"))),
    })
    .await?;
    let signers = list_all(&app, |signer| signer).await?.items;
    let signer = signers.into_iter().find(|signer| signer.id == bytes);
    signer
        .map(|signer| Json(signer_from_record(signer)))
        .ok_or_else(|| ApiError::not_found(&format!("signer {id}")))
}
