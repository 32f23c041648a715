//! Interface offloads, by the `SIOCETHTOOL` ioctl.
//!
//! They matter on veth: a stack-sent packet carries only a partial checksum (`CHECKSUM_PARTIAL`), which leaves with
//! a wrong sum once an XDP program has touched it, so transmit checksum offload is turned off; and `XDP_TX` into a
//! veth needs an XDP program, or GRO, on its peer.

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

/// One offload that can be switched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Offload {
    /// Checksums of sent packets left to the device (`ethtool -K … tx`).
    TransmitChecksum,
    /// Generic receive offload (`ethtool -K … gro`). On veth it also turns NAPI on.
    GenericReceive,
    /// Generic segmentation offload (`ethtool -K … gso`).
    GenericSegmentation,
    /// TCP segmentation offload (`ethtool -K … tso`).
    TcpSegmentation,
}

impl Offload {
    /// `ETHTOOL_S…` command (include/uapi/linux/ethtool.h).
    fn command(self) -> u32 {
        match self {
            Self::TransmitChecksum => 0x17,
            Self::TcpSegmentation => 0x1f,
            Self::GenericSegmentation => 0x24,
            Self::GenericReceive => 0x2c,
        }
    }
}

/// Why an offload could not be switched.
#[derive(Debug, thiserror::Error)]
#[error("interface {interface}: cannot switch {offload:?}: {source}")]
pub struct EthtoolError {
    interface: String,
    offload: Offload,
    source: io::Error,
}

/// `struct ethtool_value`.
#[repr(C)]
struct EthtoolValue {
    command: u32,
    data: u32,
}

/// `struct ifreq` with the data pointer that `SIOCETHTOOL` uses, padded to the kernel's 40 bytes.
#[repr(C)]
struct InterfaceRequest {
    name: [libc::c_char; libc::IFNAMSIZ],
    data: *mut EthtoolValue,
    padding: [u8; 16],
}

const SIOCETHTOOL: libc::c_ulong = 0x8946;

/// Switches an offload of an interface of the calling thread's namespace.
///
/// # Errors
/// No such interface, an offload that it does not have, or no right to.
pub fn set(interface: &str, offload: Offload, on: bool) -> Result<(), EthtoolError> {
    let fail = |source| EthtoolError {
        interface: interface.to_owned(),
        offload,
        source,
    };
    let mut value = EthtoolValue {
        command: offload.command(),
        data: u32::from(on),
    };
    let mut request = InterfaceRequest {
        name: interface_name(interface).map_err(fail)?,
        data: &raw mut value,
        padding: [0; 16],
    };
    let socket = control_socket().map_err(fail)?;
    // SAFETY: `request` has the layout and at least the size of the kernel's `struct ifreq`, its name is terminated,
    // and `data` points to an `ethtool_value` that outlives the call.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
    if done != 0 {
        return Err(fail(io::Error::last_os_error()));
    }
    Ok(())
}

/// A name as the kernel's fixed, zero-terminated field.
fn interface_name(interface: &str) -> io::Result<[libc::c_char; libc::IFNAMSIZ]> {
    let mut name = [0; libc::IFNAMSIZ];
    if interface.len() >= name.len() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "interface names have at most 15 bytes",
        ));
    }
    for (to, from) in name.iter_mut().zip(interface.bytes()) {
        *to = from.cast_signed();
    }
    Ok(name)
}

fn control_socket() -> io::Result<OwnedFd> {
    // SAFETY: takes no pointer.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made and belongs to nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
