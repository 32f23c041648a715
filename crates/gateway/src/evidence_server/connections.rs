//! Connections of the evidence socket. No connection delays another connection: all are non-blocking, each has a
//! deadline, and the number of connections of one process is limited.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use linewarden_evidence::statement::{NONCE_BYTES, Nonce};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;

/// Timeout for receiving the request; sending the response has the same timeout.
const IO_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of connections.
const CONNECTIONS_MAX: usize = 64;
/// Maximum number of connections of one process.
const PER_PROCESS_MAX: usize = 4;
/// Delay after an accept failed for lack of file descriptors or memory.
const ACCEPT_RETRY: Duration = Duration::from_millis(200);
/// Maximum size of unsent responses, besides the newest response, bytes.
const UNSENT_BYTES_MAX: usize = 64 << 20;

/// Serves requests until `stop` is readable, one at a time. All connections are read and written between two requests.
pub(super) fn serve(listener: &UnixListener, stop: &OwnedFd, mut respond: impl FnMut(Nonce) -> Vec<u8>) {
    let mut connections = Connections::default();
    while !connections.wait(listener, stop) {
        let now = Instant::now();
        connections.accept(listener, now);
        connections.advance(now);
        if let Some(nonce) = connections.open.iter().find_map(Connection::nonce) {
            let response = respond(nonce);
            connections.respond(response, Instant::now());
        }
    }
}

#[derive(Default)]
struct Connections {
    /// The connections, in the order in which they were accepted.
    open: Vec<Connection>,
    /// Time before which no connection is accepted.
    accept_after: Option<Instant>,
}

struct Connection {
    stream: UnixStream,
    /// The peer process; 0 if it is in another PID namespace.
    process: i32,
    /// The client's deadline. A complete request has no deadline until its response is set.
    deadline: Instant,
    state: State,
}

enum State {
    /// The nonce, and the number of bytes received.
    ReadingNonce([u8; NONCE_BYTES], usize),
    /// The response, and the number of bytes sent.
    WritingResponse(Vec<u8>, usize),
}

impl Connections {
    /// Waits for work. Returns whether `stop` is readable.
    fn wait(&self, listener: &UnixListener, stop: &OwnedFd) -> bool {
        let now = Instant::now();
        let client_fds = self.open.iter().map(|connection| {
            let flags = match connection.state {
                State::ReadingNonce(..) => PollFlags::IN,
                State::WritingResponse(..) => PollFlags::OUT,
            };
            PollFd::from_borrowed_fd(connection.stream.as_fd(), flags)
        });
        let listener_fd = self.may_accept(now).then(|| listener.as_fd());
        let server_fds = [stop.as_fd()].into_iter().chain(listener_fd);
        let server_fds = server_fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let mut polled: Vec<PollFd<'_>> = server_fds.chain(client_fds).collect();
        let due = |connection: &Connection| connection.nonce().map_or(connection.deadline, |_| now);
        let remaining = self
            .open
            .iter()
            .map(due)
            .chain(self.accept_after)
            .min()
            .map(|due| due.saturating_duration_since(now));
        let timeout = remaining.map(|remaining| Timespec {
            tv_sec: i64::try_from(remaining.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: remaining.subsec_nanos().into(),
        });
        // After an interrupt or an error, all connections are checked.
        let _ = poll(&mut polled, timeout.as_ref());
        polled.first().is_some_and(|stop| !stop.revents().is_empty())
    }

    fn may_accept(&self, now: Instant) -> bool {
        self.accept_after.is_none_or(|at| at <= now)
    }

    fn accept(&mut self, listener: &UnixListener, now: Instant) {
        if !self.may_accept(now) {
            return;
        }
        self.accept_after = None;
        // The number of connections that are accepted in one call is limited, so that accepted connections are served
        // between the calls.
        for _ in 0..CONNECTIONS_MAX {
            let stream = match listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // The client has closed the connection.
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::Interrupted | ErrorKind::ConnectionAborted
                    ) =>
                {
                    continue;
                }
                // The connection stays in the backlog, so polling the listener would return at once.
                Err(_) => {
                    self.accept_after = Some(now + ACCEPT_RETRY);
                    return;
                }
            };
            let process = getsockopt(&stream, PeerCredentials).map_or(0, |peer| peer.pid());
            let mut connection = Connection {
                stream,
                process,
                deadline: now + IO_TIMEOUT,
                state: State::ReadingNonce([0; NONCE_BYTES], 0),
            };
            let accepted = connection.stream.set_nonblocking(true);
            // A client sends its request at once. The request is read here, because a connection without a complete
            // request may be closed in favor of later connections.
            if accepted.and_then(|()| connection.advance()).is_ok() {
                self.close_excess(process);
                self.open.push(connection);
            }
        }
    }

    /// Closes the oldest connection of the process if the process has reached its limit. If all connections are in use,
    /// closes the oldest connection of the process with most connections. In both cases, connections without a complete
    /// request are closed first.
    fn close_excess(&mut self, process: i32) {
        let count = |process: i32| {
            let connections = self
                .open
                .iter()
                .filter(|connection| connection.process == process);
            connections.count()
        };
        let process_to_limit = match count(process) >= PER_PROCESS_MAX {
            true => Some(process),
            false if self.open.len() < CONNECTIONS_MAX => None,
            false => {
                let processes = self.open.iter().map(|connection| connection.process);
                processes.max_by_key(|process| count(*process))
            }
        };
        let connections = self.open.iter().enumerate();
        let connections = connections.filter(|(_, connection)| Some(connection.process) == process_to_limit);
        let victim = connections.min_by_key(|(_, connection)| connection.nonce().is_some());
        if let Some((index, _)) = victim {
            self.open.remove(index);
        }
    }

    /// Reads and writes without blocking, and closes connections that are done, broken or past their deadline.
    fn advance(&mut self, now: Instant) {
        self.open.retain_mut(|connection| {
            let advanced = connection.advance();
            advanced.is_ok() && (now < connection.deadline || connection.nonce().is_some())
        });
    }

    /// Sets the response to the oldest request.
    fn respond(&mut self, response: Vec<u8>, now: Instant) {
        // Responses that clients do not read must not take the memory for other responses.
        while self.open.iter().map(Connection::unsent).sum::<usize>() > UNSENT_BYTES_MAX {
            let oldest = self.open.iter().position(|connection| connection.unsent() > 0);
            self.open.remove(oldest.unwrap_or_default());
        }
        let mut connections = self.open.iter_mut();
        if let Some(connection) = connections.find(|connection| connection.nonce().is_some()) {
            connection.state = State::WritingResponse(response, 0);
            connection.deadline = now + IO_TIMEOUT;
        }
    }
}

