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
    /// Standard output, standard error, a file or a FIFO. Each line is written with a line break. The second field is
    /// true if the latest line was truncated.
    Stream(File, bool),
    /// One UDP datagram per line.
    Udp(UdpSocket),
    /// One Unix datagram per line; connects again to the path when the reader has restarted.
    Unix(UnixDatagram, String),
}

impl LineWriter {
    /// A writer for an open file.
    pub fn stream(file: File) -> Self {
        Self::Stream(file, false)
    }

    /// Standard output through a separate descriptor.
    ///
    /// A blocked write through the standard library would hold a lock that the end of the program needs.
    pub fn stdout() -> Result<Self, Failure> {
        Ok(Self::stream(io::stdout().as_fd().try_clone_to_owned()?.into()))
    }

    /// Standard error, as [`LineWriter::stdout`].
    pub fn stderr() -> Result<Self, Failure> {
        Ok(Self::stream(io::stderr().as_fd().try_clone_to_owned()?.into()))
    }

    /// Opens the value of `--out`: `-`, `udp:ADDRESS:PORT`, `unix:PATH`, or a file.
    pub fn open(destination: &str) -> Result<Self, Failure> {
        let invalid = |error: &dyn std::fmt::Display| Failure::input(format!("--out {destination}: {error}"));
        if destination == "-" {
            return Self::stdout();
        }
        if let Some(address) = destination.strip_prefix("udp:") {
            let address: SocketAddr = address.parse().map_err(|error| invalid(&error))?;
            return open_udp(address).map_err(|error| invalid(&error));
        }
        if let Some(path) = destination.strip_prefix("unix:") {
            return open_unix(path).map_err(|error| invalid(&error));
        }
        let scheme = destination.split_once(':').map(|(scheme, _)| scheme);
        if scheme
            .is_some_and(|scheme| !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_lowercase()))
        {
            return Err(invalid(&format_args!(
                "unknown destination: use udp:ADDRESS:PORT or unix:PATH; for a file of this name use ./{destination}"
            )));
        }
        open_file(destination).map_err(|error| match error.raw_os_error() == Some(Errno::ENXIO as i32) {
            true => invalid(&"FIFO has no reader"),
            false => invalid(&error),
        })
    }

    /// Writes a line; `line` has no line break. Blocks while the destination accepts no data.
    pub fn write(&mut self, mut line: Vec<u8>) -> io::Result<()> {
        match self {
            Self::Udp(socket) => {
                let send = || retry_when_writable(socket, || socket.send(&line));
                let result = send();
                if let Err(error) = &result
                    && error.kind() == ErrorKind::ConnectionRefused
                {
                    // The error belongs to the previous datagram, so this datagram is sent again. If this datagram is
                    // also refused, the next call reports the error.
                    let _ = send();
                }
                result.map(drop)
            }
            Self::Unix(socket, path) => {
                let send = || retry_when_writable(socket, || socket.send(&line));
                match send().map_err(|error| (error.kind(), error)) {
                    // The kernel drops the connection when the peer is gone.
                    Err((ErrorKind::ConnectionRefused | ErrorKind::NotConnected, _)) => {
                        socket.connect(path).and_then(|()| send())
                    }
                    result => result.map_err(|(_, error)| error),
                }
                .map(drop)
            }
            Self::Stream(file, is_truncated) => {
                line.push(b'\n');
                if *is_truncated {
                    line.insert(0, b'\n');
                }
                let mut unwritten = line.as_slice();
                while !unwritten.is_empty() {
                    match retry_when_writable(file, || (&*file).write(unwritten))? {
                        0 => return Err(ErrorKind::WriteZero.into()),
                        bytes => unwritten = unwritten.get(bytes..).unwrap_or_default(),
                    }
                    *is_truncated = !unwritten.is_empty();
                }
                Ok(())
            }
        }
    }
}

fn open_udp(address: SocketAddr) -> io::Result<LineWriter> {
    let local_address: SocketAddr = match address.is_ipv4() {
        true => ([0; 4], 0).into(),
        false => ([0; 16], 0).into(),
    };
    let socket = UdpSocket::bind(local_address)?;
    socket.connect(address)?;
    socket.set_nonblocking(true)?;
    Ok(LineWriter::Udp(socket))
}

fn open_unix(path: &str) -> io::Result<LineWriter> {
    let socket = UnixDatagram::unbound()?;
    socket.connect(path)?;
    socket.set_nonblocking(true)?;
    Ok(LineWriter::Unix(socket, path.to_owned()))
}

/// Opens a file. A FIFO without a reader is an error: if the program waited for a reader, only SIGKILL could end the
/// program.
fn open_file(path: &str) -> io::Result<LineWriter> {
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open(path)?;
    Ok(LineWriter::stream(file))
}

/// Repeats a write until the descriptor accepts data or reports an error.
fn retry_when_writable(
    descriptor: &impl AsFd,
    mut write: impl FnMut() -> io::Result<usize>,
) -> io::Result<usize> {
    loop {
        match write() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => wait_writable(descriptor.as_fd())?,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

fn wait_writable(descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let mut poll_fds = [PollFd::new(descriptor, PollFlags::POLLOUT)];
    match poll(&mut poll_fds, PollTimeout::NONE) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
