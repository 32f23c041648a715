//! Gateways over gRPC: authentications, revocations, failover between controllers, and replaced gateways.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use linewarden_controller::{Controller, Policy};
use linewarden_dataplane::Config;
use linewarden_dataplane::host::{Host, HostOptions};
use linewarden_gateway::{Gateway, LinkState, Settings};
use linewarden_link::{Client, RemoteController};
use linewarden_protocol::ids::{DeviceId, GatewayId, Mode, RowIndex};
use linewarden_protocol::verdict::Verdict;
use linewarden_registry::{Location, Registry, Role};
use linewarden_service::{ApiOptions, Service, ServiceOptions};
use linewarden_types::{
    ControllerLink, LinkError, ListChanges, RelayTicket, ReportStatus, Revision, StatusReport, TicketResponse,
};
use serde_json::json;
use tokio::runtime::Runtime;

use crate::controller::{Ca, TestController, master_key};
use crate::servers::require_postgres;
use crate::site::{TIMEOUT, TestDevice as Device, config, pool, record};

/// Rows per lease of a gateway.
const LEASE_ROWS: u32 = 9;

pub fn start_gateway(link: Client, id: GatewayId) -> (Gateway, SocketAddr) {
    let config = Config {
        gateway_id: id,
        ..config()
    };
    let options = HostOptions {
        threads: 1,
        ..HostOptions::default()
    };
    let host = Host::start(&config, &options).unwrap();
    let controller = Arc::new(RemoteController::from(link));
    let gateway = Gateway::start(Box::new(host), controller, Settings::for_data_plane(&config)).unwrap();
    assert!(
        gateway.wait_until(TIMEOUT, |status| status.loaded),
        "{:?}",
        gateway.status()
    );
    (gateway, SocketAddr::new(config.local[0], config.lap_port))
}

pub fn enroll(controller: &TestController, device: DeviceId, rows: u32) {
    let record = record(device, pool(device, rows));
    controller
        .runtime
        .block_on(controller.registry.enroll(record))
        .unwrap();
}

#[test]
fn devices_authenticate_at_a_remote_gateway_until_their_revocation() {
    let controller = TestController::new();
    let otto = controller.caller("otto", Role::Operator);
    let (first, second) = (DeviceId(0xd1), DeviceId(0xd2));
    enroll(&controller, first, 40);
    enroll(&controller, second, 40);
    let (gateway, address) = start_gateway(controller.link(GatewayId(3), &[]), GatewayId(3));
    let mut devices = [first, second].map(|id| Device::new(id, Mode::Pool, address));
    for expected in 0..20 {
        for device in &mut devices {
            assert_eq!(device.authenticate(TIMEOUT), Some(RowIndex(expected)));
        }
    }
    otto.post("/api/v1/devices/d1/revoke", &json!({"reason": "stolen"}))
        .ok();
    assert!(gateway.wait_until(TIMEOUT, |status| status.revoked == 1));
    assert_eq!(devices[0].authenticate(Duration::from_millis(300)), None);
    assert_eq!(devices[1].authenticate(TIMEOUT), Some(RowIndex(20)));

    // The API and the metrics show the gateway's report.
    let deadline = std::time::Instant::now() + TIMEOUT;
    let gateway_detail = loop {
        let gateway_detail = otto.get("/api/v1/gateways/3").ok();
        let is_complete =
            gateway_detail["verdicts"]["reply_ack"].as_u64() >= Some(41) && gateway_detail["sessions"] == 1;
        if is_complete
            && gateway_detail["authentications_per_s"].is_number()
            && gateway_detail["latency_us"].is_object()
        {
            break gateway_detail;
        }
        assert!(std::time::Instant::now() < deadline, "{gateway_detail}");
    };
    assert_eq!(
        (&gateway_detail["state"], &gateway_detail["controller"]),
        (&json!("connected"), &json!("ctl-a"))
    );
    let latency = |quantile: &str| gateway_detail["latency_us"][quantile].as_f64().unwrap();
    assert!(
        0.0 < latency("p50") && latency("p50") <= latency("p99"),
        "{gateway_detail}"
    );
    let status = otto.get("/api/v1/status").ok();
    assert_eq!(status["gateways"]["connected"], 1, "{status}");
    assert_eq!(
        status["devices"]["authenticated"], 1,
        "a revoked device has no session: {status}"
    );
    assert!(status["authentications_per_s"].is_number(), "{status}");
    let metrics = format!("http://{}/metrics", controller.metrics);
    let page = controller
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
    assert_eq!(
        gateway_detail["kernel_drops"],
        json!({"dataplane": 0, "tickets": 0})
    );
    assert!(!page.contains("d1"), "a device id is a metric label");

    let outcome = gateway.stop().unwrap();
    assert!(outcome.unused_rows_reported);
    assert!(outcome.counters.get(Verdict::ReplyAck) >= 41);
    // A regular shutdown loses no rows.
    let (gateway, address) = start_gateway(controller.link(GatewayId(3), &[]), GatewayId(3));
    let mut device = Device::new(second, Mode::Pool, address);
    device.nonce = 100;
    assert_eq!(device.authenticate(TIMEOUT), Some(RowIndex(21)));
    drop(gateway);
}

