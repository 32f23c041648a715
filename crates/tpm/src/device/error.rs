//! Errors of a TPM or of the connection to it.

use std::fmt;

use bitfield::BitRange as _;
use tss_esapi::Error;
use tss_esapi::constants::response_code::{Tss2ResponseCode, Tss2ResponseCodeKind as Kind};

use crate::key::{KeyError, Retry};

/// A failed command, its object, and the cause.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{command} ({object}): {cause}")]
pub struct TpmError {
    /// The command, by its name in the specification.
    pub command: &'static str,
    /// The object that the command uses.
    pub object: &'static str,
    /// Why the command failed.
    pub cause: Cause,
}

/// Why a command failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The PCR values do not match the key's policy.
    BootDiffers {
        /// The TPM's response code.
        code: u32,
    },
    /// The TPM refused the command.
    Refused {
        /// The TPM's response code.
        code: u32,
        /// The response as text.
        description: String,
        /// Whether a retry may succeed.
        retry: Retry,
    },
    /// No TPM is reachable at this TCTI, or access is denied.
    Unreachable {
        /// The TCTI.
        tcti: String,
        /// The error code of the software stack.
        code: u32,
    },
    /// The connection to the TPM was lost.
    ConnectionLost {
        /// The error code of the software stack.
        code: u32,
    },
    /// The result or the argument is invalid for the software stack or for this program.
    InvalidResult(String),
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BootDiffers { code } => write!(
                f,
                "PCR values do not match the policy of the key (response {code:#x})"
            ),
            Self::Refused {
                code,
                description,
                retry,
            } => {
                write!(f, "{description} (response {code:#x}); {}", advice(*retry))
            }
            Self::Unreachable { tcti, code } => write!(
                f,
                "{tcti:?} cannot be opened (code {code:#x}); check that the TPM exists and that this user has access"
            ),
            Self::ConnectionLost { code } => write!(
                f,
                "the connection to the TPM was lost (code {code:#x}); {}",
                advice(Retry::AfterReopen)
            ),
            Self::InvalidResult(reason) => write!(f, "{reason}; {}", advice(Retry::Never)),
        }
    }
}

const fn advice(retry: Retry) -> &'static str {
    match retry {
        Retry::Later => "a retry may succeed",
        Retry::AfterReopen => "a retry may succeed after the TPM is reopened",
        Retry::Never => "a retry does not help",
    }
}

impl TpmError {
    /// Whether a retry may succeed.
    pub const fn retry(&self) -> Retry {
        match &self.cause {
            Cause::Refused { retry, .. } => *retry,
            Cause::Unreachable { .. } | Cause::ConnectionLost { .. } => Retry::AfterReopen,
            Cause::BootDiffers { .. } | Cause::InvalidResult(_) => Retry::Never,
        }
    }

    /// Converts an error of the TPM software stack.
    pub(super) fn new(command: &'static str, object: &'static str, error: Error) -> Self {
        let cause = match error {
            Error::WrapperError(kind) => Cause::InvalidResult(kind.to_string()),
            Error::Tss2Error(code) => refused_cause(code),
        };
        Self {
            command,
            object,
            cause,
        }
    }

    /// As [`Self::new`], for an error of opening the TPM at `tcti`: a lost connection then means an unreachable TPM.
    pub(super) fn of_opening(command: &'static str, object: &'static str, tcti: &str, error: Error) -> Self {
        let mut error = Self::new(command, object, error);
        if let Cause::ConnectionLost { code } = error.cause {
            error.cause = Cause::Unreachable {
                tcti: tcti.to_owned(),
                code,
            };
        }
        error
    }

    /// Changes the cause to [`Cause::BootDiffers`] if this response to this command means that PCR values do not match the
    /// policy.
    pub(super) fn detect_pcr_mismatch(mut self) -> Self {
        const POLICY_FAIL: u32 = 0x09d;
        const VALUE: u32 = 0x084;
        const PCR_CHANGED: u32 = 0x128;
        if let Cause::Refused { code, .. } = self.cause {
            let kind = base_code(code);
            let is_mismatch = match self.command {
                "TPM2_HMAC" => kind == POLICY_FAIL || kind == PCR_CHANGED,
                "TPM2_PolicyOR" => kind == VALUE || kind == PCR_CHANGED,
                _ => false,
            };
            if is_mismatch {
                self.cause = Cause::BootDiffers { code };
            }
        }
        self
    }
}

impl From<TpmError> for KeyError {
    fn from(error: TpmError) -> Self {
        match error.cause {
            Cause::BootDiffers { code } => {
                Self::BootDiffers(format!("{}: response {code:#x}", error.command))
            }
            _ => Self::Tpm {
                retry: error.retry(),
                message: error.to_string(),
            },
        }
    }
}

