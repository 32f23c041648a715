//! Sockets of Linux beyond the standard library: packets that the kernel dropped at a socket, packet sockets with their rings, and
//! memory shared with the kernel.
//!
//! ```
//! let socket = std::net::UdpSocket::bind("127.0.0.1:0")?;
//! assert_eq!(linewarden_socket::kernel_drops(&socket)?, 0);
//! # Ok::<(), std::io::Error>(())
//! ```

#[cfg(test)]
#[macro_use(test)]
extern crate linewarden_harness;

mod mapping;
pub mod packet;

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};

pub use mapping::Mapping;

/// Number of values that `SO_MEMINFO` returns (`linux/sock_diag.h`); the last value is `SK_MEMINFO_DROPS`.
const MEMINFO_COUNTS: usize = 9;

/// Returns the number of packets that the kernel has dropped since the socket was opened, because the receive buffer was
/// full or a checksum was wrong. The counter wraps at 2^32.
///
/// # Errors
/// The descriptor is not a socket, or the socket type has no such counter.
pub fn kernel_drops(socket: impl AsFd) -> io::Result<u64> {
    let mut counts = [0u32; MEMINFO_COUNTS];
    let mut length = size_of_val(&counts) as libc::socklen_t;
    // SAFETY: the array is as long as `length` says, and both are borrowed mutably during the call.
    check(unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            counts.as_mut_ptr().cast(),
            &raw mut length,
        )
    })?;
    let [.., drops] = counts;
    Ok(u64::from(drops))
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Runs the unit tests.
#[cfg(test)]
fn main() -> std::process::ExitCode {
    linewarden_harness::main()
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn packets_that_do_not_fit_in_the_receive_buffer_are_counted() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        receiver.set_nonblocking(true).unwrap();
        assert_eq!(kernel_drops(&receiver).unwrap(), 0);
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        // A datagram takes more than 256 B of the receive buffer, so this number of datagrams does not fit.
        let sent = rustix::net::sockopt::socket_recv_buffer_size(&receiver).unwrap() as u64 / 256;
        for _ in 0..sent {
            sender.send_to(&[0; 64], receiver.local_addr().unwrap()).unwrap();
        }
        let dropped = kernel_drops(&receiver).unwrap();
        let mut received = 0;
        while receiver.recv(&mut [0; 64]).is_ok() {
            received += 1;
        }
        assert!(dropped > 0 && received > 0);
        assert_eq!(dropped + received, sent);
    }

    #[test]
    fn a_file_that_is_not_a_socket_is_an_error() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(
            kernel_drops(file).unwrap_err().raw_os_error(),
            Some(libc::ENOTSOCK)
        );
    }
}
