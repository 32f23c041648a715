//! Where whoever may, on this machine, asks the gateway for a statement: a Unix socket.
//!
//! A question is 32 bytes, the nonce, and the end of what is sent. An answer is 0, the statement's length `u32`, big-endian, the statement
//! and the inventory behind it; or 1 and why there is none, in words. The file's mode, 0600, says who may ask.

mod connections;

use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use linewarden_dataplane::Witness;
use linewarden_evidence::statement::{INVENTORY_BYTES_MAX, Nonce};
use rustix::event::{EventfdFlags, eventfd};

use crate::attester::{Attester, Shown};
use crate::gateway::PlaneHandle;

/// How long an answer may take: a TPM takes its time.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// Why there is no statement.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nobody answers there, or not in this form.
    #[error("{}: {source} (does the gateway run, and has its configuration this socket under [evidence]?)", path.display())]
    Io {
        /// Where.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// The gateway says why.
    #[error("the gateway gives no statement: {0}")]
    Refused(String),
}

/// Asks a gateway on this machine.
///
/// # Errors
/// Nobody is there, or it has no statement to give.
pub fn ask(path: &Path, nonce: Nonce) -> Result<Shown, AskError> {
    let failed = |source| AskError::Io {
        path: path.to_owned(),
        source,
    };
    let mut answer = Vec::new();
    converse(path, nonce, &mut answer).map_err(failed)?;
    let (kind, rest) = answer.split_first().ok_or_else(|| failed(cut_off()))?;
    if *kind != 0 {
        return Err(AskError::Refused(String::from_utf8_lossy(rest).into_owned()));
    }
    let (length, rest) = rest.split_first_chunk().ok_or_else(|| failed(cut_off()))?;
    let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
    let (statement, inventory) = rest.split_at_checked(length).ok_or_else(|| failed(cut_off()))?;
    Ok(Shown {
        statement: statement.to_vec(),
        inventory: inventory.to_vec(),
    })
}

fn converse(path: &Path, Nonce(nonce): Nonce, answer: &mut Vec<u8>) -> io::Result<()> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(ANSWER_MAX))?;
    stream.write_all(&nonce)?;
    stream.shutdown(std::net::Shutdown::Write)?;
    let bytes_max = u64::try_from(INVENTORY_BYTES_MAX).unwrap_or(u64::MAX);
    stream.take(bytes_max).read_to_end(answer).map(drop)
}

fn cut_off() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the answer is cut off")
}

/// The desk at work; dropping it closes it.
#[derive(Debug)]
pub struct EvidenceDesk {
    path: PathBuf,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl EvidenceDesk {
    /// Takes questions at that path, in the place of a socket that an earlier process left.
    ///
    /// # Errors
    /// The system's; something is there that is no socket.
    pub fn open(path: &Path, plane: PlaneHandle, attester: Arc<Mutex<Attester>>) -> io::Result<Self> {
        let listener = bind(path)?;
        listener.set_nonblocking(true)?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let clerk = Clerk { plane, attester };
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("lw-evidence".to_owned())
            .spawn(move || connections::serve(&listener, &stopped, |nonce| clerk.answer(nonce)))?;
        Ok(Self {
            path: path.to_owned(),
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for EvidenceDesk {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

fn bind(path: &Path) -> io::Result<UnixListener> {
    use std::os::unix::fs::FileTypeExt as _;
    if let Ok(metadata) = path.symlink_metadata() {
        if !metadata.file_type().is_socket() {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "something is there that is no socket",
            ));
        }
        std::fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

struct Clerk {
    plane: PlaneHandle,
    attester: Arc<Mutex<Attester>>,
}

impl Clerk {
    fn answer(&self, nonce: Nonce) -> Vec<u8> {
        match self.show(nonce) {
            Ok(shown) => {
                let length = u32::try_from(shown.statement.len()).unwrap_or(u32::MAX);
                [
                    &[0],
                    &length.to_be_bytes()[..],
                    &shown.statement,
                    &shown.inventory,
                ]
                .concat()
            }
            Err(why) => [&[1], why.as_bytes()].concat(),
        }
    }

    fn show(&self, nonce: Nonce) -> Result<Shown, String> {
        let measured = self.plane.with_plane(|plane| (plane.name(), plane.measure()));
        let (name, measured) = measured.map_err(|error| error.to_string())?;
        let measurement = match measured.map_err(|error| error.to_string())? {
            Witness::Kernel(measurement) => *measurement,
            Witness::Engine => {
                return Err("the switch signs itself what it runs: `linewarden switch evidence`".to_owned());
            }
            Witness::Nobody => {
                return Err(format!(
                    "the {name} data plane is a part of this process, whose word for itself is worth nothing"
                ));
            }
        };
        let mut attester = self.attester.lock().unwrap_or_else(PoisonError::into_inner);
        attester
            .show(nonce, measurement)
            .map_err(|error| error.to_string())
    }
}
