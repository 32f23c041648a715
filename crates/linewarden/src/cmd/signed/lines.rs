//! Lines on their way out: a bounded queue and a thread that writes it. Who reads slowly, or not at all, stops nobody but that thread.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{process, thread};

use nix::errno::Errno;

use super::way::Way;
use crate::failure::Failure;
use crate::output::printable;

/// Lines that wait, unless another number is asked for.
pub const WAITING_DEFAULT: u32 = 65_536;
/// Bytes that wait, however few lines they are: one of sub-messages may have half a mebibyte.
const WAITING_BYTES_MAX: usize = 64 << 20;

/// How long the last counters wait for who reads them, and then the message of an error.
pub const LAST_WORDS: Duration = Duration::from_secs(1);

/// What became of lines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Handed on.
    pub written: u64,
    /// For which there was no room, since nobody took those before.
    pub dropped: u64,
    /// That waited still when they were given up.
    pub lost: u64,
    /// That could not be handed on, by what the operating system said.
    pub failed: BTreeMap<String, u64>,
}

#[derive(Default)]
struct Queue {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Whether the thread has taken one that is not written yet.
    writing: bool,
    given_up: bool,
    counts: Counts,
}

struct Shared {
    queue: Mutex<Queue>,
    /// There is a line, or none will come.
    filled: Condvar,
    /// None waits.
    drained: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lines to one place, in their order.
pub struct Lines {
    shared: Arc<Shared>,
    waiting_max: u32,
}

impl Lines {
    /// Starts the thread. At most `waiting_max` lines wait. Errors are told of `name`, by lines that wait for who reads them as others do,
    /// if there is where to tell them.
    ///
    /// # Errors
    /// No thread.
    pub fn start(name: String, way: Way, waiting_max: u32, told: Option<Arc<Self>>) -> Result<Self, Failure> {
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            filled: Condvar::new(),
            drained: Condvar::new(),
        });
        let of_thread = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("lines".to_owned())
            .spawn(move || write_all(&of_thread, way, &name, told.as_deref()))?;
        Ok(Self { shared, waiting_max })
    }

    /// Puts a line, without its end, behind the others if there is room. Waits for nobody who reads.
    pub fn push(&self, line: Vec<u8>) {
        let mut queue = self.shared.lock();
        let bytes = queue.bytes.saturating_add(line.len());
        if queue.given_up || queue.lines.len() >= self.waiting_max as usize || bytes > WAITING_BYTES_MAX {
            queue.counts.dropped += 1;
            return;
        }
        queue.bytes = bytes;
        queue.lines.push_back(line);
        drop(queue);
        self.shared.filled.notify_one();
    }

    /// What became of lines so far.
    pub fn counts(&self) -> Counts {
        self.shared.lock().counts.clone()
    }

    /// Waits until no line waits any more. What waits still at `until` is given up, and no further one is taken. Whether all were
    /// written, or failed.
    pub fn drain(&self, until: Instant) -> bool {
        let mut queue = self.shared.lock();
        loop {
            if queue.given_up {
                return false;
            }
            if queue.lines.is_empty() && !queue.writing {
                return true;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left == Duration::ZERO {
                break;
            }
            let waited = self.shared.drained.wait_timeout(queue, left);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        queue.given_up = true;
        queue.counts.lost += queue.lines.len() as u64 + u64::from(queue.writing);
        queue.lines.clear();
        false
    }
}

/// Writes until lines are given up. An error costs the line; the first of each kind is told.
fn write_all(shared: &Shared, mut way: Way, name: &str, told: Option<&Lines>) {
    let mut queue = shared.lock();
    while !queue.given_up {
        let Some(line) = queue.lines.pop_front() else {
            shared.drained.notify_all();
            queue = shared.filled.wait(queue).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        queue.bytes -= line.len();
        queue.writing = true;
        drop(queue);
        let written = way.write(line);
        queue = shared.lock();
        // It was counted as lost by then.
        if queue.given_up {
            return;
        }
        queue.writing = false;
        let Some(error) = count(&mut queue.counts, written) else {
            continue;
        };
        drop(queue);
        if let Some(told) = told {
            let text = format!("{name}: {error}; further errors of this kind are counted only");
            told.push(printable(&text).into_bytes());
        }
        queue = shared.lock();
    }
}

/// An error that is the first of its kind.
fn count(counts: &mut Counts, written: io::Result<()>) -> Option<io::Error> {
    let Err(error) = written else {
        counts.written += 1;
        return None;
    };
    let kind = match error.raw_os_error() {
        Some(number) => Errno::from_raw(number).desc().to_owned(),
        None => error.kind().to_string(),
    };
    let of_kind = counts.failed.entry(kind).or_default();
    *of_kind += 1;
    (*of_kind == 1).then_some(error)
}

/// Has the program end, if it does not do so by itself: the message of its error waits for who reads standard error.
pub fn end_soon() {
    // Without a thread it may wait longer.
    let _ = thread::Builder::new().spawn(|| {
        thread::sleep(LAST_WORDS);
        process::exit(1);
    });
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    /// Lines into a socket whose other end is given back: nobody reads it but the test.
    fn lines(waiting_max: u32) -> (Lines, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let file = std::fs::File::from(std::os::fd::OwnedFd::from(ours));
        let lines = Lines::start("a test".to_owned(), Way::stream(file), waiting_max, None).unwrap();
        (lines, theirs)
    }

    /// Long enough to be never reached where lines are written.
    fn patience() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn lines_come_in_their_order_with_their_ends() {
        let (lines, mut reader) = lines(10);
        for line in ["one", "two", ""] {
            lines.push(line.as_bytes().to_vec());
        }
        assert!(lines.drain(patience()));
        let mut read = [0; 9];
        reader.read_exact(&mut read).unwrap();
        assert_eq!(&read, b"one\ntwo\n\n");
        let counts = lines.counts();
        assert_eq!((counts.written, counts.dropped, counts.lost), (3, 0, 0));
    }

    #[test]
    fn every_line_that_finds_no_room_is_counted() {
        // More than the socket takes, so that the thread is in a write.
        let long = vec![b'x'; 1 << 20];
        let (lines, reader) = lines(3);
        for _ in 0..10 {
            lines.push(long.clone());
        }
        // It has taken one, or none yet.
        let dropped = lines.counts().dropped;
        assert!((6..=7).contains(&dropped), "{dropped}");
        assert!(!lines.drain(Instant::now()));
        let counts = lines.counts();
        assert_eq!(
            (counts.written, counts.dropped, counts.lost),
            (0, dropped, 10 - dropped)
        );
        lines.push(b"late".to_vec());
        assert!(!lines.drain(patience()));
        let counts = lines.counts();
        assert_eq!((counts.dropped, counts.lost), (dropped + 1, 10 - dropped));
        drop(reader);
    }

    #[test]
    fn bytes_are_bounded_as_lines_are() {
        let (lines, reader) = lines(WAITING_DEFAULT);
        let long = vec![b'x'; WAITING_BYTES_MAX / 2 - 1];
        for _ in 0..6 {
            lines.push(long.clone());
        }
        let dropped = lines.counts().dropped;
        assert!((3..=4).contains(&dropped), "{dropped}");
        drop(reader);
    }

    /// Where errors are told may have nobody who reads it: that stops nobody.
    #[test]
    fn errors_are_told_once_and_wait_for_nobody() {
        let (told, mut reader) = lines(10);
        let told = Arc::new(told);
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        let file = std::fs::File::from(std::os::fd::OwnedFd::from(ours));
        let way = Way::stream(file);
        let lines = Lines::start("a test".to_owned(), way, 10, Some(Arc::clone(&told))).unwrap();
        lines.push(b"line".to_vec());
        lines.push(b"line".to_vec());
        assert!(lines.drain(patience()) && told.drain(patience()));
        assert_eq!(told.counts().written, 1);
        let mut read = [0; 9];
        reader.read_exact(&mut read).unwrap();
        assert_eq!(&read, b"a test: B");
    }

    #[test]
    fn errors_are_counted_by_their_kind() {
        let (lines, reader) = lines(10);
        drop(reader);
        for _ in 0..3 {
            lines.push(b"line".to_vec());
        }
        assert!(lines.drain(patience()));
        let counts = lines.counts();
        assert_eq!(counts.failed, BTreeMap::from([("Broken pipe".to_owned(), 3)]));
        assert_eq!((counts.written, counts.lost), (0, 0));
    }
}
