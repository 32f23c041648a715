//! The source of a message, to which the scheduler charges lane time.

use std::hash::{Hash as _, Hasher as _};
use std::net::{IpAddr, Ipv6Addr};

use siphasher::sip::SipHasher13;

use crate::message::KeyId;
use crate::scheduler::Source;

/// The part of an address that lane time is charged to. For IPv6 this is the first 64 bits, since a host chooses the rest. A link-local
/// address counts as a whole, since all hosts on a link have the same first half.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if address.is_unicast_link_local() => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

/// Two hashes that identify where a message comes from.
pub(crate) struct Origin {
    /// The network of the address.
    pub source: Source,
    /// The network of the address, together with the signer that the message names.
    pub sender: Source,
}

impl Origin {
    /// The hashes are keyed with `secret`, so that an attacker cannot choose colliding origins.
    pub(crate) fn from_address(address: IpAddr, key: KeyId, secret: &[u8; 16]) -> Self {
        let mut hasher = SipHasher13::new_with_key(secret);
        network(address).hash(&mut hasher);
        let source = Source(hasher.finish());
        key.0.hash(&mut hasher);
        Self {
            source,
            sender: Source(hasher.finish()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_addresses_of_a_host_have_one_network() {
        let network_of = |text: &str| network(text.parse().unwrap());
        assert_eq!(
            network_of("2001:db8:1:2::1"),
            network_of("2001:db8:1:2:ffff:ffff:ffff:ffff")
        );
        assert_ne!(network_of("2001:db8:1:2::1"), network_of("2001:db8:1:3::1"));
        assert_ne!(network_of("fe80::1"), network_of("fe80::2"));
        assert_eq!(network_of("::ffff:192.0.2.1"), network_of("192.0.2.1"));
        assert_ne!(network_of("192.0.2.1"), network_of("192.0.2.2"));
    }
}
