//! The addresses in the lab.
//!
//! A simulated device is an index. The MAC, IPv4 and IPv6 addresses are computed from the index, and the index from any of the
//! addresses. So no packet needs a lookup, and an eBPF program can compute the addresses, too.
//!
//! | station | MAC | IPv4 | IPv6 |
//! |---|---|---|---|
//! | device `i` | 02:00:`i` as 4 bytes | 10.66.1.0 + `i` | fd66::1:0:0 + `i` |
//! | gateway, devices' side | 02:4c:57:00:00:01 | 10.66.0.1/16 | fd66::1/64 |
//! | a host on the devices' side | 02:4c:57:00:00:fe | 10.66.0.254/16 | fd66::fe/64 |
//! | gateway, service side | 02:4c:57:00:00:02 | 10.77.0.1/24 | fd77::1/64 |
//! | service | 02:4c:57:00:00:03 | 10.77.0.2/24 | fd77::2/64 |
//!
//! With a switch ([`crate::topology::ForwardingMode::Switch`]) gateway and service are one station, which has the gateway's
//! MAC address. The switch's two interfaces are 02:4c:57:00:00:04 and :05; no frame is sent to them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use linewarden_protocol::frame::write::Endpoint;
use linewarden_protocol::sources::{OwnAddress, Prefix};

/// An Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An IP version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// A station of the lab that is not a simulated device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Station {
    /// Ethernet address.
    pub mac: Mac,
    /// IPv4 address.
    pub v4: Ipv4Addr,
    /// IPv6 address.
    pub v6: Ipv6Addr,
}

impl Station {
    const fn new(last_mac: u8, v4: Ipv4Addr, v6: Ipv6Addr) -> Self {
        Self {
            mac: Mac([0x02, 0x4c, 0x57, 0, 0, last_mac]),
            v4,
            v6,
        }
    }

    /// The endpoint of the station at a UDP port.
    #[must_use]
    pub const fn endpoint(&self, family: Family, port: u16) -> Endpoint {
        Endpoint {
            mac: self.mac.0,
            ip: match family {
                Family::V4 => IpAddr::V4(self.v4),
                Family::V6 => IpAddr::V6(self.v6),
            },
            port,
        }
    }
}

/// The gateway as the devices see it.
pub const GATEWAY: Station = Station::new(
    1,
    Ipv4Addr::new(10, 66, 0, 1),
    Ipv6Addr::new(0xfd66, 0, 0, 0, 0, 0, 0, 1),
);
/// The gateway as the service sees it.
pub const GATEWAY_SERVICE_SIDE: Station = Station::new(
    2,
    Ipv4Addr::new(10, 77, 0, 1),
    Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1),
);
/// The service behind the gate.
pub const SERVICE: Station = Station::new(
    3,
    Ipv4Addr::new(10, 77, 0, 2),
    Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2),
);
/// The switch's interfaces, towards the devices and towards the service.
pub const SWITCH: [Mac; 2] = [Mac([0x02, 0x4c, 0x57, 0, 0, 4]), Mac([0x02, 0x4c, 0x57, 0, 0, 5])];
/// The ordinary host on the devices' side, if the topology has one.
pub const DEVICE_HOST: Station = Station::new(
    0xfe,
    Ipv4Addr::new(10, 66, 0, 254),
    Ipv6Addr::new(0xfd66, 0, 0, 0, 0, 0, 0, 0xfe),
);

/// Number of device addresses in 10.66.0.0/16, including attackers. Larger fleets work only with a data plane that needs no route
/// back (`xdp`); their IPv4 addresses continue above 10.66.255.255.
pub const DEVICES_MAX: u32 = 65_024;
/// First index of attackers; their last index is below [`DEVICES_MAX`].
pub const FIRST_ATTACKER: u32 = 64_000;

/// The devices' subnets in the lab's network.
#[must_use]
pub fn link_prefixes() -> Vec<Prefix> {
    prefixes(&[(GATEWAY.v4.into(), 16), (GATEWAY.v6.into(), 64)])
}

/// The prefixes of fleets larger than [`DEVICES_MAX`].
#[must_use]
pub fn fleet_prefixes() -> Vec<Prefix> {
    prefixes(&[(GATEWAY.v4.into(), 8), (GATEWAY.v6.into(), 64)])
}

/// The prefix of devices that are sockets on the loopback interface.
#[must_use]
pub fn loopback_prefixes() -> Vec<Prefix> {
    prefixes(&[(Ipv4Addr::LOCALHOST.into(), 8)])
}

