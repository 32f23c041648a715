//! lap.p4: what there is only so much of a second.

use std::net::Ipv4Addr;

use linewarden_protocol::frame::write::Endpoint;
use linewarden_protocol::gateway::Gate;
use linewarden_protocol::ids::Mode;
use linewarden_protocol::verdict::Verdict;

use super::bench::{Bench, device_end};
use super::lap::{Device, FRESH, bench_with, device, install, refresh, set_with};
use super::stf::Stf;

/// So many at once, and none for hours after.
fn limit(bench: &mut Bench, meter: &str, burst: u32) {
    let rate = format!("0.000000001:{burst}");
    bench
        .stf
        .line(&format!("meter_array_set_rates LapIngress.{meter} {rate} {rate}"));
}

/// The same device, by another address.
fn at(device: &Device, source: u8) -> Device {
    let ip = Ipv4Addr::new(10, 66, 1, source).into();
    Device {
        from: Endpoint {
            ip,
            ..device_end(device.number)
        },
        ..*device
    }
}

pub fn limits() -> Stf {
    let mut bench = bench_with("limits", Gate::Open, |config| config.miss_per_s = u32::MAX);
    set_with(&mut bench, Gate::Open, true);
    refresh(&mut bench);
    let far = device(2, Mode::Pool);
    for (meter, burst) in [("sources", 2), ("strangers", 3), ("unasked", 2)] {
        limit(&mut bench, meter, burst);
    }
    sources(&mut bench, &far);
    expected(&mut bench, &far);
    here(&mut bench);
    bench.finish()
}

/// One that sends much has the half that is anybody's, and takes nothing of the other.
fn sources(bench: &mut Bench, far: &Device) {
    bench.say("Messages of devices that are not here: three are anybody's, three of sources that have sent less than three.");
    let flood = at(far, 1);
    for _ in 0..3 {
        bench.expect(Verdict::SlowPath, &flood.request(0x33));
    }
    for _ in 0..20 {
        bench.dropped(Verdict::DropShed, &flood.request(0x33));
    }
    for source in [2, 3, 3] {
        bench.expect(Verdict::SlowPath, &at(far, source).request(0x33));
    }
    for source in [1, 3, 4] {
        bench.dropped(Verdict::DropShed, &at(far, source).request(0x33));
    }
}

/// What the slow path has asked for passes whatever the load, and once.
fn expected(bench: &mut Bench, far: &Device) {
    bench.say("RESPONSEs have a share of their own; one that is expected needs none, once for each time that it is.");
    let flood = at(far, 5);
    for _ in 0..2 {
        bench.expect(Verdict::SlowPath, &flood.response(4, FRESH, true));
    }
    bench.dropped(Verdict::DropShed, &flood.response(4, FRESH, true));
    let nonce = "4e".repeat(8);
    bench.stf.line(&format!(
        "add LapIngress.expected hdr.lap.device_id:{:#x} hdr.lap_body.w0:0x{nonce} hdr.lap_body.w1:0x{nonce} set_expected(slot:3)",
        far.id().0
    ));
    for _ in 0..2 {
        bench.stf.line("register_write LapIngress.armed 3 1");
        bench.expect(Verdict::SlowPath, &flood.response(4, FRESH, true));
        bench.dropped(Verdict::DropShed, &flood.response(4, FRESH, true));
    }
    let other = at(&device(3, Mode::Pool), 5);
    bench.stf.line("register_write LapIngress.armed 3 1");
    bench.dropped(Verdict::DropShed, &other.response(4, FRESH, true));
}

/// NAKs, and sessions of key mode, which cost nothing.
fn here(bench: &mut Bench) {
    bench
        .say("A NAK for each of two REQUESTs; two sessions of a device of key mode, whatever the others do.");
    limit(bench, "naks", 2);
    limit(bench, "renewals", 2);
    let empty = device(6, Mode::Pool);
    install(bench, &empty, 8, 0, None);
    for _ in 0..2 {
        bench.expect(Verdict::ReplyNak, &empty.request(0x33));
    }
    bench.dropped(Verdict::DropNakLimit, &empty.request(0x33));
    for number in [7, 8] {
        let weak = device(number, Mode::Key);
        install(bench, &weak, 0, 1, None);
        for idx in 0..2 {
            bench.expect(Verdict::ReplyAck, &weak.response(idx, FRESH, true));
        }
        bench.dropped(Verdict::DropBusy, &weak.response(2, FRESH, true));
        // It has not won, and the session before is there still.
        bench.expect(Verdict::ReplyAckAgain, &weak.response(1, FRESH, true));
    }
    bench.say("Rows are limit enough for those who have them.");
    let pool = device(9, Mode::Pool);
    install(bench, &pool, 0, 4, None);
    for idx in 0..4 {
        bench.expect(Verdict::ReplyAck, &pool.response(idx, FRESH, true));
    }
}
