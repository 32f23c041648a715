//! Sending half of a packet socket.

use std::os::fd::OwnedFd;

use linewarden_socket::packet::{PushResult, TxRing};

use super::super::send_backoff::SendBackoff;
use super::super::{PortError, Transmit, TxCounters, sys};

/// Minimum frame: an Ethernet header.
const FRAME_BYTES_MIN: usize = 14;

/// Maximum number of frames in a batch.
const BATCH_FRAMES: usize = 64;

/// Sends frames in batches, through the queueing discipline or bypassing it.
#[derive(Debug)]
pub(super) struct PacketSender {
    fd: OwnedFd,
    interface: String,
    ring: TxRing,
    counters: TxCounters,
    backoff: SendBackoff,
}

impl PacketSender {
    /// Creates a sender for the ring of a bound socket.
    pub(super) fn new(fd: OwnedFd, interface: String, ring: TxRing) -> Self {
        Self {
            fd,
            interface,
            ring,
            counters: TxCounters::default(),
            backoff: SendBackoff::default(),
        }
    }

    /// Makes the kernel process the ring. False if the kernel accepts no frame now.
    fn kick(&mut self) -> Result<bool, PortError> {
        let result = sys::kick(&self.fd);
        let (frames, bytes) = self.ring.reclaim();
        self.counters.frames += frames as u64;
        self.counters.bytes += bytes as u64;
        match result.map_err(|error| (error.raw_os_error(), error)) {
            Ok(()) | Err((Some(libc::ENOBUFS | libc::EAGAIN), _)) => Ok(frames > 0),
            Err((Some(libc::EINTR), _)) => Ok(true),
            Err((Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV), _)) => {
                self.counters.dropped_down += self.ring.discard_waiting() as u64;
                Ok(true)
            }
            Err((_, source)) => {
                self.ring.discard_waiting();
                Err(PortError::Kernel {
                    interface: self.interface.clone(),
                    step: "send",
                    source,
                })
            }
        }
    }

    fn pause(&mut self) -> bool {
        self.counters.queue_full_retries += 1;
        self.backoff.pause()
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
                PushResult::Done => return Ok(()),
                PushResult::TooLong => {
                    self.counters.dropped_long += 1;
                    return Ok(());
                }
                PushResult::Full if self.pause() => {}
                PushResult::Full => {
                    self.counters.dropped_full += 1;
                    return Ok(());
                }
            }
        }
    }

    fn flush(&mut self) -> Result<(), PortError> {
        while self.ring.waiting() > 0 {
            if !self.kick()? && !self.pause() {
                self.counters.dropped_full += self.ring.discard_waiting() as u64;
            }
        }
        self.backoff.reset();
        Ok(())
    }

    fn counters(&self) -> TxCounters {
        self.counters
    }
}
