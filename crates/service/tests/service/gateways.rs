//! Gateways over gRPC: devices authenticate, revocations arrive, one controller's end changes nothing, and a number is one gateway's.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use linewarden_controller::{Controller, Policy};
use linewarden_dataplane::Config;
use linewarden_dataplane::host::{Host, HostOptions};
use linewarden_gateway::{Gateway, LinkState, Settings};
use linewarden_link::{Client, Remote, Told};
use linewarden_protocol::ids::{DeviceId, GatewayId, Mode, RowIndex};
use linewarden_protocol::verdict::Verdict;
use linewarden_registry::{Location, Registry, Revision, Role};
use linewarden_service::{Service, ServiceOptions};
use linewarden_testbed::{Postgres, PostgresOptions};
use serde_json::json;
use tokio::runtime::Runtime;

use crate::office::{Ca, Office, key};
use crate::site::{Client as Device, LONG, config, pool, record};

/// Rows that a gateway gets at once.
const LEASE_ROWS: u32 = 9;

pub fn start(link: Client, id: GatewayId) -> (Gateway, SocketAddr) {
    let config = Config {
        gateway_id: id,
        ..config()
    };
    let options = HostOptions {
        threads: 1,
        ..HostOptions::default()
    };
    let host = Host::start(&config, &options).unwrap();
    let gateway = Gateway::start(Box::new(host), link, id, Settings::for_plane(&config)).unwrap();
    assert!(
        gateway.wait_until(LONG, |status| status.loaded),
        "{:?}",
        gateway.status()
    );
    (gateway, SocketAddr::new(config.local[0], config.lap_port))
}

pub fn enrol(office: &Office, device: DeviceId, rows: u32) {
    let record = record(device, pool(device, rows));
    office.runtime.block_on(office.registry.enrol(record)).unwrap();
}

#[test]
fn devices_authenticate_at_a_gateway_far_from_the_registry_until_they_are_revoked() {
    let office = Office::new();
    let otto = office.caller("otto", Role::Operator);
    let (one, other) = (DeviceId(0xd1), DeviceId(0xd2));
    enrol(&office, one, 40);
    enrol(&office, other, 40);
    let (gateway, address) = start(office.link(GatewayId(3), &[]), GatewayId(3));
    let mut devices = [one, other].map(|id| Device::new(id, Mode::Pool, address));
    for expected in 0..20 {
        for device in &mut devices {
            assert_eq!(device.authenticate(LONG), Some(RowIndex(expected)));
        }
    }
    otto.post("/api/v1/devices/d1/revoke", &json!({"reason": "stolen"}))
        .ok();
    assert!(gateway.wait_until(LONG, |status| status.revoked == 1));
    assert_eq!(devices[0].authenticate(Duration::from_millis(300)), None);
    assert_eq!(devices[1].authenticate(LONG), Some(RowIndex(20)));

    // What it says of itself is to be seen.
    let until = std::time::Instant::now() + LONG;
    let shown = loop {
        let shown = otto.get("/api/v1/gateways/3").ok();
        let is_whole = shown["verdicts"]["reply_ack"].as_u64() >= Some(41) && shown["sessions"] == 1;
        if is_whole && shown["authentications_per_s"].is_number() && shown["latency_us"].is_object() {
            break shown;
        }
        assert!(std::time::Instant::now() < until, "{shown}");
    };
    assert_eq!(
        (&shown["state"], &shown["controller"]),
        (&json!("connected"), &json!("ctl-a"))
    );
    let latency = |per: &str| shown["latency_us"][per].as_f64().unwrap();
    assert!(
        0.0 < latency("p50") && latency("p50") <= latency("p99"),
        "{shown}"
    );
    let status = otto.get("/api/v1/status").ok();
    assert_eq!(status["gateways"]["connected"], 1, "{status}");
    assert_eq!(
        status["devices"]["authenticated"], 1,
        "who is revoked has no session: {status}"
    );
    assert!(status["authentications_per_s"].is_number(), "{status}");
    let metrics = format!("http://{}/metrics", office.metrics);
    let page = office
        .runtime
        .block_on(async { reqwest::get(metrics).await.unwrap().text().await.unwrap() });
    assert!(
        page.contains("linewarden_gateway_frames_total{gateway=\"3\",verdict=\"reply_ack\"}"),
        "{page}"
    );
    for name in [
        "sessions",
        "authentications_per_second",
        "latency_p50_seconds",
        "latency_p99_seconds",
    ] {
        let line = format!("linewarden_gateway_{name}{{gateway=\"3\"}} ");
        assert!(page.contains(&line), "{line}: {page}");
    }
    for socket in ["dataplane", "tickets"] {
        let line = format!("linewarden_gateway_kernel_drops_total{{gateway=\"3\",socket=\"{socket}\"}} 0\n");
        assert!(page.contains(&line), "{line}: {page}");
    }
    assert_eq!(shown["kernel_drops"], json!({"dataplane": 0, "tickets": 0}));
    assert!(!page.contains("d1"), "no device is a label");

    let stopped = gateway.stop().unwrap();
    assert!(stopped.settled);
    assert!(stopped.counters.get(Verdict::ReplyAck) >= 41);
    // Nothing is lost to a stop in good order.
    let (gateway, address) = start(office.link(GatewayId(3), &[]), GatewayId(3));
    let mut device = Device::new(other, Mode::Pool, address);
    device.nonce = 100;
    assert_eq!(device.authenticate(LONG), Some(RowIndex(21)));
    drop(gateway);
}

