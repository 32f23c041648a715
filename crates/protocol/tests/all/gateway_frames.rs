//! Frames: built frames parse as intended, replies have correct checksums, truncated frames are rejected.

use std::net::IpAddr;

use linewarden_protocol::frame::builder::FrameBuilder;
use linewarden_protocol::frame::write::{self, Endpoint};
use linewarden_protocol::frame::{
    Network, Transport, Truncated, VLAN_SERVICE, VLAN_TAGGED, ip_bytes, ip_from_bytes, parse, reverse_frame,
};
use proptest::prelude::*;

const LINK_BYTES: usize = 14;

fn endpoint(n: u8, v6: bool) -> Endpoint {
    let ip: IpAddr = if v6 {
        IpAddr::from([0xfd66, 0, 0, 0, 0, 0, 0, u16::from(n)])
    } else {
        IpAddr::from([10, 66, 0, n])
    };
    Endpoint {
        mac: [2, 0, 0, 0, 0, n],
        ip,
        port: 40_000 + u16::from(n),
    }
}

fn builder(v6: bool) -> FrameBuilder {
    FrameBuilder::new(endpoint(1, v6), endpoint(2, v6))
}

fn transport(frame: &[u8]) -> Transport {
    match parse(frame).unwrap().network {
        Network::Ip(ip) => ip.transport,
        other => panic!("not IP: {other:?}"),
    }
}

