//! Replies of a simulated device to requests for its Ethernet address: ARP (RFC 826) and IPv6 neighbor discovery
//! (RFC 4861).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use linewarden_protocol::frame::checksum::Sum;
use linewarden_protocol::frame::header::PROTOCOL_ICMPV6;

use crate::address::{DeviceAddress, Mac};
use crate::packet_socket::FRAME_BYTES_MAX;

const ETHER_ARP: [u8; 2] = [0x08, 0x06];
const ETHER_IPV6: [u8; 2] = [0x86, 0xdd];
/// Ethernet, IPv4, 6- and 4-byte addresses (RFC 826).
const ARP_OVER_ETHERNET: [u8; 6] = [0, 1, 0x08, 0x00, 6, 4];
const ARP_BYTES: usize = 42;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// Solicited, Override (RFC 4861 4.4).
const FLAGS: [u8; 4] = [0x60, 0, 0, 0];
/// Bytes of a frame with Ethernet, IPv6, and an advertisement with the target link-layer address option.
const ADVERTISEMENT_BYTES: usize = 14 + 40 + 32;

/// Writes the reply to a request for the address of a device that `is_simulated` accepts. Returns the length of the
/// reply, or `None` if the frame is no such request.
pub(crate) fn reply(
    frame: &[u8],
    is_simulated: impl Fn(DeviceAddress) -> bool,
    out: &mut [u8; FRAME_BYTES_MAX],
) -> Option<usize> {
    match <[u8; 2]>::try_from(frame.get(12..14)?).ok()? {
        ETHER_ARP => reply_arp(frame, is_simulated, out),
        ETHER_IPV6 => reply_solicitation(frame, is_simulated, out),
        _ => None,
    }
}

fn reply_arp(
    frame: &[u8],
    is_simulated: impl Fn(DeviceAddress) -> bool,
    out: &mut [u8; FRAME_BYTES_MAX],
) -> Option<usize> {
    let request = frame.get(14..ARP_BYTES)?;
    let (fixed, rest) = request.split_first_chunk::<6>()?;
    let (operation, rest) = rest.split_first_chunk::<2>()?;
    let (sender, rest) = rest.split_first_chunk::<10>()?;
    let target = Ipv4Addr::from(*rest.last_chunk::<4>()?);
    if *fixed != ARP_OVER_ETHERNET || *operation != [0, 1] {
        return None;
    }
    let device = DeviceAddress::from_ip(IpAddr::V4(target)).filter(|device| is_simulated(*device))?;
    let mac = device.mac().0;
    let mut writer = FrameWriter { out, length: 0 };
    writer.push(sender.get(..6)?)?;
    writer.push(&mac)?;
    writer.push(&ETHER_ARP)?;
    writer.push(&ARP_OVER_ETHERNET)?;
    writer.push(&[0, 2])?;
    writer.push(&mac)?;
    writer.push(&target.octets())?;
    writer.push(sender)?;
    Some(writer.length)
}

fn reply_solicitation(
    frame: &[u8],
    is_simulated: impl Fn(DeviceAddress) -> bool,
    out: &mut [u8; FRAME_BYTES_MAX],
) -> Option<usize> {
    let ip = frame.get(14..54)?;
    let body = frame.get(54..78)?;
    // Hop limit 255 proves that the packet was not forwarded (RFC 4861 7.1.1).
    let (next_header, hops) = (*ip.get(6)?, *ip.get(7)?);
    if next_header != PROTOCOL_ICMPV6 || hops != 255 || *body.first()? != SOLICITATION {
        return None;
    }
    let requester = Ipv6Addr::from(<[u8; 16]>::try_from(ip.get(8..24)?).ok()?);
    let target = Ipv6Addr::from(<[u8; 16]>::try_from(body.get(8..24)?).ok()?);
    let device = DeviceAddress::from_ip(IpAddr::V6(target)).filter(|device| is_simulated(*device))?;
    if requester.is_unspecified() {
        return None; // duplicate address detection; no other station may have this address
    }
    let mac = device.mac().0;

    let mut message = [0u8; 32];
    let mut writer = FrameWriter {
        out: &mut message,
        length: 0,
    };
    writer.push(&[ADVERTISEMENT, 0, 0, 0])?;
    writer.push(&FLAGS)?;
    writer.push(&target.octets())?;
    writer.push(&[2, 1])?; // target link-layer address, 8 bytes
    writer.push(&mac)?;
    let checksum = Sum::default()
        .pseudo_header(&target.octets(), &requester.octets(), PROTOCOL_ICMPV6, 32)
        .bytes(&message)
        .finish();
    message[2..4].copy_from_slice(&checksum.to_be_bytes());

    let mut writer = FrameWriter { out, length: 0 };
    writer.push(frame.get(6..12)?)?;
    writer.push(&mac)?;
    writer.push(&ETHER_IPV6)?;
    writer.push(&[0x60, 0, 0, 0, 0, 32, PROTOCOL_ICMPV6, 255])?;
    writer.push(&target.octets())?;
    writer.push(&requester.octets())?;
    writer.push(&message)?;
    debug_assert_eq!(writer.length, ADVERTISEMENT_BYTES);
    Some(writer.length)
}

