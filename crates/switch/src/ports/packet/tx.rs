//! The sending half of a packet socket.

use std::os::fd::OwnedFd;

use super::super::patience::Patience;
use super::super::{PortError, Transmit, TxCounters, sys};
use super::tx_ring::{Pushed, TxRing};

/// An Ethernet header.
const FRAME_BYTES_MIN: usize = 14;

/// Frames that leave together, at the latest.
const BATCH_FRAMES: usize = 64;

/// Sends past the queueing discipline or through it, in batches.
#[derive(Debug)]
pub(super) struct PacketSender {
    fd: OwnedFd,
    interface: String,
    ring: TxRing,
    counters: TxCounters,
    patience: Patience,
}

impl PacketSender {
    /// Sends through the ring of a bound socket.
    pub(super) fn new(fd: OwnedFd, interface: String, ring: TxRing) -> Self {
        Self {
            fd,
            interface,
            ring,
            counters: TxCounters::default(),
            patience: Patience::default(),
        }
    }

    /// Has the kernel look at the ring. False when it cannot take anything for now.
    fn kick(&mut self) -> Result<bool, PortError> {
        let kicked = sys::kick(&self.fd);
        let (frames, bytes) = self.ring.settle();
        self.counters.frames += frames as u64;
        self.counters.bytes += bytes as u64;
        match kicked.map_err(|error| (error.raw_os_error(), error)) {
            Ok(()) | Err((Some(libc::ENOBUFS | libc::EAGAIN), _)) => Ok(frames > 0),
            Err((Some(libc::EINTR), _)) => Ok(true),
            Err((Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV), _)) => {
                self.counters.dropped_down += self.ring.give_up() as u64;
                Ok(true)
            }
            Err((_, source)) => {
                self.ring.give_up();
                Err(PortError::Kernel {
                    interface: self.interface.clone(),
                    step: "send",
                    source,
                })
            }
        }
    }

    fn pause(&mut self) -> bool {
        self.counters.waited += 1;
        self.patience.pause()
    }
}

impl Transmit for PacketSender {
    fn send(&mut self, headers: &[u8], payload: &[u8]) -> Result<(), PortError> {
        if headers.len() + payload.len() < FRAME_BYTES_MIN {
            self.counters.dropped_short += 1;
            return Ok(());
        }
        if self.ring.waiting() >= BATCH_FRAMES {
            self.flush()?;
        }
        loop {
            match self.ring.push(headers, payload) {
                Pushed::Done => return Ok(()),
                Pushed::TooLong => {
                    self.counters.dropped_long += 1;
                    return Ok(());
                }
                Pushed::Full if self.pause() => {}
                Pushed::Full => {
                    self.counters.dropped_full += 1;
                    return Ok(());
                }
            }
        }
    }

    fn flush(&mut self) -> Result<(), PortError> {
        while self.ring.waiting() > 0 {
            if !self.kick()? && !self.pause() {
                self.counters.dropped_full += self.ring.give_up() as u64;
            }
        }
        self.patience.renew();
        Ok(())
    }

    fn counters(&self) -> TxCounters {
        self.counters
    }
}
