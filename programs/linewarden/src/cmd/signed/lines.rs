//! Output lines: a bounded queue, and a thread that writes the lines. A slow reader delays only this thread.

use linewarden_cli::failure::Failure;
use linewarden_cli::output::printable;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{process, thread};

use nix::errno::Errno;

use super::line_writer::LineWriter;

/// Default maximum number of queued lines.
pub const BACKLOG_LINES_DEFAULT: u32 = 65_536;
/// Maximum number of queued bytes, because a line of sub-messages may have half a mebibyte.
const BACKLOG_BYTES_MAX: usize = 64 << 20;

/// Time limit for writing the final counters, and time limit for writing a final error message.
pub const FINAL_FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Counters of lines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Lines written.
    pub written: u64,
    /// Lines dropped because the queue was full.
    pub dropped: u64,
    /// Lines still queued when the queue was closed.
    pub lost: u64,
    /// Lines that could not be written, by error.
    pub failed: BTreeMap<String, u64>,
}

#[derive(Default)]
struct Queue {
    lines: VecDeque<Vec<u8>>,
    /// Length of all queued lines.
    bytes: usize,
    /// Whether the thread is writing a line.
    is_writing: bool,
    is_closed: bool,
    counts: Counts,
}

struct SharedQueue {
    queue: Mutex<Queue>,
    /// Signaled when a line is queued.
    has_lines: Condvar,
    /// Signaled when all lines are written.
    is_empty: Condvar,
}

impl SharedQueue {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A queue of lines with one destination. The lines are written in the order of the queue.
pub struct LineQueue {
    shared: Arc<SharedQueue>,
    lines_max: u32,
}

impl LineQueue {
    /// Starts the thread that writes. At most `lines_max` lines are queued. Write errors are reported in `error_lines`,
    /// if it is given, with `name` as prefix.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(
        name: String,
        writer: LineWriter,
        lines_max: u32,
        error_lines: Option<Arc<Self>>,
    ) -> Result<Self, Failure> {
        let shared = Arc::new(SharedQueue {
            queue: Mutex::default(),
            has_lines: Condvar::new(),
            is_empty: Condvar::new(),
        });
        let thread_shared = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("lines".to_owned())
            .spawn(move || write_all(&thread_shared, writer, &name, error_lines.as_deref()))?;
        Ok(Self { shared, lines_max })
    }

    /// Queues a line without its line break; if the queue is full or closed, drops and counts the line. Never blocks.
    pub fn push(&self, line: Vec<u8>) {
        let mut queue = self.shared.lock();
        let bytes = queue.bytes.saturating_add(line.len());
        if queue.is_closed || queue.lines.len() >= self.lines_max as usize || bytes > BACKLOG_BYTES_MAX {
            queue.counts.dropped += 1;
            return;
        }
        queue.bytes = bytes;
        queue.lines.push_back(line);
        drop(queue);
        self.shared.has_lines.notify_one();
    }

    /// The counters so far.
    pub fn counts(&self) -> Counts {
        self.shared.lock().counts.clone()
    }

    /// Waits until all lines are written, at most until `deadline`. At the deadline, discards the remaining lines and
    /// closes the queue. Returns false if the queue is closed.
    pub fn drain(&self, deadline: Instant) -> bool {
        let mut queue = self.shared.lock();
        loop {
            if queue.is_closed {
                return false;
            }
            if queue.lines.is_empty() && !queue.is_writing {
                return true;
            }
            let remaining = deadline.saturating_duration_since(Instant::now());
            if remaining == Duration::ZERO {
                break;
            }
            let result = self.shared.is_empty.wait_timeout(queue, remaining);
            queue = result.unwrap_or_else(PoisonError::into_inner).0;
        }
        queue.is_closed = true;
        queue.counts.lost += queue.lines.len() as u64 + u64::from(queue.is_writing);
        queue.lines.clear();
        false
    }
}