#[test]
fn a_gateway_is_who_its_certificate_names() {
    let office = Office::new();
    let ask = |link: &Client| office.runtime.block_on(link.enter());
    assert_eq!(ask(&office.link(GatewayId(3), &[])), Ok(1));
    assert_eq!(
        ask(&office.link(GatewayId(4), &[])),
        Ok(1),
        "numbers count for themselves"
    );
    for uri in [
        "urn:linewarden:user:alice",
        "https://example.org",
        "urn:linewarden:gateway:07",
    ] {
        let link = office.link_with(&office.ca.client(uri, |_| ()), &[]);
        let refused = ask(&link).unwrap_err();
        assert!(
            matches!(&refused, Remote::Failed(why) if why.contains("no gateway's")),
            "{refused:?}"
        );
    }
    let foreign = Ca::new().client("urn:linewarden:gateway:3", |_| ());
    let refused = ask(&office.link_with(&foreign, &[])).unwrap_err();
    assert!(matches!(refused, Remote::Failed(_)), "{refused:?}");
    let expired = office.ca.client("urn:linewarden:gateway:3", |parameters| {
        parameters.not_before = rcgen::date_time_ymd(2019, 1, 1);
        parameters.not_after = rcgen::date_time_ymd(2020, 1, 1);
    });
    let refused = ask(&office.link_with(&expired, &[])).unwrap_err();
    assert!(matches!(refused, Remote::Failed(_)), "{refused:?}");
}

#[test]
fn the_newer_process_of_a_gateway_is_the_one_and_a_retired_one_is_none() {
    let office = Office::new();
    let ada = office.caller("ada", Role::Admin);
    let device = DeviceId(0xd1);
    enrol(&office, device, 40);
    let (first, _) = start(office.link(GatewayId(3), &[]), GatewayId(3));
    let (second, _) = start(office.link(GatewayId(3), &[]), GatewayId(3));
    assert!(
        first.wait_until(LONG, |status| status.replaced),
        "{:?}",
        first.status()
    );
    assert!(!second.status().replaced);
    ada.post("/api/v1/gateways/3/retire", &json!({"reason": "sold"}))
        .ok();
    assert!(
        second.wait_until(LONG, |status| status.replaced),
        "{:?}",
        second.status()
    );
    let refused = office
        .runtime
        .block_on(office.link(GatewayId(3), &[]).enter())
        .unwrap_err();
    assert!(
        matches!(&refused, Remote::Replaced(why) if why.contains("never used again")),
        "{refused:?}"
    );
    assert_eq!(ada.get("/api/v1/gateways/3").ok()["state"], "retired");
}

/// How long ago a gateway was heard, s.
fn age_s(office: &Office, gateway: GatewayId) -> f64 {
    let address = format!("http://{}/metrics", office.metrics);
    let page = office
        .runtime
        .block_on(async { reqwest::get(address).await.unwrap().text().await.unwrap() });
    let name = format!("linewarden_gateway_age_seconds{{gateway=\"{}\"}} ", gateway.0);
    let value = page.lines().find_map(|line| line.strip_prefix(&name));
    value.unwrap_or_else(|| panic!("{page}")).parse().unwrap()
}