struct FrameWriter<'a> {
    out: &'a mut [u8],
    length: usize,
}

impl FrameWriter<'_> {
    fn push(&mut self, bytes: &[u8]) -> Option<()> {
        let end = self.length.checked_add(bytes.len())?;
        self.out.get_mut(self.length..end)?.copy_from_slice(bytes);
        self.length = end;
        Some(())
    }
}

/// Whether a frame has a broadcast or multicast destination.
pub(super) fn is_group(frame: &[u8]) -> bool {
    frame.first().is_some_and(|byte| byte & 1 != 0)
}

/// The device that a frame is addressed to on the link.
pub(super) fn destination(frame: &[u8]) -> Option<DeviceAddress> {
    DeviceAddress::from_mac(Mac(frame.get(..6)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use linewarden_protocol::frame::builder::FrameBuilder;
    use linewarden_protocol::frame::{self, Network, Transport};

    use super::*;
    use crate::address::{Family, GATEWAY};

    fn is_own_device(device: DeviceAddress) -> bool {
        (5..10).contains(&device.index)
    }

    fn request(index: u32, family: Family) -> Vec<u8> {
        let device = DeviceAddress::new(index).endpoint(family, 0);
        let builder = FrameBuilder::new(GATEWAY.endpoint(family, 0), device);
        match family {
            Family::V4 => builder.arp_request(),
            Family::V6 => builder
                .ip_fields(0, 0, 255)
                .neighbor_solicitation(DeviceAddress::new(index).v6().octets()),
        }
    }

    #[test]
    fn only_devices_of_the_fleet_reply() {
        let mut out = [0; FRAME_BYTES_MAX];
        for family in [Family::V4, Family::V6] {
            assert!(reply(&request(7, family), is_own_device, &mut out).is_some());
            assert!(reply(&request(10, family), is_own_device, &mut out).is_none());
            let request = request(7, family);
            for cut in 0..request.len().min(78) {
                assert_eq!(
                    reply(&request[..cut], is_own_device, &mut out),
                    None,
                    "cut off at {cut}"
                );
                if family == Family::V4 && cut == 41 {
                    break;
                }
            }
        }
    }

    #[test]
    fn an_arp_reply_contains_the_device_and_goes_to_the_requester() {
        let mut out = [0; FRAME_BYTES_MAX];
        let length = reply(&request(7, Family::V4), is_own_device, &mut out).unwrap();
        let device = DeviceAddress::new(7);
        let expected = [
            &GATEWAY.mac.0[..],
            &device.mac().0,
            &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2],
            &device.mac().0,
            &device.v4().octets(),
            &GATEWAY.mac.0,
            &GATEWAY.v4.octets(),
        ]
        .concat();
        assert_eq!(&out[..length], expected);
    }

    #[test]
    fn an_advertisement_has_a_valid_checksum_and_the_link_layer_address() {
        let mut out = [0; FRAME_BYTES_MAX];
        let length = reply(&request(7, Family::V6), is_own_device, &mut out).unwrap();
        let sent = frame::parse(&out[..length]).unwrap();
        let Network::Ip(ip) = sent.network else {
            panic!("not IP")
        };
        assert_eq!(ip.transport, Transport::Icmpv6(ADVERTISEMENT));
        assert_eq!(sent.dst_mac, GATEWAY.mac.0);
        let message = &out[54..length];
        let sum = Sum::default()
            .pseudo_header(
                &DeviceAddress::new(7).v6().octets(),
                &GATEWAY.v6.octets(),
                PROTOCOL_ICMPV6,
                32,
            )
            .bytes(message);
        assert_eq!(sum.finish(), 0);
        assert_eq!(&message[26..32], &DeviceAddress::new(7).mac().0);
    }
}
