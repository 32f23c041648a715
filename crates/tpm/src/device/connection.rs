//! One TPM, its commands by name, and what must be flushed afterwards.

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
use crate::key::Again;

/// The kernel's own resource manager: each process has the TPM's memory to itself.
pub const DEFAULT_TCTI: &str = "device:/dev/tpmrm0";

/// How often what may succeed later is tried again, and how long to wait before each time.
pub struct Retries {
    most: u32,
    wait: Box<dyn FnMut(u32) + Send>,
}

impl Retries {
    /// At most `most` more times; `wait` is called before each, with its number from 1.
    pub fn new(most: u32, wait: impl FnMut(u32) + Send + 'static) -> Self {
        Self {
            most,
            wait: Box::new(wait),
        }
    }

    /// Never.
    pub fn none() -> Self {
        Self::new(0, |_| {})
    }
}

impl fmt::Debug for Retries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retries")
            .field("most", &self.most)
            .finish_non_exhaustive()
    }
}

const OPEN: &str = "opening the TPM";

fn parse(tcti: &str) -> Result<TctiNameConf, TpmError> {
    TctiNameConf::from_str(tcti).map_err(|_| TpmError {
        command: OPEN,
        object: "its TCTI",
        cause: Cause::Unusable(format!(
            "{tcti:?} is none; write {DEFAULT_TCTI}, or swtpm:host=..,port=.."
        )),
    })
}

/// Whether a text names a TPM, as [`Tpm::open`] takes it; whether one is there is not looked at.
///
/// # Errors
/// It names none.
pub fn check_tcti(tcti: &str) -> Result<(), TpmError> {
    parse(tcti).map(drop)
}

/// A TPM that is open. What this program loads into it is flushed when it is done with it, also after errors, and all of it
/// when this is dropped.
///
/// The C library writes lines of its own to standard error when a command fails, also where that is expected; with
/// `TSS2_LOG=all+none` in the environment it does not.
#[derive(Debug)]
pub struct Tpm {
    context: Context,
    retries: Retries,
}

impl Tpm {
    /// Opens a TPM: `device:/dev/tpmrm0` ([`DEFAULT_TCTI`]), `swtpm:host=..,port=..`.
    ///
    /// # Errors
    /// The text is none of these, or the TPM cannot be reached.
    pub fn open(tcti: &str, retries: Retries) -> Result<Self, TpmError> {
        let context = Context::new(parse(tcti)?)
            .map_err(|error| TpmError::of_opening(OPEN, "its TCTI", tcti, error))?;
        Ok(Self { context, retries })
    }

    /// Does one command, again and again while the TPM says that it may succeed later and retries are left.
    pub(super) fn run<T>(
        &mut self,
        command: &'static str,
        object: &'static str,
        mut what: impl FnMut(&mut Context) -> Result<T, Error>,
    ) -> Result<T, TpmError> {
        let mut attempt = 0;
        loop {
            let error = match what(&mut self.context) {
                Ok(done) => return Ok(done),
                Err(error) => TpmError::new(command, object, error),
            };
            if attempt == self.retries.most || error.again() != Again::Later {
                return Err(error);
            }
            attempt += 1;
            (self.retries.wait)(attempt);
        }
    }

    /// As [`Tpm::run`], authorised by an empty password.
    pub(super) fn run_plain<T>(
        &mut self,
        command: &'static str,
        object: &'static str,
        mut what: impl FnMut(&mut Context) -> Result<T, Error>,
    ) -> Result<T, TpmError> {
        self.run(command, object, |context| {
            context.execute_with_session(Some(AuthSession::Password), &mut what)
        })
    }

    /// Does something with an object that is loaded, and flushes it whatever came of it.
    pub(super) fn with_loaded<T>(
        &mut self,
        handle: ObjectHandle,
        object: &'static str,
        what: impl FnOnce(&mut Self, ObjectHandle) -> Result<T, TpmError>,
    ) -> Result<T, TpmError> {
        let done = what(self, handle);
        let flushed = self.flush(handle, object);
        done.and_then(|done| flushed.map(|()| done))
    }

    pub(super) fn flush(&mut self, handle: ObjectHandle, object: &'static str) -> Result<(), TpmError> {
        self.run("TPM2_FlushContext", object, |context| {
            context.flush_context(handle)
        })
    }

    /// Starts a policy session, does something with it, and flushes it whatever came of it.
    pub(super) fn with_policy<T>(
        &mut self,
        what: impl FnOnce(&mut Self, PolicySession) -> Result<T, TpmError>,
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
            .ok_or_else(|| unusable("TPM2_StartAuthSession", SESSION, "the stack gave no session"))?;
        let handle = ObjectHandle::from(SessionHandle::from(session));
        self.with_loaded(handle, SESSION, |tpm, _| what(tpm, session))
    }

    /// A session that may use the endorsement key: PolicySecret with the endorsement hierarchy's empty password.
    pub(super) fn with_endorsement<T>(
        &mut self,
        what: impl FnOnce(&mut Self, AuthSession) -> Result<T, TpmError>,
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
            what(tpm, AuthSession::PolicySession(session))
        })
    }
}

/// The stack or this program could make nothing of a command's result or argument.
pub(super) fn unusable(command: &'static str, object: &'static str, why: impl fmt::Display) -> TpmError {
    TpmError {
        command,
        object,
        cause: Cause::Unusable(why.to_string()),
    }
}
