//! Frames that belong to the gateway and frames that do not, with the gate off (docs/protocols.md 1.4.12).

use linewarden_protocol::frame::builder::FrameBuilder;
use linewarden_protocol::frame::write::Endpoint;
use linewarden_protocol::verdict::Verdict::{self, *};

use super::{Group, Record, group, record};
use crate::support::device::{A, TestDevice, gateway_end, service_end};
use crate::support::fixture::TestFixture;
use crate::support::test_config::TestConfig;

const V4_V6: [bool; 2] = [false, true];

fn family(v6: bool) -> &'static str {
    if v6 { "IPv6" } else { "IPv4" }
}

fn with_device(w: &mut TestFixture) {
    w.pool(A, 0, 4);
}

/// A's REQUEST in a frame whose headers `change` has modified.
fn request_in(
    description: impl Into<String>,
    v6: bool,
    change: impl Fn(FrameBuilder) -> FrameBuilder + 'static,
    verdict: Verdict,
) -> Record {
    record(
        description,
        with_device,
        move |w| change(A.frame(v6)).udp(&w.request(A)),
        verdict,
    )
}

/// A's REQUEST with another source or destination in its headers, mostly one that makes a reply impossible.
fn other_endpoints() -> Vec<Record> {
    type Modify = fn(&mut Endpoint, &mut Endpoint);
    let v4: [(&str, Modify, Verdict); 8] = [
        (
            "to the broadcast MAC address",
            |_, to| to.mac = [0xff; 6],
            DropUnanswerable,
        ),
        (
            "to a multicast MAC address",
            |_, to| to.mac = [1, 0, 0x5e, 0, 0, 1],
            DropUnanswerable,
        ),
        (
            "from a group MAC address",
            |from, _| from.mac[0] |= 1,
            DropUnanswerable,
        ),
        (
            "from 0.0.0.0",
            |from, _| from.ip = [0, 0, 0, 0].into(),
            DropUnanswerable,
        ),
        (
            "from 223.255.255.255",
            |from, _| from.ip = [223, 255, 255, 255].into(),
            DropSourceNotDevice,
        ),
        (
            "from 224.0.0.1",
            |from, _| from.ip = [224, 0, 0, 1].into(),
            DropUnanswerable,
        ),
        (
            "from 255.255.255.255",
            |from, _| from.ip = [255; 4].into(),
            DropUnanswerable,
        ),
        (
            "from 1.0.0.0",
            |from, _| from.ip = [1, 0, 0, 0].into(),
            DropSourceNotDevice,
        ),
    ];
    let v6: [(&str, Modify, Verdict); 7] = [
        ("from ::", |from, _| from.ip = [0u16; 8].into(), DropUnanswerable),
        (
            "from an IPv4-mapped address",
            |from, _| from.ip = [0, 0, 0, 0, 0, 0xffff, 0x0a42, 0x8001].into(),
            DropUnanswerable,
        ),
        (
            "from multicast",
            |from, _| from.ip = [0xff02, 0, 0, 0, 0, 0, 0, 1].into(),
            DropUnanswerable,
        ),
        (
            "from ::1",
            |from, _| from.ip = [0, 0, 0, 0, 0, 0, 0, 1].into(),
            DropSourceNotDevice,
        ),
        (
            "from ::2",
            |from, _| from.ip = [0, 0, 0, 0, 0, 0, 0, 2].into(),
            DropUnanswerable,
        ),
        (
            "from 0:0:0:1::",
            |from, _| from.ip = [0, 0, 0, 1, 0, 0, 0, 0].into(),
            DropSourceNotDevice,
        ),
        (
            "from a link-local address",
            |from, _| from.ip = [0xfe80, 0, 0, 0, 0, 0, 0, 1].into(),
            DropSourceNotDevice,
        ),
    ];
    let record_of = |v6: bool, (name, modify, verdict): (&str, Modify, Verdict)| {
        record(
            format!("{} {name}", family(v6)),
            with_device,
            move |w| {
                let (mut from, mut to) = (A.end(v6), gateway_end(v6));
                modify(&mut from, &mut to);
                FrameBuilder::new(from, to).udp(&w.request(A))
            },
            verdict,
        )
    };
    let v4 = v4.into_iter().map(|case| record_of(false, case));
    v4.chain(v6.into_iter().map(|case| record_of(true, case)))
        .collect()
}

