//! Errors of the API: an HTTP status and one JSON format.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use linewarden_api::{ErrorBody, ErrorDetail};
use linewarden_registry::{
    AttestationError, DatabaseError, DeviceError, FencingError, OpenError, RegistryError, ServiceError,
};

/// An error response.
#[derive(Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    detail: ErrorDetail,
    retry_after_s: Option<u32>,
    /// The failure of the registry that caused the error.
    failure: Option<RegistryFailure>,
}

/// Response extension: a failure of the registry. A controller logs the failure, because its text may contain details of the
/// database setup; a local user sees it in the response.
#[derive(Clone, Debug)]
pub(crate) struct RegistryFailure(pub(crate) Box<str>);

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
            failure: None,
        }
    }

    pub(crate) fn unauthenticated() -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            "unauthenticated",
            "authentication required: log in or send `Authorization: Bearer TOKEN`",
        )
    }

    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", message)
    }

    pub(crate) fn not_found(name: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", format!("{name} not found"))
    }

    /// A request that axum failed to parse.
    pub(crate) fn unreadable(status: StatusCode, message: String) -> Self {
        let code = match status {
            StatusCode::PAYLOAD_TOO_LARGE => "too_large",
            StatusCode::UNSUPPORTED_MEDIA_TYPE => "unsupported_media_type",
            StatusCode::UNPROCESSABLE_ENTITY => "invalid",
            _ => "bad_request",
        };
        Self::new(status, code, message)
    }

    /// The path does not exist in this version.
    pub(crate) fn unknown_path() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "unknown_path",
            "unknown path; see /openapi.json",
        )
    }

    pub(crate) fn method_not_allowed() -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method_not_allowed",
            "method not allowed; see the Allow header and /openapi.json",
        )
    }

    /// The same request is already in progress.
    pub(crate) fn in_progress() -> Self {
        let mut error = Self::new(
            StatusCode::CONFLICT,
            "in_progress",
            "the request is in progress; repeat it to get its result",
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
            "too many requests; retry later",
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

    /// Adds the number of records that were stored before the error.
    pub(crate) fn with_stored(mut self, stored: u64) -> Self {
        self.detail.stored = Some(stored);
        self
    }

    fn with_failure(mut self, failure: String) -> Self {
        self.failure = Some(RegistryFailure(failure.into()));
        self
    }

    pub(crate) fn message(&self) -> &str {
        &self.detail.message
    }

    /// Whether the same request may succeed when it is repeated.
    pub(crate) fn is_temporary(&self) -> bool {
        self.status.is_server_error() || self.status == StatusCode::TOO_MANY_REQUESTS
    }
}

impl From<RegistryError> for ApiError {
    fn from(error: RegistryError) -> Self {
        let message = error.to_string();
        match error {
            RegistryError::Device(DeviceError::UnknownDevice { .. }) => {
                Self::new(StatusCode::NOT_FOUND, "unknown_device", message)
            }
            RegistryError::Attestation(
                AttestationError::UnknownGroup { .. } | AttestationError::NotAProver { .. },
            ) => Self::new(StatusCode::NOT_FOUND, "not_found", message),
            RegistryError::Device(DeviceError::DuplicatePuf { .. }) => {
                Self::new(StatusCode::CONFLICT, "duplicate_puf", message)
            }
            RegistryError::Device(
                DeviceError::AlreadyEnrolled { .. }
                | DeviceError::DuplicateDevice { .. }
                | DeviceError::Revoked { .. }
                | DeviceError::Quarantined { .. },
            )
            | RegistryError::Attestation(AttestationError::GroupInUse { .. })
            | RegistryError::Fencing(FencingError::GatewayRevoked { .. }) => Self::conflict(message),
            // The client must distinguish this error, because the device can still be revoked.
            RegistryError::Device(DeviceError::DamagedRecord { .. }) => Self::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "damaged_record",
                message.clone(),
            )
            .with_failure(message),
            RegistryError::Device(DeviceError::InvalidRecord { field, .. })
            | RegistryError::Service(ServiceError::InvalidField { field, .. })
            | RegistryError::Attestation(AttestationError::InvalidGroup { field, .. }) => {
                Self::invalid(field, message)
            }
            RegistryError::Database(
                DatabaseError::Unreachable(_)
                | DatabaseError::Locked
                | DatabaseError::DiskFull
                | DatabaseError::NotWritable { .. }
                | DatabaseError::NotPermitted { .. },
            ) => Self::unavailable(message.clone()).with_failure(message),
            RegistryError::Open(OpenError::Moved { .. }) => {
                Self::unavailable("the registry was moved; this controller still uses its former location")
                    .with_failure(message)
            }
            _ => Self::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "internal",
                "internal error; see the controller log",
            )
            .with_failure(message),
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
        if let Some(failure) = self.failure {
            response.extensions_mut().insert(failure);
        }
        response
    }
}

/// Logs a failure of the registry, which the response of a controller describes only in general.
pub(crate) fn log_failure(response: &Response) {
    let Some(RegistryFailure(error)) = response.extensions().get() else {
        return;
    };
    match response.status() {
        StatusCode::SERVICE_UNAVAILABLE => tracing::warn!(%error, "registry unavailable; request refused"),
        _ => tracing::error!(%error, "request failed"),
    }
}
