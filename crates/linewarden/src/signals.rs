//! Signals as something to wait for.

use std::io::{BufReader, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::failure::Failure;

/// What the program is told from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// To end: SIGINT, SIGTERM.
    Stop,
    /// To read its configuration again: SIGHUP.
    Reload,
    /// To print its counters: SIGUSR1.
    Count,
}

/// Becomes readable when the program is told something.
pub struct Signals(SignalFd);

impl Signals {
    /// Takes over the signals that tell a program to end. Call it before any thread is started: threads inherit what is
    /// blocked.
    ///
    /// # Errors
    /// The kernel's.
    pub fn to_stop() -> Result<Self, Failure> {
        Self::take_over(&[Signal::SIGINT, Signal::SIGTERM])
    }

    /// Likewise, with the one that asks for counters.
    ///
    /// # Errors
    /// The kernel's.
    pub fn to_stop_or_count() -> Result<Self, Failure> {
        Self::take_over(&[Signal::SIGINT, Signal::SIGTERM, Signal::SIGUSR1])
    }

    /// Likewise, with those that a gateway knows besides.
    ///
    /// # Errors
    /// The kernel's.
    pub fn of_gateway() -> Result<Self, Failure> {
        Self::take_over(&[Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGUSR1])
    }

    fn take_over(wanted: &[Signal]) -> Result<Self, Failure> {
        let signals: SigSet = wanted.iter().copied().collect();
        signals.thread_block().map_err(failed)?;
        SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
            .map(Self)
            .map_err(failed)
    }

    /// Waits until there is something to read, or the end of it (`None`), or until the program is told something.
    ///
    /// # Errors
    /// The kernel's.
    pub fn wait_for_input(&self, reader: &BufReader<impl Read + AsFd>) -> Result<Option<Told>, Failure> {
        // Signals are seen once what was read before is used up.
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

    /// Waits at most so long.
    ///
    /// # Errors
    /// The kernel's.
    pub fn wait(&self, timeout: Duration) -> Result<Option<Told>, Failure> {
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
                Some(Signal::SIGHUP) => Some(Told::Reload),
                Some(Signal::SIGUSR1) => Some(Told::Count),
                Some(_) => Some(Told::Stop),
                None => None,
            },
        )
    }
}

fn failed(error: nix::errno::Errno) -> Failure {
    Failure::failed(format!("cannot wait for signals: {error}"))
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