#[test]
fn a_gateway_is_identified_by_its_certificate() {
    let controller = TestController::new();
    let register = |link: &Client| controller.runtime.block_on(link.register());
    assert_eq!(register(&controller.link(GatewayId(3), &[])), Ok(1));
    assert_eq!(
        register(&controller.link(GatewayId(4), &[])),
        Ok(1),
        "each gateway has its own sequence of fencing tokens"
    );
    for uri in [
        "urn:linewarden:user:alice",
        "https://example.org",
        "urn:linewarden:gateway:07",
    ] {
        let link = controller.link_with(&controller.ca.client(uri, |_| ()), &[]);
        let error = register(&link).unwrap_err();
        assert!(
            matches!(&error, LinkError::Failed(reason) if reason.contains("names no gateway")),
            "{error:?}"
        );
    }
    let foreign = Ca::new().client("urn:linewarden:gateway:3", |_| ());
    let error = register(&controller.link_with(&foreign, &[])).unwrap_err();
    assert!(matches!(error, LinkError::Failed(_)), "{error:?}");
    let expired = controller.ca.client("urn:linewarden:gateway:3", |parameters| {
        parameters.not_before = rcgen::date_time_ymd(2019, 1, 1);
        parameters.not_after = rcgen::date_time_ymd(2020, 1, 1);
    });
    let error = register(&controller.link_with(&expired, &[])).unwrap_err();
    assert!(matches!(error, LinkError::Failed(_)), "{error:?}");
}

#[test]
fn a_newer_process_replaces_a_gateway_and_a_revoked_gateway_cannot_register() {
    let controller = TestController::new();
    let ada = controller.caller("ada", Role::Admin);
    let device = DeviceId(0xd1);
    enroll(&controller, device, 40);
    let (first, _) = start_gateway(controller.link(GatewayId(3), &[]), GatewayId(3));
    let (second, _) = start_gateway(controller.link(GatewayId(3), &[]), GatewayId(3));
    assert!(
        first.wait_until(TIMEOUT, |status| status.replaced),
        "{:?}",
        first.status()
    );
    assert!(!second.status().replaced);
    ada.post("/api/v1/gateways/3/revoke", &json!({"reason": "sold"}))
        .ok();
    assert!(
        second.wait_until(TIMEOUT, |status| status.replaced),
        "{:?}",
        second.status()
    );
    let error = controller
        .runtime
        .block_on(controller.link(GatewayId(3), &[]).register())
        .unwrap_err();
    assert!(
        matches!(&error, LinkError::Replaced(reason) if reason.contains("never used again")),
        "{error:?}"
    );
    assert_eq!(ada.get("/api/v1/gateways/3").ok()["state"], "revoked");
}

