//! Writers for output lines: streams and datagrams.

use linewarden_cli::failure::Failure;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixDatagram;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// A destination of lines.
pub enum LineWriter {
    /// Standard output, standard error, a file or a FIFO: each line with a line break; and whether the last line was truncated.
    Stream(File, bool),
    /// One UDP datagram per line.
    Udp(UdpSocket),
    /// One Unix datagram per line; connects again when the reader has restarted.
    Unix(UnixDatagram, String),
}

impl LineWriter {
    /// A writer for an open file.
    pub fn stream(file: File) -> Self {
        Self::Stream(file, false)
    }

    /// Standard output through a separate descriptor: a blocked write holds no lock that the end of the program needs.
    pub fn stdout() -> Result<Self, Failure> {
        Ok(Self::stream(io::stdout().as_fd().try_clone_to_owned()?.into()))
    }

    /// Standard error, as [`LineWriter::stdout`].
    pub fn stderr() -> Result<Self, Failure> {
        Ok(Self::stream(io::stderr().as_fd().try_clone_to_owned()?.into()))
    }

    /// Opens the value of `--out`: `-`, `udp:ADDRESS:PORT`, `unix:PATH`, or a file.
    pub fn open(to: &str) -> Result<Self, Failure> {
        let wrong = |error: &dyn std::fmt::Display| Failure::input(format!("--out {to}: {error}"));
        if to == "-" {
            return Self::stdout();
        }
        if let Some(address) = to.strip_prefix("udp:") {
            let address: SocketAddr = address.parse().map_err(|error| wrong(&error))?;
            return udp(address).map_err(|error| wrong(&error));
        }
        if let Some(path) = to.strip_prefix("unix:") {
            return unix(path).map_err(|error| wrong(&error));
        }
        let word = to.split_once(':').map(|(word, _)| word);
        if word.is_some_and(|word| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase())) {
            return Err(wrong(&format_args!(
                "unknown destination: use udp:ADDRESS:PORT or unix:PATH; for a file of this name use ./{to}"
            )));
        }
        file(to).map_err(|error| match error.raw_os_error() == Some(Errno::ENXIO as i32) {
            true => wrong(&"FIFO has no reader"),
            false => wrong(&error),
        })
    }

    /// Writes a line, given without line break; blocks while there is no room.
    pub fn write(&mut self, mut line: Vec<u8>) -> io::Result<()> {
        match self {
            Self::Udp(socket) => {
                let send = || retry_when_writable(socket, || socket.send(&line));
                let sent = send();
                if let Err(error) = &sent
                    && error.kind() == ErrorKind::ConnectionRefused
                {
                    // The error is of the previous datagram, so this one is sent again. A refusal of this one is reported by the next
                    // call.
                    let _ = send();
                }
                sent.map(drop)
            }
            Self::Unix(socket, path) => {
                let send = || retry_when_writable(socket, || socket.send(&line));
                match send().map_err(|error| (error.kind(), error)) {
                    // The kernel drops the connection when the peer is gone.
                    Err((ErrorKind::ConnectionRefused | ErrorKind::NotConnected, _)) => {
                        socket.connect(path).and_then(|()| send())
                    }
                    sent => sent.map_err(|(_, error)| error),
                }
                .map(drop)
            }
            Self::Stream(file, cut) => {
                line.push(b'\n');
                if *cut {
                    line.insert(0, b'\n');
                }
                let mut rest = line.as_slice();
                while !rest.is_empty() {
                    match retry_when_writable(file, || (&*file).write(rest))? {
                        0 => return Err(ErrorKind::WriteZero.into()),
                        written => rest = rest.get(written..).unwrap_or_default(),
                    }
                    *cut = !rest.is_empty();
                }
                Ok(())
            }
        }
    }
}

fn udp(address: SocketAddr) -> io::Result<LineWriter> {
    let any: SocketAddr = match address.is_ipv4() {
        true => ([0; 4], 0).into(),
        false => ([0; 16], 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(address)?;
    socket.set_nonblocking(true)?;
    Ok(LineWriter::Udp(socket))
}

fn unix(path: &str) -> io::Result<LineWriter> {
    let socket = UnixDatagram::unbound()?;
    socket.connect(path)?;
    socket.set_nonblocking(true)?;
    Ok(LineWriter::Unix(socket, path.to_owned()))
}

/// A FIFO without a reader is an error, not waited for: until the receiver listens, only SIGKILL would end it.
fn file(path: &str) -> io::Result<LineWriter> {
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open(path)?;
    Ok(LineWriter::stream(file))
}

/// Repeats an operation until the descriptor is writable.
fn retry_when_writable(
    descriptor: &impl AsFd,
    mut write: impl FnMut() -> io::Result<usize>,
) -> io::Result<usize> {
    loop {
        match write() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => wait_writable(descriptor.as_fd())?,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

fn wait_writable(descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let mut polled = [PollFd::new(descriptor, PollFlags::POLLOUT)];
    match poll(&mut polled, PollTimeout::NONE) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
