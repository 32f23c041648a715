//! The `xdp` data plane on real interfaces: frames for the MAC address of a bridge, and frames that the driver splits
//! into several buffers because of a large MTU.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

use linewarden_dataplane::xdp::{Xdp, has_large_frames};
use linewarden_dataplane::{Config, Counters, DataPlane as _, Telemetry as _};
use linewarden_harness::skip;
use linewarden_protocol::frame::Mac;
use linewarden_protocol::frame::builder::FrameBuilder;
use linewarden_protocol::frame::write::Endpoint;
use linewarden_protocol::ids::Mode;
use linewarden_protocol::verdict::Verdict;
use zerocopy::IntoBytes as _;

use crate::support::device::{A, GATEWAY, Response, gateway_end, service_end};
use crate::support::fixture::{install_key, load_xdp};
use crate::support::netns::{index_of, ip, leave_namespace, packet_socket};
use crate::support::test_config::TestConfig;

const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;
const XDP_TX: u32 = 3;
const FRESH: [u8; 8] = [7; 8];

fn mac_text(mac: Mac) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// Moves the calling thread to a new network namespace with two connected interfaces, `here` and `there`, which send
/// nothing on their own. Skips the test if this is not allowed.
fn create_link(mtu: u32) {
    leave_namespace();
    std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").unwrap();
    ip(&format!(
        "link add here mtu {mtu} type veth peer name there mtu {mtu}"
    ));
    ip(&format!(
        "link set here up address {}",
        mac_text(gateway_end(false).mac)
    ));
    ip("link set there up");
}

/// A sender of frames, which finds the verdict of each frame in the data plane's counters.
struct Sender {
    socket: OwnedFd,
    /// The counters after the previous frame.
    counted: Counters,
}

impl Sender {
    fn at(interface: &str) -> Self {
        Self {
            socket: packet_socket(interface, 0),
            counted: Counters::default(),
        }
    }

