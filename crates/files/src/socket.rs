//! Listening Unix sockets that only the process's own user, root and, if requested, the members of one group can open.

use std::fs::symlink_metadata;
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Gid, Mode, chmod, chownat, fchmod};
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
    bind(path, None)
}

/// As [`bind_private`], but the members of the group can also open the socket: the file has mode 0660 and this group. A process
/// without privileges must be a member of the group.
///
/// # Errors
/// As [`bind_private`], or [`io::ErrorKind::PermissionDenied`] if the process may not give the file to the group.
pub fn bind_for_group(path: &Path, group_id: u32) -> io::Result<(UnixListener, SocketFile)> {
    bind(path, Some(Gid::from_raw(group_id)))
}

fn bind(path: &Path, group: Option<Gid>) -> io::Result<(UnixListener, SocketFile)> {
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
    // Removes the file if one of the next calls fails.
    let file = SocketFile {
        path: path.to_owned(),
    };
    if let Some(group) = group {
        // The group is set before the mode: with the other order, the process's own group could open the socket in between.
        chownat(CWD, path, None, Some(group), AtFlags::SYMLINK_NOFOLLOW).map_err(|error| {
            let group_id = group.as_raw();
            let problem = format!(
                "changing the group of the socket to {group_id} failed: {error}; make the user of this process a member of the group"
            );
            io::Error::new(error.kind(), problem)
        })?;
        chmod(path, Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP)?;
    }
    // Until this call, the kernel refuses all connections.
    rustix::net::listen(&socket, BACKLOG)?;
    Ok((socket.into(), file))
}
