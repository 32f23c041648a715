//! API users.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// The authenticated user.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Identity {
    /// The user name.
    pub name: String,
    /// viewer, operator or admin
    pub role: Cow<'static, str>,
    /// Expiry of the session, token or certificate.
    pub expires_at_s: Option<u64>,
}

/// An API user.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UserInfo {
    /// The user name.
    pub name: String,
    /// viewer, operator or admin
    pub role: Cow<'static, str>,
    /// Whether the user has a token; otherwise the user authenticates with a certificate that names the user.
    pub has_token: bool,
    /// Time of creation.
    pub created_at_s: u64,
    /// Expiry; null: no expiry.
    pub expires_at_s: Option<u64>,
}

/// A user to create.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NewUser {
    /// The user name.
    pub name: String,
    /// viewer, operator or admin
    pub role: String,
    /// Expiry; by default no expiry.
    pub expires_at_s: Option<u64>,
    /// Whether the user authenticates with a certificate that names the user, instead of a token.
    #[serde(default)]
    pub certificate: bool,
    /// The reason.
    pub reason: String,
}

/// A new user with its token, which is shown only once.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CreatedUser {
    /// The user name.
    pub name: String,
    /// The token; null for a user with a certificate.
    pub token: Option<String>,
}

/// Parameters of the deletion of a user.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub struct ReasonQuery {
    /// The reason.
    pub reason: String,
}