/// What was told is as old as it is, however often who told it is heard.
#[test]
fn how_everything_stands_is_as_of_the_oldest_that_was_told() {
    let office = Office::new();
    let vera = office.caller("vera", Role::Viewer);
    let run = &office.runtime;
    let [lively, mute] = [3, 4].map(|id| office.link(GatewayId(id), &[]));
    let [of_lively, of_mute] = [&lively, &mute].map(|link| run.block_on(link.enter()).unwrap());
    let never = vera.get("/api/v1/gateways/4").ok();
    assert_eq!(
        (&never["state"], &never["devices"], &never["numbers_age_s"]),
        (&json!("connected"), &json!(null), &json!(null))
    );
    let tell = |link: &Client, fence| run.block_on(link.tell(fence, &Told::default())).unwrap();
    tell(&mute, of_mute);
    let until = std::time::Instant::now() + LONG;
    // How long ago, and how long ago the one gateway has told anything.
    let look = || {
        tell(&lively, of_lively);
        run.block_on(mute.changes(of_mute, Revision::ZERO)).unwrap();
        let status = vera.get("/api/v1/status").ok();
        assert_eq!(status["gateways"]["connected"], 2, "{status}");
        assert!(std::time::Instant::now() < until, "{status}");
        let at_s = |name: &str| status[name].as_u64().unwrap();
        at_s("now_s") - at_s("as_of_s")
    };
    while look() < 2 {}
    let shown = vera.get("/api/v1/gateways/4").ok();
    assert!(shown["numbers_age_s"].as_u64() >= Some(2), "{shown}");
    tell(&mute, of_mute);
    while look() >= 2 {}
}

#[test]
fn a_process_that_was_replaced_is_not_heard_and_carries_no_ticket() {
    let office = Office::new();
    let gateway = GatewayId(3);
    let [older, newer, unregistered] = [(); 3].map(|()| office.link(gateway, &[]));
    let run = &office.runtime;
    assert_eq!(
        (run.block_on(older.enter()), run.block_on(newer.enter())),
        (Ok(1), Ok(2))
    );
    let is_replaced = |answer: &Remote| matches!(answer, Remote::Replaced(_));
    let until = std::time::Instant::now() + LONG;
    // It asks and asks, and the newer one is silent.
    while age_s(&office, gateway) < 0.2 {
        let told = run.block_on(older.tell(1, &Told::default()));
        assert!(is_replaced(&told.unwrap_err()));
        assert!(std::time::Instant::now() < until, "{}", age_s(&office, gateway));
    }
    // Who is the gateway is heard, however long it takes to look.
    let before = age_s(&office, gateway);
    while age_s(&office, gateway) >= before {
        run.block_on(newer.tell(2, &Told::default())).unwrap();
        assert!(std::time::Instant::now() < until, "{}", age_s(&office, gateway));
    }

    let carry = |link: &Client| run.block_on(link.ticket(b"no ticket", &|_| None));
    assert!(is_replaced(&carry(&older).unwrap_err()));
    assert_eq!(carry(&newer), Ok(None), "met with silence");
    assert!(matches!(carry(&unregistered), Err(Remote::Failed(why)) if why.contains("registered")));
    let ada = office.caller("ada", Role::Admin);
    ada.post("/api/v1/gateways/3/retire", &json!({"reason": "sold"}))
        .ok();
    assert!(is_replaced(&carry(&newer).unwrap_err()));
}

/// Whatever a controller cannot do, another one may.
#[test]
fn a_controller_that_has_lost_its_database_is_left_for_the_next() {
    let server = match Postgres::start(PostgresOptions::default()) {
        Ok(server) => server,
        Err(missing) => {
            println!("SKIPPED: needs PostgreSQL: {missing}");
            return;
        }
    };
    let runtime = Arc::new(Runtime::new().unwrap());
    let location: Location = server.new_schema("fleet").unwrap().parse().unwrap();
    runtime.block_on(Registry::create(&location, &key())).unwrap();
    let open = || runtime.block_on(Registry::open(&location, &key())).unwrap();
    let ca = Arc::new(Ca::new());
    let a = Office::over(Arc::clone(&ca), Arc::clone(&runtime), open(), "ctl-a");
    let b = Office::over(ca, Arc::clone(&runtime), open(), "ctl-b");
    let device = DeviceId(0xd1);
    enrol(&b, device, 40);
    // It answers, and what it says of its database is none of the errors that pass.
    runtime.block_on(a.registry.clone().close());
    let refused = runtime.block_on(a.link(GatewayId(9), &[]).enter()).unwrap_err();
    assert!(matches!(refused, Remote::Failed(_)), "{refused:?}");
    let (gateway, address) = start(a.link(GatewayId(3), &[b.address]), GatewayId(3));
    let mut device = Device::new(device, Mode::Pool, address);
    assert_eq!(device.authenticate(LONG), Some(RowIndex(0)));
    drop(gateway);
}

