//! The filters of the traffic control layer at an interface (rtnetlink(7), RTM_GETTFILTER), and tcx programs.
//!
//! A filter sees the frames that the XDP program passes, or those that leave, and may drop, change or redirect them.

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use libbpf_rs::libbpf_sys;

const RTM_NEWTFILTER: u16 = 44;
const RTM_GETTFILTER: u16 = 46;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;
/// The two hooks of the qdisc `clsact`. Filters of the qdisc `ingress` are at the first hook as well.
const HOOKS: [(&str, u32); 2] = [("tc-ingress", 0xffff_fff2), ("tc-egress", 0xffff_fff3)];
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_BPF_ID: u16 = 11;
/// Bytes of nlmsghdr.
const HEADER_BYTES: usize = 16;
/// Bytes of tcmsg.
const MESSAGE_BYTES: usize = 20;
const RESPONSE_BYTES: usize = 1 << 16;
/// `BPF_MPROG_MAX`.
const TCX_MAX: usize = 64;

/// One filter.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Filter {
    /// The hook, with priority and handle.
    pub(super) hook: String,
    /// Kind of the filter, such as `flower`.
    pub(super) kind: String,
    /// The kernel's id of its program, if the filter is an eBPF program.
    pub(super) program: Option<u32>,
}

/// All filters at an interface of the calling thread's network namespace.
pub(super) fn filters_at(ifindex: u32) -> io::Result<Vec<Filter>> {
    let mut filters = Vec::new();
    for (name, parent) in HOOKS {
        let netlink = open_netlink()?;
        send(&netlink, ifindex, parent)?;
        let mut response = vec![0u8; RESPONSE_BYTES];
        while parse_messages(receive(&netlink, &mut response)?, name, &mut filters)? {}
    }
    for (hook, attach_type) in [
        ("tcx-ingress", libbpf_sys::BPF_TCX_INGRESS),
        ("tcx-egress", libbpf_sys::BPF_TCX_EGRESS),
    ] {
        let programs = tcx_programs(ifindex, attach_type)?.into_iter().enumerate();
        filters.extend(programs.map(|(position, id)| Filter {
            hook: format!("{hook} {position}"),
            kind: "bpf".to_owned(),
            program: Some(id),
        }));
    }
    Ok(filters)
}