fn vlans() -> Vec<Record> {
    let mut records = Vec::new();
    for v6 in V4_V6 {
        let name = family(v6);
        records.extend([
            request_in(format!("{name}, VLAN 7"), v6, |f| f.vlan(7), ReplyChallenge),
            request_in(
                format!("{name}, VLAN 0, priority 7"),
                v6,
                |f| f.tag(0x8100, 0xe000),
                ReplyChallenge,
            ),
            request_in(
                format!("{name}, VLAN 4095, drop eligible"),
                v6,
                |f| f.tag(0x88a8, 0x1fff),
                ReplyChallenge,
            ),
            request_in(
                format!("{name}, two tags"),
                v6,
                |f| f.tag(0x88a8, 0x6123).vlan(4),
                ReplyChallenge,
            ),
            request_in(
                format!("{name}, the outer tag type inside the inner one"),
                v6,
                |f| f.tag(0x8100, 1).tag(0x88a8, 2),
                ReplyChallenge,
            ),
            request_in(
                format!("{name}, three tags: not parsed"),
                v6,
                |f| f.vlan(1).vlan(2).vlan(3),
                PassForeign,
            ),
            request_in(
                format!("{name}, a tag of type 0x9100"),
                v6,
                |f| f.tag(0x9100, 2),
                PassForeign,
            ),
        ]);
    }
    records
}

/// BOUND RESPONSEs behind VLAN tags.
fn bound_in_vlans() -> Vec<Record> {
    let tags: [&[(u16, u16)]; 4] = [
        &[(0x88a8, 0xffff), (0x8100, 0)],
        &[(0x8100, 0xe000)],
        &[(0x88a8, 0), (0x8100, 5)],
        &[(0x8100, 6), (0x88a8, 5)],
    ];
    let records = V4_V6.into_iter().flat_map(|v6| {
        tags.into_iter().map(move |tags| {
            let packet = move |w: &TestFixture| {
                let response = w.response(A).bound(A.mac()).bytes(A);
                let tagged = tags
                    .iter()
                    .fold(A.frame(v6), |frame, (kind, tci)| frame.tag(*kind, *tci));
                tagged.udp(&response)
            };
            let name = format!("{}, BOUND RESPONSE behind {tags:x?}", family(v6));
            record(name, with_device, packet, ReplyAck)
        })
    });
    records.collect()
}

fn ip_headers() -> Vec<Record> {
    let mut records = vec![
        request_in("IPv4 options", false, |f| f.options(&[7, 4, 4, 0]), PassUnparsed),
        request_in(
            "40 B of IPv4 options",
            false,
            |f| f.options(&[1; 40]),
            PassUnparsed,
        ),
        request_in("a first fragment", false, |f| f.fragment(0, true), PassUnparsed),
        request_in("a later fragment", false, |f| f.fragment(3, true), PassUnparsed),
        request_in("a last fragment", false, |f| f.fragment(3, false), PassUnparsed),
        request_in(
            "the flag Don't Fragment without fragmentation",
            false,
            |f| f.fragment(0, false),
            ReplyChallenge,
        ),
        request_in("an IPv6 fragment", true, |f| f.fragment(0, true), PassUnparsed),
        request_in(
            "an IPv6 packet in one fragment",
            true,
            |f| f.fragment(0, false),
            PassUnparsed,
        ),
        request_in(
            "a fragment header after hop-by-hop options",
            true,
            |f| f.extension(0).fragment(0, true),
            PassUnparsed,
        ),
        request_in(
            "unusual IP fields, IPv4",
            false,
            |f| f.ip_fields(0xb8, 0xffff, 1),
            ReplyChallenge,
        ),
        request_in(
            "unusual IP fields, IPv6",
            true,
            |f| f.ip_fields(0xff, 0, 0),
            ReplyChallenge,
        ),
        request_in(
            "Ethernet padding",
            false,
            |f| f.padding(&[0xaa; 13]),
            ReplyChallenge,
        ),
        request_in(
            "Ethernet padding, IPv6",
            true,
            |f| f.padding(&[0; 1]),
            ReplyChallenge,
        ),
        request_in(
            "2 KiB of padding",
            false,
            |f| f.padding(&[0x55; 2048]),
            ReplyChallenge,
        ),
    ];
    for number in [0, 43, 51, 60, 135, 139, 140] {
        records.push(request_in(
            format!("IPv6 extension header {number}"),
            true,
            move |f| f.extension(number),
            PassUnparsed,
        ));
    }
    for number in [50, 59, 253] {
        records.push(request_in(
            format!("IPv6 next header {number}, which is not parsed"),
            true,
            move |f| f.extension(number),
            PassForeign,
        ));
    }
    records
}

