//! The interfaces of a network namespace and how they are stacked (rtnetlink(7), RTM_GETLINK).

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use linewarden_protocol::frame::Mac;

/// The loopback interface's index.
pub(crate) const LOOPBACK: u32 = 1;

const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;
/// The link-layer type of Ethernet (include/uapi/linux/if_arp.h).
const ARPHRD_ETHER: u16 = 1;
/// Attributes (include/uapi/linux/if_link.h).
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINK: u16 = 5;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_XDP: u16 = 43;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_XDP_ATTACHED: u16 = 2;
/// Mask of the type bits in an attribute's type field, without flags.
const ATTRIBUTE_TYPE: u16 = 0x3fff;
/// Bytes of nlmsghdr.
const HEADER_BYTES: usize = 16;
/// Bytes of ifinfomsg.
const MESSAGE_BYTES: usize = 16;
/// Longer than any message of a dump.
const BUFFER_BYTES: usize = 1 << 16;
/// Link kinds that receive frames for their MAC address from the interface below.
const UPPER_KINDS: [&[u8]; 3] = [b"vlan", b"macvlan", b"macvtap"];

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) ifindex: u32,
    name: String,
    /// `None`: the interface has no Ethernet address.
    mac: Option<Mac>,
    /// The bridge or bond of which the interface is a port.
    master: Option<u32>,
    /// The lower interface in the same namespace that delivers frames to this interface.
    lower: Option<u32>,
    /// The largest packet, bytes.
    pub(crate) mtu: u32,
    /// Whether the interface is Ethernet; loopback is not.
    pub(crate) is_ethernet: bool,
    /// Whether an XDP program is attached.
    pub(crate) has_program: bool,
}

