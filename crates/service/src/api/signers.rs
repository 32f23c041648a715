//! Whose broadcast messages are believed.

use std::borrow::Cow;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use linewarden_registry::SignerEntry;
use linewarden_signatures::key::PublicKey;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::devices::{act, note};
use super::lists::{List, Part, Reason};
use crate::auth::{Admin, Operator, Viewer};
use crate::clock::now_s;
use crate::error::{ApiError, ErrorBody, Result};
use crate::extract::{Json, Path, Query};
use crate::state::App;

/// A signer.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Signer {
    /// Hexadecimal.
    pub id: String,
    /// For people.
    pub name: String,
    /// How it signs.
    pub scheme: String,
    /// active or revoked
    pub status: Cow<'static, str>,
    /// Since when it was believed.
    pub added_at_s: u64,
    /// Since when it is believed no more.
    pub revoked_at_s: Option<u64>,
    /// The file of its public key.
    pub public_key: String,
}

impl From<SignerEntry> for Signer {
    fn from(entry: SignerEntry) -> Self {
        Self {
            id: hex::encode(&entry.id),
            name: entry.name,
            scheme: entry.scheme,
            status: match entry.revoked_at_s {
                Some(_) => "revoked",
                None => "active",
            }
            .into(),
            added_at_s: entry.added_at_s,
            revoked_at_s: entry.revoked_at_s,
            public_key: String::from_utf8(entry.public_key).unwrap_or_default(),
        }
    }
}

async fn all(app: &App) -> Result<Vec<SignerEntry>> {
    let mut signers = Vec::new();
    for signer in app.registry.signers().await? {
        match signer {
            Ok(signer) => signers.push(signer),
            Err(error) => tracing::error!(%error, "left out of a list"),
        }
    }
    Ok(signers)
}

/// Signers, by their ids.
#[utoipa::path(get, path = "/api/v1/signers", params(Part), responses((status = 200, body = List<Signer>), (status = 422, body = ErrorBody)))]
pub(crate) async fn list(
    _: Viewer,
    State(app): State<App>,
    Query(part): Query<Part>,
) -> Result<Json<List<Signer>>> {
    let signers = all(&app).await?.into_iter().map(Signer::from).collect();
    part.of(signers, |signer| signer.id.clone()).map(Json)
}

/// The revoked ones, as `linewarden signed receive --revoked` reads them.
#[utoipa::path(get, path = "/api/v1/signers/revoked", responses((status = 200, body = String, content_type = "text/plain")))]
pub(crate) async fn revoked(_: Viewer, State(app): State<App>) -> Result<Response> {
    let mut list = String::from("linewarden revoked 1\n");
    for signer in all(&app)
        .await?
        .iter()
        .filter(|signer| signer.revoked_at_s.is_some())
    {
        list.push_str(&hex::encode(&signer.id));
        list.push('\n');
    }
    list.push_str("end\n");
    Ok(([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], list).into_response())
}

/// A signer to be believed.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewSigner {
    /// For people.
    pub name: String,
    /// The file of a public key that `linewarden signed keygen` makes.
    pub public_key: String,
    /// Why.
    pub reason: String,
}

impl NewSigner {
    /// What is stored of it.
    ///
    /// # Errors
    /// What is wrong with the public key.
    pub fn entry(&self, now_s: u64) -> Result<SignerEntry, String> {
        let key = PublicKey::from_json(&self.public_key).map_err(|problem| problem.to_string())?;
        Ok(SignerEntry {
            id: hex::decode(key.id().to_string()).unwrap_or_default(),
            name: self.name.clone(),
            scheme: key.scheme().name().to_owned(),
            public_key: self.public_key.clone().into_bytes(),
            added_at_s: now_s,
            revoked_at_s: None,
        })
    }
}

/// Believes a signer from now on.
#[utoipa::path(post, path = "/api/v1/signers", request_body = NewSigner, responses((status = 201, body = Signer), (status = 422, body = ErrorBody)))]
pub(crate) async fn add(
    Admin(principal): Admin,
    State(app): State<App>,
    Json(new): Json<NewSigner>,
) -> Result<(StatusCode, Json<Signer>)> {
    let entry = new
        .entry(now_s())
        .map_err(|problem| ApiError::invalid("public_key", problem))?;
    let what = note(
        "signer",
        None,
        format!("added {} {}", hex::encode(&entry.id), entry.name),
    );
    act(&app, &principal, &new.reason, what, async |registry| {
        Ok(registry.add_signer(&entry).await?)
    })
    .await?;
    Ok((StatusCode::CREATED, Json(entry.into())))
}

/// Believes a signer no more, for good.
#[utoipa::path(post, path = "/api/v1/signers/{id}/revoke", request_body = Reason, responses((status = 200, body = Signer), (status = 404, body = ErrorBody)))]
pub(crate) async fn revoke(
    Operator(principal): Operator,
    State(app): State<App>,
    Path(id): Path<String>,
    Json(Reason { reason }): Json<Reason>,
) -> Result<Json<Signer>> {
    let bytes = hex::decode(&id).map_err(|_| ApiError::invalid("id", "a signer's id is hexadecimal"))?;
    let what = note("signer", None, format!("revoked {}", hex::encode(&bytes)));
    act(&app, &principal, &reason, what, async |registry| {
        match registry.revoke_signer(&bytes, now_s()).await? {
            true => Ok(()),
            false => Err(ApiError::not_found("such signer")),
        }
    })
    .await?;
    let found = all(&app).await?.into_iter().find(|signer| signer.id == bytes);
    found
        .map(|signer| Json(signer.into()))
        .ok_or_else(|| ApiError::not_found("such signer"))
}
