//! Connections of the evidence socket, of which none makes another one wait: all are non-blocking, each has a deadline, and a process has
//! few of them at a time.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use linewarden_evidence::statement::{NONCE_BYTES, Nonce};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;

/// A client has so long to send its question, and again to take the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Connections at a time.
const CONNECTIONS_MAX: usize = 64;
/// Of them of one process.
const OF_PROCESS_MAX: usize = 4;
/// Where a connection could not be accepted, for want of file descriptors or memory, the next try is so long after.
const RETRY: Duration = Duration::from_millis(200);
/// Bytes of answers that clients have not taken, beside the newest answer.
const UNSENT_BYTES_MAX: usize = 64 << 20;

/// Answers questions until `stop` is readable: one after the other, each after all connections had their turn.
pub(super) fn serve(listener: &UnixListener, stop: &OwnedFd, mut answer: impl FnMut(Nonce) -> Vec<u8>) {
    let mut connections = Connections::default();
    while !connections.wait(listener, stop) {
        let now = Instant::now();
        connections.accept(listener, now);
        connections.advance(now);
        if let Some(nonce) = connections.open.iter().find_map(Connection::question) {
            let answer = answer(nonce);
            connections.answer(answer, Instant::now());
        }
    }
}

#[derive(Default)]
struct Connections {
    /// In the order in which they were accepted.
    open: Vec<Connection>,
    /// No connection is accepted before.
    accepts_at: Option<Instant>,
}

struct Connection {
    stream: UnixStream,
    /// The process that has connected; 0 if this one cannot see it.
    process: i32,
    /// Of the client; a whole question waits for this side.
    until: Instant,
    state: State,
}

enum State {
    /// So many bytes of the nonce are there.
    Asking([u8; NONCE_BYTES], usize),
    /// So many bytes of the answer are sent.
    Answering(Vec<u8>, usize),
}

impl Connections {
    /// Waits until there is something to do. True: `stop` is readable.
    fn wait(&self, listener: &UnixListener, stop: &OwnedFd) -> bool {
        let now = Instant::now();
        let own = self.open.iter().map(|connection| {
            let flags = match connection.state {
                State::Asking(..) => PollFlags::IN,
                State::Answering(..) => PollFlags::OUT,
            };
            PollFd::from_borrowed_fd(connection.stream.as_fd(), flags)
        });
        let waiting = self.accepts(now).then(|| listener.as_fd());
        let always = [stop.as_fd()].into_iter().chain(waiting);
        let always = always.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let mut polled: Vec<PollFd<'_>> = always.chain(own).collect();
        let due = |connection: &Connection| connection.question().map_or(connection.until, |_| now);
        let left = self
            .open
            .iter()
            .map(due)
            .chain(self.accepts_at)
            .min()
            .map(|due| due.saturating_duration_since(now));
        let timeout = left.map(|left| Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        });
        // Interrupted or failed: all are looked at anyway.
        let _ = poll(&mut polled, timeout.as_ref());
        polled.first().is_some_and(|stop| !stop.revents().is_empty())
    }

    fn accepts(&self, now: Instant) -> bool {
        self.accepts_at.is_none_or(|at| at <= now)
    }

    fn accept(&mut self, listener: &UnixListener, now: Instant) {
        if !self.accepts(now) {
            return;
        }
        self.accepts_at = None;
        // Not without end, so that the others have their turn.
        for _ in 0..CONNECTIONS_MAX {
            let stream = match listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // The client is gone.
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::Interrupted | ErrorKind::ConnectionAborted
                    ) =>
                {
                    continue;
                }
                // The connection still waits: to poll for it would only find it again.
                Err(_) => {
                    self.accepts_at = Some(now + RETRY);
                    return;
                }
            };
            let process = getsockopt(&stream, PeerCredentials).map_or(0, |peer| peer.pid());
            let mut connection = Connection {
                stream,
                process,
                until: now + PATIENCE,
                state: State::Asking([0; NONCE_BYTES], 0),
            };
            let begun = connection.stream.set_nonblocking(true);
            // A client sends its question at once: it is read before later connections can crowd it out.
            if begun.and_then(|()| connection.advance()).is_ok() {
                self.make_room(process);
                self.open.push(connection);
            }
        }
    }

    /// Closes the oldest connection of a process that has too many, or, if all are taken, of the process that has most; one that has
    /// asked after those that have not.
    fn make_room(&mut self, process: i32) {
        let count = |process: i32| {
            let own = self
                .open
                .iter()
                .filter(|connection| connection.process == process);
            own.count()
        };
        let crowded = match count(process) >= OF_PROCESS_MAX {
            true => Some(process),
            false if self.open.len() < CONNECTIONS_MAX => None,
            false => {
                let processes = self.open.iter().map(|connection| connection.process);
                processes.max_by_key(|process| count(*process))
            }
        };
        let own = self.open.iter().enumerate();
        let own = own.filter(|(_, connection)| Some(connection.process) == crowded);
        let least = own.min_by_key(|(_, connection)| connection.question().is_some());
        if let Some((at, _)) = least {
            self.open.remove(at);
        }
    }

    /// Reads and writes what can be, and closes what is done, broken or late.
    fn advance(&mut self, now: Instant) {
        self.open.retain_mut(|connection| {
            let advanced = connection.advance();
            advanced.is_ok() && (now < connection.until || connection.question().is_some())
        });
    }

    /// Gives the answer to the oldest question.
    fn answer(&mut self, answer: Vec<u8>, now: Instant) {
        // Clients that take nothing hold no memory that others' answers need.
        while self.open.iter().map(Connection::unsent).sum::<usize>() > UNSENT_BYTES_MAX {
            let oldest = self.open.iter().position(|connection| connection.unsent() > 0);
            self.open.remove(oldest.unwrap_or_default());
        }
        let mut connections = self.open.iter_mut();
        if let Some(connection) = connections.find(|connection| connection.question().is_some()) {
            connection.state = State::Answering(answer, 0);
            connection.until = now + PATIENCE;
        }
    }
}

