//! The source addresses that devices may have (LAP/1 1.4.13): addresses inside the device prefixes, except the
//! addresses of the gateway's machine, broadcast addresses, and addresses that name no host.

use alloc::vec::Vec;
use core::fmt;
use core::net::{IpAddr, Ipv4Addr};
use core::str::FromStr;

use crate::frame::is_host_address;

/// Maximum number of device prefixes.
pub const PREFIXES_MAX: usize = 16;
/// Maximum number of excluded addresses of one family inside the prefixes.
pub const EXCLUDED_MAX: usize = 64;

/// An address prefix (RFC 4632 3.1, RFC 4291 2.3). The host bits are zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Prefix {
    network: IpAddr,
    bits: u8,
}

/// Why a text is not a prefix.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PrefixError {
    /// Not of the form `ADDRESS/BITS`.
    #[error("invalid prefix: expected ADDRESS/BITS, such as 192.0.2.0/24 or 2001:db8::/32")]
    Syntax,
    /// More bits than an address of the family has.
    #[error("invalid prefix length: the maximum of this family is {0} bits")]
    Length(u8),
    /// Host bits are set.
    #[error("invalid prefix: host bits are set; write {0}")]
    HostBits(Prefix),
}

impl Prefix {
    /// The prefix of this length that contains an address; `None` if the address has fewer bits.
    #[must_use]
    pub fn containing(address: IpAddr, bits: u8) -> Option<Self> {
        let width = width(address);
        let host_bits = width.checked_sub(bits)?;
        let network = match address {
            IpAddr::V4(v4) => {
                let mask = u32::MAX.checked_shl(host_bits.into()).unwrap_or(0);
                IpAddr::V4((v4.to_bits() & mask).into())
            }
            IpAddr::V6(v6) => {
                let mask = u128::MAX.checked_shl(host_bits.into()).unwrap_or(0);
                IpAddr::V6((v6.to_bits() & mask).into())
            }
        };
        Some(Self { network, bits })
    }

    /// The prefix's first address.
    #[must_use]
    pub fn network(&self) -> IpAddr {
        self.network
    }

    /// The prefix's length, bits.
    #[must_use]
    pub fn bits(&self) -> u8 {
        self.bits
    }

    /// Whether the prefix contains the address; `false` if their families differ.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        Self::containing(address, self.bits).is_some_and(|prefix| prefix.network == self.network)
    }

    /// Whether this prefix contains all addresses of another prefix.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        self.bits <= other.bits && self.contains(other.network)
    }

    /// The subnet-directed broadcast address (RFC 919); `None` for IPv6, and for an IPv4 prefix of 31 or 32 bits (RFC
    /// 3021).
    #[must_use]
    pub fn broadcast(&self) -> Option<Ipv4Addr> {
        match self.network {
            IpAddr::V4(v4) if self.bits < 31 => Some((v4.to_bits() | u32::MAX >> self.bits).into()),
            _ => None,
        }
    }
}

fn width(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

impl FromStr for Prefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Self, PrefixError> {
        let (address, bits) = text.split_once('/').ok_or(PrefixError::Syntax)?;
        let address: IpAddr = address.parse().map_err(|_| PrefixError::Syntax)?;
        if bits.is_empty() || !bits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(PrefixError::Syntax);
        }
        let bits = bits.parse().map_err(|_| PrefixError::Length(width(address)))?;
        let prefix = Self::containing(address, bits).ok_or(PrefixError::Length(width(address)))?;
        match prefix.network == address {
            true => Ok(prefix),
            false => Err(PrefixError::HostBits(prefix)),
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.bits)
    }
}

/// An address of the gateway's machine, and its subnet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwnAddress {
    /// The address.
    pub address: IpAddr,
    /// Its subnet.
    pub subnet: Prefix,
}

impl OwnAddress {
    /// An address without a subnet, as a /32 or /128.
    #[must_use]
    pub fn host(address: IpAddr) -> Self {
        let bits = width(address);
        let network = address;
        let subnet = Prefix { network, bits };
        Self { address, subnet }
    }
}

/// The allowed source addresses of REQUESTs and RESPONSEs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DeviceSources {
    prefixes: Vec<Prefix>,
    /// Sorted: the machine's addresses, and broadcast addresses of its subnets.
    own_addresses: Vec<IpAddr>,
    /// The part of `own_addresses` inside the prefixes.
    excluded: Vec<IpAddr>,
    /// Whether more IPv4 addresses, and more IPv6 addresses, are excluded than data planes have room for.
    overflows: [bool; 2],
    admits_loopback: bool,
    follows_interfaces: bool,
}

