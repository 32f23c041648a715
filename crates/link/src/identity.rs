//! The identity of a gateway: its number, in its certificate.

use linewarden_protocol::ids::GatewayId;
use x509_parser::extensions::GeneralName;
use x509_parser::parse_x509_certificate;

const PREFIX: &str = "urn:linewarden:gateway:";

/// The gateway whose certificate was presented on this connection. The code that does the TLS handshake stores this value
/// in the extensions of each request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerGateway(pub GatewayId);

/// Returns the URI that the subject alternative names of a gateway's certificate contain.
#[must_use]
pub fn gateway_uri(gateway: GatewayId) -> String {
    format!("{PREFIX}{}", gateway.0)
}

/// Returns the gateway that a certificate (DER) names, or `None` if the certificate names no gateway or more than
/// one. The TLS handshake has verified the certificate before.
#[must_use]
pub fn gateway_of(certificate: &[u8]) -> Option<GatewayId> {
    let (_, certificate) = parse_x509_certificate(certificate).ok()?;
    let names = certificate.subject_alternative_name().ok()??;
    let mut gateways = names.value.general_names.iter().filter_map(|name| match name {
        GeneralName::URI(uri) => uri.strip_prefix(PREFIX),
        _ => None,
    });
    let number = gateways.next()?;
    let is_canonical = number == "0" || !number.starts_with(['0', '+']);
    let number = number
        .parse()
        .ok()
        .filter(|_| is_canonical && gateways.next().is_none())?;
    Some(GatewayId(number))
}

const AUTHORITY_PREFIX: &str = "gateway-";

/// Returns the host of URIs that names the gateway at the socket of a controller on the same machine.
#[must_use]
pub fn socket_authority(gateway: GatewayId) -> String {
    format!("{AUTHORITY_PREFIX}{}", gateway.0)
}

/// Returns the gateway that the host of a URI names, if any.
#[must_use]
pub fn gateway_of_authority(authority: &str) -> Option<GatewayId> {
    let gateway = GatewayId(authority.strip_prefix(AUTHORITY_PREFIX)?.parse().ok()?);
    (socket_authority(gateway) == authority).then_some(gateway)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(uris: &[&str]) -> Vec<u8> {
        let mut parameters = rcgen::CertificateParams::new(vec!["gateway.example".to_owned()]).unwrap();
        for uri in uris {
            let uri = rcgen::string::Ia5String::try_from(*uri).unwrap();
            parameters.subject_alt_names.push(rcgen::SanType::URI(uri));
        }
        let key = rcgen::KeyPair::generate().unwrap();
        parameters.self_signed(&key).unwrap().der().to_vec()
    }

    #[test]
    fn the_certificate_names_exactly_one_gateway() {
        for (uris, gateway) in [
            (&["urn:linewarden:gateway:7"][..], Some(7)),
            (
                &["https://example.org", "urn:linewarden:gateway:4294967295"],
                Some(u32::MAX),
            ),
            (&["urn:linewarden:gateway:0"], Some(0)),
            (&[], None),
            (&["urn:linewarden:gateway:"], None),
            (&["urn:linewarden:gateway:07"], None),
            (&["urn:linewarden:gateway:+7"], None),
            (&["urn:linewarden:gateway:-7"], None),
            (&["urn:linewarden:gateway:4294967296"], None),
            (&["urn:linewarden:gateway:7 "], None),
            (&["urn:linewarden:user:7"], None),
            (&["urn:linewarden:gateway:7", "urn:linewarden:gateway:8"], None),
        ] {
            assert_eq!(gateway_of(&certificate(uris)), gateway.map(GatewayId), "{uris:?}");
        }
        assert_eq!(gateway_of(b"nonsense"), None);
        assert_eq!(gateway_uri(GatewayId(7)), "urn:linewarden:gateway:7");
    }

    #[test]
    fn the_host_of_a_uri_names_exactly_one_gateway() {
        for number in [0, 7, u32::MAX] {
            let authority = socket_authority(GatewayId(number));
            assert_eq!(gateway_of_authority(&authority), Some(GatewayId(number)));
        }
        for authority in [
            "",
            "gateway-",
            "gateway-07",
            "gateway-+7",
            "gateway-4294967296",
            "gateway-7:80",
            "7",
        ] {
            assert_eq!(gateway_of_authority(authority), None, "{authority}");
        }
    }
}
