//! Exit codes for the errors of the client of a controller.

use linewarden_client::ClientError;

use crate::failure::Failure;

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let code = match &error {
            ClientError::Refused {
                status: 401 | 403, ..
            }
            | ClientError::CertificateRejected { .. } => 3,
            refusal if refusal.code() == Some("duplicate_puf") => 4,
            ClientError::Refused {
                status: 400 | 404 | 413 | 415 | 422,
                ..
            }
            | ClientError::InvalidAddress { .. }
            | ClientError::InvalidCertificate(_)
            | ClientError::InvalidRequest(_) => 2,
            _ => 1,
        };
        let needs_reason = matches!(&error, ClientError::Refused { detail, .. } if detail.field.as_deref() == Some("reason"));
        match needs_reason {
            true => Self::new(code, error).with_detail("use --reason TEXT"),
            false => Self::new(code, error),
        }
    }
}