impl DeviceSources {
    /// `local`: the gateway's addresses, which devices send to; `others`: further addresses of its machine. A gateway
    /// that has only loopback addresses (or the unspecified address, which means all) serves devices on its own
    /// machine: loopback sources are then admitted, if the prefixes contain them. Only the last addresses of the
    /// machine's subnets are broadcast addresses. The last address of a prefix counts as a host address, because a
    /// prefix can be a part of a subnet.
    #[must_use]
    pub fn new(prefixes: &[Prefix], local: &[IpAddr], others: &[OwnAddress]) -> Self {
        let admits_loopback =
            !local.is_empty() && local.iter().all(|ip| ip.is_loopback() || ip.is_unspecified());
        let is_inside = |address: &IpAddr| prefixes.iter().any(|prefix| prefix.contains(*address));
        let addresses = local.iter().copied().chain(others.iter().map(|own| own.address));
        let addresses = addresses.filter(|ip| !(admits_loopback && ip.is_loopback()));
        let broadcast = others.iter().filter_map(|own| own.subnet.broadcast());
        let mut own_addresses: Vec<IpAddr> = addresses.chain(broadcast.map(IpAddr::V4)).collect();
        own_addresses.sort_unstable();
        own_addresses.dedup();
        let excluded: Vec<IpAddr> = own_addresses.iter().copied().filter(is_inside).collect();
        let overflows = [true, false].map(|v4| {
            let of_family = excluded.iter().filter(|ip| ip.is_ipv4() == v4);
            of_family.count() > EXCLUDED_MAX
        });
        Self {
            prefixes: prefixes.to_vec(),
            own_addresses,
            excluded,
            overflows,
            admits_loopback,
            follows_interfaces: false,
        }
    }

    /// Marks the prefixes as subnets of the machine's interfaces, not from the configuration.
    #[must_use]
    pub fn following_interfaces(self) -> Self {
        Self {
            follows_interfaces: true,
            ..self
        }
    }

    /// Whether the prefixes come from the subnets of the machine's interfaces.
    #[must_use]
    pub fn follows_interfaces(&self) -> bool {
        self.follows_interfaces
    }

