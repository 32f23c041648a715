//! Frames collected for one `sendmmsg`.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

/// Longest frame that can be sent, bytes: 1,500 of IP, Ethernet header and two VLAN tags, rounded up.
pub const FRAME_BYTES_MAX: usize = 1536;

/// Reusable buffers for a fixed number of frames.
pub struct TxBatch {
    frames: Box<[[u8; FRAME_BYTES_MAX]]>,
    vectors: Box<[libc::iovec]>,
    messages: Box<[libc::mmsghdr]>,
    /// Number of frames to send: the first frames of `frames`.
    frame_count: usize,
}

// SAFETY: the raw pointers in `vectors` and `messages` point into boxes that this value owns and that never move.
unsafe impl Send for TxBatch {}

impl std::fmt::Debug for TxBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TxBatch({} of {} frames)", self.frame_count, self.frames.len())
    }
}

impl TxBatch {
    /// Room for `capacity` frames, at least one and at most 1,024 (the kernel's limit of one `sendmmsg`).
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        let capacity = capacity.clamp(1, 1024);
        let mut frames = vec![[0u8; FRAME_BYTES_MAX]; capacity].into_boxed_slice();
        let mut vectors: Box<[_]> = frames
            .iter_mut()
            .map(|frame| libc::iovec {
                iov_base: frame.as_mut_ptr().cast(),
                iov_len: 0,
            })
            .collect();
        let messages = vectors
            .iter_mut()
            .map(|vector| {
                // SAFETY: integers and pointers, for which zero is valid.
                let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
                message.msg_hdr.msg_iov = vector;
                message.msg_hdr.msg_iovlen = 1;
                message
            })
            .collect();
        Self {
            frames,
            vectors,
            messages,
            frame_count: 0,
        }
    }

    /// Number of frames in the batch.
    #[must_use]
    pub fn len(&self) -> usize {
        self.frame_count
    }

    /// Whether the batch is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.frame_count == 0
    }

    /// Whether the batch is full.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.frame_count == self.frames.len()
    }

    /// Appends the frame that `write` puts into the buffer. `write` returns the frame's length, or `None` to append
    /// nothing; `write` is not called if the batch is full. Returns whether a frame was appended.
    pub fn push_with(&mut self, write: impl FnOnce(&mut [u8; FRAME_BYTES_MAX]) -> Option<usize>) -> bool {
        let (Some(frame), Some(vector)) = (
            self.frames.get_mut(self.frame_count),
            self.vectors.get_mut(self.frame_count),
        ) else {
            return false;
        };
        let Some(length) = write(frame) else {
            return false;
        };
        vector.iov_len = length.min(FRAME_BYTES_MAX);
        self.frame_count += 1;
        true
    }

    /// Appends a copy of a frame; returns false if the batch is full or the frame is longer than [`FRAME_BYTES_MAX`].
    pub fn push(&mut self, frame: &[u8]) -> bool {
        self.push_with(|buffer| {
            buffer.get_mut(..frame.len())?.copy_from_slice(frame);
            Some(frame.len())
        })
    }

    /// Sends all frames except frames for which the interface's queue is full; returns the number of sent frames.
    pub(super) fn send(&mut self, fd: &OwnedFd) -> io::Result<usize> {
        let mut sent_frames = 0;
        let frame_count = std::mem::take(&mut self.frame_count);
        let mut unsent = self.messages.get_mut(..frame_count).unwrap_or_default();
        while !unsent.is_empty() {
            let count = libc::c_uint::try_from(unsent.len()).unwrap_or(libc::c_uint::MAX);
            // SAFETY: `unsent` are initialized headers whose vectors point at buffers that `self` owns; the kernel
            // reads the first `iov_len` bytes, which is at most the buffer's size.
            let sent = unsafe { libc::sendmmsg(fd.as_raw_fd(), unsent.as_mut_ptr(), count, 0) };
            let skip = match usize::try_from(sent) {
                Ok(sent) => {
                    sent_frames += sent;
                    sent
                }
                Err(_) => {
                    let error = io::Error::last_os_error();
                    match error.raw_os_error() {
                        Some(libc::ENOBUFS | libc::EAGAIN) => 1,
                        Some(libc::EINTR) => 0,
                        _ => return Err(error),
                    }
                }
            };
            unsent = unsent.get_mut(skip..).unwrap_or_default();
        }
        Ok(sent_frames)
    }
}