/// Age of a gateway's latest message, in seconds.
fn age_s(controller: &TestController, gateway: GatewayId) -> f64 {
    let address = format!("http://{}/metrics", controller.metrics);
    let page = controller
        .runtime
        .block_on(async { reqwest::get(address).await.unwrap().text().await.unwrap() });
    let name = format!(
        "linewarden_gateway_last_seen_age_seconds{{gateway=\"{}\"}} ",
        gateway.0
    );
    let value = page.lines().find_map(|line| line.strip_prefix(&name));
    value.unwrap_or_else(|| panic!("{page}")).parse().unwrap()
}

/// The age of a value is the age of the report with the value. Later messages of the gateway do not change this age.
#[test]
fn the_status_is_as_old_as_its_oldest_report() {
    let controller = TestController::new();
    let vera = controller.caller("vera", Role::Viewer);
    let run = &controller.runtime;
    let [frequent_reporter, rare_reporter] = [3, 4].map(|id| controller.link(GatewayId(id), &[]));
    let [frequent_token, rare_token] =
        [&frequent_reporter, &rare_reporter].map(|link| run.block_on(link.register()).unwrap());
    let without_report = vera.get("/api/v1/gateways/4").ok();
    assert_eq!(
        (
            &without_report["state"],
            &without_report["devices"],
            &without_report["report_age_s"]
        ),
        (&json!("connected"), &json!(null), &json!(null))
    );
    let report = |link: &Client, fencing_token| {
        run.block_on(link.call(fencing_token, &ReportStatus(StatusReport::default())))
            .unwrap()
    };
    report(&rare_reporter, rare_token);
    let deadline = std::time::Instant::now() + TIMEOUT;
    // Sends a report of the first gateway and another message of the second gateway. Returns the age of the status, in
    // seconds.
    let report_age_s = || {
        report(&frequent_reporter, frequent_token);
        run.block_on(rare_reporter.call(
            rare_token,
            &ListChanges {
                since: Revision::ZERO,
            },
        ))
        .unwrap();
        let status = vera.get("/api/v1/status").ok();
        assert_eq!(status["gateways"]["connected"], 2, "{status}");
        assert!(std::time::Instant::now() < deadline, "{status}");
        let at_s = |name: &str| status[name].as_u64().unwrap();
        at_s("now_s") - at_s("as_of_s")
    };
    while report_age_s() < 2 {}
    let gateway_detail = vera.get("/api/v1/gateways/4").ok();
    assert!(
        gateway_detail["report_age_s"].as_u64() >= Some(2),
        "{gateway_detail}"
    );
    report(&rare_reporter, rare_token);
    while report_age_s() >= 2 {}
}

