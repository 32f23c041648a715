//! Trusted signers of broadcast messages.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// A signer.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Signer {
    /// The signer id, hexadecimal.
    pub id: String,
    /// The display name.
    pub name: String,
    /// The signature scheme.
    pub scheme: String,
    /// active or revoked
    pub status: Cow<'static, str>,
    /// Time of the addition.
    pub added_at_s: u64,
    /// Time of the revocation.
    pub revoked_at_s: Option<u64>,
    /// The content of the public key file.
    pub public_key: String,
}

/// A signer to add.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NewSigner {
    /// The display name.
    pub name: String,
    /// The content of a public key file of `linewarden signed keygen`.
    pub public_key: String,
    /// The reason.
    pub reason: String,
}
