//! MAC addresses of senders from the kernel's neighbor table (rtnetlink(7), RTM_GETNEIGH), with a cache.
//!
//! A UDP socket does not see frames. The neighbor table is as reliable as ARP and ND. The MAC address is covered by the
//! sender's tag, so a wrong entry can cause a drop but never an admission. The kernel resolves the sender when it sends
//! the CHALLENGE, so the entry exists when the RESPONSE arrives. No entry exists for a sender behind a router: a BOUND
//! RESPONSE of such a sender is dropped with `drop_tag`, like any RESPONSE whose tag cannot be verified.
//!
//! A look-up costs two system calls. Results are cached for some seconds, or until a message fails the check with a
//! cached address: then the kernel is queried again, at a bounded rate. A device that moved to another MAC address or
//! took over an IP address costs one more look-up and is not refused. An attacker who exhausts the rate of repeated
//! look-ups delays the device by at most the lifetime of a cache entry, which is shorter than the time for which a
//! RESPONSE is repeated.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use super::bindings::mac_word;
use super::origin::{MacSource, Origin};
use crate::links::open_rtnetlink;
use crate::rate::RateWindow;
use crate::store::table;
use crate::timestamps::Timestamps;

/// Number of cache entries per thread. Two senders with the same hash replace each other.
const CACHE_ENTRIES: usize = 1 << 14;
/// Maximum number of look-ups per second and thread for addresses without a cache entry, or with an entry above
/// [`AGE_NS_MAX`]. Limits the system calls that a flood from invented addresses can cause.
const LOOKUPS_PER_S: u32 = 20_000;
/// The address of an entry above this age (ns) is looked up again. The old entry is used if the rate limit allows no
/// look-up.
const AGE_NS_MAX: u64 = 10_000_000_000;
/// Maximum number of repeated look-ups per second and thread, after a message failed the check with a cached address.
const REFRESHES_PER_S: u32 = 1_000;

const RTM_NEWNEIGH: u16 = 28;
const RTM_GETNEIGH: u16 = 30;
const NLM_F_REQUEST: u16 = 1;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
/// NUD_REACHABLE, NUD_STALE, NUD_DELAY, NUD_PROBE, NUD_PERMANENT: the states of a resolved address.
const RESOLVED: u16 = 0x02 | 0x04 | 0x08 | 0x10 | 0x80;
/// Bytes of nlmsghdr.
const HEADER_BYTES: usize = 16;
/// Bytes of ndmsg.
const MESSAGE_BYTES: usize = 12;
/// Both headers and an attribute with an IPv6 address.
const REQUEST_BYTES_MAX: usize = HEADER_BYTES + MESSAGE_BYTES + 4 + 16;

/// The MAC address of a sender, as the kernel returned it.
#[derive(Clone, Copy, Default)]
struct CacheEntry {
    addr: [u64; 2],
    ingress: u32,
    /// With [`IS_KNOWN`] set; 0: the entry is free.
    mac: u64,
    /// CLOCK_MONOTONIC when the kernel returned the address.
    queried_ns: u64,
}

const IS_KNOWN: u64 = 1 << 63;

/// The view of one thread on the neighbor table.
pub(super) struct Neighbors {
    netlink: OwnedFd,
    sequence: u32,
    cache: Box<[CacheEntry]>,
    seed: [u64; 2],
    lookups: RateWindow,
    refreshes: RateWindow,
}

impl Neighbors {
    /// Opens a netlink socket in the calling thread's network namespace. `seed` keys the cache's hash.
    pub(super) fn open(seed: [u64; 2]) -> io::Result<Self> {
        Ok(Self {
            netlink: open_rtnetlink()?,
            sequence: 0,
            cache: vec![CacheEntry::default(); CACHE_ENTRIES].into_boxed_slice(),
            seed,
            lookups: RateWindow::default(),
            refreshes: RateWindow::default(),
        })
    }

    fn cache_entry(&mut self, origin: &Origin) -> Option<&mut CacheEntry> {
        let [low, high] = origin.addr;
        let hash = table::hash(self.seed, low ^ u64::from(origin.ingress), high);
        self.cache.get_mut(hash as usize % CACHE_ENTRIES)
    }

    fn look_up(&mut self, origin: &Origin) -> Option<u64> {
        self.sequence = self.sequence.wrapping_add(1);
        let (request, length) = request(origin, self.sequence);
        let mut response = [0u8; 512];
        let fd = self.netlink.as_raw_fd();
        // SAFETY: the buffer is no shorter than `length`; the kernel is the socket's default peer.
        let sent = unsafe { libc::send(fd, request.as_ptr().cast(), length, 0) };
        if sent < 0 {
            return None;
        }
        // The kernel has replied before send() returned. Unread replies to earlier requests are skipped.
        loop {
            // SAFETY: the buffer is valid for its length.
            let received = unsafe {
                libc::recv(
                    fd,
                    response.as_mut_ptr().cast(),
                    response.len(),
                    libc::MSG_DONTWAIT,
                )
            };
            let message = response.get(..usize::try_from(received).ok()?)?;
            if array_at(message, 8).map(u32::from_ne_bytes)? == self.sequence {
                return mac_of(message);
            }
        }
    }
}

impl MacSource for Neighbors {
    fn sender_mac(&mut self, origin: &Origin, now: Timestamps) -> Option<u64> {
        let entry = self.cache_entry(origin)?;
        let is_known = entry.mac != 0 && entry.addr == origin.addr && entry.ingress == origin.ingress;
        let known_mac = is_known.then_some(entry.mac & !IS_KNOWN);
        if is_known && now.monotonic_ns.saturating_sub(entry.queried_ns) < AGE_NS_MAX {
            return known_mac;
        }
        if !self.lookups.allows(now.monotonic_ns, LOOKUPS_PER_S) {
            return known_mac;
        }
        let Some(mac) = self.look_up(origin) else {
            return known_mac;
        };
        self.cache(origin, now, mac);
        Some(mac)
    }