#[test]
fn a_replaced_gateway_process_is_refused() {
    let controller = TestController::new();
    let gateway = GatewayId(3);
    let [older, newer, unregistered] = [(); 3].map(|()| controller.link(gateway, &[]));
    let run = &controller.runtime;
    assert_eq!(
        (run.block_on(older.register()), run.block_on(newer.register())),
        (Ok(1), Ok(2))
    );
    let is_replaced = |response: &LinkError| matches!(response, LinkError::Replaced(_));
    let deadline = std::time::Instant::now() + TIMEOUT;
    // Only the older process sends requests. They do not count as messages of the gateway.
    while age_s(&controller, gateway) < 0.2 {
        let result = run.block_on(older.call(1, &ReportStatus(StatusReport::default())));
        assert!(is_replaced(&result.unwrap_err()));
        assert!(
            std::time::Instant::now() < deadline,
            "{}",
            age_s(&controller, gateway)
        );
    }
    // The controller serves the newer process, and its messages count. A slow look-up of the age can require repetitions.
    let age_before_s = age_s(&controller, gateway);
    while age_s(&controller, gateway) >= age_before_s {
        run.block_on(newer.call(2, &ReportStatus(StatusReport::default())))
            .unwrap();
        assert!(
            std::time::Instant::now() < deadline,
            "{}",
            age_s(&controller, gateway)
        );
    }

    let ticket = RelayTicket {
        message: b"no ticket".to_vec(),
        location: None,
    };
    let relay_ticket = |link: &Client, fencing_token| run.block_on(link.call(fencing_token, &ticket));
    assert!(is_replaced(&relay_ticket(&older, 1).unwrap_err()));
    assert_eq!(
        relay_ticket(&newer, 2),
        Ok(TicketResponse::None),
        "an invalid ticket receives no response"
    );
    let unregistered: &dyn ControllerLink = &RemoteController::from(unregistered);
    let result = run.block_on(unregistered.call(ticket.clone()));
    assert!(matches!(result, Err(LinkError::Failed(reason)) if reason.contains("registered")));
    let ada = controller.caller("ada", Role::Admin);
    ada.post("/api/v1/gateways/3/revoke", &json!({"reason": "sold"}))
        .ok();
    assert!(is_replaced(&relay_ticket(&newer, 2).unwrap_err()));
}

/// Another controller may be able to serve the request.
#[test]
fn a_gateway_switches_from_a_controller_without_a_database_to_another_controller() {
    let server = require_postgres();
    let runtime = Arc::new(Runtime::new().unwrap());
    let location: Location = server.new_schema("fleet").unwrap().parse().unwrap();
    runtime
        .block_on(Registry::create(&location, &master_key()))
        .unwrap();
    let open = || {
        runtime
            .block_on(Registry::open(&location, &master_key()))
            .unwrap()
    };
    let ca = Arc::new(Ca::new());
    let a = TestController::with_registry(Arc::clone(&ca), Arc::clone(&runtime), open(), "ctl-a");
    let b = TestController::with_registry(ca, Arc::clone(&runtime), open(), "ctl-b");
    let device = DeviceId(0xd1);
    enroll(&b, device, 40);
    // The first controller responds, and its database error is permanent.
    runtime.block_on(a.registry.clone().close());
    let error = runtime
        .block_on(a.link(GatewayId(9), &[]).register())
        .unwrap_err();
    assert!(matches!(error, LinkError::Failed(_)), "{error:?}");
    let (gateway, address) = start_gateway(a.link(GatewayId(3), &[b.address]), GatewayId(3));
    let mut device = Device::new(device, Mode::Pool, address);
    assert_eq!(device.authenticate(TIMEOUT), Some(RowIndex(0)));
    drop(gateway);
}

