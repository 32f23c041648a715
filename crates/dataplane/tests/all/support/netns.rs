//! Separate networks for a test, configured with `ip` of iproute2.

use std::ffi::CString;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::process::Command;

/// Moves the calling thread to a new network namespace. Skips the test if this is not permitted.
pub fn leave_namespace() {
    // SAFETY: unshare takes no pointer, and affects only the calling thread.
    let has_left = unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0;
    if !has_left {
        let error = std::io::Error::last_os_error();
        linewarden_harness::skip!("no network namespace: {error}");
    }
}

/// The index of an interface of the calling thread's namespace; 0 if no interface has that name.
pub fn index_of(interface: &str) -> u32 {
    let name = CString::new(interface).unwrap();
    // SAFETY: `name` ends with a zero byte, and outlives the call.
    unsafe { libc::if_nametoindex(name.as_ptr()) }
}

/// A packet socket on an interface (packet(7)) that receives frames of `ether_type`. With type 0 it can only send.
pub fn packet_socket(interface: &str, ether_type: u16) -> OwnedFd {
    // SAFETY: socket takes no pointer.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW, 0) };
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the descriptor was just opened, and has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: all zeros is a valid sockaddr_ll.
    let mut name: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    name.sll_family = libc::AF_PACKET as u16;
    name.sll_protocol = ether_type.to_be();
    name.sll_ifindex = index_of(interface).cast_signed();
    // SAFETY: the pointer is to a sockaddr_ll of the given size, which bind only reads.
    let result = unsafe {
        let bytes = size_of::<libc::sockaddr_ll>() as u32;
        libc::bind(socket.as_raw_fd(), (&raw const name).cast(), bytes)
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    socket
}

/// Runs the command `ip`, which must succeed.
pub fn ip(arguments: &str) {
    let output = Command::new("ip")
        .args(arguments.split_whitespace())
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {arguments}: {error}");
}
