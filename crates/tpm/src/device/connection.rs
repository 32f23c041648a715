//! An open TPM: runs commands, names them in errors, and flushes loaded objects.

use std::fmt;
use std::str::FromStr as _;
use std::time::Duration;

use tss_esapi::constants::SessionType;
use tss_esapi::handles::{AuthHandle, ObjectHandle, SessionHandle};
use tss_esapi::interface_types::algorithm::HashingAlgorithm;
use tss_esapi::interface_types::session_handles::{AuthSession, PolicySession};
use tss_esapi::structures::{Digest, Nonce, SymmetricDefinition};
use tss_esapi::tcti_ldr::TctiNameConf;
use tss_esapi::{Context, Error};

use super::error::{Cause, TpmError};
use crate::key::Retry;

/// The TCTI of the kernel's resource manager, which gives each process a virtual TPM memory of its own.
pub const DEFAULT_TCTI: &str = "device:/dev/tpmrm0";

/// Retries of commands that may succeed later, and the delay before each retry.
pub struct Retries {
    retries_max: u32,
    before_retry: Box<dyn FnMut(u32) + Send>,
}

impl Retries {
    /// Allows at most `retries_max` retries. `wait` is called before each retry, with the number of the retry, from 1.
    pub fn new(retries_max: u32, wait: impl FnMut(u32) + Send + 'static) -> Self {
        Self {
            retries_max,
            before_retry: Box::new(wait),
        }
    }

    /// Allows three retries within a second, because other processes use the TPM, too. Each delay is random, between half
    /// of a maximum and the maximum; the maximum is 100 ms and doubles. `random` returns random numbers.
    pub fn with_backoff(mut random: impl FnMut() -> u64 + Send + 'static) -> Self {
        Self::new(3, move |number| {
            let half_ms = 25 << number;
            std::thread::sleep(Duration::from_millis(half_ms + random() % half_ms));
        })
    }

    /// No retries.
    pub fn none() -> Self {
        Self::new(0, |_| {})
    }
}

impl fmt::Debug for Retries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retries")
            .field("retries_max", &self.retries_max)
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

/// Checks that [`Tpm::open`] would accept the text as a TCTI. The TPM is not opened.
///
/// # Errors
/// The text is not a TCTI.
pub fn check_tcti(tcti: &str) -> Result<(), TpmError> {
    parse(tcti).map(drop)
}

/// An open TPM. Objects that this program has loaded are flushed after use, also after errors, and on drop.
///
/// The C library prints messages to standard error when a command fails, even if the failure is expected. The environment
/// variable `TSS2_LOG=all+none` disables these messages.
#[derive(Debug)]
pub struct Tpm {
    context: Context,
    retries: Retries,
}

impl Tpm {
    /// Opens the TPM at `tcti`, for example `device:/dev/tpmrm0` ([`DEFAULT_TCTI`]) or `swtpm:host=..,port=..`.
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
                Ok(result) => return Ok(result),
                Err(error) => TpmError::new(command, object, error),
            };
            if attempt == self.retries.retries_max || error.retry() != Retry::Later {
                return Err(error);
            }
            attempt += 1;
            (self.retries.before_retry)(attempt);
        }
    }

    /// As [`Tpm::run`], with an empty password as authorization.
    pub(super) fn run_with_empty_password<T>(
        &mut self,
        command: &'static str,
        object: &'static str,
        mut operation: impl FnMut(&mut Context) -> Result<T, Error>,
    ) -> Result<T, TpmError> {
        self.run(command, object, |context| {
            context.execute_with_session(Some(AuthSession::Password), &mut operation)
        })
    }

    /// Runs `operation` with a loaded object, and flushes the object in any case.
    pub(super) fn with_loaded<T>(
        &mut self,
        handle: ObjectHandle,
        object: &'static str,
        operation: impl FnOnce(&mut Self, ObjectHandle) -> Result<T, TpmError>,
    ) -> Result<T, TpmError> {
        let result = operation(self, handle);
        let flush_result = self.flush(handle, object);
        result.and_then(|value| flush_result.map(|()| value))
    }

    pub(super) fn flush(&mut self, handle: ObjectHandle, object: &'static str) -> Result<(), TpmError> {
        self.run("TPM2_FlushContext", object, |context| {
            context.flush_context(handle)
        })
    }

    /// Runs `operation` with a new policy session, and flushes the session in any case.
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

    /// Runs `operation` with a session that may use the endorsement key: PolicySecret with the empty password of the
    /// endorsement hierarchy.
    pub(super) fn with_endorsement<T>(
        &mut self,
        operation: impl FnOnce(&mut Self, AuthSession) -> Result<T, TpmError>,
    ) -> Result<T, TpmError> {
        self.with_policy(|tpm, session| {
            tpm.run_with_empty_password("TPM2_PolicySecret", "the endorsement hierarchy", |context| {
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