/// Three gateways, two controllers, one database. While controllers stop and restart, each row is spent at most one time, and
/// revocations take effect at all gateways.
#[test]
fn gateways_continue_while_one_or_both_controllers_are_stopped() {
    let server = require_postgres();
    let runtime = Arc::new(Runtime::new().unwrap());
    let location: Location = server.new_schema("fleet").unwrap().parse().unwrap();
    let open = || {
        runtime
            .block_on(Registry::open(&location, &master_key()))
            .unwrap()
    };
    runtime
        .block_on(Registry::create(&location, &master_key()))
        .unwrap();
    let ca = Arc::new(Ca::new());
    let mut a = TestController::with_registry(Arc::clone(&ca), Arc::clone(&runtime), open(), "ctl-a");
    let mut b = TestController::with_registry(ca, Arc::clone(&runtime), open(), "ctl-b");
    let ids: Vec<DeviceId> = (1..=6).map(DeviceId).collect();
    for id in &ids {
        enroll(&a, *id, 200);
    }
    let gateways: Vec<_> = [(3, &a, b.address), (4, &b, a.address), (5, &a, b.address)]
        .into_iter()
        .map(|(id, first, second)| start_gateway(first.link(GatewayId(id), &[second]), GatewayId(id)))
        .collect();
    let mut devices: Vec<Vec<Device>> = gateways
        .iter()
        .enumerate()
        .map(|(index, (_, address))| {
            let new_device = |id: &DeviceId| {
                let mut device = Device::new(*id, Mode::Pool, *address);
                device.nonce = u8::try_from(index).unwrap() * 60;
                device
            };
            ids.iter().map(new_device).collect()
        })
        .collect();
    let mut spent_rows = std::collections::HashSet::new();
    let mut authenticate_all = |devices: &mut Vec<Vec<Device>>| {
        for gateway_devices in devices.iter_mut() {
            for device in gateway_devices.iter_mut() {
                let id = device.device.config().device;
                let row = device
                    .authenticate(TIMEOUT)
                    .unwrap_or_else(|| panic!("{id} is refused"));
                assert!(spent_rows.insert((id, row)), "{id} has spent {row} before");
            }
        }
    };
    for _ in 0..6 {
        authenticate_all(&mut devices);
    }
    // One controller stops: its gateways continue with the other controller.
    a.stop();
    for _ in 0..6 {
        authenticate_all(&mut devices);
    }
    let otto = b.caller("otto", Role::Operator);
    otto.post("/api/v1/devices/2/revoke", &json!({"reason": "stolen"}))
        .ok();
    for (gateway, _) in &gateways {
        assert!(
            gateway.wait_until(TIMEOUT, |status| status.revoked == 1),
            "{:?}",
            gateway.status()
        );
    }
    // Both controllers are stopped: gateways continue with their rows.
    drop(otto);
    b.stop();
    for (gateway, _) in &gateways {
        let is_lost = |status: &linewarden_gateway::Status| matches!(status.link, LinkState::Lost { .. });
        assert!(gateway.wait_until(TIMEOUT, is_lost), "{:?}", gateway.status());
    }
    for gateway_devices in &mut devices {
        let row = gateway_devices[0].authenticate(TIMEOUT);
        let row = row.expect("the gateway has unspent rows");
        assert!(spent_rows.insert((ids[0], row)), "{row} was spent before");
        assert_eq!(
            gateway_devices[1].authenticate(Duration::from_millis(200)),
            None,
            "the device is revoked"
        );
    }
    // A controller is available again: gateways get new rows and revocations.
    restart(&mut b);
    for (gateway, _) in &gateways {
        let is_reachable = |status: &linewarden_gateway::Status| status.link == LinkState::Reachable;
        assert!(
            gateway.wait_until(TIMEOUT, is_reachable),
            "{:?}",
            gateway.status()
        );
    }
    for _ in 0..2 * LEASE_ROWS {
        for gateway_devices in &mut devices {
            let row = gateway_devices[0].authenticate(TIMEOUT);
            let row = row.expect("rows are leased again once a controller is available");
            assert!(spent_rows.insert((ids[0], row)), "{row} was spent before");
        }
    }
    let olga = b.caller("olga", Role::Operator);
    olga.post("/api/v1/devices/3/revoke", &json!({"reason": "stolen"}))
        .ok();
    for (gateway, _) in &gateways {
        assert!(
            gateway.wait_until(TIMEOUT, |status| status.revoked == 2),
            "{:?}",
            gateway.status()
        );
    }
}

/// Restarts the controller at the same addresses.
fn restart(controller: &mut TestController) {
    controller.stop();
    let policy = Policy {
        lease_rows: LEASE_ROWS,
        mark_block: 4,
    };
    let started = controller.runtime.block_on(Service::start(ServiceOptions {
        name: "ctl-again".to_owned(),
        api: Some(ApiOptions {
            listen: controller.address,
            tls: controller.ca.server(),
        }),
        socket: None,
        metrics: Some(controller.metrics),
        controller: Controller::new(controller.registry.clone(), policy),
        registry: controller.registry.clone(),
        nats: None,
        telemetry: None,
    }));
    controller.service = Some(started.unwrap());
}
