//! Why a question is not answered, as a status and one form of JSON.

use std::borrow::Cow;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use linewarden_registry::RegistryError;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The body of every answer that is none.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct ErrorBody {
    /// What is wrong.
    pub error: ErrorDetail,
}

/// What is wrong.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct ErrorDetail {
    /// For programs.
    pub code: Cow<'static, str>,
    /// For people.
    pub message: String,
    /// The field that is at fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// How many records of what was sent were stored before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stored: Option<u64>,
}

/// Why a question is not answered.
#[derive(Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    detail: ErrorDetail,
    retry_after_s: Option<u32>,
}

pub(crate) type Result<T, E = ApiError> = std::result::Result<T, E>;

impl ApiError {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            detail: ErrorDetail {
                code: code.into(),
                message: message.into(),
                field: None,
                stored: None,
            },
            retry_after_s: None,
        }
    }

    pub(crate) fn unauthenticated() -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            "unauthenticated",
            "log in, or send `Authorization: Bearer TOKEN`",
        )
    }

    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", message)
    }

    pub(crate) fn not_found(what: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", format!("there is no {what}"))
    }

    /// What axum could not read of a question.
    pub(crate) fn unread(status: StatusCode, message: String) -> Self {
        let code = match status {
            StatusCode::PAYLOAD_TOO_LARGE => "too_large",
            StatusCode::UNSUPPORTED_MEDIA_TYPE => "unsupported_media_type",
            StatusCode::UNPROCESSABLE_ENTITY => "invalid",
            _ => "bad_request",
        };
        Self::new(status, code, message)
    }

    /// Of a path that this version does not have; another one may.
    pub(crate) fn unknown_path() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "unknown_path",
            "there is no such path; see /openapi.json",
        )
    }

    pub(crate) fn method_not_allowed() -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method_not_allowed",
            "this path takes other methods; see the header Allow, and /openapi.json",
        )
    }

    /// The same is being done for somebody who has asked before.
    pub(crate) fn under_way() -> Self {
        let mut error = Self::new(
            StatusCode::CONFLICT,
            "under_way",
            "this is being done; ask again for what came of it",
        );
        error.retry_after_s = Some(1);
        error
    }

    pub(crate) fn conflict(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "conflict", message)
    }

    pub(crate) fn rate_limited(retry_after_s: u32) -> Self {
        let mut error = Self::new(
            StatusCode::TOO_MANY_REQUESTS,
            "rate_limited",
            "too many questions; ask again later",
        );
        error.retry_after_s = Some(retry_after_s);
        error
    }

    pub(crate) fn invalid(field: &str, message: impl Into<String>) -> Self {
        let mut error = Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", message);
        error.detail.field = Some(field.to_owned());
        error
    }

    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        let mut error = Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message);
        error.retry_after_s = Some(1);
        error
    }

    pub(crate) fn having_stored(mut self, stored: u64) -> Self {
        self.detail.stored = Some(stored);
        self
    }

    pub(crate) fn message(&self) -> &str {
        &self.detail.message
    }

    /// Whether the same question may be answered next time, though nobody changes it.
    pub(crate) fn is_passing(&self) -> bool {
        self.status.is_server_error() || self.status == StatusCode::TOO_MANY_REQUESTS
    }
}

impl From<RegistryError> for ApiError {
    fn from(error: RegistryError) -> Self {
        let message = error.to_string();
        match error {
            RegistryError::UnknownDevice { .. } => {
                Self::new(StatusCode::NOT_FOUND, "unknown_device", message)
            }
            RegistryError::UnknownGroup { .. } | RegistryError::NotAProver { .. } => {
                Self::new(StatusCode::NOT_FOUND, "not_found", message)
            }
            RegistryError::SamePuf { .. } => Self::new(StatusCode::CONFLICT, "same_puf", message),
            RegistryError::AlreadyEnrolled { .. }
            | RegistryError::RepeatedDevice { .. }
            | RegistryError::Revoked { .. }
            | RegistryError::Quarantined { .. }
            | RegistryError::GroupInUse { .. }
            | RegistryError::RetiredGateway { .. } => Self::conflict(message),
            // It can be revoked all the same, which whoever asks has to know.
            RegistryError::DamagedRecord { .. } => {
                tracing::error!(error = message, "a device's record is damaged");
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "damaged_record", message)
            }
            RegistryError::InvalidRecord { field, .. }
            | RegistryError::InvalidEntry { field, .. }
            | RegistryError::InvalidGroup { field, .. } => Self::invalid(field, message),
            RegistryError::Unreachable(_)
            | RegistryError::Locked
            | RegistryError::DiskFull
            | RegistryError::NotWritable { .. }
            | RegistryError::NotPermitted { .. } => {
                tracing::warn!(error = message, "the registry cannot be asked");
                Self::unavailable(message)
            }
            RegistryError::Moved { .. } => {
                tracing::error!(error = message, "a question could not be answered");
                Self::unavailable("the registry was moved, and this controller stands over where it was")
            }
            // What is in it may say how the database is set up.
            _ => {
                tracing::error!(error = message, "a question could not be answered");
                Self::new(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    "internal",
                    "the controller could not answer; its log says why",
                )
            }
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(ErrorBody { error: self.detail })).into_response();
        if let Some(seconds) = self.retry_after_s {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
