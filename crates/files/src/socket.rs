//! Listening Unix sockets that only the process's own user and root can open.

use std::fs::symlink_metadata;
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, fchmod};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Maximum number of connections that the kernel keeps until the process accepts them.
const BACKLOG: i32 = 128;

/// The file of a bound socket. Dropping this value removes the file, so drop the listener afterwards: as long as the socket
/// is bound, no other process replaces the file.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Binds a nonblocking stream socket with a file of mode 0600. The socket of a process that has ended is replaced, but not
/// the socket of a running process, nor any other file.
///
/// # Errors
/// [`io::ErrorKind::AddrInUse`] if a process uses the path or another file exists there; or an error of the operating system.
pub fn bind_private(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    if symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket()) {
        match UnixStream::connect(path) {
            Ok(_) => {
                let problem = "another process uses the socket";
                return Err(io::Error::new(io::ErrorKind::AddrInUse, problem));
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path)?,
            Err(error) => return Err(error),
        }
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // The kernel creates the file with the mode of the socket. If the mode were set after the file was created, other
    // users could connect in between.
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    let file = SocketFile {
        path: path.to_owned(),
    };
    Ok((socket.into(), file))
}