/// The one's complement sum of 16-bit words, reimplemented for the test.
fn folded(parts: &[&[u8]]) -> u32 {
    let mut sum = 0u32;
    for part in parts {
        for (i, byte) in part.iter().enumerate() {
            sum += u32::from(*byte) << if i % 2 == 0 { 8 } else { 0 };
        }
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum
}

/// The folded sum over a correct packet, including its checksum, is all ones (RFC 768, RFC 791).
fn assert_checksums(frame: &[u8]) {
    let parsed = parse(frame).unwrap();
    let (ip, udp) = parsed.datagram().unwrap();
    let datagram = &frame[udp.at..udp.payload().end];
    let length = u16::try_from(datagram.len()).unwrap().to_be_bytes();
    let (src, dst) = match ip.src {
        IpAddr::V4(_) => {
            assert_eq!(folded(&[&frame[ip.at..ip.at + 20]]), 0xffff, "IPv4 header");
            (&frame[ip.at + 12..ip.at + 16], &frame[ip.at + 16..ip.at + 20])
        }
        IpAddr::V6(_) => (&frame[ip.at + 8..ip.at + 24], &frame[ip.at + 24..ip.at + 40]),
    };
    assert_eq!(folded(&[src, dst, &[0, 17], &length, datagram]), 0xffff, "UDP");
    assert_ne!(
        datagram[6..8],
        [0, 0],
        "a checksum of zero means that the sender computed no checksum"
    );
}

proptest! {
    #[test]
    fn builder_writer_and_parser_agree(
        v6: bool,
        tags in prop::collection::vec((any::<bool>(), 1u16..4096), 0..3),
        payload in prop::collection::vec(any::<u8>(), 0..200),
        padding in prop::collection::vec(any::<u8>(), 0..8),
    ) {
        let kind = |service| if service { 0x88a8 } else { 0x8100 };
        let built = tags.iter().fold(builder(v6), |builder, (service, vid)| builder.tag(kind(*service), *vid));
        let frame = built.padding(&padding).udp(&payload);
        assert_checksums(&frame);
        let meta = parse(&frame).unwrap().meta(9).unwrap();
        let (from, to) = (endpoint(1, v6), endpoint(2, v6));
        let vlan = |i: usize| tags.get(i).map_or(0, |(service, vid)| vid | VLAN_TAGGED | (u16::from(*service) * VLAN_SERVICE));
        prop_assert_eq!(meta.vlans, [vlan(0), vlan(1)]);
        prop_assert_eq!((meta.ingress, meta.src_mac, meta.dst_mac), (9, from.mac, to.mac));
        prop_assert_eq!((meta.src_ip, meta.dst_ip), (ip_bytes(from.ip), ip_bytes(to.ip)));
        prop_assert_eq!((meta.src_port, meta.dst_port), (from.port, to.port));
        let (_, udp) = parse(&frame).unwrap().datagram().unwrap();
        prop_assert_eq!(&frame[udp.payload()], &payload[..]);

        let mut out = [0u8; 400];
        let bytes = write::udp(&mut out, &from, &to, meta.vlans, &payload).unwrap();
        prop_assert_eq!(&out[..bytes], &frame[..frame.len() - padding.len()]);
        let mut short = vec![0u8; bytes - 1];
        prop_assert_eq!(write::udp(&mut short, &from, &to, meta.vlans, &payload), None);
    }

    #[test]
    fn a_reply_is_swapped_checksummed_and_keeps_the_rest(
        v6: bool,
        tagged: bool,
        tos: u8,
        id: u16,
        ttl: u8,
        payload in prop::collection::vec(any::<u8>(), 0..100),
        fill: u8,
    ) {
        let built = builder(v6).ip_fields(tos, id, ttl).padding(&[0xaa; 5]);
        let built = if tagged { built.tag(0x88a8, 0xe007).vlan(0) } else { built };
        let sent = built.udp(&payload);
        let mut frame = sent.clone();
        let parsed = parse(&frame).unwrap();
        let (ip, udp) = parsed.datagram().unwrap();
        frame[udp.payload()].fill(fill);
        reverse_frame(&mut frame, &parsed).unwrap();
        assert_checksums(&frame);
        let reply = parse(&frame).unwrap();
        let (reply_ip, reply_udp) = reply.datagram().unwrap();
        prop_assert_eq!((reply.src_mac, reply.dst_mac), (parsed.dst_mac, parsed.src_mac));
        prop_assert_eq!((reply_ip.src, reply_ip.dst), (ip.dst, ip.src));
        prop_assert_eq!((reply_udp.src_port, reply_udp.dst_port), (udp.dst_port, udp.src_port));
        prop_assert_eq!(&frame[12..ip.at], &sent[12..ip.at], "Ethernet type and tags");
        prop_assert_eq!(&frame[udp.payload().end..], &[0xaa; 5][..], "padding");
        let (unchanged, ttl_at) = if v6 { (0..7, 7) } else { (0..8, 8) };
        prop_assert_eq!(&frame[ip.at..][unchanged.clone()], &sent[ip.at..][unchanged]);
        prop_assert_eq!(frame[ip.at + ttl_at], 64);
        prop_assert_eq!(frame.len(), sent.len());
    }

    #[test]
    fn a_truncated_datagram_is_rejected(v6: bool, tagged: bool, cut: prop::sample::Index) {
        let built = if tagged { builder(v6).vlan(3) } else { builder(v6) };
        let frame = built.udp(&[0; 64]);
        let cut = cut.index(frame.len());
        prop_assert_eq!(parse(&frame[..cut]), Err(Truncated), "cut at {}", cut);
    }

    #[test]
    fn any_bytes_are_parsed_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
        if let Ok(parsed) = parse(&bytes)
            && let Some((_, udp)) = parsed.datagram()
        {
            prop_assert!(bytes.get(udp.payload()).is_some());
        }
    }

    #[test]
    fn any_datagram_with_altered_headers_is_parsed_within_its_bounds(
        v6: bool, at in 0usize..62, value: u8,
    ) {
        let mut frame = builder(v6).udp(&[1; 64]);
        frame[at] = value;
        if let Ok(parsed) = parse(&frame)
            && let Some((_, udp)) = parsed.datagram()
        {
            let mut reply = frame.clone();
            prop_assert!(frame.get(udp.payload()).is_some());
            prop_assert!(reverse_frame(&mut reply, &parsed).is_some());
        }
    }
}