impl Connection {
    /// The request, if it is complete.
    fn nonce(&self) -> Option<Nonce> {
        match self.state {
            State::ReadingNonce(nonce, NONCE_BYTES) => Some(Nonce(nonce)),
            _ => None,
        }
    }

    fn unsent(&self) -> usize {
        match &self.state {
            State::ReadingNonce(..) => 0,
            State::WritingResponse(response, bytes_sent) => response.len().saturating_sub(*bytes_sent),
        }
    }

    /// Reads or writes until the operation would block, or the request is complete.
    ///
    /// # Errors
    /// The connection is broken or done.
    fn advance(&mut self) -> io::Result<()> {
        loop {
            let result = match &mut self.state {
                State::ReadingNonce(nonce, bytes_read) => match nonce.get_mut(*bytes_read..) {
                    None | Some([]) => return Ok(()),
                    Some(rest) => self.stream.read(rest).inspect(|bytes| *bytes_read += bytes),
                },
                State::WritingResponse(response, bytes_sent) => match response.get(*bytes_sent..) {
                    None | Some([]) => Ok(0),
                    Some(rest) => self.stream.write(rest).inspect(|bytes| *bytes_sent += bytes),
                },
            };
            match result {
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

    /// Starts a server that responds to each request with the nonce and `zeros` zeros.
    fn start_server(path: &Path, zeros: usize) -> (Arc<OwnedFd>, std::thread::JoinHandle<()>) {
        let listener = UnixListener::bind(path).unwrap();
        listener.set_nonblocking(true).unwrap();
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        let stop_signal = Arc::clone(&stop);
        let respond = move |Nonce(nonce): Nonce| [&nonce[..], &vec![0; zeros]].concat();
        let thread = std::thread::spawn(move || serve(&listener, &stop_signal, respond));
        (stop, thread)
    }

    fn end(stop: BorrowedFd<'_>, thread: std::thread::JoinHandle<()>) {
        rustix::io::write(stop, &1u64.to_ne_bytes()).unwrap();
        thread.join().unwrap();
    }

    fn request(path: &Path, nonce: u8) -> Vec<u8> {
        let mut stream = UnixStream::connect(path).unwrap();
        stream.write_all(&[nonce; NONCE_BYTES]).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut response = Vec::new();
        stream.read_to_end(&mut response).unwrap();
        response
    }

    /// 200 clients of one process that send nothing, send half of a request, or do not read the response, which fits
    /// into no socket buffer.
    #[test]
    fn no_client_delays_another_client() {
        const ZEROS: usize = 1 << 20;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let (stop, thread) = start_server(&path, ZEROS);
        for sent in [0, NONCE_BYTES / 2, NONCE_BYTES] {
            let idle: Vec<UnixStream> = (0..200)
                .map(|_| {
                    let mut stream = UnixStream::connect(&path).unwrap();
                    // The server may have closed the connection for a later connection.
                    let _ = stream.write_all(&vec![9; sent]);
                    stream
                })
                .collect();
            for nonce in 1..4 {
                let response = request(&path, nonce);
                assert_eq!(response.len(), NONCE_BYTES + ZEROS, "{sent} bytes sent");
                assert!(response.starts_with(&[nonce; NONCE_BYTES]));
            }
            // The server has closed all but the last few connections in favor of later connections.
            let closed = idle.iter().filter(|stream| {
                stream.set_nonblocking(true).unwrap();
                let mut response = vec![0; NONCE_BYTES + ZEROS + 1];
                let mut stream = *stream;
                std::iter::repeat_with(|| stream.read(&mut response))
                    .find_map(|read| match read {
                        Ok(0) => Some(true),
                        Ok(_) => None,
                        Err(error) => Some(error.kind() != ErrorKind::WouldBlock),
                    })
                    .unwrap()
            });
            assert!(closed.count() >= 200 - PER_PROCESS_MAX, "{sent} bytes sent");
        }
        end(stop.as_fd(), thread);
    }

    #[test]
    fn a_client_without_a_request_is_disconnected_at_the_timeout() {
        let (_client, server) = UnixStream::pair().unwrap();
        let now = Instant::now();
        let mut connections = Connections {
            open: vec![Connection {
                stream: server,
                process: 1,
                deadline: now + IO_TIMEOUT,
                state: State::ReadingNonce([0; NONCE_BYTES], 0),
            }],
            accept_after: None,
        };
        connections.open[0].stream.set_nonblocking(true).unwrap();
        connections.advance(now);
        assert_eq!(connections.open.len(), 1);
        connections.advance(now + IO_TIMEOUT);
        assert!(connections.open.is_empty());
    }

    /// As without a free file descriptor: a connection waits and cannot be accepted.
    #[test]
    fn accepting_pauses_after_a_failed_accept() {
        let (mut client, server) = UnixStream::pair().unwrap();
        client.write_all(b"x").unwrap();
        // Not a listening socket: the kernel accepts nothing from it.
        let listener = UnixListener::from(OwnedFd::from(server));
        let stop = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let now = Instant::now();
        let mut connections = Connections::default();
        assert!(!connections.wait(&listener, &stop), "a connection waits");
        connections.accept(&listener, now);
        assert!(!connections.may_accept(now) && connections.may_accept(now + ACCEPT_RETRY));
        connections.accept(&listener, now + ACCEPT_RETRY);
        assert!(
            !connections.may_accept(now + ACCEPT_RETRY) && connections.may_accept(now + 2 * ACCEPT_RETRY)
        );
    }

    /// A connection without a request is closed first.
    #[test]
    fn the_process_with_most_connections_loses_a_connection() {
        let connection = |process, bytes_read| Connection {
            stream: UnixStream::pair().unwrap().0,
            process,
            deadline: Instant::now(),
            state: State::ReadingNonce([0; NONCE_BYTES], bytes_read),
        };
        let mut connections = Connections::default();
        for process in 1..CONNECTIONS_MAX as i32 {
            connections.open.push(connection(process, NONCE_BYTES));
        }
        connections.close_excess(7);
        assert_eq!(connections.open.len(), CONNECTIONS_MAX - 1, "there is room");
        connections.open.push(connection(7, 1));
        connections.close_excess(1000);
        let processes: Vec<_> = connections
            .open
            .iter()
            .map(|connection| connection.process)
            .collect();
        assert_eq!(processes, (1..CONNECTIONS_MAX as i32).collect::<Vec<_>>());
    }
}
