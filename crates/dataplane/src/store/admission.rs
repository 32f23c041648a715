//! MAC addresses of the gateway, by interface, and source addresses that a device can have. User space writes these
//! addresses while packets flow. In `xdp`, `bpf/lw_admission.h` reads these addresses; in `host`, this module does.

use std::io;
use std::net::IpAddr;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use linewarden_protocol::frame::{Mac, ip_bytes};
use linewarden_protocol::keys::halves;
use linewarden_protocol::sources::{DeviceSources, EXCLUDED_MAX, Prefix};

use super::{ClosedSession, Region, Regions, Store, wire_word};
use crate::layout::{Control, PORT_MACS, PORTS, Port, SourceBank, Sources};

/// Represents no MAC address: a MAC address has only 48 bits.
const NO_MAC: u64 = u64::MAX;
/// Represents a removed interface: its entry can be reused, and a search continues with the next entry.
const FREED: u64 = 1 << 32;
/// A value of [`Control::ip4_prefix`] that matches no device. Zeroed memory has this value.
const NO_PREFIX: u64 = 0;
/// Number of bits before the IPv4 address in an IPv4-mapped IPv6 address (::ffff:0:0/96).
const MAPPED_BITS: u8 = 96;

/// Activates new sources. The previous bank stays unchanged for packets that are being checked. Meanwhile, the packet
/// path may combine the previous value of [`Control::ip4_prefix`] with the new value of [`Control::ip4_refused`], or
/// the reverse. The packet path may then admit an address that one of the two sets of sources refuses. Sessions at such
/// addresses are closed afterwards.
pub(super) fn activate_sources(control: &Control, sources: &DeviceSources) {
    control.ip4_prefix.store(NO_PREFIX, Release);
    let next = control.source_bank.load(Acquire).wrapping_add(1);
    let bank = control.sources.get((next & 1) as usize);
    if let Some(bank) = bank {
        fill_bank(bank, sources);
    }
    control.source_bank.store(next, Release);
    let [prefix, refused] = bank.map_or([NO_PREFIX, 0], inline_ip4);
    control.ip4_refused.store(refused, Release);
    control.ip4_prefix.store(prefix, Release);
}

/// The values of [`Control::ip4_prefix`] and [`Control::ip4_refused`] for a bank.
fn inline_ip4(bank: &SourceBank) -> [u64; 2] {
    let [v4, _] = &bank.family;
    let ipv4_word = |cells: &[AtomicU64; 2]| cells[1].load(Relaxed) >> 32;
    let ([prefix, ..], [refused0, refused1, ..]) = (&v4.prefix, &v4.address);
    if v4.is_simple.load(Relaxed) == 0 {
        return [NO_PREFIX, 0];
    }
    let host_bits = !ipv4_word(&prefix.mask) & u64::from(u32::MAX);
    let last_address = ipv4_word(&prefix.net) | host_bits;
    [
        last_address << 32 | host_bits,
        ipv4_word(refused1) << 32 | ipv4_word(refused0),
    ]
}

fn fill_bank(bank: &SourceBank, sources: &DeviceSources) {
    for (family, v4) in bank.family.iter().zip([true, false]) {
        fill(family, sources, v4);
    }
}

/// The bytes of a bank with these sources, and of [`Control::ip4_prefix`] and [`Control::ip4_refused`], for
/// comparison with the map that the kernel returns.
///
/// # Errors
/// No memory is available.
pub(crate) fn source_bytes(sources: &DeviceSources) -> io::Result<Vec<u8>> {
    let region = Region::<SourceBank>::anonymous(1)?;
    let mut bytes = Vec::with_capacity(size_of::<SourceBank>() + size_of::<[u64; 2]>());
    for bank in region.iter() {
        fill_bank(bank, sources);
        for family in &bank.family {
            let counts = [
                &family.is_simple,
                &family.loopback,
                &family.prefixes,
                &family.refused,
            ];
            bytes.extend(counts.iter().flat_map(|count| count.load(Relaxed).to_ne_bytes()));
            let prefixes = family
                .prefix
                .iter()
                .flat_map(|prefix| [&prefix.net, &prefix.mask]);
            let words = prefixes.chain(&family.address).flat_map(load);
            bytes.extend(words.flat_map(u64::to_ne_bytes));
        }
        bytes.extend(inline_ip4(bank).into_iter().flat_map(u64::to_ne_bytes));
    }
    Ok(bytes)
}

