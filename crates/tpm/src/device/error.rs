//! What a TPM, or the way to it, answers in place of doing what it was told.

use std::fmt;

use bitfield::BitRange as _;
use tss_esapi::Error;
use tss_esapi::constants::response_code::{Tss2ResponseCode, Tss2ResponseCodeKind as Kind};

use crate::key::{Again, KeyError};

/// A command that did not succeed: which, on what, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{command} ({object}): {cause}")]
pub struct TpmError {
    /// The command, by its name in the specification.
    pub command: &'static str,
    /// What its handle meant.
    pub object: &'static str,
    /// Why it failed.
    pub cause: Cause,
}

/// Why a command failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The PCRs are in no state of the key's policy.
    BootDiffers {
        /// The TPM's response.
        code: u32,
    },
    /// The TPM refused it.
    Refused {
        /// The TPM's response.
        code: u32,
        /// The same in words.
        words: String,
        /// Whether it helps to try again.
        again: Again,
    },
    /// There is no TPM where it should be, or it may not be opened.
    Unreachable {
        /// Where it should be.
        tcti: String,
        /// The code of the software stack.
        code: u32,
    },
    /// The TPM that was open cannot be reached any more.
    Gone {
        /// The code of the software stack.
        code: u32,
    },
    /// The software stack, or this program, could make nothing of it.
    Unusable(String),
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BootDiffers { code } => write!(
                f,
                "the boot differs from what the key is bound to (response {code:#x})"
            ),
            Self::Refused { code, words, again } => {
                write!(f, "{words} (response {code:#x}); {}", advice(*again))
            }
            Self::Unreachable { tcti, code } => write!(
                f,
                "{tcti:?} cannot be opened (code {code:#x}); is there a TPM, and may this user open it?"
            ),
            Self::Gone { code } => write!(
                f,
                "the TPM cannot be reached or is gone (code {code:#x}); {}",
                advice(Again::Reopened)
            ),
            Self::Unusable(why) => write!(f, "{why}; {}", advice(Again::Never)),
        }
    }
}

const fn advice(again: Again) -> &'static str {
    match again {
        Again::Later => "it may succeed later",
        Again::Reopened => "it may succeed once the TPM was opened anew",
        Again::Never => "trying again does not help",
    }
}

impl TpmError {
    /// Whether it helps to try again.
    pub const fn again(&self) -> Again {
        match &self.cause {
            Cause::Refused { again, .. } => *again,
            Cause::Unreachable { .. } | Cause::Gone { .. } => Again::Reopened,
            Cause::BootDiffers { .. } | Cause::Unusable(_) => Again::Never,
        }
    }

    /// Of what the software stack has said.
    pub(super) fn new(command: &'static str, object: &'static str, error: Error) -> Self {
        let cause = match error {
            Error::WrapperError(kind) => Cause::Unusable(kind.to_string()),
            Error::Tss2Error(code) => cause(code),
        };
        Self {
            command,
            object,
            cause,
        }
    }

    /// As [`Self::new`], of opening the TPM at `tcti`: one that was never open is not gone.
    pub(super) fn of_opening(command: &'static str, object: &'static str, tcti: &str, error: Error) -> Self {
        let mut error = Self::new(command, object, error);
        if let Cause::Gone { code } = error.cause {
            error.cause = Cause::Unreachable {
                tcti: tcti.to_owned(),
                code,
            };
        }
        error
    }

    /// A refusal that, on this command, means that the PCRs are other ones.
    pub(super) fn of_policy(mut self) -> Self {
        const POLICY_FAIL: u32 = 0x09d;
        const VALUE: u32 = 0x084;
        const PCR_CHANGED: u32 = 0x128;
        if let Cause::Refused { code, .. } = self.cause {
            let kind = base(code);
            let differs = match self.command {
                "TPM2_HMAC" => kind == POLICY_FAIL || kind == PCR_CHANGED,
                "TPM2_PolicyOR" => kind == VALUE || kind == PCR_CHANGED,
                _ => false,
            };
            if differs {
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
                again: error.again(),
                what: error.to_string(),
            },
        }
    }
}

/// A format-one response without the number of the handle, parameter or session that it is about.
const fn base(code: u32) -> u32 {
    match code & 0x80 {
        0 => code,
        _ => code & 0x0bf,
    }
}

/// Layers of the software stack that hand the TPM's own responses on: the TPM, and the two kinds of resource manager.
const TPM_LAYERS: [u32; 3] = [0, 11, 12];
const TCTI_LAYER: u32 = 10;
/// Of every layer: an earlier command broke off, and the stack waits for what will not come.
const BAD_SEQUENCE: u32 = 7;
/// Of every layer: the connection is no longer there.
const NO_CONNECTION: u32 = 8;
const IO_ERROR: u32 = 10;

fn cause(response: Tss2ResponseCode) -> Cause {
    let code = number(response);
    let (layer, low) = (code >> 16 & 0xff, code & 0xffff);
    if TPM_LAYERS.contains(&layer) {
        return Cause::Refused {
            code,
            words: response.to_string(),
            again: again(response.kind()),
        };
    }
    if layer == TCTI_LAYER || matches!(low, BAD_SEQUENCE | NO_CONNECTION | IO_ERROR) {
        return Cause::Gone { code };
    }
    Cause::Unusable(format!("the software stack for TPMs failed (code {code:#x})"))
}

fn number(response: Tss2ResponseCode) -> u32 {
    match response {
        Tss2ResponseCode::Success => 0,
        Tss2ResponseCode::FormatZero(code) => code.bit_range(31, 0),
        Tss2ResponseCode::FormatOne(code) => code.bit_range(31, 0),
    }
}

/// What the specification says of each response (TPM 2.0 Library, Part 2, 6.6): warnings pass by, lost handles are those of a
/// TPM that was restarted.
const fn again(kind: Option<Kind>) -> Again {
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
        ) => Again::Later,
        Some(
            Kind::Initialize
            | Kind::Reboot
            | Kind::ReferenceH0
            | Kind::ReferenceH1
            | Kind::ReferenceH2
            | Kind::ReferenceS0
            | Kind::ReferenceS1
            | Kind::ReferenceS2,
        ) => Again::Reopened,
        _ => Again::Never,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(command: &'static str, code: u32) -> TpmError {
        TpmError::new(command, "the key", Error::Tss2Error(Tss2ResponseCode::from(code)))
    }

    #[test]
    fn responses_say_whether_trying_again_helps() {
        for (code, expected) in [
            (0x922, Again::Later),
            (0x90a, Again::Later),
            (0x908, Again::Later),
            (0x920, Again::Later),
            (0x921, Again::Later),
            (0xb0922, Again::Later),
            (0x100, Again::Reopened),
            (0x910, Again::Reopened),
            (0xa000a, Again::Reopened),
            (0xa0001, Again::Reopened),
            (0x70007, Again::Reopened),
            (0x1df, Again::Never),
            (0x101, Again::Never),
            (0x70001, Again::Never),
        ] {
            assert_eq!(error("TPM2_Load", code).again(), expected, "{code:#x}");
        }
    }

    #[test]
    fn only_a_policy_that_is_not_met_is_another_boot() {
        let differs =
            |command, code| matches!(error(command, code).of_policy().cause, Cause::BootDiffers { .. });
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
            "TPM2_Load (the key): the TPM was not able to start the command (response 0x922); it may succeed later"
        );
    }
}
