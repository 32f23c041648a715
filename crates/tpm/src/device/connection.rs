//! An open TPM, its commands with names for errors, and the flushing of loaded objects.

use std::fmt;
use std::str::FromStr as _;

use tss_esapi::constants::SessionType;
use tss_esapi::handles::{AuthHandle, ObjectHandle, SessionHandle};
use tss_esapi::interface_types::algorithm::HashingAlgorithm;
use tss_esapi::interface_types::session_handles::{AuthSession, PolicySession};
use tss_esapi::structures::{Digest, Nonce, SymmetricDefinition};
use tss_esapi::tcti_ldr::TctiNameConf;
use tss_esapi::{Context, Error};

use super::error::{Cause, TpmError};
use crate::key::Retry;

/// The kernel's resource manager: each process has a virtual TPM memory of its own.
pub const DEFAULT_TCTI: &str = "device:/dev/tpmrm0";

/// Retries of commands that may succeed later, and the delay before each retry.
pub struct Retries {
    retries_max: u32,
    before_retry: Box<dyn FnMut(u32) + Send>,
}

impl Retries {
    /// At most this number of retries; `wait` is called before each retry, with its number from 1.
    pub fn new(most: u32, wait: impl FnMut(u32) + Send + 'static) -> Self {
        Self {
            retries_max: most,
            before_retry: Box::new(wait),
        }
    }

    /// No retries.
    pub fn none() -> Self {
        Self::new(0, |_| {})
    }
}

impl fmt::Debug for Retries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retries")
            .field("most", &self.retries_max)
            .finish_non_exhaustive()
    }
}

const OPEN: &str = "opening the TPM";

fn parse(tcti: &str) -> Result<TctiNameConf, TpmError> {
    TctiNameConf::from_str(tcti).map_err(|_| TpmError {
        command: OPEN,
        object: "its TCTI",
        cause: Cause::InvalidResult(format!(
            "invalid TCTI {tcti:?}: write {DEFAULT_TCTI}, or swtpm:host=..,port=.."
        )),
    })
}

/// Checks that a text is a TCTI accepted by [`Tpm::open`], without opening the TPM.
///
/// # Errors
/// The text is not a TCTI.
pub fn check_tcti(tcti: &str) -> Result<(), TpmError> {
    parse(tcti).map(drop)
}

/// An open TPM. Objects loaded by this program are flushed after use, also after errors, and all of them on drop.
///
/// The C library prints messages to standard error when a command fails, even if the failure is expected;
/// `TSS2_LOG=all+none` in the environment disables that.
#[derive(Debug)]
pub struct Tpm {
    context: Context,
    retries: Retries,
}

impl Tpm {
    /// Opens a TPM: `device:/dev/tpmrm0` ([`DEFAULT_TCTI`]), `swtpm:host=..,port=..`.
    ///
    /// # Errors
    /// The text is not a TCTI, or the TPM is unreachable.
    pub fn open(tcti: &str, retries: Retries) -> Result<Self, TpmError> {
        let context = Context::new(parse(tcti)?)
            .map_err(|error| TpmError::of_opening(OPEN, "its TCTI", tcti, error))?;
        Ok(Self { context, retries })
    }

    /// Runs one command, with retries while the TPM reports a temporary error and retries are left.
    pub(super) fn run<T>(
        &mut self,
        command: &'static str,
        object: &'static str,
        mut operation: impl FnMut(&mut Context) -> Result<T, Error>,
    ) -> Result<T, TpmError> {
        let mut attempt = 0;
        loop {
            let error = match operation(&mut self.context) {
                Ok(done) => return Ok(done),
                Err(error) => TpmError::new(command, object, error),
            };
            if attempt == self.retries.retries_max || error.retry() != Retry::Later {
                return Err(error);
            }
            attempt += 1;
            (self.retries.before_retry)(attempt);
        }
    }

    /// As [`Tpm::run`], authorized by an empty password.
    pub(super) fn run_plain<T>(
        &mut self,
        command: &'static str,
        object: &'static str,
        mut operation: impl FnMut(&mut Context) -> Result<T, Error>,
    ) -> Result<T, TpmError> {
        self.run(command, object, |context| {
            context.execute_with_session(Some(AuthSession::Password), &mut operation)
        })
    }

    /// Uses a loaded object and flushes it in any case.
    pub(super) fn with_loaded<T>(
        &mut self,
        handle: ObjectHandle,
        object: &'static str,
        operation: impl FnOnce(&mut Self, ObjectHandle) -> Result<T, TpmError>,
    ) -> Result<T, TpmError> {
        let done = operation(self, handle);
        let flushed = self.flush(handle, object);
        done.and_then(|done| flushed.map(|()| done))
    }

    pub(super) fn flush(&mut self, handle: ObjectHandle, object: &'static str) -> Result<(), TpmError> {
        self.run("TPM2_FlushContext", object, |context| {
            context.flush_context(handle)
        })
    }

    /// Starts a policy session, uses it, and flushes it in any case.
    pub(super) fn with_policy<T>(
        &mut self,
        operation: impl FnOnce(&mut Self, PolicySession) -> Result<T, TpmError>,
    ) -> Result<T, TpmError> {
        const SESSION: &str = "a policy session";
        let session = self
            .run("TPM2_StartAuthSession", SESSION, |context| {
                context.start_auth_session(
                    None,
                    None,
                    None,
                    SessionType::Policy,
                    SymmetricDefinition::AES_128_CFB,
                    HashingAlgorithm::Sha256,
                )
            })?
            .and_then(|session| PolicySession::try_from(session).ok())
            .ok_or_else(|| {
                invalid_result(
                    "TPM2_StartAuthSession",
                    SESSION,
                    "the TPM software stack returned no session",
                )
            })?;
        let handle = ObjectHandle::from(SessionHandle::from(session));
        self.with_loaded(handle, SESSION, |tpm, _| operation(tpm, session))
    }

    /// A session that may use the endorsement key: PolicySecret with the endorsement hierarchy's empty password.
    pub(super) fn with_endorsement<T>(
        &mut self,
        operation: impl FnOnce(&mut Self, AuthSession) -> Result<T, TpmError>,
    ) -> Result<T, TpmError> {
        self.with_policy(|tpm, session| {
            tpm.run_plain("TPM2_PolicySecret", "the endorsement hierarchy", |context| {
                context.policy_secret(
                    session,
                    AuthHandle::Endorsement,
                    Nonce::default(),
                    Digest::default(),
                    Nonce::default(),
                    None,
                )
            })?;
            operation(tpm, AuthSession::PolicySession(session))
        })
    }
}

/// The error for a command whose result or argument is invalid.
pub(super) fn invalid_result(
    command: &'static str,
    object: &'static str,
    reason: impl fmt::Display,
) -> TpmError {
    TpmError {
        command,
        object,
        cause: Cause::InvalidResult(reason.to_string()),
    }
}