/// Frames for another station, another port or another protocol.
fn foreign() -> Vec<Record> {
    let mut records = Vec::new();
    for v6 in V4_V6 {
        let name = family(v6);
        let to = move |change: fn(&mut linewarden_protocol::frame::write::Endpoint)| {
            let mut end = gateway_end(v6);
            change(&mut end);
            FrameBuilder::new(A.end(v6), end)
        };
        let case = |description: &str, builder: FrameBuilder, verdict: Verdict| {
            record(
                format!("{name}, {description}"),
                with_device,
                move |w| builder.udp(&w.request(A)),
                verdict,
            )
        };
        records.extend([
            case("another port", to(|end| end.port = 20_549), PassForeign),
            case("port 0", to(|end| end.port = 0), PassForeign),
            case(
                "the port with swapped bytes",
                to(|end| end.port = end.port.swap_bytes()),
                PassForeign,
            ),
            case(
                "the classic port, which is not served",
                to(|end| end.port = 20_551),
                PassForeign,
            ),
            case(
                "the address of another host",
                FrameBuilder::new(A.end(v6), service_end(v6)),
                PassForeign,
            ),
            case(
                "the address of another device",
                FrameBuilder::new(A.end(v6), TestDevice(5).end(v6)),
                PassForeign,
            ),
            case(
                "IPv4 options or an IPv6 extension header, for another host",
                {
                    let builder = FrameBuilder::new(A.end(v6), service_end(v6));
                    if v6 {
                        builder.extension(60)
                    } else {
                        builder.options(&[1; 4])
                    }
                },
                PassForeign,
            ),
            case(
                "a fragment for another host",
                FrameBuilder::new(A.end(v6), service_end(v6)).fragment(1, true),
                PassForeign,
            ),
            case(
                "source port 0",
                {
                    let mut end = A.end(v6);
                    end.port = 0;
                    FrameBuilder::new(end, gateway_end(v6))
                },
                ReplyChallenge,
            ),
        ]);
        let tcp = move |_: &TestFixture| A.frame(v6).ip(6, &[0x50; 40]);
        records.push(record(
            format!("{name}, TCP to the gateway"),
            with_device,
            tcp,
            PassForeign,
        ));
        records.push(record(
            format!("{name}, without payload"),
            with_device,
            move |_| A.frame(v6).udp(&[]),
            DropLength,
        ));
    }
    let broadcast = |octets: [u8; 4]| {
        let mut end = gateway_end(false);
        end.ip = octets.into();
        end.mac = [0xff; 6];
        let builder = FrameBuilder::new(A.end(false), end);
        record(
            format!("broadcast to {octets:?}"),
            with_device,
            move |w| builder.udp(&w.request(A)),
            PassForeign,
        )
    };
    records.extend([broadcast([255; 4]), broadcast([10, 66, 255, 255])]);
    records.extend([
        record("ARP", with_device, |_| A.frame(false).arp_request(), PassForeign),
        record(
            "neighbor solicitation",
            with_device,
            |_| A.frame(true).neighbor_solicitation([9; 16]),
            PassForeign,
        ),
        record("DHCP", with_device, |_| A.frame(false).dhcp(), PassForeign),
        record(
            "an unknown Ethernet type",
            with_device,
            |_| A.frame(false).ethernet(0x88cc, &[0; 50]),
            PassForeign,
        ),
        record(
            "an IEEE 802.3 length instead of a type",
            with_device,
            |_| A.frame(false).ethernet(46, &[0; 46]),
            PassForeign,
        ),
        record(
            "an IPv6 packet with the Ethernet type of IPv4",
            with_device,
            |w| {
                let frame = A.frame(true).udp(&w.request(A));
                A.frame(true).ethernet(0x0800, &frame[14..])
            },
            PassForeign,
        ),
        record(
            "an IPv4 packet with the Ethernet type of IPv6",
            with_device,
            |w| {
                let frame = A.frame(false).udp(&w.request(A));
                A.frame(false).ethernet(0x86dd, &frame[14..])
            },
            PassForeign,
        ),
    ]);
    records
}

/// A REQUEST truncated after every byte. With the gate off, the gateway passes truncated frames.
fn truncated() -> Vec<Record> {
    let mut records = Vec::new();
    for (v6, tagged) in [(false, false), (false, true), (true, false), (true, true)] {
        let builder = move || {
            if tagged {
                A.frame(v6).tag(0x88a8, 5).vlan(6)
            } else {
                A.frame(v6)
            }
        };
        let length_max = builder().udp(&[0; 64]).len();
        records.extend((0..length_max).map(|length| {
            record(
                format!("{}, tagged: {tagged}, truncated after {length} B", family(v6)),
                with_device,
                move |w| builder().udp(&w.request(A))[..length].to_vec(),
                PassForeign,
            )
        }));
    }
    records
}

