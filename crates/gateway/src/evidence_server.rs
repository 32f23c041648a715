//! Serves signed evidence to local processes at a Unix socket.
//!
//! A request is a nonce of 32 bytes, followed by the end of the stream. A response is 0, the statement's length as
//! big-endian `u32`, the statement and the inventory; or 1 and an error message. Access is controlled by the file's
//! mode, 0600.

mod connections;

use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use linewarden_dataplane::MeasurementSource;
use linewarden_evidence::statement::{INVENTORY_BYTES_MAX, Nonce};
use linewarden_files::bind_private;
use rustix::event::{EventfdFlags, eventfd};

use crate::attester::{Attester, SignedEvidence};
use crate::gateway::DataPlaneHandle;

/// Timeout of a response. A TPM needs seconds.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// The reason why no evidence was received.
#[derive(Debug, thiserror::Error)]
pub enum StatementRequestError {
    /// The socket does not exist, no gateway serves it, or the response is malformed.
    #[error("requesting evidence at {} failed: {source}; check that the gateway runs and that [evidence] socket names this path", path.display())]
    Io {
        /// The socket.
        path: PathBuf,
        /// The error.
        #[source]
        source: io::Error,
    },
    /// The gateway returned an error.
    #[error("gateway returned no evidence: {0}")]
    Refused(String),
}

/// Requests evidence from a gateway on this machine.
///
/// # Errors
/// The gateway does not run, or returned an error.
pub fn request_statement(path: &Path, nonce: Nonce) -> Result<SignedEvidence, StatementRequestError> {
    let failed = |source| StatementRequestError::Io {
        path: path.to_owned(),
        source,
    };
    let mut response = Vec::new();
    exchange(path, nonce, &mut response).map_err(failed)?;
    let (status, rest) = response
        .split_first()
        .ok_or_else(|| failed(truncated_response()))?;
    if *status != 0 {
        return Err(StatementRequestError::Refused(
            String::from_utf8_lossy(rest).into_owned(),
        ));
    }
    let (length, rest) = rest
        .split_first_chunk()
        .ok_or_else(|| failed(truncated_response()))?;
    let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
    let (statement, inventory) = rest
        .split_at_checked(length)
        .ok_or_else(|| failed(truncated_response()))?;
    Ok(SignedEvidence {
        statement: statement.to_vec(),
        inventory: inventory.to_vec(),
    })
}

fn exchange(path: &Path, Nonce(nonce): Nonce, response: &mut Vec<u8>) -> io::Result<()> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(RESPONSE_TIMEOUT))?;
    stream.write_all(&nonce)?;
    stream.shutdown(std::net::Shutdown::Write)?;
    let bytes_max = u64::try_from(INVENTORY_BYTES_MAX).unwrap_or(u64::MAX);
    stream.take(bytes_max).read_to_end(response).map(drop)
}

fn truncated_response() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "truncated response")
}

/// A running server. Dropping the value stops the server.
#[derive(Debug)]
pub struct EvidenceServer {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl EvidenceServer {
    /// Starts a server at this path. The socket of a process that has ended is replaced.
    ///
    /// # Errors
    /// A system call failed, a process serves the path, or another kind of file is there.
    pub fn open(
        path: &Path,
        data_plane: DataPlaneHandle,
        attester: Arc<Mutex<Attester>>,
    ) -> io::Result<Self> {
        let (listener, file) = bind_private(path)?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let handler = StatementHandler { data_plane, attester };
        let stop_signal = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("lw-evidence".to_owned())
            .spawn(move || {
                connections::serve(&listener, &stop_signal, |nonce| handler.respond(nonce));
                // The file is removed before the listener is closed.
                drop(file);
                drop(listener);
            })?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for EvidenceServer {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct StatementHandler {
    data_plane: DataPlaneHandle,
    attester: Arc<Mutex<Attester>>,
}

impl StatementHandler {
    fn respond(&self, nonce: Nonce) -> Vec<u8> {
        match self.sign_statement(nonce) {
            Ok(statement) => {
                let length = u32::try_from(statement.statement.len()).unwrap_or(u32::MAX);
                [
                    &[0],
                    &length.to_be_bytes()[..],
                    &statement.statement,
                    &statement.inventory,
                ]
                .concat()
            }
            Err(reason) => [&[1], reason.as_bytes()].concat(),
        }
    }

    fn sign_statement(&self, nonce: Nonce) -> Result<SignedEvidence, String> {
        let measurement = self
            .data_plane
            .with_data_plane(|data_plane| (data_plane.name(), data_plane.measure()));
        let (name, measurement) = measurement.map_err(|error| error.to_string())?;
        let measurement = match measurement.map_err(|error| error.to_string())? {
            MeasurementSource::Kernel(measurement) => *measurement,
            MeasurementSource::SelfSigned => {
                return Err(
                    "the switch signs its own evidence; use `linewarden-switch evidence export`".to_owned(),
                );
            }
            MeasurementSource::Unavailable => {
                return Err(format!(
                    "the {name} data plane is part of the gateway process and cannot be measured from outside"
                ));
            }
        };
        let mut attester = self.attester.lock().unwrap_or_else(PoisonError::into_inner);
        attester
            .sign(nonce, measurement)
            .map_err(|error| error.to_string())
    }
}