/// Three gateways, two controllers, one database: whichever controller goes, rows go to one gateway each, and what is revoked is so
/// everywhere.
#[test]
fn two_controllers_are_as_good_as_one() {
    let server = match Postgres::start(PostgresOptions::default()) {
        Ok(server) => server,
        Err(missing) => {
            println!("SKIPPED: needs PostgreSQL: {missing}");
            return;
        }
    };
    let runtime = Arc::new(Runtime::new().unwrap());
    let location: Location = server.new_schema("fleet").unwrap().parse().unwrap();
    let open = || runtime.block_on(Registry::open(&location, &key())).unwrap();
    runtime.block_on(Registry::create(&location, &key())).unwrap();
    let ca = Arc::new(Ca::new());
    let mut a = Office::over(Arc::clone(&ca), Arc::clone(&runtime), open(), "ctl-a");
    let mut b = Office::over(ca, Arc::clone(&runtime), open(), "ctl-b");
    let ids: Vec<DeviceId> = (1..=6).map(DeviceId).collect();
    for id in &ids {
        enrol(&a, *id, 200);
    }
    let gateways: Vec<_> = [(3, &a, b.address), (4, &b, a.address), (5, &a, b.address)]
        .into_iter()
        .map(|(id, first, second)| start(first.link(GatewayId(id), &[second]), GatewayId(id)))
        .collect();
    let mut devices: Vec<Vec<Device>> = gateways
        .iter()
        .enumerate()
        .map(|(at, (_, address))| {
            let of = |id: &DeviceId| {
                let mut device = Device::new(*id, Mode::Pool, *address);
                device.nonce = u8::try_from(at).unwrap() * 60;
                device
            };
            ids.iter().map(of).collect()
        })
        .collect();
    let mut spent = std::collections::HashSet::new();
    let mut round = |devices: &mut Vec<Vec<Device>>| {
        for at_gateway in devices.iter_mut() {
            for device in at_gateway.iter_mut() {
                let id = device.device.config().device;
                let row = device
                    .authenticate(LONG)
                    .unwrap_or_else(|| panic!("{id} is refused"));
                assert!(spent.insert((id, row)), "{id} has spent {row} before");
            }
        }
    };
    for _ in 0..6 {
        round(&mut devices);
    }
    // One controller ends: whoever was with it goes on with the other.
    a.stop();
    for _ in 0..6 {
        round(&mut devices);
    }
    let otto = b.caller("otto", Role::Operator);
    otto.post("/api/v1/devices/2/revoke", &json!({"reason": "stolen"}))
        .ok();
    for (gateway, _) in &gateways {
        assert!(
            gateway.wait_until(LONG, |status| status.revoked == 1),
            "{:?}",
            gateway.status()
        );
    }
    // Nobody answers any more: what they hold goes on.
    drop(otto);
    b.stop();
    for (gateway, _) in &gateways {
        let is_lost = |status: &linewarden_gateway::Status| matches!(status.link, LinkState::Lost { .. });
        assert!(gateway.wait_until(LONG, is_lost), "{:?}", gateway.status());
    }
    for at_gateway in &mut devices {
        let row = at_gateway[0].authenticate(LONG);
        let row = row.expect("there are rows already");
        assert!(spent.insert((ids[0], row)), "{row} was spent before");
        assert_eq!(
            at_gateway[1].authenticate(Duration::from_millis(200)),
            None,
            "it is revoked"
        );
    }
    // Somebody answers again: more rows than they held, and what is revoked from now on.
    restart(&mut b);
    for (gateway, _) in &gateways {
        let is_back = |status: &linewarden_gateway::Status| status.link == LinkState::Reachable;
        assert!(gateway.wait_until(LONG, is_back), "{:?}", gateway.status());
    }
    for _ in 0..2 * LEASE_ROWS {
        for at_gateway in &mut devices {
            let row = at_gateway[0].authenticate(LONG);
            let row = row.expect("rows come back with who gives them");
            assert!(spent.insert((ids[0], row)), "{row} was spent before");
        }
    }
    let olga = b.caller("olga", Role::Operator);
    olga.post("/api/v1/devices/3/revoke", &json!({"reason": "stolen"}))
        .ok();
    for (gateway, _) in &gateways {
        assert!(
            gateway.wait_until(LONG, |status| status.revoked == 2),
            "{:?}",
            gateway.status()
        );
    }
}

/// Starts an office's controller anew where it was.
fn restart(office: &mut Office) {
    office.stop();
    let policy = Policy {
        lease_rows: LEASE_ROWS,
        mark_block: 4,
    };
    let started = office.runtime.block_on(Service::start(ServiceOptions {
        name: "ctl-again".to_owned(),
        listen: office.address,
        metrics: Some(office.metrics),
        tls: office.ca.server(),
        controller: Controller::new(office.registry.clone(), policy),
        registry: office.registry.clone(),
        nats: None,
        telemetry: None,
    }));
    office.service = Some(started.unwrap());
}
