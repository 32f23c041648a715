//! Checks a reply against LAP/1 without the oracle: swapped headers, correct checksums, correct message.

use std::net::IpAddr;

use linewarden_protocol::frame::{Frame, ip_bytes, parse};
use linewarden_protocol::ids::{Mode, RowIndex, Suite};
use linewarden_protocol::keys::SessionKey;
use linewarden_protocol::tag;
use linewarden_protocol::verdict::Verdict;
use linewarden_protocol::wire::{self, Message};
use zerocopy::IntoBytes as _;

use super::device::{GATEWAY, TestDevice};

/// The one's complement sum of the 16-bit words in `parts` (RFC 1071), independent of the code under test.
fn ones_complement_sum(parts: &[&[u8]]) -> u32 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let mut sum: u32 = words
        .map(|pair| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low)))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum
}

/// The one's complement sum of pseudo header and datagram (RFC 768).
fn udp_sum(frame: &[u8], parsed: &Frame) -> u32 {
    let (ip, udp) = parsed.datagram().unwrap();
    let datagram = &frame[udp.at..udp.payload().end];
    let length = u16::try_from(datagram.len()).unwrap().to_be_bytes();
    let (src, dst) = match ip.src {
        IpAddr::V4(_) => (&frame[ip.at + 12..ip.at + 16], &frame[ip.at + 16..ip.at + 20]),
        IpAddr::V6(_) => (&frame[ip.at + 8..ip.at + 24], &frame[ip.at + 24..ip.at + 40]),
    };
    ones_complement_sum(&[src, dst, &[0, 17], &length, datagram])
}

/// Checks the checksums: the sum of a correct packet, including its checksum, is all ones (RFC 768, 791).
fn check_sums(frame: &[u8], parsed: &Frame) {
    let (ip, udp) = parsed.datagram().unwrap();
    if ip.src.is_ipv4() {
        assert_eq!(
            ones_complement_sum(&[&frame[ip.at..ip.at + 20]]),
            0xffff,
            "IPv4 checksum"
        );
    }
    assert_eq!(udp_sum(frame, parsed), 0xffff, "UDP checksum");
    assert_ne!(
        frame[udp.at + 6..udp.at + 8],
        [0, 0],
        "a UDP checksum of zero would mean that there is none"
    );
}

/// The frame of an ACK in which the session lifetime is replaced, and tag and UDP checksum are recomputed.
pub fn with_session_lifetime(reply: &[u8], key: &SessionKey, lifetime_s: u32) -> Vec<u8> {
    let mut out = reply.to_vec();
    let parsed = parse(reply).unwrap();
    let (_, udp) = parsed.datagram().unwrap();
    let Ok(Message::Ack(ack)) = wire::parse(&reply[udp.payload()]) else {
        panic!("no ACK");
    };
    let mut ack = *ack;
    ack.session_lifetime_s = lifetime_s.into();
    ack.tag = tag::ack(key, &ack);
    out[udp.payload()].copy_from_slice(ack.as_bytes());
    out[udp.at + 6..udp.at + 8].fill(0);
    let sum = match !udp_sum(&out, &parsed) as u16 {
        0 => 0xffff,
        sum => sum,
    };
    out[udp.at + 6..udp.at + 8].copy_from_slice(&sum.to_be_bytes());
    out
}

/// Checks all bytes of a reply except its payload.
pub fn check_headers(sent: &[u8], got: &[u8]) {
    assert_eq!(sent.len(), got.len(), "a reply has the length of its request");
    let (request_frame, reply_frame) = (parse(sent).unwrap(), parse(got).unwrap());
    check_sums(got, &reply_frame);
    let ((ip, udp), (reply_ip, reply_udp)) =
        (request_frame.datagram().unwrap(), reply_frame.datagram().unwrap());
    assert_eq!(
        (reply_frame.dst_mac, reply_frame.src_mac),
        (request_frame.src_mac, request_frame.dst_mac)
    );
    assert_eq!((reply_ip.dst, reply_ip.src), (ip.src, ip.dst));
    assert_eq!(
        (reply_udp.dst_port, reply_udp.src_port),
        (udp.src_port, udp.dst_port)
    );
    assert_eq!(reply_udp.payload_bytes, udp.payload_bytes);
    // VLAN tags with their priority bits, and Ethernet padding.
    assert_eq!(sent[12..ip.at], got[12..ip.at]);
    assert_eq!(sent[udp.payload().end..], got[udp.payload().end..]);
    match ip.src {
        IpAddr::V4(_) => {
            assert_eq!(
                sent[ip.at..ip.at + 8],
                got[ip.at..ip.at + 8],
                "tos, lengths, id, flags"
            );
            assert_eq!(got[ip.at + 8], 64, "TTL");
        }
        IpAddr::V6(_) => {
            assert_eq!(
                sent[ip.at..ip.at + 7],
                got[ip.at..ip.at + 7],
                "class, flow, length"
            );
            assert_eq!(got[ip.at + 7], 64, "hop limit");
        }
    }
}

/// The expected values in a reply.
pub struct Expected {
    pub device: TestDevice,
    pub mode: Mode,
    /// The line's idx immediately before the message.
    pub idx: u32,
    pub fresh: [u8; 8],
    pub session_lifetime_s: u32,
}

/// Checks the message in a LAP reply.
pub fn check_message(sent: &[u8], got: &[u8], verdict: Verdict, expected: &Expected) {
    let (request_frame, reply_frame) = (parse(sent).unwrap(), parse(got).unwrap());
    let (ip, udp) = request_frame.datagram().unwrap();
    let (_, reply_udp) = reply_frame.datagram().unwrap();
    let request = wire::parse(&sent[udp.payload()]).unwrap();
    match (request, wire::parse(&got[reply_udp.payload()]).unwrap(), verdict) {
        (Message::Request(request), Message::Challenge(reply), Verdict::ReplyChallenge) => {
            let idx = RowIndex(expected.idx);
            assert_eq!(
                (reply.idx.get(), reply.gateway_id.get(), reply.fresh),
                (idx.0, GATEWAY.0, expected.fresh)
            );
            assert_eq!(reply.challenge, expected.device.challenge(expected.mode, idx));
            assert_eq!(reply.nonce_echo, request.nonce[..8]);
            let key = expected.device.auth_key(expected.mode, idx);
            assert_eq!(reply.tag, tag::challenge(&key, reply, &request.nonce));
        }
        (Message::Response(response), Message::Ack(reply), Verdict::ReplyAck | Verdict::ReplyAckRepeated) => {
            let idx = response.idx;
            assert_eq!(
                (reply.idx, reply.session_lifetime_s.get()),
                (idx, expected.session_lifetime_s)
            );
            assert_eq!(reply.session_id, response.tag[..8]);
            assert_eq!(reply.seen_ip, ip_bytes(ip.src));
            let auth_key = expected.device.auth_key(expected.mode, RowIndex(idx.get()));
            let key = SessionKey::derive(&auth_key, Suite::SipHash128, &response.tag);
            assert_eq!(reply.tag, tag::ack(&key, reply));
        }
        (Message::Request(_), Message::Nak(reply), Verdict::ReplyNak) => {
            assert_eq!(reply.idx.get(), expected.idx);
            assert!([1, 2].contains(&reply.reason));
        }
        (request, reply, verdict) => panic!("{verdict}: {request:?} answered by {reply:?}"),
    }
}