/// Fills the cells of one family. Link-local prefixes are last, because the first prefix is checked first.
fn fill(cells: &Sources, sources: &DeviceSources, v4: bool) {
    let is_of_family = |ip: IpAddr| ip.is_ipv4() == v4;
    let mut prefixes: Vec<Prefix> = sources.prefixes().to_vec();
    prefixes.retain(|prefix| is_of_family(prefix.network()));
    prefixes.sort_by_key(|prefix| is_link_local(prefix.network()));
    let refused: Vec<IpAddr> = sources
        .excluded()
        .iter()
        .copied()
        .filter(|ip| is_of_family(*ip))
        .collect();
    let zeros = std::iter::repeat([0; 2]);
    let words_of = prefixes
        .iter()
        .map(|prefix| (words(prefix.network()), mask(prefix)));
    // Unused entries are zeroed, because the memory is measured.
    for (cell, (net, mask)) in cells
        .prefix
        .iter()
        .zip(words_of.chain(zeros.clone().zip(zeros.clone())))
    {
        store(&cell.net, net);
        store(&cell.mask, mask);
    }
    let addresses = refused.iter().map(|ip| words(*ip));
    for (cell, address) in cells.address.iter().zip(addresses.chain(zeros)) {
        store(cell, address);
    }
    let loopback = if v4 {
        IpAddr::from([127, 0, 0, 1])
    } else {
        std::net::Ipv6Addr::LOCALHOST.to_canonical()
    };
    let is_simple = prefixes.first().is_some_and(|first| {
        let loopback_network = Prefix::containing(loopback, if v4 { 8 } else { 128 });
        let overlaps_loopback = first.contains(loopback)
            || loopback_network.is_some_and(|loopback_network| loopback_network.contains(first.network()));
        refused.len() <= 2 && !overlaps_loopback
    });
    cells.loopback.store(sources.admits_loopback().into(), Relaxed);
    cells.prefixes.store(count(prefixes.len()), Relaxed);
    cells.refused.store(count(refused.len()), Relaxed);
    cells.is_simple.store(is_simple.into(), Relaxed);
}

