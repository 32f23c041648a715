//! Identity of the peer of a connection, from the TLS handshake.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use linewarden_link::gateway_of;
use linewarden_protocol::ids::GatewayId;
use x509_parser::extensions::GeneralName;
use x509_parser::parse_x509_certificate;

/// Start of the URI that names a user in a certificate.
const USER_URI_PREFIX: &str = "urn:linewarden:user:";

/// The peer of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    /// The gateway that the peer's certificate names, if any.
    pub(crate) gateway: Option<GatewayId>,
    /// The user that the peer's certificate names, if any.
    pub(crate) user: Option<String>,
    /// Expiry of the peer's certificate, seconds since 1970-01-01 UTC; `None` without a certificate.
    pub(crate) expires_at_s: Option<u64>,
}

impl Peer {
    /// Identifies the peer by its certificate (DER), which the handshake has verified.
    pub(crate) fn new(address: SocketAddr, certificate: Option<&[u8]>) -> Self {
        Self {
            address,
            gateway: certificate.and_then(gateway_of),
            user: certificate.and_then(user_from_certificate),
            expires_at_s: certificate.map(certificate_expiry),
        }
    }

    /// The owner of the peer's address, see [`address_owner`].
    pub(crate) fn address_owner(&self) -> IpAddr {
        address_owner(self.address.ip())
    }
}

/// The owner of an address for rate limits: the address itself for IPv4, the /64 prefix for IPv6.
pub(crate) fn address_owner(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & u128::MAX << 64).into(),
        address => address,
    }
}

/// Whether a host is the local machine, without name resolution.
pub(crate) fn is_local_host(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    match address.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().is_loopback(),
        Err(_) => host.eq_ignore_ascii_case("localhost"),
    }
}

/// Expiry of a certificate (DER), seconds since 1970-01-01 UTC. A certificate that cannot be parsed counts as expired (0),
/// although the handshake already refuses it.
fn certificate_expiry(certificate: &[u8]) -> u64 {
    let parsed = parse_x509_certificate(certificate);
    let expiry = parsed.map(|(_, certificate)| certificate.validity().not_after.timestamp());
    expiry.map_or(0, |at_s| u64::try_from(at_s).unwrap_or(0))
}

/// The URI that names the user in the subject alternative names of a certificate.
#[must_use]
pub fn user_uri(name: &str) -> String {
    format!("{USER_URI_PREFIX}{name}")
}

/// Start and end of the validity of a certificate (DER), seconds since 1970-01-01 UTC; `None` if it cannot be parsed.
#[must_use]
pub fn validity_s(certificate: &[u8]) -> Option<(i64, i64)> {
    let (_, certificate) = parse_x509_certificate(certificate).ok()?;
    let validity = certificate.validity();
    Some((validity.not_before.timestamp(), validity.not_after.timestamp()))
}

/// The user that a certificate (DER) names; `None` if the certificate names no user or more than one.
#[must_use]
pub fn user_from_certificate(certificate: &[u8]) -> Option<String> {
    let (_, certificate) = parse_x509_certificate(certificate).ok()?;
    let names = certificate.subject_alternative_name().ok()??;
    let mut users = names.value.general_names.iter().filter_map(|name| match name {
        GeneralName::URI(uri) => uri.strip_prefix(USER_URI_PREFIX),
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
        let owner = |text: &str| address_owner(text.parse().unwrap());
        assert_eq!(owner("2001:db8::1"), owner("2001:db8::ffff:2"));
        assert_ne!(owner("2001:db8::1"), owner("2001:db8:0:1::1"));
        assert_eq!(owner("::ffff:192.0.2.1"), owner("192.0.2.1"));
        assert_ne!(owner("192.0.2.1"), owner("192.0.2.2"));
    }
}
