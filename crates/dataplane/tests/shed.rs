//! What of a flood of devices that are not here reaches user space (LAP/1 1.4.5): `xdp` and `host`, each by itself.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

mod support;

use std::sync::Arc;
use std::time::Instant;

use linewarden_dataplane::host::{Engine, Host, Moment, ThreadState};
use linewarden_dataplane::xdp::Xdp;
use linewarden_dataplane::{Config, DataPlane, Miss};
use linewarden_protocol::frame::parse;
use linewarden_protocol::ids::Mode;
use linewarden_protocol::verdict::Verdict::{self, *};
use linewarden_protocol::wire::message_type;
use zerocopy::IntoBytes as _;

use support::device::{Dev, GATEWAY, Response};
use support::shape::Shape;
use support::world::{load_xdp, real_now};

const FRESH: [u8; 8] = [3; 8];

/// A data plane to which frames can be given.
enum Side {
    Xdp(Box<Xdp>),
    Host(Box<Host>, Arc<Engine>, Box<ThreadState>),
}

impl Side {
    fn plane(&mut self) -> &mut dyn DataPlane {
        match self {
            Self::Xdp(xdp) => &mut **xdp,
            Self::Host(host, ..) => &mut **host,
        }
    }

    fn send(&mut self, device: Dev, message: &[u8]) -> Verdict {
        let frame = device.frame(false).udp(message);
        match self {
            Self::Xdp(xdp) => {
                let before = DataPlane::counters(&**xdp).unwrap();
                xdp.test_run(&frame).unwrap();
                let after = DataPlane::counters(&**xdp).unwrap();
                let moved = |verdict: &&Verdict| after.get(**verdict) > before.get(**verdict);
                *Verdict::ALL.iter().find(moved).unwrap()
            }
            Self::Host(_, engine, thread) => {
                let now = Moment {
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

/// Both, with a share of `miss_per_s`.
fn sides(miss_per_s: u32) -> Vec<Side> {
    let config = Config {
        miss_per_s,
        ..Shape::SLOW.config()
    };
    let mut host = Host::new(&config).unwrap();
    let (engine, thread) = (host.engine(), host.thread_state());
    let host = Side::Host(Box::new(host), engine, Box::new(thread));
    let xdp = load_xdp(&config).map(|xdp| Side::Xdp(Box::new(xdp)));
    let mut sides: Vec<Side> = xdp.into_iter().chain([host]).collect();
    for side in &mut sides {
        let now_ns = real_now().monotonic_ms * 1_000_000;
        side.plane().set_fresh(FRESH, now_ns);
    }
    sides
}

fn request(device: Dev, nonce: u8) -> Vec<u8> {
    device.request([nonce; 16]).as_bytes().to_vec()
}

fn response(device: Dev, nonce: u8) -> Vec<u8> {
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
fn who_is_enrolled_nowhere_does_not_get_through() {
    let _pinned = support::pin_to_one_cpu();
    for mut side in sides(u32::MAX) {
        assert_eq!(side.send(Dev(5), &request(Dev(5), 1)), SlowPath, "not in force");
        for number in 0..200 {
            side.plane().enrol(Dev(number * 2).id());
        }
        side.plane().set_filtering(true);
        for number in 0..200 {
            let (known, stranger) = (Dev(number * 2), Dev(number * 2 + 1));
            assert_eq!(side.send(known, &request(known, 1)), SlowPath);
            assert_eq!(side.send(known, &response(known, 1)), SlowPath);
            assert_eq!(side.send(stranger, &request(stranger, 1)), DropUnknownDevice);
            assert_eq!(side.send(stranger, &response(stranger, 1)), DropUnknownDevice);
        }
    }
}

/// Windows of 67 ms that may have been touched since.
fn windows_since(began: Instant) -> usize {
    began.elapsed().as_millis() as usize / 67 + 2
}

#[test]
fn a_flood_is_shed_by_source_and_in_all() {
    let _pinned = support::pin_to_one_cpu();
    for mut side in sides(960) {
        // 960 a second are 65 in a window; one source takes half of them at most.
        let began = Instant::now();
        let mut passed = 0;
        for nonce in 0..200 {
            match side.send(Dev(1), &request(Dev(1), nonce)) {
                SlowPath => passed += 1,
                verdict => assert_eq!(verdict, DropShed),
            }
        }
        assert!((1..=33 * windows_since(began)).contains(&passed), "{passed}");
        let began = Instant::now();
        let passed =
            (2..2000).filter(|number| side.send(Dev(*number), &request(Dev(*number), 1)) == SlowPath);
        let passed = passed.count();
        assert!((1..=65 * windows_since(began)).contains(&passed), "{passed}");
    }
}

#[test]
fn the_response_to_a_challenge_gets_through_a_flood_once() {
    let _pinned = support::pin_to_one_cpu();
    for mut side in sides(15) {
        let honest = Dev(1);
        let mut challenge = [0; 64];
        challenge[3] = message_type::CHALLENGE;
        side.plane().send(&as_miss(&request(honest, 9)), &challenge);
        for number in 2..200 {
            side.send(Dev(number), &request(Dev(number), 1));
            side.send(Dev(number), &response(Dev(number), 1));
        }
        // Of its own source nothing is left, either.
        while side.send(honest, &response(honest, 7)) == SlowPath {}
        assert_eq!(side.send(honest, &response(honest, 9)), SlowPath);
        // Nobody had time for it.
        side.plane().expect(&as_miss(&response(honest, 9)));
        assert_eq!(side.send(honest, &response(honest, 9)), SlowPath);
    }
}