impl Connection {
    /// The question, once it is whole.
    fn question(&self) -> Option<Nonce> {
        match self.state {
            State::Asking(nonce, NONCE_BYTES) => Some(Nonce(nonce)),
            _ => None,
        }
    }

    fn unsent(&self) -> usize {
        match &self.state {
            State::Asking(..) => 0,
            State::Answering(answer, sent) => answer.len().saturating_sub(*sent),
        }
    }

    /// Reads or writes until it would block, or the question is whole.
    ///
    /// # Errors
    /// The connection is broken, or done.
    fn advance(&mut self) -> io::Result<()> {
        loop {
            let done = match &mut self.state {
                State::Asking(nonce, read) => match nonce.get_mut(*read..) {
                    None | Some([]) => return Ok(()),
                    Some(rest) => self.stream.read(rest).inspect(|bytes| *read += bytes),
                },
                State::Answering(answer, sent) => match answer.get(*sent..) {
                    None | Some([]) => Ok(0),
                    Some(rest) => self.stream.write(rest).inspect(|bytes| *sent += bytes),
                },
            };
            match done {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::BorrowedFd;
    use std::path::Path;
    use std::sync::Arc;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    /// A socket that answers each question with the nonce and so many zeros behind.
    fn desk(path: &Path, zeros: usize) -> (Arc<OwnedFd>, std::thread::JoinHandle<()>) {
        let listener = UnixListener::bind(path).unwrap();
        listener.set_nonblocking(true).unwrap();
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        let told = Arc::clone(&stop);
        let answer = move |Nonce(nonce): Nonce| [&nonce[..], &vec![0; zeros]].concat();
        let thread = std::thread::spawn(move || serve(&listener, &told, answer));
        (stop, thread)
    }

    fn end(stop: BorrowedFd<'_>, thread: std::thread::JoinHandle<()>) {
        rustix::io::write(stop, &1u64.to_ne_bytes()).unwrap();
        thread.join().unwrap();
    }

    fn ask(path: &Path, nonce: u8) -> Vec<u8> {
        let mut stream = UnixStream::connect(path).unwrap();
        stream.write_all(&[nonce; NONCE_BYTES]).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        answer
    }

    /// 200 of one process: those that say nothing, say half of a question, or do not take the answer, which no buffer of a socket holds.
    #[test]
    fn no_client_makes_another_one_wait() {
        const ZEROS: usize = 1 << 20;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let (stop, thread) = desk(&path, ZEROS);
        for said in [0, NONCE_BYTES / 2, NONCE_BYTES] {
            let idle: Vec<UnixStream> = (0..200)
                .map(|_| {
                    let mut stream = UnixStream::connect(&path).unwrap();
                    // It may have been closed for the next ones already.
                    let _ = stream.write_all(&vec![9; said]);
                    stream
                })
                .collect();
            for nonce in 1..4 {
                let answer = ask(&path, nonce);
                assert_eq!(answer.len(), NONCE_BYTES + ZEROS, "{said} bytes said");
                assert!(answer.starts_with(&[nonce; NONCE_BYTES]));
            }
            // All but the last few were closed for those that came later.
            let closed = idle.iter().filter(|stream| {
                stream.set_nonblocking(true).unwrap();
                let mut answer = vec![0; NONCE_BYTES + ZEROS + 1];
                let mut stream = *stream;
                std::iter::repeat_with(|| stream.read(&mut answer))
                    .find_map(|read| match read {
                        Ok(0) => Some(true),
                        Ok(_) => None,
                        Err(error) => Some(error.kind() != ErrorKind::WouldBlock),
                    })
                    .unwrap()
            });
            assert!(closed.count() >= 200 - OF_PROCESS_MAX, "{said} bytes said");
        }
        end(stop.as_fd(), thread);
    }

    #[test]
    fn a_client_that_says_nothing_is_closed_after_its_time() {
        let (_client, server) = UnixStream::pair().unwrap();
        let now = Instant::now();
        let mut connections = Connections {
            open: vec![Connection {
                stream: server,
                process: 1,
                until: now + PATIENCE,
                state: State::Asking([0; NONCE_BYTES], 0),
            }],
            accepts_at: None,
        };
        connections.open[0].stream.set_nonblocking(true).unwrap();
        connections.advance(now);
        assert_eq!(connections.open.len(), 1);
        connections.advance(now + PATIENCE);
        assert!(connections.open.is_empty());
    }

    /// As where no file descriptor is left: something waits, and cannot be accepted.
    #[test]
    fn a_connection_that_cannot_be_accepted_is_not_polled_for_at_once() {
        let (mut client, server) = UnixStream::pair().unwrap();
        client.write_all(b"x").unwrap();
        // No socket that listens: the kernel accepts nothing from it.
        let listener = UnixListener::from(OwnedFd::from(server));
        let stop = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let now = Instant::now();
        let mut connections = Connections::default();
        assert!(!connections.wait(&listener, &stop), "it waits");
        connections.accept(&listener, now);
        assert!(!connections.accepts(now) && connections.accepts(now + RETRY));
        connections.accept(&listener, now + RETRY);
        assert!(!connections.accepts(now + RETRY) && connections.accepts(now + 2 * RETRY));
    }

    /// Many processes: one of the process that has most goes, and one without a question before one with.
    #[test]
    fn the_process_with_most_connections_gives_way() {
        let connection = |process, read| Connection {
            stream: UnixStream::pair().unwrap().0,
            process,
            until: Instant::now(),
            state: State::Asking([0; NONCE_BYTES], read),
        };
        let mut connections = Connections::default();
        for process in 1..CONNECTIONS_MAX as i32 {
            connections.open.push(connection(process, NONCE_BYTES));
        }
        connections.make_room(7);
        assert_eq!(connections.open.len(), CONNECTIONS_MAX - 1, "there is room");
        connections.open.push(connection(7, 1));
        connections.make_room(1000);
        let left: Vec<_> = connections.open.iter().map(|left| left.process).collect();
        assert_eq!(left, (1..CONNECTIONS_MAX as i32).collect::<Vec<_>>());
    }
}
