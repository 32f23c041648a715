//! The body of error responses.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// The body of every error response.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ErrorBody {
    /// The error.
    pub error: ErrorDetail,
}

/// Code and message of an error.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ErrorDetail {
    /// Error code, for programs.
    pub code: Cow<'static, str>,
    /// Error message, for people.
    pub message: String,
    /// The invalid field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// Number of records of the request that were stored before the error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stored: Option<u64>,
}
