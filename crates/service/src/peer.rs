//! Who is at the other end of a connection, as far as the handshake tells.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use linewarden_link::gateway_of;
use linewarden_protocol::ids::GatewayId;
use x509_parser::extensions::GeneralName;
use x509_parser::parse_x509_certificate;

const PREFIX: &str = "urn:linewarden:user:";

/// The other end.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    /// Whose certificate it has shown: a gateway's ..
    pub(crate) gateway: Option<GatewayId>,
    /// .. or a user's.
    pub(crate) user: Option<String>,
    /// When that certificate ends.
    pub(crate) expires_s: Option<u64>,
}

impl Peer {
    /// By the certificate (DER) that was shown and found to be of our CA.
    pub(crate) fn new(address: SocketAddr, certificate: Option<&[u8]>) -> Self {
        Self {
            address,
            gateway: certificate.and_then(gateway_of),
            user: certificate.and_then(user_of),
            expires_s: certificate.map(expiry_of),
        }
    }

    /// Who has its address.
    pub(crate) fn owner(&self) -> IpAddr {
        owner(self.address.ip())
    }
}

/// Who has an address, as far as it tells: of IPv6 everybody has all the addresses of one prefix of 64 bits.
pub(crate) fn owner(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & u128::MAX << 64).into(),
        address => address,
    }
}

/// Whether a host is this machine, whatever a name server says.
pub(crate) fn is_here(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    match address.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().is_loopback(),
        Err(_) => host.eq_ignore_ascii_case("localhost"),
    }
}

/// When a certificate (DER) ends; 0 for what is none, which no handshake lets through.
fn expiry_of(certificate: &[u8]) -> u64 {
    let parsed = parse_x509_certificate(certificate);
    let ends = parsed.map(|(_, certificate)| certificate.validity().not_after.timestamp());
    ends.map_or(0, |at_s| u64::try_from(at_s).unwrap_or(0))
}

/// What stands in the subject alternative names of a user's certificate.
#[must_use]
pub fn user_uri(name: &str) -> String {
    format!("{PREFIX}{name}")
}

/// From when until when a certificate (DER) is good, seconds since 1970-01-01 UTC.
#[must_use]
pub fn validity_s(certificate: &[u8]) -> Option<(i64, i64)> {
    let (_, certificate) = parse_x509_certificate(certificate).ok()?;
    let validity = certificate.validity();
    Some((validity.not_before.timestamp(), validity.not_after.timestamp()))
}

/// The user that a certificate (DER) names; `None` if it names none, or more than one.
#[must_use]
pub fn user_of(certificate: &[u8]) -> Option<String> {
    let (_, certificate) = parse_x509_certificate(certificate).ok()?;
    let names = certificate.subject_alternative_name().ok()??;
    let mut users = names.value.general_names.iter().filter_map(|name| match name {
        GeneralName::URI(uri) => uri.strip_prefix(PREFIX),
        _ => None,
    });
    let user = users.next().filter(|user| !user.is_empty())?;
    users.next().is_none().then(|| user.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_addresses_of_one_prefix_have_one_owner() {
        let owner = |text: &str| owner(text.parse().unwrap());
        assert_eq!(owner("2001:db8::1"), owner("2001:db8::ffff:2"));
        assert_ne!(owner("2001:db8::1"), owner("2001:db8:0:1::1"));
        assert_eq!(owner("::ffff:192.0.2.1"), owner("192.0.2.1"));
        assert_ne!(owner("192.0.2.1"), owner("192.0.2.2"));
    }
}
