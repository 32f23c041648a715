//! Where verified messages go, one line each.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixDatagram;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::failure::Failure;

/// Where lines go.
pub enum Way {
    /// Standard output, standard error, a file or a FIFO: bytes, each line with its end; and whether the last one was cut off.
    Stream(File, bool),
    /// A datagram a line.
    Udp(UdpSocket),
    /// Likewise; connected again when who reads there has started again.
    Unix(UnixDatagram, String),
}

impl Way {
    /// Bytes into what is open.
    pub fn stream(file: File) -> Self {
        Self::Stream(file, false)
    }

    /// Standard output, by a descriptor of its own: whoever waits in a write holds no lock that the end of the program needs.
    pub fn stdout() -> Result<Self, Failure> {
        Ok(Self::stream(io::stdout().as_fd().try_clone_to_owned()?.into()))
    }

    /// Standard error, likewise.
    pub fn stderr() -> Result<Self, Failure> {
        Ok(Self::stream(io::stderr().as_fd().try_clone_to_owned()?.into()))
    }

    /// As `--out` names it: `-`, `udp:ADDRESS:PORT`, `unix:PATH`, or a file.
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
                "neither udp:ADDRESS:PORT nor unix:PATH; for a file of this name write ./{to}"
            )));
        }
        file(to).map_err(|error| match error.raw_os_error() == Some(Errno::ENXIO as i32) {
            true => wrong(&"nobody reads this FIFO"),
            false => wrong(&error),
        })
    }

    /// Hands a line on, which it has without its end; waits where there is no room.
    pub fn write(&mut self, mut line: Vec<u8>) -> io::Result<()> {
        match self {
            Self::Udp(socket) => {
                let send = || when_ready(socket, || socket.send(&line));
                let sent = send();
                if let Err(error) = &sent
                    && error.kind() == ErrorKind::ConnectionRefused
                {
                    // What was refused is the datagram before: the error counts for that one, and this one leaves. Should it be refused too,
                    // the next call says so.
                    let _ = send();
                }
                sent.map(drop)
            }
            Self::Unix(socket, path) => {
                let send = || when_ready(socket, || socket.send(&line));
                match send().map_err(|error| (error.kind(), error)) {
                    // The kernel forgets a peer that is gone.
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
                    match when_ready(file, || (&*file).write(rest))? {
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

fn udp(address: SocketAddr) -> io::Result<Way> {
    let any: SocketAddr = match address.is_ipv4() {
        true => ([0; 4], 0).into(),
        false => ([0; 16], 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(address)?;
    socket.set_nonblocking(true)?;
    Ok(Way::Udp(socket))
}

fn unix(path: &str) -> io::Result<Way> {
    let socket = UnixDatagram::unbound()?;
    socket.connect(path)?;
    socket.set_nonblocking(true)?;
    Ok(Way::Unix(socket, path.to_owned()))
}

/// A FIFO that nobody reads is an error, and not waited for: until the receiver listens nothing but KILL would end it.
fn file(path: &str) -> io::Result<Way> {
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open(path)?;
    Ok(Way::stream(file))
}

/// Does it, and again when there is room, if there was none.
fn when_ready(descriptor: &impl AsFd, mut write: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match write() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => wait_for_room(descriptor.as_fd())?,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

fn wait_for_room(descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let mut polled = [PollFd::new(descriptor, PollFlags::POLLOUT)];
    match poll(&mut polled, PollTimeout::NONE) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