#[test]
fn payload_after_fragments_options_and_extension_headers_is_not_parsed() {
    let complete = builder(false);
    assert_eq!(
        transport(&complete.clone().fragment(0, true).udp(b"x")),
        Transport::Fragment
    );
    assert_eq!(
        transport(&complete.clone().fragment(3, false).udp(b"x")),
        Transport::Fragment
    );
    assert_eq!(
        transport(&complete.clone().options(&[1]).udp(b"x")),
        Transport::Extension
    );
    assert_eq!(
        transport(&complete.options(&[1]).fragment(1, false).udp(b"x")),
        Transport::Fragment
    );
    assert_eq!(
        transport(&builder(true).fragment(0, true).udp(b"x")),
        Transport::Fragment
    );
    for number in [0, 43, 51, 60, 135, 139, 140] {
        let frame = builder(true).extension(number).udp(b"x");
        assert_eq!(transport(&frame), Transport::Extension, "{number}");
    }
    let frame = builder(true).extension(0).fragment(0, false).udp(b"x");
    assert_eq!(
        transport(&frame),
        Transport::Extension,
        "only the first extension header is parsed"
    );
}

#[test]
fn other_layers_are_named() {
    assert_eq!(
        parse(&builder(false).arp_request()).unwrap().network,
        Network::Arp
    );
    assert_eq!(
        parse(&builder(false).ethernet(0x88cc, &[])).unwrap().network,
        Network::Other(0x88cc)
    );
    let three_tags = builder(false).vlan(1).vlan(2).vlan(3).udp(b"x");
    assert_eq!(parse(&three_tags).unwrap().network, Network::Other(0x8100));
    assert_eq!(
        transport(&builder(true).neighbor_solicitation([1; 16])),
        Transport::Icmpv6(135)
    );
    assert_eq!(
        transport(&builder(true).ip(58, &[])),
        Transport::Other(58),
        "no type byte"
    );
    assert_eq!(transport(&builder(false).ip(6, &[0; 20])), Transport::Other(6));
}

#[test]
fn contradicting_lengths_are_distinguished() {
    let set = |v6: bool, at: usize, value: u16| {
        let mut frame = builder(v6).udp(&[0; 64]);
        frame[LINK_BYTES + at..LINK_BYTES + at + 2].copy_from_slice(&value.to_be_bytes());
        frame
    };
    let port = endpoint(2, false).port;
    for (v6, udp_length_at) in [(false, 24), (true, 44)] {
        assert_eq!(transport(&set(v6, udp_length_at, 7)), Transport::UdpLength(port));
        assert_eq!(transport(&set(v6, udp_length_at, 73)), Transport::UdpLength(port));
        assert!(
            matches!(transport(&set(v6, udp_length_at, 71)), Transport::Udp(udp) if udp.payload_bytes == 63)
        );
    }
    // IPv4 total length: below the header, without room for UDP, beyond the frame.
    for total in [19, 27, 93] {
        assert_eq!(parse(&set(false, 2, total)), Err(Truncated), "{total}");
    }
    // IPv6 payload length: without room for UDP, beyond the frame.
    for payload in [0, 7, 73] {
        assert_eq!(parse(&set(true, 4, payload)), Err(Truncated), "{payload}");
    }
    for version_ihl in [0x44, 0x55, 0x65] {
        let mut frame = builder(false).udp(&[0; 64]);
        frame[LINK_BYTES] = version_ihl;
        assert_eq!(parse(&frame), Err(Truncated), "{version_ihl:x}");
    }
    let mut frame = builder(true).udp(&[0; 64]);
    frame[LINK_BYTES] = 0x40;
    assert_eq!(parse(&frame), Err(Truncated));
}

#[test]
fn addresses_have_one_representation_of_16_bytes() {
    let v4 = IpAddr::from([10, 66, 0, 1]);
    assert_eq!(ip_bytes(v4)[..12], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
    for ip in [v4, endpoint(1, true).ip] {
        assert_eq!(ip_from_bytes(ip_bytes(ip)), ip);
    }
}
