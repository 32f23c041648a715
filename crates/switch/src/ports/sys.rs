//! System calls of the ports as safe functions. All other unsafe code of the ports is in the rings.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::time::Duration;

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

fn owned(result: libc::c_int) -> io::Result<OwnedFd> {
    let fd = check(result)?;
    // SAFETY: the kernel has just created this descriptor, so there is no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Creates a socket of any family, closed on exec.
pub(super) fn socket(family: libc::c_int, kind: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: takes no pointer.
    owned(unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, 0) })
}

/// Creates a non-blocking event counter to interrupt a poll.
pub(super) fn event() -> io::Result<OwnedFd> {
    // SAFETY: takes no pointer.
    owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })
}

/// Index of an interface in the calling thread's network namespace.
pub(super) fn interface_index(name: &str) -> io::Result<u32> {
    let name = CString::new(name).map_err(io::Error::other)?;
    // SAFETY: the string is zero-terminated and lives through the call.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index),
    }
}

/// Interface name in the form that `ioctl` expects: at most 15 bytes, zero-terminated.
fn interface_name(name: &str) -> [libc::c_char; libc::IFNAMSIZ] {
    let mut bytes = [0; libc::IFNAMSIZ];
    for (to, from) in bytes.iter_mut().zip(name.bytes().take(libc::IFNAMSIZ - 1)) {
        *to = from.cast_signed();
    }
    bytes
}

/// MTU of an interface, bytes.
pub(super) fn mtu(any_socket: &OwnedFd, interface: &str) -> io::Result<usize> {
    // SAFETY: integers, addresses and pointers, for which zero is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name = interface_name(interface);
    // SAFETY: SIOCGIFMTU takes an ifreq, which lives through the call.
    check(unsafe { libc::ioctl(any_socket.as_raw_fd(), libc::SIOCGIFMTU, &raw mut request) })?;
    // SAFETY: SIOCGIFMTU has filled this member.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    usize::try_from(mtu).map_err(io::Error::other)
}

/// Link type of an interface, `ARPHRD_*`.
pub(super) fn link_type(any_socket: &OwnedFd, interface: &str) -> io::Result<u16> {
    // SAFETY: integers, addresses and pointers, for which zero is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name = interface_name(interface);
    // SAFETY: SIOCGIFHWADDR takes an ifreq, which lives through the call.
    check(unsafe { libc::ioctl(any_socket.as_raw_fd(), libc::SIOCGIFHWADDR, &raw mut request) })?;
    // SAFETY: SIOCGIFHWADDR has filled this member.
    Ok(unsafe { request.ifr_ifru.ifru_hwaddr.sa_family })
}

/// Whether an interface still exists in the network namespace of the socket.
pub(super) fn interface_exists(any_socket: &OwnedFd, index: u32) -> io::Result<bool> {
    // SAFETY: integers, addresses and pointers, for which zero is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_ifru.ifru_ifindex = index.cast_signed();
    // SAFETY: SIOCGIFNAME takes an ifreq, which lives through the call.
    match check(unsafe { libc::ioctl(any_socket.as_raw_fd(), libc::SIOCGIFNAME, &raw mut request) }) {
        Ok(_) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(false),
        Err(error) => Err(error),
    }
}

/// `struct ethtool_channels` (linux/ethtool.h).
#[repr(C)]
#[derive(Default)]
struct EthtoolChannels {
    cmd: u32,
    max: [u32; 4],
    rx_count: u32,
    tx_count: u32,
    other_count: u32,
    combined_count: u32,
}

/// `struct ethtool_drvinfo` (linux/ethtool.h).
#[repr(C)]
struct EthtoolDriver {
    cmd: u32,
    driver: [u8; 32],
    /// Versions, bus and five further numbers; not used.
    rest: [u8; 4 * 32 + 12 + 5 * 4],
}

/// Number of receive queues of an interface; 1 if the driver does not support the query.
pub(super) fn receive_queues(any_socket: &OwnedFd, interface: &str) -> io::Result<u32> {
    const ETHTOOL_GCHANNELS: u32 = 0x3c;
    let mut channels = EthtoolChannels {
        cmd: ETHTOOL_GCHANNELS,
        ..EthtoolChannels::default()
    };
    // SAFETY: the structure matches the command.
    let is_supported = unsafe { ethtool(any_socket, interface, &mut channels) }?;
    Ok(if is_supported {
        (channels.rx_count + channels.combined_count).max(1)
    } else {
        1
    })
}