fn prefixes(networks: &[(IpAddr, u8)]) -> Vec<Prefix> {
    let prefix = |(address, bits): &(IpAddr, u8)| Prefix::containing(*address, *bits);
    networks.iter().filter_map(prefix).collect()
}

/// All addresses of the gateway, with the lab's subnets.
#[must_use]
pub fn gateway_addresses() -> Vec<OwnAddress> {
    let addresses = [
        (GATEWAY.v4.into(), 16),
        (GATEWAY.v6.into(), 64),
        (GATEWAY_SERVICE_SIDE.v4.into(), 24),
        (GATEWAY_SERVICE_SIDE.v6.into(), 64),
    ];
    let own_address = |(address, bits)| {
        Some(OwnAddress {
            address,
            subnet: Prefix::containing(address, bits)?,
        })
    };
    addresses.into_iter().filter_map(own_address).collect()
}

const DEVICE_V4_BASE: u32 = u32::from_be_bytes([10, 66, 1, 0]);
const DEVICE_V6_BASE: u128 = 0xfd66_0000_0000_0000_0000_0001_0000_0000;

/// A simulated device's addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceAddress {
    /// Index of the device.
    pub index: u32,
}

impl DeviceAddress {
    /// Addresses of the device with that index.
    #[must_use]
    pub const fn new(index: u32) -> Self {
        Self { index }
    }

    /// Ethernet address.
    #[must_use]
    pub const fn mac(self) -> Mac {
        let [a, b, c, d] = self.index.to_be_bytes();
        Mac([2, 0, a, b, c, d])
    }

    /// IPv4 address.
    #[must_use]
    pub const fn v4(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(DEVICE_V4_BASE.wrapping_add(self.index))
    }

    /// IPv6 address.
    #[must_use]
    pub const fn v6(self) -> Ipv6Addr {
        Ipv6Addr::from_bits(DEVICE_V6_BASE + self.index as u128)
    }

    /// The endpoint of the device at a UDP port.
    #[must_use]
    pub const fn endpoint(self, family: Family, port: u16) -> Endpoint {
        Endpoint {
            mac: self.mac().0,
            ip: match family {
                Family::V4 => IpAddr::V4(self.v4()),
                Family::V6 => IpAddr::V6(self.v6()),
            },
            port,
        }
    }

    /// The device with that Ethernet address, if the address belongs to a device.
    #[must_use]
    pub const fn from_mac(mac: Mac) -> Option<Self> {
        match mac.0 {
            [2, 0, a, b, c, d] => Some(Self::new(u32::from_be_bytes([a, b, c, d]))),
            _ => None,
        }
    }

    /// The device with that IP address, if the address is in the range of device addresses.
    #[must_use]
    pub fn from_ip(ip: IpAddr) -> Option<Self> {
        let index = match ip {
            IpAddr::V4(v4) => v4.to_bits().checked_sub(DEVICE_V4_BASE)?,
            IpAddr::V6(v6) => u32::try_from(v6.to_bits().checked_sub(DEVICE_V6_BASE)?).ok()?,
        };
        Some(Self::new(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_maps_back_to_its_index() {
        for index in [0, 1, 255, 256, 63_999, DEVICES_MAX - 1, 1_000_000] {
            let address = DeviceAddress::new(index);
            assert_eq!(DeviceAddress::from_mac(address.mac()), Some(address));
            assert_eq!(DeviceAddress::from_ip(address.v4().into()), Some(address));
            assert_eq!(DeviceAddress::from_ip(address.v6().into()), Some(address));
        }
    }

    #[test]
    fn the_last_device_is_still_inside_the_devices_network() {
        assert_eq!(
            DeviceAddress::new(DEVICES_MAX - 1).v4(),
            Ipv4Addr::new(10, 66, 254, 255)
        );
        assert_eq!(DeviceAddress::new(0).mac().to_string(), "02:00:00:00:00:00");
    }

    #[test]
    fn station_addresses_are_not_device_addresses() {
        for station in [GATEWAY, GATEWAY_SERVICE_SIDE, SERVICE, DEVICE_HOST] {
            assert_eq!(DeviceAddress::from_mac(station.mac), None);
            assert_eq!(DeviceAddress::from_ip(station.v6.into()).map(|d| d.index), None);
        }
        assert_eq!(DeviceAddress::from_ip(GATEWAY.v4.into()), None);
    }
}
