//! Offloads and drivers of interfaces, by the `SIOCETHTOOL` ioctl.
//!
//! An interface with VLAN offload strips the tags of received frames, so an XDP program sees a tagged frame as an
//! untagged one. On veth, a packet from the stack carries only a partial checksum (`CHECKSUM_PARTIAL`). If an XDP
//! program changes such a packet, the packet leaves with a wrong checksum. Transmit checksum offload is therefore
//! turned off. A frame that is redirected into a veth needs an XDP program or GRO on the peer. A frame that is sent
//! back with `XDP_TX` needs an XDP program on the peer.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

/// An offload that can be switched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Offload {
    /// Checksums of sent packets are computed by the device (`ethtool -K … tx`).
    TransmitChecksum,
    /// Generic receive offload (`ethtool -K … gro`). On veth it also enables NAPI.
    GenericReceive,
    /// VLAN tags (0x8100) of received frames are stripped (`ethtool -K … rxvlan`).
    ReceiveVlan,
}

/// How an offload is switched (include/uapi/linux/ethtool.h).
#[derive(Clone, Copy)]
enum OffloadControl {
    /// A pair of commands for this offload, `ETHTOOL_G…` and `ETHTOOL_S…`.
    Commands(u32, u32),
    /// A bit of the flags word.
    Flag(u32),
}

const GET_FLAGS: u32 = 0x25;
const SET_FLAGS: u32 = 0x26;

impl Offload {
    fn control(self) -> OffloadControl {
        match self {
            Self::TransmitChecksum => OffloadControl::Commands(0x16, 0x17),
            Self::GenericReceive => OffloadControl::Commands(0x2b, 0x2c),
            Self::ReceiveVlan => OffloadControl::Flag(1 << 8),
        }
    }
}

/// An offload could not be read or switched.
#[derive(Debug, thiserror::Error)]
#[error("cannot read or switch {offload:?} of interface {interface}: {source}")]
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
    data: *mut libc::c_void,
    padding: [u8; 16],
}

const SIOCETHTOOL: libc::c_ulong = 0x8946;

/// Switches an offload of an interface in the calling thread's namespace.
///
/// # Errors
/// The interface does not exist or does not have the offload, or the privilege is missing.
pub fn set(interface: &str, offload: Offload, on: bool) -> Result<(), EthtoolError> {
    let fail = failure(interface, offload);
    match offload.control() {
        OffloadControl::Commands(_, set) => call(interface, set, u32::from(on)).map(drop),
        OffloadControl::Flag(bit) => call(interface, GET_FLAGS, 0).and_then(|flags| {
            let changed = if on { flags | bit } else { flags & !bit };
            call(interface, SET_FLAGS, changed).map(drop)
        }),
    }
    .map_err(fail)
}

/// Whether an offload of an interface in the calling thread's namespace is on.
///
/// # Errors
/// The interface does not exist or does not report the offload.
pub fn is_on(interface: &str, offload: Offload) -> Result<bool, EthtoolError> {
    let fail = failure(interface, offload);
    match offload.control() {
        OffloadControl::Commands(get, _) => call(interface, get, 0).map(|value| value != 0),
        OffloadControl::Flag(bit) => call(interface, GET_FLAGS, 0).map(|flags| flags & bit != 0),
    }
    .map_err(fail)
}

/// `struct ifreq` with the hardware address that `SIOCGIFHWADDR` fills in, padded to the kernel's 40 bytes.
#[repr(C)]
struct AddressRequest {
    name: [libc::c_char; libc::IFNAMSIZ],
    family: u16,
    address: [u8; 6],
    padding: [u8; 16],
}

/// The MAC address of an interface in the calling thread's namespace.
///
/// # Errors
/// The interface does not exist.
pub fn mac(interface: &str) -> io::Result<[u8; 6]> {
    let mut request = AddressRequest {
        name: interface_name(interface)?,
        family: 0,
        address: [0; 6],
        padding: [0; 16],
    };
    let socket = control_socket()?;
    // SAFETY: `request` has the layout and the size of the kernel's `struct ifreq`, and its name is terminated.
    let status = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFHWADDR, &raw mut request) };
    match status {
        0 => Ok(request.address),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The name of an interface in the calling thread's namespace. `None`: the interface does not exist.
pub(crate) fn name_of(ifindex: u32) -> Option<String> {
    let mut name = [0u8; libc::IF_NAMESIZE];
    // SAFETY: the buffer has the size that the call writes at most.
    if unsafe { libc::if_indextoname(ifindex, name.as_mut_ptr().cast()) }.is_null() {
        return None;
    }
    let name = CStr::from_bytes_until_nul(&name).ok()?;
    name.to_str().ok().map(str::to_owned)
}

/// The interface's name for a message, or its index if the interface is gone.
pub(crate) fn display_name(ifindex: u32) -> String {
    name_of(ifindex).unwrap_or_else(|| ifindex.to_string())
}

/// `struct ethtool_drvinfo`: the command, the driver's name, and the remaining fields.
#[repr(C)]
struct DriverInfo {
    command: u32,
    driver: [u8; 32],
    other_fields: [u8; 160],
}

const GET_DRIVER: u32 = 0x03;

/// The driver of an interface in the calling thread's namespace, such as `veth`.
///
/// # Errors
/// The interface does not exist or does not report its driver.
pub fn driver(interface: &str) -> io::Result<String> {
    let mut info = DriverInfo {
        command: GET_DRIVER,
        driver: [0; 32],
        other_fields: [0; 160],
    };
    // SAFETY: `info` has the size of the structure that the kernel writes for this command.
    unsafe { request(interface, (&raw mut info).cast()) }?;
    let name = info.driver.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(name).into_owned())
}

fn failure(interface: &str, offload: Offload) -> impl FnOnce(io::Error) -> EthtoolError + use<> {
    let interface = interface.to_owned();
    move |source| EthtoolError {
        interface,
        offload,
        source,
    }
}

/// Runs one command with its value and returns the new value.
fn call(interface: &str, command: u32, data: u32) -> io::Result<u32> {
    let mut value = EthtoolValue { command, data };
    // SAFETY: these commands read and write an `ethtool_value`.
    unsafe { request(interface, (&raw mut value).cast()) }?;
    Ok(value.data)
}

/// Runs one command.
///
/// # Safety
/// `data` points to the command's structure, which the kernel may write.
unsafe fn request(interface: &str, data: *mut libc::c_void) -> io::Result<()> {
    let mut request = InterfaceRequest {
        name: interface_name(interface)?,
        data,
        padding: [0; 16],
    };
    let socket = control_socket()?;
    // SAFETY: `request` has the layout and at least the size of the kernel's `struct ifreq`, its name is terminated,
    // and the caller guarantees that `data` is valid and outlives the call.
    let status = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
    match status {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A name in the kernel's fixed, zero-terminated field.
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
    // SAFETY: just opened; no other owner exists.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