/// A socket of rtnetlink(7) in the calling thread's network namespace.
///
/// # Errors
/// Those of the kernel.
pub(crate) fn open_rtnetlink() -> io::Result<OwnedFd> {
    // SAFETY: takes no pointer.
    let fd = unsafe {
        libc::socket(
            libc::AF_NETLINK,
            libc::SOCK_RAW | libc::SOCK_CLOEXEC,
            libc::NETLINK_ROUTE,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened; no other owner exists.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// All interfaces of the calling thread's network namespace.
///
/// # Errors
/// Those of the kernel.
pub(crate) fn links() -> io::Result<Vec<Interface>> {
    let socket = open_rtnetlink()?;
    let request = request();
    // SAFETY: the buffer is valid for its length; the kernel is the socket's default peer.
    let sent = unsafe { libc::send(socket.as_raw_fd(), request.as_ptr().cast(), request.len(), 0) };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut interfaces = Vec::new();
    let mut buffer = vec![0u8; BUFFER_BYTES];
    loop {
        // SAFETY: the buffer is valid for its length.
        let received = unsafe { libc::recv(socket.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
        let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
        if parse_messages(buffer.get(..received).unwrap_or_default(), &mut interfaces)? {
            return Ok(interfaces);
        }
    }
}

/// MAC addresses to which frames that arrive on an interface can be addressed; the interface's own address is
/// first.
pub(crate) fn macs_of(links: &[Interface], ifindex: u32) -> Vec<Mac> {
    let mut macs = Vec::new();
    for index in stack(links, ifindex) {
        let link = links.iter().find(|link| link.ifindex == index);
        let mac = link.and_then(|link| link.mac).filter(|mac| !macs.contains(mac));
        macs.extend(mac);
    }
    macs
}

/// The interfaces that receive frames that arrive on an interface: itself, the bridge or bond of which it is a port,
/// and VLANs and macvlans on any of these.
fn stack(links: &[Interface], ifindex: u32) -> Vec<u32> {
    let mut stack = vec![ifindex];
    loop {
        let next = links.iter().find_map(|link| {
            let master = link.master.filter(|_| stack.contains(&link.ifindex));
            let upper = link
                .lower
                .filter(|lower| stack.contains(lower))
                .map(|_| link.ifindex);
            [master, upper]
                .into_iter()
                .flatten()
                .find(|new| !stack.contains(new))
        });
        match next {
            Some(next) => stack.push(next),
            None => return stack,
        }
    }
}

/// The interfaces of a network namespace at one time.
#[derive(Clone, Debug)]
pub struct Links(Vec<Interface>);

impl Links {
    /// The interfaces of the calling thread's network namespace.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn list() -> io::Result<Self> {
        links().map(Self)
    }

    /// The names of an interface, of the bridge or bond of which it is a port, and of VLANs and macvlans on any of
    /// these.
    #[must_use]
    pub fn stack_of(&self, ifindex: u32) -> Vec<&str> {
        let stack = stack(&self.0, ifindex);
        let is_in_stack = |link: &&Interface| stack.contains(&link.ifindex);
        self.0
            .iter()
            .filter(is_in_stack)
            .map(|link| &*link.name)
            .collect()
    }
}

/// RTM_GETLINK for all interfaces: nlmsghdr and ifinfomsg.
fn request() -> Vec<u8> {
    let flags = NLM_F_REQUEST | NLM_F_DUMP;
    let mut bytes = ((HEADER_BYTES + MESSAGE_BYTES) as u32).to_ne_bytes().to_vec();
    bytes.extend(RTM_GETLINK.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.resize(HEADER_BYTES + MESSAGE_BYTES, 0);
    bytes
}

/// Reads the messages of one datagram. Returns whether the list is complete.
fn parse_messages(mut bytes: &[u8], interfaces: &mut Vec<Interface>) -> io::Result<bool> {
    let malformed = || io::Error::other("the kernel's list of interfaces is malformed");
    while !bytes.is_empty() {
        let length = u32_at(bytes, 0).ok_or_else(malformed)? as usize;
        let message = bytes
            .get(..length)
            .filter(|message| message.len() >= HEADER_BYTES);
        let message = message.ok_or_else(malformed)?;
        match u16_at(message, 4) {
            Some(NLMSG_DONE) => return Ok(true),
            Some(NLMSG_ERROR) => {
                let code = u32_at(message, HEADER_BYTES).unwrap_or_default().cast_signed();
                return Err(io::Error::from_raw_os_error(code.wrapping_neg()));
            }
            Some(RTM_NEWLINK) => interfaces.extend(parse_link(message)),
            _ => {}
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

fn parse_link(message: &[u8]) -> Option<Interface> {
    let mut link = Interface {
        ifindex: u32_at(message, HEADER_BYTES + 4)?,
        name: String::new(),
        mac: None,
        master: None,
        lower: None,
        mtu: 0,
        is_ethernet: u16_at(message, HEADER_BYTES + 2)? == ARPHRD_ETHER,
        has_program: false,
    };
    let (mut is_upper, mut is_lower_elsewhere) = (false, false);
    for (kind, value) in attributes(message.get(HEADER_BYTES + MESSAGE_BYTES..)?) {
        match kind {
            IFLA_ADDRESS => link.mac = value.try_into().ok(),
            IFLA_IFNAME => {
                let name = value.strip_suffix(&[0]).unwrap_or(value);
                link.name = String::from_utf8_lossy(name).into_owned();
            }
            IFLA_MTU => link.mtu = u32_at(value, 0)?,
            IFLA_LINK => link.lower = u32_at(value, 0),
            IFLA_MASTER => link.master = u32_at(value, 0),
            IFLA_XDP => {
                let attachment = attributes(value).find(|(kind, _)| *kind == IFLA_XDP_ATTACHED);
                link.has_program =
                    attachment.is_some_and(|(_, mode)| mode.first().is_some_and(|mode| *mode != 0));
            }
            IFLA_LINK_NETNSID => is_lower_elsewhere = true,
            IFLA_LINKINFO => {
                let name = attributes(value).find(|(kind, _)| *kind == IFLA_INFO_KIND);
                let name = name.map(|(_, name)| name.strip_suffix(&[0]).unwrap_or(name));
                is_upper = name.is_some_and(|name| UPPER_KINDS.contains(&name));
            }
            _ => {}
        }
    }
    // IFLA_LINK of a veth names the peer, which is another station.
    link.lower = link.lower.filter(|_| is_upper && !is_lower_elsewhere);
    Some(link)
}

/// Types and values of attributes.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(bytes, 0)?);
        let kind = u16_at(bytes, 2)? & ATTRIBUTE_TYPE;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(ifindex: u32, mac: u8, master: u32, lower: u32) -> Interface {
        Interface {
            ifindex,
            name: format!("eth{ifindex}"),
            mac: Some([2, 0, 0, 0, 0, mac]),
            master: Some(master).filter(|master| *master != 0),
            lower: Some(lower).filter(|lower| *lower != 0),
            mtu: 1500,
            is_ethernet: true,
            has_program: false,
        }
    }

    #[test]
    fn loopback_is_in_the_list() {
        let lo = links()
            .unwrap()
            .into_iter()
            .find(|link| link.ifindex == 1)
            .unwrap();
        assert_eq!((lo.mac.is_some(), lo.master, lo.lower), (true, None, None));
        assert!(lo.mtu > 0 && !lo.is_ethernet);
    }

    #[test]
    fn frames_are_for_the_port_its_bridge_and_the_interfaces_above_both() {
        let links = [
            interface(2, 2, 5, 0), // a port of the bridge
            interface(3, 3, 5, 0), // another port of the bridge
            interface(4, 4, 0, 2), // a macvlan on the port
            interface(5, 5, 0, 0), // the bridge
            interface(6, 5, 0, 5), // a VLAN on the bridge, with its address
            interface(7, 7, 0, 0),
        ];
        let macs = |ifindex| -> Vec<u8> { macs_of(&links, ifindex).iter().map(|mac| mac[5]).collect() };
        assert_eq!(macs(2), [2, 5, 4]);
        assert_eq!(macs(3), [3, 5]);
        assert_eq!(macs(7), [7]);
        assert_eq!(macs(9), [0; 0]);
        let links = Links(links.into());
        assert_eq!(links.stack_of(2), ["eth2", "eth4", "eth5", "eth6"]);
        assert!(links.stack_of(9).is_empty());
    }

    #[test]
    fn truncated_messages_are_an_error() {
        let attribute = |kind: u16, value: &[u8]| {
            let mut bytes = (value.len() as u16 + 4).to_ne_bytes().to_vec();
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(value);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            bytes
        };
        let info = attribute(IFLA_INFO_KIND, b"macvlan\0");
        let body = [
            attribute(IFLA_IFNAME, b"macvlan0\0"),
            attribute(IFLA_ADDRESS, &[2, 0, 0, 0, 0, 1]),
            attribute(IFLA_LINK, &7u32.to_ne_bytes()),
            attribute(IFLA_LINKINFO, &info),
        ]
        .concat();
        let mut message = ((HEADER_BYTES + MESSAGE_BYTES + body.len()) as u32)
            .to_ne_bytes()
            .to_vec();
        message.extend(RTM_NEWLINK.to_ne_bytes());
        message.resize(HEADER_BYTES + 4, 0);
        message.extend(9u32.to_ne_bytes());
        message.resize(HEADER_BYTES + MESSAGE_BYTES, 0);
        message.extend(body);
        let mut interfaces = Vec::new();
        assert!(!parse_messages(&message, &mut interfaces).unwrap());
        assert_eq!((interfaces[0].ifindex, interfaces[0].lower), (9, Some(7)));
        assert_eq!(interfaces[0].name, "macvlan0");
        for length in 1..message.len() {
            assert!(
                parse_messages(&message[..length], &mut interfaces).is_err(),
                "{length}"
            );
        }
    }
}