    fn verdict_of(&mut self, data_plane: &Xdp, frame: &[u8]) -> Verdict {
        // SAFETY: the frame is valid for its length during the call.
        let sent = unsafe { libc::send(self.socket.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        assert_eq!(sent, frame.len() as isize, "{}", std::io::Error::last_os_error());
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let counted = data_plane.counters().unwrap();
            let counts: Vec<_> = counted.since(&self.counted).nonzero().collect();
            if let [(verdict, 1)] = counts[..] {
                self.counted = counted;
                return verdict;
            }
            assert!(counts.is_empty(), "{counts:?}");
            assert!(Instant::now() < deadline, "the frame was not counted");
            std::thread::yield_now();
        }
    }
}

/// A loaded data plane in which A is installed; it is not attached to an interface.
fn data_plane(config: &Config) -> Xdp {
    let mut data_plane = load_xdp(config);
    install_key(&mut data_plane, A, FRESH);
    data_plane
}

fn request_to(mac: Mac) -> Vec<u8> {
    let to = Endpoint {
        mac,
        ..gateway_end(false)
    };
    FrameBuilder::new(A.end(false), to).udp(A.request([3; 16]).as_bytes())
}

/// In a bridge, devices send to the bridge's address. Frames for a station whose port the bridge has forgotten are
/// flooded, so they also arrive at this port.
#[test]
fn a_bridge_port_replies_only_at_its_own_address_and_that_of_its_bridge() {
    create_link(1500);
    let (bridge, station, new_mac) = (
        [2, 0, 0, 0, 0xb1, 1],
        [2, 0, 0, 0, 0xaa, 1],
        [2, 0, 0, 0, 0xb1, 2],
    );
    ip(&format!(
        "link add bridge address {} type bridge",
        mac_text(bridge)
    ));
    ip("link set here master bridge");
    ip("link set bridge up");
    let mut data_plane = data_plane(&TestConfig::OFF.config());
    data_plane.attach(index_of("here")).unwrap();
    let mut sender = Sender::at("there");
    for (mac, expected) in [
        (gateway_end(false).mac, Verdict::ReplyChallenge),
        (bridge, Verdict::ReplyChallenge),
        (station, Verdict::PassForeign),
        (new_mac, Verdict::PassForeign),
    ] {
        assert_eq!(
            sender.verdict_of(&data_plane, &request_to(mac)),
            expected,
            "{}",
            mac_text(mac)
        );
    }
    ip(&format!("link set bridge address {}", mac_text(new_mac)));
    data_plane.refresh_links();
    for (mac, expected) in [
        (gateway_end(false).mac, Verdict::ReplyChallenge),
        (bridge, Verdict::PassForeign),
        (new_mac, Verdict::ReplyChallenge),
    ] {
        assert_eq!(
            sender.verdict_of(&data_plane, &request_to(mac)),
            expected,
            "later, {}",
            mac_text(mac)
        );
    }
}

/// With a large MTU, the program sees only the first buffer of a frame, but can determine whether the frame is complete.
#[test]
fn a_bound_gate_checks_frames_in_several_buffers() {
    create_link(9000);
    assert!(has_large_frames(&[index_of("here")]) && !has_large_frames(&[1]));
    let config = Config {
        fragments: true,
        ..TestConfig::BOUND.config()
    };
    let mut data_plane = data_plane(&config);
    data_plane.attach(index_of("here")).unwrap();
    let mut sender = Sender::at("there");
    let to_service = FrameBuilder::new(A.end(false), service_end(false));
    for bytes in [100, 3000, 5000, 8900] {
        let frame = to_service.clone().udp(&vec![0x5a; bytes]);
        assert_eq!(
            sender.verdict_of(&data_plane, &frame),
            Verdict::DropGate,
            "{bytes} B"
        );
        let too_long = {
            let mut frame = frame;
            let total = u16::try_from(frame.len() - 14).unwrap() + 1;
            frame[16..18].copy_from_slice(&total.to_be_bytes());
            frame
        };
        assert_eq!(
            sender.verdict_of(&data_plane, &too_long),
            Verdict::DropTruncated,
            "{bytes} B"
        );
    }
    assert_eq!(
        sender.verdict_of(&data_plane, &request_to(gateway_end(false).mac)),
        Verdict::ReplyChallenge
    );
}

/// Bytes in further buffers count as bytes behind the packet. The test splits each frame right behind its packet,
/// because some drivers put less into the first buffer than veth.
#[test]
fn frames_that_always_pass_must_not_have_more_than_padding_in_further_buffers() {
    let config = Config {
        fragments: true,
        ..TestConfig::BOUND.config()
    };
    let data_plane = data_plane(&config);
    let end = |ip: &str, port| Endpoint {
        mac: [0x33, 0x33, 0, 0, 0, 1],
        ip: ip.parse().unwrap(),
        port,
    };
    let from = |ip: &str| Endpoint {
        mac: A.mac(),
        ..end(ip, 68)
    };
    let target = [&[0; 4][..], &[0xfe, 0x80], &[0; 13], &[9]].concat();
    let solicited = end("ff02::1:ff00:9", 0);
    let frames = [
        FrameBuilder::new(from("10.66.128.1"), end("10.66.0.9", 0)).arp_request(),
        FrameBuilder::new(from("fe80::1"), solicited)
            .ip_fields(0, 0, 255)
            .icmpv6(135, &target),
        FrameBuilder::new(from("0.0.0.0"), end("255.255.255.255", 67)).dhcp(),
    ];
    for frame in frames {
        for (trailing_bytes, action) in [(0, XDP_PASS), (18, XDP_PASS), (19, XDP_DROP), (1400, XDP_DROP)] {
            let complete = [&frame[..], &vec![0x5a; trailing_bytes]].concat();
            let Ok(run) = data_plane.test_run_in_fragments(&complete, frame.len()) else {
                skip!("this kernel splits no frame in test runs (Linux 6.18)");
            };
            assert_eq!(run.action, action, "{trailing_bytes} B after {frame:02x?}");
        }
    }
}

/// The type of a control message determines whether a device is allowed to send it. If a driver puts so little into the
/// first buffer that the type is missing, the frame is dropped.
#[test]
fn control_messages_with_an_unreadable_type_are_dropped() {
    let config = Config {
        fragments: true,
        ..TestConfig::BOUND.config()
    };
    let data_plane = data_plane(&config);
    let response = Response {
        mode: Mode::Key,
        idx: 0,
        gateway: GATEWAY,
        fresh: FRESH,
        bound: Some(A.mac()),
        nonce: [1; 16],
    };
    let opened = data_plane
        .test_run(&A.frame(false).udp(&response.bytes(A)))
        .unwrap();
    assert_eq!(opened.action, XDP_TX);
    let to = |v6| FrameBuilder::new(A.end(v6), service_end(v6));
    let igmp = to(false).ip(2, &[&[0x11][..], &[0; 63]].concat());
    let icmp = to(false).ip(1, &[&[5][..], &[0; 63]].concat());
    let echo = to(false).ip(1, &[&[8][..], &[0; 63]].concat());
    let advertisement = to(true).icmpv6(134, &[0; 60]);
    let echo6 = to(true).icmpv6(128, &[0; 60]);
    let tcp = to(false).ip(6, &[0; 64]);
    let (before4, before6) = (14 + 20, 14 + 40);
    for (frame, first_buffer, action) in [
        (&igmp, before4, XDP_DROP),
        (&icmp, before4, XDP_DROP),
        (&echo, before4, XDP_DROP),
        (&advertisement, before6, XDP_DROP),
        (&echo6, before6, XDP_DROP),
        (&igmp, before4 + 1, XDP_DROP),
        (&icmp, before4 + 1, XDP_DROP),
        (&advertisement, before6 + 1, XDP_DROP),
        (&echo, before4 + 1, XDP_PASS),
        (&echo6, before6 + 1, XDP_PASS),
        (&tcp, before4, XDP_PASS),
    ] {
        let Ok(run) = data_plane.test_run_in_fragments(frame, first_buffer) else {
            skip!("this kernel splits no frame in test runs (Linux 6.18)");
        };
        assert_eq!(run.action, action, "{first_buffer} B of {frame:02x?}");
    }
}

/// The error for a large MTU differs from the error for an interface that already has another program.
#[test]
fn a_large_mtu_is_not_reported_as_another_program() {
    create_link(9000);
    let mut data_plane = data_plane(&TestConfig::SEALED.config());
    let error = data_plane.attach(index_of("here")).unwrap_err().to_string();
    assert!(error.contains("interface here failed: with MTU 9000"), "{error}");
    assert!(
        error.contains("mtu 3498") && !error.contains("already has an XDP program"),
        "{error}"
    );
    ip("link set there mtu 3498");
    ip("link set here mtu 3498");
    data_plane.attach(index_of("here")).unwrap();
    let mut second = load_xdp(&TestConfig::OFF.config());
    let error = second.attach(index_of("here")).unwrap_err().to_string();
    assert!(
        error.contains("interface here failed, it already has an XDP program"),
        "{error}"
    );
}