/// A's REQUEST with a header field overwritten.
fn overwritten(v6: bool, description: &str, offset: usize, bytes: &'static [u8], verdict: Verdict) -> Record {
    record(
        format!("{}, {description}", family(v6)),
        with_device,
        move |w| {
            let mut frame = A.frame(v6).udp(&w.request(A));
            frame[offset..offset + bytes.len()].copy_from_slice(bytes);
            frame
        },
        verdict,
    )
}

fn contradicting_lengths() -> Vec<Record> {
    vec![
        overwritten(false, "version 5", 14, &[0x55], PassForeign),
        overwritten(false, "a header of 16 B", 14, &[0x44], PassForeign),
        overwritten(false, "a header of 60 B", 14, &[0x4f], PassUnparsed),
        overwritten(
            false,
            "total length smaller than the header",
            16,
            &[0, 19],
            PassForeign,
        ),
        overwritten(
            false,
            "total length of the header alone",
            16,
            &[0, 20],
            PassForeign,
        ),
        overwritten(
            false,
            "total length without a whole UDP header",
            16,
            &[0, 27],
            PassForeign,
        ),
        overwritten(
            false,
            "total length with the UDP header only",
            16,
            &[0, 28],
            DropTruncated,
        ),
        overwritten(
            false,
            "total length one byte too small",
            16,
            &[0, 91],
            DropTruncated,
        ),
        overwritten(false, "total length beyond the frame", 16, &[0, 93], PassForeign),
        overwritten(false, "total length 65535", 16, &[0xff, 0xff], PassForeign),
        overwritten(false, "UDP length 0", 38, &[0, 0], DropTruncated),
        overwritten(false, "UDP length 7", 38, &[0, 7], DropTruncated),
        overwritten(false, "UDP length 8", 38, &[0, 8], DropLength),
        overwritten(false, "UDP length one byte too small", 38, &[0, 71], DropLength),
        overwritten(false, "UDP length beyond the packet", 38, &[0, 73], DropTruncated),
        overwritten(false, "UDP length 65535", 38, &[0xff, 0xff], DropTruncated),
        overwritten(true, "version 4", 14, &[0x40], PassForeign),
        overwritten(true, "payload length 0", 18, &[0, 0], PassForeign),
        overwritten(true, "payload length 7", 18, &[0, 7], PassForeign),
        overwritten(true, "payload length 8", 18, &[0, 8], DropTruncated),
        overwritten(
            true,
            "payload length one byte too small",
            18,
            &[0, 71],
            DropTruncated,
        ),
        overwritten(true, "payload length beyond the frame", 18, &[0, 73], PassForeign),
        overwritten(
            true,
            "UDP length 0, as in a jumbogram",
            58,
            &[0, 0],
            DropTruncated,
        ),
        overwritten(true, "UDP length beyond the packet", 58, &[0, 80], DropTruncated),
        record(
            "a wrong UDP length for another host",
            with_device,
            |w| {
                let builder = FrameBuilder::new(A.end(false), service_end(false));
                let mut frame = builder.udp(&w.request(A));
                frame[38..40].copy_from_slice(&[0, 3]);
                frame
            },
            PassForeign,
        ),
        record(
            "a wrong UDP length to another port of the gateway",
            with_device,
            |w| {
                let mut frame = A.frame(false).udp(&w.request(A));
                frame[36..38].copy_from_slice(&[0, 53]);
                frame[38..40].copy_from_slice(&[0, 3]);
                frame
            },
            PassForeign,
        ),
        record(
            "wrong checksums, which are not checked because checksum offloading leaves them incomplete",
            with_device,
            |w| {
                let mut frame = A.frame(false).udp(&w.request(A));
                frame[24..26].copy_from_slice(&[0, 0]);
                frame[40..42].copy_from_slice(&[0x12, 0x34]);
                frame
            },
            ReplyChallenge,
        ),
        record(
            "a datagram that is shorter than its packet",
            with_device,
            |w| {
                let mut message = w.request(A);
                message.extend_from_slice(&[0xee; 9]);
                let mut frame = A.frame(true).udp(&message);
                frame[58..60].copy_from_slice(&[0, 72]);
                frame
            },
            ReplyChallenge,
        ),
    ]
}

pub fn groups() -> Vec<Group> {
    let records = [
        other_endpoints(),
        vlans(),
        ip_headers(),
        foreign(),
        truncated(),
        contradicting_lengths(),
    ];
    vec![
        group(TestConfig::OFF, records.into_iter().flatten().collect()),
        group(TestConfig::OFF, bound_in_vlans()),
    ]
}
