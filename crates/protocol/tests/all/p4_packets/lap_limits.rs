//! lap.p4: rate limits per second.

use std::net::Ipv4Addr;

use linewarden_protocol::frame::write::Endpoint;
use linewarden_protocol::gateway::Gate;
use linewarden_protocol::ids::Mode;
use linewarden_protocol::verdict::Verdict;

use super::lap::{Device, FRESH, device, install, new_tester_with, refresh, set_gate_and_slow_path};
use super::packet_tester::{PacketTester, device_endpoint};
use super::stf::Stf;

/// Sets a meter to a burst of this size, and to a rate that permits nothing more for hours.
fn limit(tester: &mut PacketTester, meter: &str, burst: u32) {
    let rate = format!("0.000000001:{burst}");
    tester
        .stf
        .line(&format!("meter_array_set_rates LapIngress.{meter} {rate} {rate}"));
}

/// Returns the same device with another address.
fn with_address(device: &Device, source: u8) -> Device {
    let ip = Ipv4Addr::new(10, 66, 1, source).into();
    Device {
        from: Endpoint {
            ip,
            ..device_endpoint(device.number)
        },
        ..*device
    }
}

pub fn limits() -> Stf {
    let mut tester = new_tester_with("limits", Gate::Bound, |config| config.miss_per_s = u32::MAX);
    set_gate_and_slow_path(&mut tester, Gate::Bound, true);
    refresh(&mut tester);
    let unknown_device = device(2, Mode::Pool);
    for (meter, burst) in [
        ("sources", 2),
        ("unknown_requests", 3),
        ("unsolicited_responses", 2),
    ] {
        limit(&mut tester, meter, burst);
    }
    sources(&mut tester, &unknown_device);
    expected_responses(&mut tester, &unknown_device);
    naks_and_renewals(&mut tester);
    tester.finish()
}

/// A source with many messages uses up the half of the limit that all sources share. The other half remains for sources
/// with few messages.
fn sources(tester: &mut PacketTester, unknown_device: &Device) {
    tester.comment("Messages of unknown devices: three shared by all sources, three for sources with fewer than three messages.");
    let flooding_device = with_address(unknown_device, 1);
    for _ in 0..3 {
        tester.expect(Verdict::SlowPath, &flooding_device.request(0x33));
    }
    for _ in 0..20 {
        tester.dropped(Verdict::DropShed, &flooding_device.request(0x33));
    }
    for source in [2, 3, 3] {
        tester.expect(
            Verdict::SlowPath,
            &with_address(unknown_device, source).request(0x33),
        );
    }
    for source in [1, 3, 4] {
        tester.dropped(
            Verdict::DropShed,
            &with_address(unknown_device, source).request(0x33),
        );
    }
}

/// Messages that the slow path expects pass under any load, once.
fn expected_responses(tester: &mut PacketTester, unknown_device: &Device) {
    tester.comment("RESPONSEs have a separate limit; an expected one is not limited, once per expectation.");
    let flooding_device = with_address(unknown_device, 5);
    for _ in 0..2 {
        tester.expect(Verdict::SlowPath, &flooding_device.response(4, FRESH, true));
    }
    tester.dropped(Verdict::DropShed, &flooding_device.response(4, FRESH, true));
    let nonce = "4e".repeat(8);
    tester.stf.line(&format!(
        "add LapIngress.expected hdr.lap.device_id:{:#x} hdr.lap_body.w0:0x{nonce} hdr.lap_body.w1:0x{nonce} set_expected(slot:3)",
        unknown_device.id().0
    ));
    for _ in 0..2 {
        tester.stf.line("register_write LapIngress.armed 3 1");
        tester.expect(Verdict::SlowPath, &flooding_device.response(4, FRESH, true));
        tester.dropped(Verdict::DropShed, &flooding_device.response(4, FRESH, true));
    }
    let other_device = with_address(&device(3, Mode::Pool), 5);
    tester.stf.line("register_write LapIngress.armed 3 1");
    tester.dropped(Verdict::DropShed, &other_device.response(4, FRESH, true));
}

/// Limits of NAKs, and of sessions in key mode, which cost no row.
fn naks_and_renewals(tester: &mut PacketTester) {
    tester
        .comment("A NAK for each of two REQUESTs; two sessions of a key-mode device, independent of others.");
    limit(tester, "naks", 2);
    limit(tester, "renewals", 2);
    let empty = device(6, Mode::Pool);
    install(tester, &empty, 8, 0, None);
    for _ in 0..2 {
        tester.expect(Verdict::ReplyNak, &empty.request(0x33));
    }
    tester.dropped(Verdict::DropNakLimit, &empty.request(0x33));
    for number in [7, 8] {
        let key_device = device(number, Mode::Key);
        install(tester, &key_device, 0, 1, None);
        for idx in 0..2 {
            tester.expect(Verdict::ReplyAck, &key_device.response(idx, FRESH, true));
        }
        tester.dropped(Verdict::DropBusy, &key_device.response(2, FRESH, true));
        // The RESPONSE has not won, and the previous session is still live.
        tester.expect(Verdict::ReplyAckRepeated, &key_device.response(1, FRESH, true));
    }
    tester.comment("Pool-mode devices are limited by their rows.");
    let pool = device(9, Mode::Pool);
    install(tester, &pool, 0, 4, None);
    for idx in 0..4 {
        tester.expect(Verdict::ReplyAck, &pool.response(idx, FRESH, true));
    }
}
