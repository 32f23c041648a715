//! Unnamed network namespaces.
//!
//! Such a namespace has no name in the file system: it exists as long as a file descriptor or a thread refers to it. The
//! kernel removes it with all its interfaces, addresses and packet sockets when this process ends, even by SIGKILL. No
//! cleanup is needed.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::thread::JoinHandle;

use crate::capability::{self, MissingCapabilities};

/// Why a namespace could not be created or entered.
#[derive(Debug, thiserror::Error)]
pub enum NetNsError {
    /// A capability is missing.
    #[error(transparent)]
    Capability(#[from] MissingCapabilities),
    /// The kernel refused one step.
    #[error("network namespace: {step} failed: {source}")]
    Kernel {
        /// The failed step.
        step: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

fn kernel(step: &'static str) -> impl FnOnce(io::Error) -> NetNsError {
    move |source| NetNsError::Kernel { step, source }
}

/// A reference to a network namespace. The kernel removes the namespace when the last reference is dropped.
#[derive(Debug)]
pub struct NetNs {
    fd: OwnedFd,
}

impl NetNs {
    /// Creates a namespace; its loopback interface is down.
    ///
    /// # Errors
    /// A capability is missing, or the kernel refuses a step.
    pub fn new() -> Result<Self, NetNsError> {
        capability::require(&[capability::Capability::SysAdmin])?;
        // Runs in a separate thread, because a thread that has left its namespace must not run other code.
        on_own_thread(|| {
            // SAFETY: takes no pointer; affects only the network namespace of this short-lived thread.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                return Err(kernel("unshare(CLONE_NEWNET)")(io::Error::last_os_error()));
            }
            Self::of_this_thread()
        })
    }

    /// The namespace that the calling thread is in.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub fn of_this_thread() -> Result<Self, NetNsError> {
        let file = File::open("/proc/thread-self/ns/net").map_err(kernel("open /proc/thread-self/ns/net"))?;
        Ok(Self { fd: file.into() })
    }

    /// Takes over a descriptor of a namespace, for instance a descriptor that was opened from `/proc/PID/fd`.
    #[must_use]
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// Runs `work` on a thread inside the namespace and waits for the thread. Sockets that `work` opens stay in the namespace
    /// even if another thread uses them later.
    ///
    /// # Errors
    /// The namespace cannot be entered.
    ///
    /// # Panics
    /// `work` panics.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, NetNsError> {
        on_own_thread(|| {
            self.enter()?;
            Ok(work())
        })
    }

    /// Starts a thread that runs `work` inside the namespace. The namespace exists at least until `work` returns.
    ///
    /// # Errors
    /// No thread can be started. A failure to enter the namespace is the thread's result.
    pub fn spawn<T: Send + 'static>(
        &self,
        name: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<JoinHandle<Result<T, NetNsError>>, NetNsError> {
        let namespace = Self {
            fd: self.fd.try_clone().map_err(kernel("dup"))?,
        };
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                namespace.enter()?;
                Ok(work())
            })
            .map_err(kernel("start a thread"))
    }

    /// A path by which child processes can refer to this namespace while this process runs.
    #[must_use]
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.fd.as_raw_fd())
    }

    /// The inode number that identifies a namespace, as in `/proc/PID/ns/net`.
    ///
    /// # Errors
    /// The kernel refuses the query.
    pub fn inode(&self) -> Result<u64, NetNsError> {
        let copy = self.fd.try_clone().map_err(kernel("dup"))?;
        let metadata = File::from(copy).metadata().map_err(kernel("fstat"))?;
        Ok(metadata.ino())
    }

    fn enter(&self) -> Result<(), NetNsError> {
        // SAFETY: the descriptor is open while `self` lives; only this thread's namespace changes.
        if unsafe { libc::setns(self.fd.as_raw_fd(), libc::CLONE_NEWNET) } != 0 {
            return Err(kernel("setns(CLONE_NEWNET)")(io::Error::last_os_error()));
        }
        Ok(())
    }
}

impl AsFd for NetNs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn on_own_thread<T: Send>(work: impl FnOnce() -> Result<T, NetNsError> + Send) -> Result<T, NetNsError> {
    std::thread::scope(|scope| match scope.spawn(work).join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}