    /// Whether the prefixes contain the address, whichever host has it.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.prefixes.iter().any(|prefix| prefix.contains(address))
    }

    /// The prefixes that sources must be in.
    #[must_use]
    pub fn prefixes(&self) -> &[Prefix] {
        &self.prefixes
    }

    /// Addresses inside the prefixes that no device may have: the gateway's own, and broadcast addresses of the
    /// machine's subnets.
    #[must_use]
    pub fn excluded(&self) -> &[IpAddr] {
        &self.excluded
    }

    /// Whether more than [`EXCLUDED_MAX`] addresses of a family (IPv4 if `v4`, else IPv6) are excluded. In this case, no
    /// source of this family is admitted.
    #[must_use]
    pub fn overflows(&self, v4: bool) -> bool {
        let [of_v4, of_v6] = self.overflows;
        if v4 { of_v4 } else { of_v6 }
    }

    /// Whether an address is the machine's, or a broadcast address of its subnets, inside the prefixes or not.
    #[must_use]
    pub fn is_own_address(&self, address: IpAddr) -> bool {
        self.own_addresses.binary_search(&address).is_ok()
    }

    /// Whether loopback addresses are admitted at all.
    #[must_use]
    pub fn admits_loopback(&self) -> bool {
        self.admits_loopback
    }

    /// Whether a device can have this address.
    #[must_use]
    pub fn admits(&self, source: IpAddr) -> bool {
        is_host_address(source)
            && (self.admits_loopback || !source.is_loopback())
            && self.contains(source)
            && !self.overflows(source.is_ipv4())
            && !self.is_own_address(source)
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString as _;

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn host_only(text: &str) -> OwnAddress {
        OwnAddress::host(ip(text))
    }

    fn prefixes(texts: &[&str]) -> Vec<Prefix> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn a_prefix_is_read_and_written() {
        for text in [
            "10.66.0.0/16",
            "0.0.0.0/0",
            "192.0.2.1/32",
            "::/0",
            "fe80::/10",
            "2001:db8::1/128",
        ] {
            assert_eq!(text.parse::<Prefix>().unwrap().to_string(), text);
        }
        for text in [
            "10.0.0.0",
            "10.0.0.0/",
            "10.0.0.0/+8",
            "10.0/8",
            "host/8",
            "10.0.0.0/8/8",
            "/8",
            "",
        ] {
            assert_eq!(text.parse::<Prefix>(), Err(PrefixError::Syntax), "{text}");
        }
        assert_eq!("10.0.0.0/33".parse::<Prefix>(), Err(PrefixError::Length(32)));
        assert_eq!("10.0.0.0/999".parse::<Prefix>(), Err(PrefixError::Length(32)));
        assert_eq!("::/129".parse::<Prefix>(), Err(PrefixError::Length(128)));
        let error = "10.66.0.1/16".parse::<Prefix>().unwrap_err().to_string();
        assert!(error.contains("10.66.0.0/16"), "{error}");
    }

    #[test]
    fn a_prefix_contains_its_addresses_and_none_of_the_other_family() {
        let [v4, all4, all6, one6] = prefixes(&["10.66.0.0/17", "0.0.0.0/0", "::/0", "2001:db8::1/128"])[..]
        else {
            panic!("four");
        };
        assert!(v4.contains(ip("10.66.127.255")) && !v4.contains(ip("10.66.128.0")));
        assert!(all4.contains(ip("255.255.255.255")) && !all4.contains(ip("::ffff:1.2.3.4")));
        assert!(all6.contains(ip("ff02::1")) && !all6.contains(ip("1.2.3.4")));
        assert!(one6.contains(ip("2001:db8::1")) && !one6.contains(ip("2001:db8::2")));
        assert_eq!(v4.broadcast(), Some([10, 66, 127, 255].into()));
        assert_eq!(all4.broadcast(), Some(Ipv4Addr::BROADCAST));
        assert_eq!(prefixes(&["10.0.0.0/31"])[0].broadcast(), None);
        assert_eq!(one6.broadcast(), None);
    }

    /// Even a prefix that covers all addresses does not admit addresses that no device may have.
    #[test]
    fn no_prefix_admits_addresses_that_no_device_may_have() {
        let everything = prefixes(&["0.0.0.0/0", "::/0", "10.66.0.0/16"]);
        let own = ["10.66.0.254", "fd66::fe"].map(ip);
        let link = OwnAddress {
            address: own[0],
            subnet: everything[2],
        };
        let others = [host_only("10.77.0.1"), host_only("fe80::1"), link];
        let sources = DeviceSources::new(&everything, &own, &others);
        for never in [
            "10.66.0.254",
            "fd66::fe",
            "10.77.0.1",
            "fe80::1",
            "127.0.0.1",
            "127.255.255.254",
            "::1",
            "0.0.0.0",
            "0.1.2.3",
            "::",
            "::2",
            "::ffff:10.66.0.9",
            "224.0.0.1",
            "239.1.1.1",
            "240.0.0.1",
            "255.255.255.255",
            "ff02::1",
            "10.66.255.255",
        ] {
            assert!(!sources.admits(ip(never)), "{never}");
        }
        for device in [
            "10.66.0.1",
            "10.66.0.0",
            "8.8.8.8",
            "fe80::2",
            "2001:db8::1",
            "128.0.0.1",
        ] {
            assert!(sources.admits(ip(device)), "{device}");
        }
        let none = DeviceSources::new(&[], &own, &[]);
        assert!(!none.admits(ip("10.66.0.1")) && !DeviceSources::default().admits(ip("fd66::1")));
    }

    #[test]
    fn broadcast_addresses_are_those_of_the_machines_subnets() {
        let own = |address: &str, subnet: &str| OwnAddress {
            address: ip(address),
            subnet: subnet.parse().unwrap(),
        };
        let machine = [
            own("192.0.2.1", "192.0.2.0/24"),
            own("198.51.100.0", "198.51.100.0/31"),
            own("203.0.113.7", "203.0.113.7/32"),
        ];
        let refused = |texts: &[&str]| -> Vec<IpAddr> {
            let sources = DeviceSources::new(&prefixes(texts), &[ip("192.0.2.1")], &machine);
            sources.excluded().to_vec()
        };
        // Parts of the subnet, and prefixes behind a router.
        let narrow = ["192.0.2.64/26", "192.0.2.192/26", "198.18.0.0/15", "10.1.0.0/25"];
        assert_eq!(refused(&narrow), [ip("192.0.2.255")]);
        // RFC 3021: two hosts, and one.
        let all = ["192.0.2.1", "192.0.2.255", "198.51.100.0", "203.0.113.7"];
        assert_eq!(refused(&["0.0.0.0/0"]), all.map(ip));
        let everything = DeviceSources::new(&prefixes(&["0.0.0.0/0"]), &[], &machine);
        assert!(everything.admits(ip("198.51.100.1")) && !everything.admits(ip("255.255.255.255")));
    }

    #[test]
    fn only_a_gateway_with_only_loopback_addresses_serves_loopback_devices() {
        let prefixes = prefixes(&["127.0.0.0/8", "::1/128", "10.0.0.0/8"]);
        for local in [&["127.0.0.1", "::1"][..], &["0.0.0.0"]] {
            let local: Vec<IpAddr> = local.iter().map(|text| ip(text)).collect();
            let sources = DeviceSources::new(&prefixes, &local, &[host_only("10.0.0.1")]);
            assert!(
                ["127.0.0.1", "127.4.5.6", "::1"]
                    .map(ip)
                    .iter()
                    .all(|ip| sources.admits(*ip))
            );
            assert!(!sources.admits(ip("10.0.0.1")) && sources.admits(ip("10.0.0.2")));
        }
        let mixed = DeviceSources::new(&prefixes, &["127.0.0.1", "10.0.0.1"].map(ip), &[]);
        assert!(!mixed.admits(ip("127.4.5.6")));
        let none = DeviceSources::new(&prefixes, &[], &[]);
        assert!(!none.admits_loopback() && !none.admits(ip("127.4.5.6")) && none.admits(ip("10.0.0.1")));
    }
}