/// A format-one response code without the number of the handle, parameter or session.
const fn base_code(code: u32) -> u32 {
    match code & 0x80 {
        0 => code,
        _ => code & 0x0bf,
    }
}

/// Layers of the software stack that report the TPM's own responses: the TPM, and the two kinds of resource manager.
const TPM_LAYERS: [u32; 3] = [0, 11, 12];
const TCTI_LAYER: u32 = 10;
/// Code with the same meaning in every layer: an earlier command was interrupted, and the stack still waits for the
/// response to that command.
const BAD_SEQUENCE: u32 = 7;
/// Code with the same meaning in every layer: the connection is closed.
const NO_CONNECTION: u32 = 8;
const IO_ERROR: u32 = 10;

fn refused_cause(response: Tss2ResponseCode) -> Cause {
    let code = raw_code(response);
    let (layer, layer_code) = (code >> 16 & 0xff, code & 0xffff);
    if TPM_LAYERS.contains(&layer) {
        return Cause::Refused {
            code,
            description: response.to_string(),
            retry: retry_of(response.kind()),
        };
    }
    if layer == TCTI_LAYER || matches!(layer_code, BAD_SEQUENCE | NO_CONNECTION | IO_ERROR) {
        return Cause::ConnectionLost { code };
    }
    Cause::InvalidResult(format!("the TPM software stack failed (code {code:#x})"))
}

fn raw_code(response: Tss2ResponseCode) -> u32 {
    match response {
        Tss2ResponseCode::Success => 0,
        Tss2ResponseCode::FormatZero(code) => code.bit_range(31, 0),
        Tss2ResponseCode::FormatOne(code) => code.bit_range(31, 0),
    }
}

/// Whether a retry may succeed after this response (TPM 2.0 Library, Part 2, 6.6): warnings are temporary, and lost handles
/// indicate a restarted TPM.
const fn retry_of(kind: Option<Kind>) -> Retry {
    match kind {
        Some(
            Kind::Retry
            | Kind::Testing
            | Kind::Yielded
            | Kind::Canceled
            | Kind::NvRate
            | Kind::NvUnavailable
            | Kind::Lockout
            | Kind::ObjectMemory
            | Kind::SessionMemory
            | Kind::SessionHandles
            | Kind::Memory
            | Kind::ContextGap,
        ) => Retry::Later,
        Some(
            Kind::Initialize
            | Kind::Reboot
            | Kind::ReferenceH0
            | Kind::ReferenceH1
            | Kind::ReferenceH2
            | Kind::ReferenceS0
            | Kind::ReferenceS1
            | Kind::ReferenceS2,
        ) => Retry::AfterReopen,
        _ => Retry::Never,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(command: &'static str, code: u32) -> TpmError {
        TpmError::new(command, "the key", Error::Tss2Error(Tss2ResponseCode::from(code)))
    }

    #[test]
    fn error_codes_determine_whether_a_retry_helps() {
        for (code, expected) in [
            (0x922, Retry::Later),
            (0x90a, Retry::Later),
            (0x908, Retry::Later),
            (0x920, Retry::Later),
            (0x921, Retry::Later),
            (0xb0922, Retry::Later),
            (0x100, Retry::AfterReopen),
            (0x910, Retry::AfterReopen),
            (0xa000a, Retry::AfterReopen),
            (0xa0001, Retry::AfterReopen),
            (0x70007, Retry::AfterReopen),
            (0x1df, Retry::Never),
            (0x101, Retry::Never),
            (0x70001, Retry::Never),
        ] {
            assert_eq!(error("TPM2_Load", code).retry(), expected, "{code:#x}");
        }
    }

    #[test]
    fn only_a_failed_policy_means_another_boot() {
        let differs = |command, code| {
            matches!(
                error(command, code).detect_pcr_mismatch().cause,
                Cause::BootDiffers { .. }
            )
        };
        assert!(differs("TPM2_HMAC", 0x99d));
        assert!(differs("TPM2_HMAC", 0x128));
        assert!(differs("TPM2_PolicyOR", 0x1c4));
        assert!(!differs("TPM2_HMAC", 0x1c4));
        assert!(!differs("TPM2_HMAC", 0x922));
        assert!(!differs("TPM2_Load", 0x99d));
    }

    #[test]
    fn an_error_names_command_object_response_and_advice() {
        assert_eq!(
            error("TPM2_Load", 0x922).to_string(),
            "TPM2_Load (the key): the TPM was not able to start the command (response 0x922); a retry may succeed"
        );
    }
}