/// Driver name of an interface, or the kind of a virtual interface such as `veth`. Empty if unknown.
pub(super) fn driver(any_socket: &OwnedFd, interface: &str) -> io::Result<String> {
    const ETHTOOL_GDRVINFO: u32 = 0x3;
    let mut driver = EthtoolDriver {
        cmd: ETHTOOL_GDRVINFO,
        driver: [0; 32],
        rest: [0; 160],
    };
    // SAFETY: the structure matches the command.
    unsafe { ethtool(any_socket, interface, &mut driver) }?;
    let name = driver.driver.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(name).into_owned())
}

/// Sends an ethtool command to an interface's driver. False if the driver does not support the command.
///
/// # Safety
/// `T` is the structure of integers for the command in its first word.
unsafe fn ethtool<T>(any_socket: &OwnedFd, interface: &str, command: &mut T) -> io::Result<bool> {
    // SAFETY: integers, addresses and pointers, for which zero is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name = interface_name(interface);
    request.ifr_ifru.ifru_data = (&raw mut *command).cast();
    // SAFETY: SIOCETHTOOL takes an ifreq whose data points to the structure of the command, as the caller guarantees; both
    // live through the call.
    match check(unsafe { libc::ioctl(any_socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) }) {
        Ok(_) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Sets a socket option whose value is `T`.
pub(super) fn set_option<T: Copy>(
    fd: &OwnedFd,
    level: libc::c_int,
    option: libc::c_int,
    value: T,
) -> io::Result<()> {
    // SAFETY: the value lives through the call and its size is given.
    check(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    })
    .map(drop)
}

/// Plain structure of integers that the kernel fills: every byte pattern is valid.
///
/// # Safety
/// Implement the trait only for structures of integers.
pub(super) unsafe trait PlainData: Copy {}

// SAFETY: an integer.
unsafe impl PlainData for libc::c_int {}
// SAFETY: offsets, u64 each.
unsafe impl PlainData for libc::xdp_mmap_offsets {}
// SAFETY: counters, u64 each.
unsafe impl PlainData for libc::xdp_statistics {}
// SAFETY: one u32.
unsafe impl PlainData for libc::xdp_options {}

/// Reads a socket option of type `T`; bytes that the kernel does not fill are zero.
pub(super) fn get_option<T: PlainData>(
    fd: &OwnedFd,
    level: libc::c_int,
    option: libc::c_int,
) -> io::Result<T> {
    // SAFETY: `PlainData` guarantees that every byte pattern is valid.
    let mut value: T = unsafe { std::mem::zeroed() };
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the value and its length live through the call and agree.
    check(unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            level,
            option,
            (&raw mut value).cast(),
            &raw mut length,
        )
    })?;
    Ok(value)
}

/// Takes the pending error of a socket, if any.
pub(super) fn take_error(fd: &OwnedFd) -> Option<io::Error> {
    match get_option::<libc::c_int>(fd, libc::SOL_SOCKET, libc::SO_ERROR) {
        Ok(0) => None,
        Ok(error) => Some(io::Error::from_raw_os_error(error)),
        Err(error) => Some(error),
    }
}

/// Binds an XDP socket.
pub(super) fn bind_xdp(fd: &OwnedFd, address: &libc::sockaddr_xdp) -> io::Result<()> {
    // SAFETY: the address lives through the call and its size is given.
    check(unsafe {
        libc::bind(
            fd.as_raw_fd(),
            std::ptr::from_ref(address).cast(),
            size_of::<libc::sockaddr_xdp>() as libc::socklen_t,
        )
    })
    .map(drop)
}

/// Makes the kernel process the transmit ring of a packet socket or XDP socket, without blocking.
pub(super) fn kick(fd: &OwnedFd) -> io::Result<()> {
    // SAFETY: no data and no address are passed, as an XDP socket requires.
    let result = unsafe {
        libc::sendto(
            fd.as_raw_fd(),
            std::ptr::null(),
            0,
            libc::MSG_DONTWAIT,
            std::ptr::null(),
            0,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Waits until a descriptor is ready or the timeout expires (`None`: no timeout). Interruption by a signal counts as a
/// timeout.
pub(super) fn poll(fds: &mut [libc::pollfd], timeout: Option<Duration>) -> io::Result<usize> {
    let timeout = timeout.map(|timeout| libc::timespec {
        tv_sec: timeout.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    });
    let pointer = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the number of descriptors is passed; the descriptors and the timeout live through the call.
    let ready = unsafe {
        libc::ppoll(
            fds.as_mut_ptr(),
            fds.len() as libc::nfds_t,
            pointer,
            std::ptr::null(),
        )
    };
    match check(ready) {
        Ok(ready) => Ok(ready.unsigned_abs() as usize),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
        Err(error) => Err(error),
    }
}

/// Poll entry of one descriptor.
pub(super) fn poll_interest(fd: BorrowedFd<'_>, events: libc::c_short) -> libc::pollfd {
    libc::pollfd {
        fd: fd.as_raw_fd(),
        events,
        revents: 0,
    }
}