/// Programs that Linux 6.6 and later runs before the filters, in order.
fn tcx_programs(ifindex: u32, attach_type: libbpf_sys::bpf_attach_type) -> io::Result<Vec<u32>> {
    let mut ids = [0u32; TCX_MAX];
    let mut count = TCX_MAX as u32;
    // SAFETY: the kernel writes at most `count` ids, which is the size of the array, and then their number.
    let result = unsafe {
        libbpf_sys::bpf_prog_query(
            ifindex.cast_signed(),
            attach_type,
            0,
            std::ptr::null_mut(),
            ids.as_mut_ptr(),
            &raw mut count,
        )
    };
    match result.wrapping_neg() {
        0 => Ok(ids.into_iter().take(count as usize).collect()),
        // The kernel does not have this hook, or the hook has no programs.
        libc::EINVAL | libc::ENOENT | libc::EOPNOTSUPP => Ok(Vec::new()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

fn open_netlink() -> io::Result<OwnedFd> {
    // SAFETY: takes no pointer.
    let fd = unsafe {
        libc::socket(
            libc::AF_NETLINK,
            libc::SOCK_RAW | libc::SOCK_CLOEXEC,
            libc::NETLINK_ROUTE,
        )
    };
    match fd {
        ..0 => Err(io::Error::last_os_error()),
        // SAFETY: just opened; no other owner exists.
        fd => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
    }
}

fn send(netlink: &OwnedFd, ifindex: u32, parent: u32) -> io::Result<()> {
    let total = HEADER_BYTES + MESSAGE_BYTES;
    let parts: [&[u8]; 9] = [
        &(total as u32).to_ne_bytes(),
        &RTM_GETTFILTER.to_ne_bytes(),
        &(NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes(),
        &1u32.to_ne_bytes(),
        // Port of the kernel; family and padding; then the interface, any handle, the hook.
        &[0; 8],
        &ifindex.to_ne_bytes(),
        &[0; 4],
        &parent.to_ne_bytes(),
        &[0; 4],
    ];
    let request = parts.concat();
    // SAFETY: the buffer is valid for its length; the kernel is the socket's default peer.
    let sent = unsafe { libc::send(netlink.as_raw_fd(), request.as_ptr().cast(), request.len(), 0) };
    match sent {
        ..0 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

fn receive<'a>(netlink: &OwnedFd, response: &'a mut [u8]) -> io::Result<&'a [u8]> {
    // SAFETY: the buffer is valid for its length. The kernel has started its response before send() returned.
    let received = unsafe {
        libc::recv(
            netlink.as_raw_fd(),
            response.as_mut_ptr().cast(),
            response.len(),
            libc::MSG_DONTWAIT,
        )
    };
    let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    response.get(..received).ok_or_else(truncated)
}

fn truncated() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the kernel's response is truncated")
}

/// Parses the messages of one response. Returns whether another response follows.
fn parse_messages(mut response: &[u8], hook: &str, filters: &mut Vec<Filter>) -> io::Result<bool> {
    while !response.is_empty() {
        let length = response
            .first_chunk()
            .map_or(0, |length| u32::from_ne_bytes(*length)) as usize;
        let kind = u16_at(response, 4).ok_or_else(truncated)?;
        let message = response
            .get(..length)
            .filter(|message| message.len() >= HEADER_BYTES)
            .ok_or_else(truncated)?;
        let body = message.get(HEADER_BYTES..).unwrap_or_default();
        match kind {
            NLMSG_DONE => return Ok(false),
            NLMSG_ERROR => {
                let code = body.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code));
                // The qdisc does not exist, so there is no filter.
                return match code.wrapping_neg() {
                    0 | libc::EINVAL | libc::ENOENT | libc::EOPNOTSUPP => Ok(false),
                    errno => Err(io::Error::from_raw_os_error(errno)),
                };
            }
            RTM_NEWTFILTER => filters.extend(parse_filter(body, hook)),
            _ => {}
        }
        response = response.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(true)
}

/// Parses one filter. `None` for the chain itself, which the kernel lists without a handle before the filters of the chain.
fn parse_filter(body: &[u8], hook: &str) -> Option<Filter> {
    let handle = u32_at(body, 8)?;
    // Priority and protocol.
    let priority = u32_at(body, 16)? >> 16;
    let attributes = body.get(MESSAGE_BYTES..)?;
    let kind = attribute(attributes, TCA_KIND)?;
    let options = attribute(attributes, TCA_OPTIONS);
    if handle == 0 && options.is_none() {
        return None;
    }
    let program = options.and_then(|options| attribute(options, TCA_BPF_ID));
    let kind = kind.split(|byte| *byte == 0).next().unwrap_or_default();
    Some(Filter {
        hook: format!("{hook} {priority}:{handle:x}"),
        kind: String::from_utf8_lossy(kind).into_owned(),
        program: program.and_then(|id| u32_at(id, 0)),
    })
}

/// The content of a routing attribute.
fn attribute(mut attributes: &[u8], attribute: u16) -> Option<&[u8]> {
    while let (Some(length), Some(kind)) = (u16_at(attributes, 0), u16_at(attributes, 2)) {
        let length = usize::from(length);
        let content = attributes.get(4..length)?;
        // The highest bits are encoding flags.
        if kind & 0x3fff == attribute {
            return Some(content);
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
    None
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes
        .get(at..)?
        .first_chunk()
        .map(|word| u16::from_ne_bytes(*word))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes
        .get(at..)?
        .first_chunk()
        .map(|word| u32::from_ne_bytes(*word))
}