/// Writes lines until the queue is closed. A line with a write error is not written again; the first error of each kind
/// is reported.
fn write_all(shared: &SharedQueue, mut writer: LineWriter, name: &str, error_lines: Option<&LineQueue>) {
    let mut queue = shared.lock();
    while !queue.is_closed {
        let Some(line) = queue.lines.pop_front() else {
            shared.is_empty.notify_all();
            queue = shared
                .has_lines
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        queue.bytes -= line.len();
        queue.is_writing = true;
        drop(queue);
        let result = writer.write(line);
        queue = shared.lock();
        // `LineQueue::drain` has already counted this line as lost.
        if queue.is_closed {
            return;
        }
        queue.is_writing = false;
        let Some(error) = count(&mut queue.counts, result) else {
            continue;
        };
        drop(queue);
        if let Some(error_lines) = error_lines {
            let text = format!("{name}: {error}; further errors of this kind are only counted");
            error_lines.push(printable(&text).into_bytes());
        }
        queue = shared.lock();
    }
}

/// Counts a result; returns an error if the error is the first of its kind.
fn count(counts: &mut Counts, result: io::Result<()>) -> Option<io::Error> {
    let Err(error) = result else {
        counts.written += 1;
        return None;
    };
    let kind = match error.raw_os_error() {
        Some(number) => Errno::from_raw(number).desc().to_owned(),
        None => error.kind().to_string(),
    };
    let kind_count = counts.failed.entry(kind).or_default();
    *kind_count += 1;
    (*kind_count == 1).then_some(error)
}

/// Ends the process after [`FINAL_FLUSH_TIMEOUT`], if the process has not ended before. A process that does not read its
/// end of standard error must not delay the exit.
pub fn exit_soon() {
    // If the thread cannot be started, the exit may take longer.
    let _ = thread::Builder::new().spawn(|| {
        thread::sleep(FINAL_FLUSH_TIMEOUT);
        process::exit(1);
    });
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    /// Returns a queue that writes to a socket, and the other end of the socket, from which only the test reads.
    fn lines(lines_max: u32) -> (LineQueue, UnixStream) {
        let (near, far) = UnixStream::pair().unwrap();
        let file = std::fs::File::from(std::os::fd::OwnedFd::from(near));
        let lines = LineQueue::start("a test".to_owned(), LineWriter::stream(file), lines_max, None).unwrap();
        (lines, far)
    }

    /// A deadline that is never reached if lines are written.
    fn test_deadline() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn lines_are_written_in_order_with_line_breaks() {
        let (lines, mut reader) = lines(10);
        for line in ["one", "two", ""] {
            lines.push(line.as_bytes().to_vec());
        }
        assert!(lines.drain(test_deadline()));
        let mut written = [0; 9];
        reader.read_exact(&mut written).unwrap();
        assert_eq!(&written, b"one\ntwo\n\n");
        let counts = lines.counts();
        assert_eq!((counts.written, counts.dropped, counts.lost), (3, 0, 0));
    }

    #[test]
    fn every_dropped_line_is_counted() {
        // More than the socket buffer, so that the thread blocks in a write.
        let long = vec![b'x'; 1 << 20];
        let (lines, reader) = lines(3);
        for _ in 0..10 {
            lines.push(long.clone());
        }
        // The thread has read at most one line.
        let dropped = lines.counts().dropped;
        assert!((6..=7).contains(&dropped), "{dropped}");
        assert!(!lines.drain(Instant::now()));
        let counts = lines.counts();
        assert_eq!(
            (counts.written, counts.dropped, counts.lost),
            (0, dropped, 10 - dropped)
        );
        lines.push(b"late".to_vec());
        assert!(!lines.drain(test_deadline()));
        let counts = lines.counts();
        assert_eq!((counts.dropped, counts.lost), (dropped + 1, 10 - dropped));
        drop(reader);
    }

    #[test]
    fn queued_bytes_are_bounded() {
        let (lines, reader) = lines(BACKLOG_LINES_DEFAULT);
        let long = vec![b'x'; BACKLOG_BYTES_MAX / 2 - 1];
        for _ in 0..6 {
            lines.push(long.clone());
        }
        let dropped = lines.counts().dropped;
        assert!((3..=4).contains(&dropped), "{dropped}");
        drop(reader);
    }

    /// An error output without a reader does not block the queue.
    #[test]
    fn errors_are_reported_once_without_blocking() {
        let (errors, mut reader) = lines(10);
        let errors = Arc::new(errors);
        let (near, far) = UnixStream::pair().unwrap();
        drop(far);
        let file = std::fs::File::from(std::os::fd::OwnedFd::from(near));
        let writer = LineWriter::stream(file);
        let lines = LineQueue::start("a test".to_owned(), writer, 10, Some(Arc::clone(&errors))).unwrap();
        lines.push(b"line".to_vec());
        lines.push(b"line".to_vec());
        assert!(lines.drain(test_deadline()) && errors.drain(test_deadline()));
        assert_eq!(errors.counts().written, 1);
        let mut reported = [0; 9];
        reader.read_exact(&mut reported).unwrap();
        assert_eq!(&reported, b"a test: B");
    }

    #[test]
    fn errors_are_counted_by_their_kind() {
        let (lines, reader) = lines(10);
        drop(reader);
        for _ in 0..3 {
            lines.push(b"line".to_vec());
        }
        assert!(lines.drain(test_deadline()));
        let counts = lines.counts();
        assert_eq!(counts.failed, BTreeMap::from([("Broken pipe".to_owned(), 3)]));
        assert_eq!((counts.written, counts.lost), (0, 0));
    }
}
