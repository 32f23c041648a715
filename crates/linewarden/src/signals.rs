//! SIGINT and SIGTERM as something to wait for.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::failure::Failure;

/// Becomes readable when the program is told to end.
pub struct StopSignal(SignalFd);

impl StopSignal {
    /// Takes the signals over. Call it before any thread is started: threads inherit what is blocked.
    ///
    /// # Errors
    /// The kernel's.
    pub fn take_over() -> Result<Self, Failure> {
        let failed = |error| Failure::failed(format!("cannot wait for signals: {error}"));
        let mut signals = SigSet::empty();
        signals.add(Signal::SIGINT);
        signals.add(Signal::SIGTERM);
        signals.thread_block().map_err(failed)?;
        SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
            .map(Self)
            .map_err(failed)
    }

    /// Waits at most so long; says whether it is time to end.
    ///
    /// # Errors
    /// The kernel's.
    pub fn wait(&self, timeout: Duration) -> Result<bool, Failure> {
        let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
        let mut polled = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        match poll(&mut polled, timeout) {
            Ok(ready) => Ok(ready > 0),
            Err(nix::errno::Errno::EINTR) => Ok(false),
            Err(error) => Err(Failure::failed(format!("cannot wait for signals: {error}"))),
        }
    }
}

impl AsFd for StopSignal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
