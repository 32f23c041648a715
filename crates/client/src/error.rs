//! Client errors. The text of each error names the cause: the client's input, the connection or the controller.

use std::error::Error;
use std::time::Duration;

use linewarden_api::ErrorDetail;
use rustls::{AlertDescription, CertificateError};

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The server address is invalid.
    #[error("invalid controller address {server:?}: {reason}; expected https://HOST:PORT")]
    InvalidAddress {
        /// The given address, without the part before `@`, which may contain a password.
        server: String,
        /// What is wrong.
        reason: String,
    },
    /// The CA or the client certificate cannot be used.
    #[error("{0}")]
    InvalidCertificate(String),
    /// No connection, or no response.
    #[error("controller {server} is unreachable: {reason}")]
    Unreachable {
        /// The address.
        server: String,
        /// The error of the operating system, a timeout, or the end of the stream.
        reason: String,
    },
    /// The server certificate is not trusted.
    #[error("certificate of controller {server} is not trusted: {reason}")]
    UntrustedServer {
        /// The address.
        server: String,
        /// What is wrong with the certificate.
        reason: String,
    },
    /// The controller rejected the client certificate.
    #[error("controller {server} rejected the client certificate: {reason}")]
    CertificateRejected {
        /// The address.
        server: String,
        /// The TLS alert.
        reason: String,
    },
    /// The controller returned an error.
    #[error("{}", refusal_text(.detail, *.status))]
    Refused {
        /// The HTTP status.
        status: u16,
        /// The error in the response.
        detail: ErrorDetail,
        /// The delay before a retry, if the response contains one.
        retry_after: Option<Duration>,
    },
    /// The rate limit is exceeded for longer than the retry timeout.
    #[error("rate limit of controller {server} exceeded; retry in {} s", .retry_after.as_secs())]
    RateLimited {
        /// The address.
        server: String,
        /// The delay before a retry.
        retry_after: Duration,
    },
    /// The controller does not support the path.
    #[error("controller {server} does not support {path}; upgrade the controller")]
    UnsupportedPath {
        /// The address.
        server: String,
        /// The path.
        path: String,
    },
    /// The server is not a compatible controller, or does not answer as the API specifies.
    #[error("invalid response from {server}: {reason}; check the address and the version of the controller")]
    InvalidResponse {
        /// The address.
        server: String,
        /// What is wrong.
        reason: String,
    },
    /// No random bytes for an idempotency key.
    #[error("random bytes are not available: {0}")]
    Entropy(getrandom::Error),
    /// The request cannot be encoded.
    #[error("{0}")]
    InvalidRequest(String),
}

fn refusal_text(detail: &ErrorDetail, status: u16) -> String {
    let mut text = match status {
        401 => "authentication failed: the token or certificate is unknown or has expired".to_owned(),
        403 => format!("permission denied: {}", detail.message),
        _ => detail.message.clone(),
    };
    if let Some(field) = &detail.field
        && !detail.message.contains(field.as_str())
    {
        text = format!("{field}: {text}");
    }
    if let Some(stored) = detail.stored.filter(|stored| *stored > 0) {
        text = format!("{text} (items stored before the error: {stored})");
    }
    text
}

/// Returns the text of the error, followed by the texts of its causes.
pub(crate) fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

/// Finds the first error of type `T` among the error and its causes, including errors inside I/O errors.
fn find_cause<'e, T: Error + 'static>(error: &'e (dyn Error + 'static)) -> Option<&'e T> {
    if let Some(cause) = error.downcast_ref::<T>() {
        return Some(cause);
    }
    if let Some(inner) = error
        .downcast_ref::<std::io::Error>()
        .and_then(std::io::Error::get_ref)
        && let Some(cause) = find_cause(inner)
    {
        return Some(cause);
    }
    find_cause(error.source()?)
}

impl ClientError {
    /// Converts the error of a request that received no response.
    pub(crate) fn from_transport(server: &str, error: &reqwest::Error) -> Self {
        let server = server.to_owned();
        match find_cause::<rustls::Error>(error) {
            Some(rustls::Error::InvalidCertificate(reason)) => Self::UntrustedServer {
                server,
                reason: certificate_problem(reason),
            },
            Some(rustls::Error::AlertReceived(alert)) if is_client_certificate_alert(*alert) => {
                Self::CertificateRejected {
                    server,
                    reason: alert_text(*alert),
                }
            }
            Some(other) => Self::UntrustedServer {
                server,
                reason: other.to_string(),
            },
            None => {
                let cause = find_cause::<std::io::Error>(error).map(ToString::to_string);
                Self::Unreachable {
                    server,
                    reason: cause.unwrap_or_else(|| error_chain(&error)),
                }
            }
        }
    }

    /// Whether a retry may succeed.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::RateLimited { .. } => true,
            Self::Refused { status, detail, .. } => *status == 503 || detail.code == "in_progress",
            _ => false,
        }
    }

    /// The retry delay that the controller requested, if any.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::RateLimited {
                retry_after: delay, ..
            } => Some(*delay),
            Self::Refused {
                retry_after: delay, ..
            } => *delay,
            _ => None,
        }
    }

    /// The error code in the controller's response; `None` if there was no error response.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Refused { detail, .. } => Some(&detail.code),
            _ => None,
        }
    }
}

fn certificate_problem(reason: &CertificateError) -> String {
    match reason {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "it has expired; renew the controller's certificate".to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "it is not valid yet; check the clocks of both machines".to_owned()
        }
        // BadSignature occurs if another CA has the same name.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "its issuer is an unknown CA; give the controller's CA with --server-ca".to_owned()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            format!("it is for another name ({reason}); use a name in the certificate as the server address")
        }
        other => format!("it cannot be verified: {other}"),
    }
}

fn is_client_certificate_alert(alert: AlertDescription) -> bool {
    matches!(
        alert,
        AlertDescription::BadCertificate
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateRequired
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::UnknownCA
            | AlertDescription::DecryptError
            | AlertDescription::AccessDenied
    )
}

fn alert_text(alert: AlertDescription) -> String {
    match alert {
        AlertDescription::CertificateExpired => "it has expired".to_owned(),
        AlertDescription::UnknownCA | AlertDescription::DecryptError => {
            "its issuer is not a CA that the controller trusts".to_owned()
        }
        AlertDescription::CertificateRevoked => "it was revoked".to_owned(),
        other => format!("{other:?}"),
    }
}
