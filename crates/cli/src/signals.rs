//! Signals of the process as a file descriptor.

use std::io::{BufReader, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::failure::Failure;

/// The operation that a signal requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalRequest {
    /// Stop: SIGINT, SIGTERM.
    Stop,
    /// Reload the configuration: SIGHUP.
    Reload,
    /// Print the counters: SIGUSR1.
    PrintCounters,
}

/// A signal file descriptor; readable when a signal has arrived.
pub struct Signals(SignalFd);

impl Signals {
    /// Blocks SIGINT and SIGTERM and receives these signals through the file descriptor. Must be called before the first
    /// thread starts, because threads inherit the mask of blocked signals.
    ///
    /// # Errors
    /// The kernel refuses the signal mask or the file descriptor.
    pub fn for_stop() -> Result<Self, Failure> {
        Self::take_over(&[Signal::SIGINT, Signal::SIGTERM])
    }

    /// As [`Signals::for_stop`], with SIGUSR1.
    ///
    /// # Errors
    /// As [`Signals::for_stop`].
    pub fn for_stop_and_counters() -> Result<Self, Failure> {
        Self::take_over(&[Signal::SIGINT, Signal::SIGTERM, Signal::SIGUSR1])
    }

    /// As [`Signals::for_stop`], with SIGUSR1 and SIGHUP.
    ///
    /// # Errors
    /// As [`Signals::for_stop`].
    pub fn for_service() -> Result<Self, Failure> {
        Self::take_over(&[Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGUSR1])
    }

    fn take_over(handled: &[Signal]) -> Result<Self, Failure> {
        let signals: SigSet = handled.iter().copied().collect();
        signals.thread_block().map_err(failed)?;
        SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
            .map(Self)
            .map_err(failed)
    }

    /// Waits until `reader` has input or has reached its end (returns `None`), or until a signal arrives (returns its
    /// request).
    ///
    /// # Errors
    /// `poll` fails, or a signal cannot be read.
    pub fn wait_for_input(
        &self,
        reader: &BufReader<impl Read + AsFd>,
    ) -> Result<Option<SignalRequest>, Failure> {
        // Buffered input is processed before the next signal.
        if !reader.buffer().is_empty() {
            return Ok(None);
        }
        let [input, signals] = [reader.get_ref().as_fd(), self.as_fd()];
        let mut polled = [input, signals].map(|descriptor| PollFd::new(descriptor, PollFlags::POLLIN));
        match poll(&mut polled, PollTimeout::NONE) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => self.wait(Duration::ZERO),
            Err(error) => Err(failed(error)),
        }
    }

    /// Waits for a signal, at most for `timeout`. Returns `None` if no signal has arrived.
    ///
    /// # Errors
    /// `poll` fails, or a signal cannot be read.
    pub fn wait(&self, timeout: Duration) -> Result<Option<SignalRequest>, Failure> {
        let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
        let mut polled = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        match poll(&mut polled, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(failed(error)),
        }
        let Some(signal) = self.0.read_signal().map_err(failed)? else {
            return Ok(None);
        };
        Ok(
            match i32::try_from(signal.ssi_signo)
                .ok()
                .and_then(|number| Signal::try_from(number).ok())
            {
                Some(Signal::SIGHUP) => Some(SignalRequest::Reload),
                Some(Signal::SIGUSR1) => Some(SignalRequest::PrintCounters),
                Some(_) => Some(SignalRequest::Stop),
                None => None,
            },
        )
    }
}

fn failed(error: nix::errno::Errno) -> Failure {
    Failure::failed(format!("waiting for signals failed: {error}"))
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
