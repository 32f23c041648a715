//! How many messages of a flood from devices that are not installed reach user space (LAP/1 1.4.5), in `xdp` and in
//! `host`.

use std::sync::Arc;
use std::time::Instant;

use linewarden_dataplane::host::{Engine, Host, ThreadState, Timestamps};
use linewarden_dataplane::xdp::Xdp;
use linewarden_dataplane::{Config, DataPlane, Miss, Telemetry};
use linewarden_protocol::frame::parse;
use linewarden_protocol::ids::Mode;
use linewarden_protocol::verdict::Verdict::{self, *};
use linewarden_protocol::wire::message_type;
use zerocopy::IntoBytes as _;

use crate::support::device::{GATEWAY, Response, TestDevice};
use crate::support::fixture::{load_xdp_if_permitted, real_now};
use crate::support::test_config::TestConfig;

const FRESH: [u8; 8] = [3; 8];

/// A data plane under test.
enum DataPlaneUnderTest {
    Xdp(Box<Xdp>),
    Host(Box<Host>, Arc<Engine>, Box<ThreadState>),
}

impl DataPlaneUnderTest {
    fn as_dyn(&mut self) -> &mut dyn DataPlane {
        match self {
            Self::Xdp(xdp) => &mut **xdp,
            Self::Host(host, ..) => &mut **host,
        }
    }

    /// Sends a message from the device's address; returns the verdict.
    fn send(&mut self, device: TestDevice, message: &[u8]) -> Verdict {
        let frame = device.frame(false).udp(message);
        match self {
            Self::Xdp(xdp) => {
                let before = Telemetry::counters(&**xdp).unwrap();
                xdp.test_run(&frame).unwrap();
                let after = Telemetry::counters(&**xdp).unwrap();
                let has_counted = |verdict: &&Verdict| after.get(**verdict) > before.get(**verdict);
                *Verdict::ALL.iter().find(has_counted).unwrap()
            }
            Self::Host(_, engine, thread) => {
                let now = Timestamps {
                    monotonic_ns: real_now().monotonic_ms * 1_000_000,
                    boot_ns: 0,
                };
                let meta = parse(&frame).unwrap().meta(1).unwrap();
                let mut payload = message.to_vec();
                engine.process(thread, now, &meta, &mut payload)
            }
        }
    }
}

/// `host`, and `xdp` if it can be loaded, with the limit `miss_per_s`.
fn data_planes(miss_per_s: u32) -> Vec<DataPlaneUnderTest> {
    let config = Config {
        miss_per_s,
        ..TestConfig::SLOW.config()
    };
    let mut host = Host::new(&config).unwrap();
    let (engine, thread) = (host.engine(), host.thread_state());
    let host = DataPlaneUnderTest::Host(Box::new(host), engine, Box::new(thread));
    let xdp = load_xdp_if_permitted(&config).map(|xdp| DataPlaneUnderTest::Xdp(Box::new(xdp)));
    let mut data_planes: Vec<DataPlaneUnderTest> = xdp.into_iter().chain([host]).collect();
    for data_plane in &mut data_planes {
        let now_ns = real_now().monotonic_ms * 1_000_000;
        data_plane.as_dyn().set_fresh(FRESH, now_ns);
    }
    data_planes
}

fn request(device: TestDevice, nonce: u8) -> Vec<u8> {
    device.request([nonce; 16]).as_bytes().to_vec()
}

fn response(device: TestDevice, nonce: u8) -> Vec<u8> {
    let response = Response {
        mode: Mode::Pool,
        idx: 0,
        gateway: GATEWAY,
        fresh: FRESH,
        bound: None,
        nonce: [nonce; 16],
    };
    response.bytes(device)
}

fn as_miss(message: &[u8]) -> Miss {
    Miss::new(message.try_into().unwrap(), [192, 0, 2, 9].into(), [0; 8])
}

#[test]
fn messages_of_devices_that_are_not_enrolled_are_dropped() {
    let _pinned = crate::support::pin_to_one_cpu();
    for mut data_plane in data_planes(u32::MAX) {
        assert_eq!(
            data_plane.send(TestDevice(5), &request(TestDevice(5), 1)),
            SlowPath,
            "the enrollment filter is not active"
        );
        for number in 0..200 {
            data_plane.as_dyn().enroll(TestDevice(number * 2).id());
        }
        data_plane.as_dyn().set_enrollment_filter(true);
        for number in 0..200 {
            let (known, unknown) = (TestDevice(number * 2), TestDevice(number * 2 + 1));
            assert_eq!(data_plane.send(known, &request(known, 1)), SlowPath);
            assert_eq!(data_plane.send(known, &response(known, 1)), SlowPath);
            assert_eq!(data_plane.send(unknown, &request(unknown, 1)), DropUnknownDevice);
            assert_eq!(data_plane.send(unknown, &response(unknown, 1)), DropUnknownDevice);
        }
    }
}

/// The maximum number of windows of 67 ms that overlap the time since `start`.
fn windows_since(start: Instant) -> usize {
    start.elapsed().as_millis() as usize / 67 + 2
}

#[test]
fn a_flood_is_limited_per_source_and_in_total() {
    let _pinned = crate::support::pin_to_one_cpu();
    for mut data_plane in data_planes(960) {
        // 960 messages per second are 65 per window; one source gets at most half of them.
        let start = Instant::now();
        let mut passed_count = 0;
        for nonce in 0..200 {
            match data_plane.send(TestDevice(1), &request(TestDevice(1), nonce)) {
                SlowPath => passed_count += 1,
                verdict => assert_eq!(verdict, DropShed),
            }
        }
        assert!(
            (1..=33 * windows_since(start)).contains(&passed_count),
            "{passed_count}"
        );
        let start = Instant::now();
        let passed = (2..2000).filter(|number| {
            data_plane.send(TestDevice(*number), &request(TestDevice(*number), 1)) == SlowPath
        });
        let passed_count = passed.count();
        assert!(
            (1..=65 * windows_since(start)).contains(&passed_count),
            "{passed_count}"
        );
    }
}

#[test]
fn the_response_to_a_challenge_passes_one_time_during_a_flood() {
    let _pinned = crate::support::pin_to_one_cpu();
    for mut data_plane in data_planes(15) {
        let legitimate = TestDevice(1);
        let mut challenge = [0; 64];
        challenge[3] = message_type::CHALLENGE;
        data_plane
            .as_dyn()
            .send_reply(&as_miss(&request(legitimate, 9)), &challenge);
        for number in 2..200 {
            data_plane.send(TestDevice(number), &request(TestDevice(number), 1));
            data_plane.send(TestDevice(number), &response(TestDevice(number), 1));
        }
        // Uses up the limit of the legitimate device's address, too.
        while data_plane.send(legitimate, &response(legitimate, 7)) == SlowPath {}
        assert_eq!(data_plane.send(legitimate, &response(legitimate, 9)), SlowPath);
        // User space announces that it expects the same RESPONSE again.
        data_plane
            .as_dyn()
            .expect_response(&as_miss(&response(legitimate, 9)));
        assert_eq!(data_plane.send(legitimate, &response(legitimate, 9)), SlowPath);
    }
}
