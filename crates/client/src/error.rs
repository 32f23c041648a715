//! Why a question has no answer, so that whoever reads it knows whose fault it is.

use std::error::Error;
use std::time::Duration;

use linewarden_service::wire::ErrorDetail;
use rustls::{AlertDescription, CertificateError};

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// An address that is none.
    #[error("{server} is not a controller's address: {why}; expected is https://HOST:PORT")]
    Address {
        /// As it was given.
        server: String,
        /// What is wrong.
        why: String,
    },
    /// Certificates of one's own that cannot be used.
    #[error("{0}")]
    Tls(String),
    /// Nobody answers.
    #[error("no controller answers at {server}: {why}")]
    Away {
        /// Where.
        server: String,
        /// What the operating system says.
        why: String,
    },
    /// Somebody answers who is not believed.
    #[error("what answers at {server} is not believed: {why}")]
    Untrusted {
        /// Where.
        server: String,
        /// Why not.
        why: String,
    },
    /// The certificate that was shown is not believed.
    #[error("{server} does not take the certificate that was shown: {why}")]
    NotTaken {
        /// Where.
        server: String,
        /// What it said.
        why: String,
    },
    /// The controller has refused.
    #[error("{}", told(.detail, *.status))]
    Refused {
        /// The status of HTTP.
        status: u16,
        /// What it says.
        detail: ErrorDetail,
        /// When it is to be asked again, if it says so.
        wait: Option<Duration>,
    },
    /// Too many questions, for longer than there is patience.
    #[error("{server} takes no more questions for {} s; ask again then", .wait.as_secs())]
    RateLimited {
        /// Where.
        server: String,
        /// For how long.
        wait: Duration,
    },
    /// Of a path that the controller does not have.
    #[error("the controller at {server} does not know {path}: it is older than this program")]
    TooOld {
        /// Where.
        server: String,
        /// The path.
        path: String,
    },
    /// An answer that no controller gives.
    #[error("{server} is no controller, or one that this program does not understand: {why}")]
    NoController {
        /// Where.
        server: String,
        /// What is odd.
        why: String,
    },
    /// No key could be drawn for a write.
    #[error("the operating system gave no random bytes: {0}")]
    Entropy(getrandom::Error),
    /// Something that no header may hold.
    #[error("{0}")]
    Header(String),
}

fn told(detail: &ErrorDetail, status: u16) -> String {
    let mut text = match status {
        401 => {
            "the controller knows no user by this token or certificate: it is nobody's, or is over".to_owned()
        }
        403 => format!("this user may not do that: {}", detail.message),
        _ => detail.message.clone(),
    };
    if let Some(field) = &detail.field
        && !detail.message.contains(field.as_str())
    {
        text = format!("{field}: {text}");
    }
    if let Some(stored) = detail.stored {
        text = format!("{text} (stored before: {stored})");
    }
    text
}

/// All of an error that others caused.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let words = cause.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        source = cause.source();
    }
    text
}

/// The first cause of that kind, also within errors of input and output.
fn find<'e, T: Error + 'static>(error: &'e (dyn Error + 'static)) -> Option<&'e T> {
    if let Some(found) = error.downcast_ref::<T>() {
        return Some(found);
    }
    if let Some(inner) = error
        .downcast_ref::<std::io::Error>()
        .and_then(std::io::Error::get_ref)
        && let Some(found) = find(inner)
    {
        return Some(found);
    }
    find(error.source()?)
}

impl ClientError {
    /// A question that got no answer.
    pub(crate) fn unanswered(server: &str, error: &reqwest::Error) -> Self {
        let server = server.to_owned();
        match find::<rustls::Error>(error) {
            Some(rustls::Error::InvalidCertificate(why)) => Self::Untrusted {
                server,
                why: judged(why),
            },
            Some(rustls::Error::AlertReceived(alert)) if is_about_us(*alert) => Self::NotTaken {
                server,
                why: alerted(*alert),
            },
            Some(other) => Self::Untrusted {
                server,
                why: other.to_string(),
            },
            None => {
                let cause = find::<std::io::Error>(error).map(ToString::to_string);
                Self::Away {
                    server,
                    why: cause.unwrap_or_else(|| chain(&error)),
                }
            }
        }
    }

    /// Whether the same question may be answered a moment later.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            Self::Away { .. } | Self::RateLimited { .. } => true,
            Self::Refused { status, detail, .. } => *status == 503 || detail.code == "under_way",
            _ => false,
        }
    }

    /// When the controller wants to be asked again, if it says so.
    pub(crate) fn wait(&self) -> Option<Duration> {
        match self {
            Self::RateLimited { wait, .. } => Some(*wait),
            Self::Refused { wait, .. } => *wait,
            _ => None,
        }
    }

    /// What the controller calls it, if it has refused.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Refused { detail, .. } => Some(&detail.code),
            _ => None,
        }
    }
}

fn judged(why: &CertificateError) -> String {
    match why {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "its certificate has expired; give the controller a new one".to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "its certificate is not valid yet; see whether the clocks are right".to_owned()
        }
        // The latter where another CA has the same name.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "its certificate is of no CA that is believed; name the controller's by --server-ca".to_owned()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            format!(
                "its certificate is for another name ({why}); name the controller as its certificate does"
            )
        }
        other => format!("its certificate cannot be verified: {other}"),
    }
}

fn is_about_us(alert: AlertDescription) -> bool {
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

fn alerted(alert: AlertDescription) -> String {
    match alert {
        AlertDescription::CertificateExpired => "it has expired".to_owned(),
        AlertDescription::UnknownCA | AlertDescription::DecryptError => {
            "it is of a CA that the controller does not believe".to_owned()
        }
        AlertDescription::CertificateRevoked => "it was revoked".to_owned(),
        other => format!("{other:?}"),
    }
}