    fn refreshed_mac(&mut self, origin: &Origin, now: Timestamps, stale: u64) -> Option<u64> {
        if !self.refreshes.allows(now.monotonic_ns, REFRESHES_PER_S) {
            return None;
        }
        let mac = self.look_up(origin)?;
        self.cache(origin, now, mac);
        Some(mac).filter(|mac| *mac != stale)
    }

    /// A session without BOUND is bound to address and port only; no look-up is needed.
    fn unbound_mac(&mut self) -> u64 {
        0
    }
}

impl Neighbors {
    fn cache(&mut self, origin: &Origin, now: Timestamps, mac: u64) {
        if let Some(entry) = self.cache_entry(origin) {
            *entry = CacheEntry {
                addr: origin.addr,
                ingress: origin.ingress,
                mac: mac | IS_KNOWN,
                queried_ns: now.monotonic_ns,
            };
        }
    }
}

/// RTM_GETNEIGH for one address: nlmsghdr, ndmsg, attribute NDA_DST; and the used length of the buffer.
fn request(origin: &Origin, sequence: u32) -> ([u8; REQUEST_BYTES_MAX], usize) {
    let mut octets = [0u8; 16];
    for (bytes, word) in octets.chunks_exact_mut(8).zip(origin.addr) {
        bytes.copy_from_slice(&word.to_ne_bytes());
    }
    let (family, address): (i32, &[u8]) = match &octets {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, v4 @ ..] => (libc::AF_INET, v4),
        v6 => (libc::AF_INET6, v6),
    };
    let attribute = 4 + address.len();
    let total = HEADER_BYTES + MESSAGE_BYTES + attribute;
    let parts: [&[u8]; 11] = [
        &(total as u32).to_ne_bytes(),
        &RTM_GETNEIGH.to_ne_bytes(),
        &NLM_F_REQUEST.to_ne_bytes(),
        &sequence.to_ne_bytes(),
        &[0; 4],
        &[family as u8, 0, 0, 0],
        &origin.ingress.to_ne_bytes(),
        &[0; 4],
        &(attribute as u16).to_ne_bytes(),
        &NDA_DST.to_ne_bytes(),
        address,
    ];
    let mut bytes = [0; REQUEST_BYTES_MAX];
    for (to, from) in bytes.iter_mut().zip(parts.into_iter().flatten()) {
        *to = *from;
    }
    (bytes, total)
}

/// The link-layer address in a reply, if it is resolved.
fn mac_of(message: &[u8]) -> Option<u64> {
    let length = u32::from_ne_bytes(array_at(message, 0)?) as usize;
    let kind = u16::from_ne_bytes(array_at(message, 4)?);
    let state = u16::from_ne_bytes(array_at(message, HEADER_BYTES + 8)?);
    if kind != RTM_NEWNEIGH || state & RESOLVED == 0 {
        return None;
    }
    let mut attributes = message.get(..length)?.get(HEADER_BYTES + MESSAGE_BYTES..)?;
    loop {
        let length = usize::from(u16::from_ne_bytes(array_at(attributes, 0)?));
        if u16::from_ne_bytes(array_at(attributes, 2)?) == NDA_LLADDR {
            return attributes.get(4..length)?.try_into().ok().map(mac_word);
        }
        attributes = attributes.get(length.max(4).next_multiple_of(4)..)?;
    }
}

fn array_at<const BYTES: usize>(bytes: &[u8], at: usize) -> Option<[u8; BYTES]> {
    bytes.get(at..at + BYTES)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn neighbor_reply(state: u16, attributes: &[u8]) -> Vec<u8> {
        let total = HEADER_BYTES + MESSAGE_BYTES + attributes.len();
        let mut bytes = (total as u32).to_ne_bytes().to_vec();
        bytes.extend_from_slice(&RTM_NEWNEIGH.to_ne_bytes());
        bytes.extend_from_slice(&[0; 10]);
        bytes.extend_from_slice(&[libc::AF_INET as u8, 0, 0, 0, 3, 0, 0, 0]);
        bytes.extend_from_slice(&state.to_ne_bytes());
        bytes.extend_from_slice(&[0; 2]);
        bytes.extend_from_slice(attributes);
        bytes
    }

    const DST: [u8; 8] = [8, 0, 1, 0, 10, 0, 0, 1];
    const LLADDR: [u8; 12] = [10, 0, 2, 0, 2, 1, 2, 3, 4, 5, 0, 0];

    #[test]
    fn only_a_resolved_entry_has_an_address() {
        let attributes = [&DST[..], &LLADDR[..]].concat();
        assert_eq!(
            mac_of(&neighbor_reply(0x04, &attributes)),
            Some(mac_word([2, 1, 2, 3, 4, 5]))
        );
        assert_eq!(mac_of(&neighbor_reply(0x20, &attributes)), None, "NUD_FAILED");
        assert_eq!(mac_of(&neighbor_reply(0x40, &attributes)), None, "NUD_NOARP");
        assert_eq!(mac_of(&neighbor_reply(0x04, &DST)), None);
    }

    #[test]
    fn truncated_replies_are_refused() {
        let reply = neighbor_reply(0x02, &[&DST[..], &LLADDR[..]].concat());
        let without_padding = reply.len() - 2;
        for length in 0..without_padding {
            assert_eq!(mac_of(&reply[..length]), None, "{length} bytes");
        }
        assert_eq!(
            mac_of(&neighbor_reply(0x02, &[0, 0, 9, 0, 1, 0, 9, 0])),
            None,
            "an attribute without a length ends the search"
        );
    }
}