fn count(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// An address in the format of packets and sessions.
fn words(ip: IpAddr) -> [u64; 2] {
    halves(&ip_bytes(ip)).map(wire_word)
}

fn mask(prefix: &Prefix) -> [u64; 2] {
    let mapped = if prefix.network().is_ipv4() {
        MAPPED_BITS
    } else {
        0
    };
    let host_bits = 128 - u32::from(prefix.bits() + mapped);
    let bits = u128::MAX.checked_shl(host_bits).unwrap_or(0);
    halves(&bits.to_be_bytes()).map(wire_word)
}

fn store(cells: &[AtomicU64; 2], [high, low]: [u64; 2]) {
    cells[0].store(high, Relaxed);
    cells[1].store(low, Relaxed);
}

fn load(cells: &[AtomicU64; 2]) -> [u64; 2] {
    cells.each_ref().map(|cell| cell.load(Relaxed))
}

/// Whether a device can have this address: the counterpart of `lw_is_device()` for `host`. The kernel has already
/// dropped messages from addresses that name no host, and from IPv4-mapped addresses over IPv6.
pub(crate) fn admits(control: &Control, address: [u64; 2]) -> bool {
    let [high, low] = address;
    let is_mapped = high == 0 && low & 0xffff_ffff == 0xffff_0000;
    let bank = control
        .sources
        .get((control.source_bank.load(Acquire) & 1) as usize);
    let Some(sources) = bank.and_then(|bank| bank.family.get(usize::from(!is_mapped))) else {
        return false;
    };
    let is_loopback = match is_mapped {
        true => low >> 32 & 0xff == 127,
        false => high == 0,
    };
    if is_loopback && sources.loopback.load(Relaxed) == 0 {
        return false;
    }
    let prefixes = sources
        .prefix
        .iter()
        .take(sources.prefixes.load(Relaxed) as usize);
    let mut networks = prefixes.map(|prefix| (load(&prefix.net), load(&prefix.mask)));
    let refused = sources
        .address
        .iter()
        .take(sources.refused.load(Relaxed) as usize);
    sources.refused.load(Relaxed) as usize <= EXCLUDED_MAX
        && networks.any(|(net, mask)| high & mask[0] == net[0] && low & mask[1] == net[1])
        && !refused.map(load).any(|excluded| excluded == address)
}

impl Regions {
    /// See [`Store::set_port`].
    pub(crate) fn set_port(&self, ifindex: u32, macs: &[Mac]) -> bool {
        let control = self.control.first();
        let Some(port) = control.and_then(|control| port_slot(control, ifindex)) else {
            return false;
        };
        for (cell, mac) in port.mac.iter().zip(mac_words(macs)) {
            // An unchanged value stays in the caches of the packet path.
            if cell.load(Relaxed) != mac {
                cell.store(mac, Relaxed);
            }
        }
        if port.ifindex.load(Relaxed) != u64::from(ifindex) {
            port.ifindex.store(ifindex.into(), Release);
        }
        true
    }
}

/// The first [`PORT_MACS`] of these MAC addresses, in the format of [`Port`].
pub(crate) fn mac_words(macs: &[Mac]) -> [u64; PORT_MACS] {
    let word = |[a, b, c, d, e, f]: &Mac| u64::from_le_bytes([*a, *b, *c, *d, *e, *f, 0, 0]);
    std::array::from_fn(|index| macs.get(index).map_or(NO_MAC, word))
}

impl Store {
    /// Sets the MAC addresses of an interface on the devices' side: first its own, then those of interfaces that
    /// receive its frames. At most [`PORT_MACS`] are used. Returns `false` if the table of interfaces is full.
    pub fn set_port(&self, ifindex: u32, macs: &[Mac]) -> bool {
        self.regions.set_port(ifindex, macs)
    }

    /// As [`Admission::set_sources`](crate::Admission::set_sources), while packets flow.
    pub fn set_sources(&self, sources: &DeviceSources) -> Vec<ClosedSession> {
        if let Some(control) = self.regions.control.first() {
            activate_sources(control, sources);
        }
        self.close_sessions_at(|address| sources.is_own_address(address))
    }

    /// Removes all other interfaces: adopted memory also contains the interfaces of the earlier process.
    pub(crate) fn keep_ports(&self, interfaces: &[u32]) {
        for port in self.regions.control.iter().flat_map(|control| &control.port) {
            let ifindex = port.ifindex.load(Acquire);
            let is_kept = interfaces
                .iter()
                .any(|kept_ifindex| u64::from(*kept_ifindex) == ifindex);
            if ifindex != 0 && !is_kept {
                port.ifindex.store(FREED, Release);
            }
        }
    }
}

/// The entry of the interface, or a free one.
fn port_slot(control: &Control, ifindex: u32) -> Option<&Port> {
    let first = ifindex as usize;
    let entries = || (0..PORTS).filter_map(move |offset| control.port.get((first + offset) % PORTS));
    let holds = |port: &&Port, number: u64| port.ifindex.load(Acquire) == number;
    let own = entries().find(|port| holds(port, ifindex.into()));
    own.or_else(|| entries().find(|port| holds(port, 0) || holds(port, FREED)))
}

#[cfg(test)]
mod tests {
    use linewarden_protocol::sources::OwnAddress;

    use super::*;
    use crate::store::Region;

    fn control() -> Region<Control> {
        Region::anonymous(1).unwrap()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// The compared addresses are at the edges of prefixes, of refused addresses, and of the families.
    #[test]
    fn memory_admits_the_same_addresses_as_the_sources() {
        let region = control();
        let control = &region[0];
        assert!(
            !admits(control, words(ip("10.66.0.1"))),
            "no device is admitted before the sources are set"
        );
        for address in ["0.0.0.0", "0.0.0.1", "10.66.0.1", "255.255.255.255"] {
            assert!(!passes_inline_check(control, ip(address)));
        }
        let many: Vec<String> = (0..14).map(|n| format!("10.{n}.64.0/18")).collect();
        let sets: Vec<Vec<&str>> = vec![
            vec!["10.66.0.0/16", "fd66::/64", "fe80::/10"],
            vec!["0.0.0.0/0", "::/0"],
            vec![
                "fe80::/10",
                "127.0.0.0/8",
                "::1/128",
                "10.66.0.4/30",
                "10.66.0.8/31",
                "10.66.0.254/32",
            ],
            many.iter()
                .map(String::as_str)
                .chain(["fd66::/16", "126.0.0.0/7"])
                .collect(),
            vec![],
        ];
        let locals: [&[&str]; 2] = [&["10.66.0.254", "fd66::fe"], &["127.0.0.1", "::1"]];
        let own_addresses: Vec<OwnAddress> = (1..20u8)
            .map(|n| OwnAddress::host([10, 66, 0, n * 9].into()))
            .collect();
        let many_addresses: Vec<OwnAddress> = (0..70u8)
            .map(|n| OwnAddress::host([10, 66, 1, n].into()))
            .collect();
        let addresses = [
            "10.66.0.1",
            "10.66.0.3",
            "10.66.0.4",
            "10.66.0.7",
            "10.66.0.8",
            "10.66.0.9",
            "10.66.0.254",
            "10.66.255.255",
            "10.67.0.0",
            "10.3.64.0",
            "10.3.127.254",
            "10.3.127.255",
            "10.3.128.0",
            "126.0.0.1",
            "127.0.0.1",
            "127.9.9.9",
            "8.8.8.8",
            "1.0.0.0",
            "223.255.255.255",
            "::1",
            "fe80::1",
            "febf::1",
            "fec0::1",
            "fd66::fe",
            "fd66::1",
            "fd66:0:0:1::1",
            "2001:db8::1",
        ];
        let mut any_passed_inline = false;
        for set in &sets {
            let prefixes: Vec<Prefix> = set.iter().map(|text| text.parse().unwrap()).collect();
            for (local, own_addresses) in locals.iter().flat_map(|local| {
                [
                    (local, &own_addresses[..1]),
                    (local, &own_addresses[..]),
                    (local, &many_addresses[..]),
                ]
            }) {
                let local: Vec<IpAddr> = local.iter().map(|text| ip(text)).collect();
                let sources = DeviceSources::new(&prefixes, &local, own_addresses);
                activate_sources(control, &sources);
                for address in addresses.map(ip) {
                    let expected = sources.admits(address);
                    assert_eq!(
                        admits(control, words(address)),
                        expected,
                        "{address}, {set:?}, {local:?}"
                    );
                    let passed_inline = address.is_ipv4() && passes_inline_check(control, address);
                    assert!(!passed_inline || expected, "{address}, {set:?}, {local:?}");
                    any_passed_inline |= passed_inline;
                }
            }
        }
        assert!(any_passed_inline);
    }

    /// Evaluates [`Control::ip4_prefix`] and [`Control::ip4_refused`] like `lw_is_device()`.
    fn passes_inline_check(control: &Control, address: IpAddr) -> bool {
        let parts = |word: &AtomicU64| [word.load(Relaxed) >> 32, word.load(Relaxed) & 0xffff_ffff];
        let [last_address, host_bits] = parts(&control.ip4_prefix);
        let [_, source] = words(address).map(|word| word >> 32);
        source | host_bits == last_address && !parts(&control.ip4_refused).contains(&source)
    }

    #[test]
    fn interfaces_get_entries_until_all_are_in_use() {
        let region = control();
        let numbers: Vec<u32> = (0..PORTS as u32).map(|n| 7 + n / 2 * 64 + n % 2).collect();
        for number in &numbers {
            let port = port_slot(&region[0], *number).unwrap();
            port.ifindex.store((*number).into(), Release);
        }
        for number in &numbers {
            assert_eq!(
                port_slot(&region[0], *number).unwrap().ifindex.load(Acquire),
                u64::from(*number)
            );
        }
        assert!(port_slot(&region[0], 5).is_none());
        let removed = port_slot(&region[0], numbers[3]).unwrap();
        removed.ifindex.store(FREED, Release);
        assert_eq!(
            port_slot(&region[0], numbers[9]).unwrap().ifindex.load(Acquire),
            u64::from(numbers[9])
        );
        assert!(std::ptr::eq(port_slot(&region[0], 5).unwrap(), removed));
    }
}
