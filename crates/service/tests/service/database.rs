//! A slow, hanging or unavailable database: requests are refused in time with a reason, gateways continue with their
//! rows, and all recovers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use linewarden_gateway::Gateway;
use linewarden_protocol::ids::{DeviceId, GatewayId, Mode, RowIndex};
use linewarden_registry::{Location, Registry, Role};
use linewarden_testbed::{Postgres, PostgresOptions};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::controller::{ApiClient, Ca, TestController, key};
use crate::gateways::{enroll, start};
use crate::site::{LONG, TestDevice as Device};

/// Concurrent requests: far more than database connections.
const AT_ONCE: usize = 40;

fn server() -> Option<Postgres> {
    Postgres::start(PostgresOptions::default())
        .inspect_err(|missing| println!("SKIPPED: needs PostgreSQL: {missing}"))
        .ok()
}

fn controller(server: &Postgres) -> TestController {
    let runtime = Arc::new(Runtime::new().unwrap());
    let location: Location = server.new_schema("fleet").unwrap().parse().unwrap();
    let registry = runtime.block_on(Registry::create(&location, &key())).unwrap();
    TestController::on_location(Arc::new(Ca::new()), runtime, registry, "ctl-a")
}

/// A session that locks all tables until it is dropped.
struct TableLocks<'s> {
    server: &'s Postgres,
    session: Option<JoinHandle<()>>,
}

impl<'s> TableLocks<'s> {
    fn new(server: &'s Postgres) -> Self {
        let tables = server
            .psql(
                "SELECT string_agg(format('%I.%I', schemaname, tablename), ', ') FROM pg_tables \
                 WHERE schemaname = 'fleet'",
            )
            .unwrap();
        let statements = format!(
            "BEGIN; LOCK TABLE {} IN ACCESS EXCLUSIVE MODE; SET application_name = 'holder'; SELECT pg_sleep(600)",
            tables.trim()
        );
        let until = Instant::now() + LONG;
        let begin = || {
            let (statements, other) = (statements.clone(), Postgres::attach(server.directory()));
            // The session always ends with an error.
            thread::spawn(move || drop(other.psql(&statements)))
        };
        let mut session = begin();
        while server.psql(&format!("SELECT count(*) {HOLDER}")).unwrap().trim() != "1" {
            assert!(Instant::now() < until, "the tables cannot be locked");
            // The server ended this session because of a deadlock with the controller.
            if session.is_finished() {
                session = begin();
            }
        }
        Self {
            server,
            session: Some(session),
        }
    }
}

const HOLDER: &str = "FROM pg_stat_activity WHERE application_name = 'holder'";

impl Drop for TableLocks<'_> {
    fn drop(&mut self) {
        self.server
            .psql(&format!("SELECT pg_terminate_backend(pid) {HOLDER}"))
            .unwrap();
        self.session.take().unwrap().join().unwrap();
    }
}

/// The status of a path at the metrics address.
fn health(controller: &TestController, path: &str) -> u16 {
    let address = format!("http://{}{path}", controller.metrics);
    let status_request = async { reqwest::get(address).await.unwrap().status().as_u16() };
    controller.runtime.block_on(status_request)
}

#[track_caller]
fn until(description: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + LONG;
    while !condition() {
        assert!(Instant::now() < until, "not within {LONG:?}: {description}");
    }
}

/// Asserts that all requests are refused and that health checks report the cause.
fn expect_refused(otto: &ApiClient<'_>) {
    let controller = otto.controller;
    let mut requests = JoinSet::new();
    for _ in 0..AT_ONCE {
        let request = otto.request(Method::GET, "/api/v1/devices");
        requests.spawn_on(async { request.send().await }, controller.runtime.handle());
    }
    let responses = controller.runtime.block_on(requests.join_all());
    for response in responses {
        let response = response.unwrap();
        assert_eq!(response.status().as_u16(), 503, "{response:?}");
        assert_eq!(response.headers()["retry-after"], "1");
        let text = controller.runtime.block_on(response.text()).unwrap();
        let body: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(body["error"]["code"], "unavailable", "{text}");
        let message = body["error"]["message"].as_str().unwrap();
        assert!(
            message.contains("registry") || message.contains("database"),
            "the message does not name the database: {message}"
        );
    }
    let revocation = json!({"reason": "stolen"});
    otto.post("/api/v1/devices/ff/revoke", &revocation)
        .refused(503, "unavailable");
    // The cached state may still be reported.
    until("the controller is not ready", || {
        health(controller, "/readyz") == 503
    });
    assert_eq!(health(controller, "/healthz"), 200);
}

/// Waits until requests are served and the controller is ready.
fn expect_healthy(otto: &ApiClient<'_>) {
    until("requests are served", || {
        otto.get("/api/v1/devices").status == 200
    });
    until("the controller is ready", || {
        health(otto.controller, "/readyz") == 200
    });
}

/// A gateway, and devices that have authenticated once: the gateway has some rows left and needs no registry for them.
struct SiteWithDatabase {
    gateway: Gateway,
    devices: Vec<Device>,
}

impl SiteWithDatabase {
    fn new(controller: &TestController, devices: u64) -> Self {
        let ids = (1..=devices).map(DeviceId);
        ids.clone().for_each(|id| enroll(controller, id, 60));
        let (gateway, address): (Gateway, SocketAddr) =
            start(controller.link(GatewayId(3), &[]), GatewayId(3));
        let device = |id| {
            let mut device = Device::new(id, Mode::Pool, address);
            assert_eq!(device.authenticate(LONG), Some(RowIndex(0)));
            device
        };
        Self {
            gateway,
            devices: ids.map(device).collect(),
        }
    }

    /// Asserts that a device that was idle so far authenticates.
    fn expect_forwarding(&mut self) {
        let mut device = self.devices.pop().unwrap();
        for row in 1..=2 {
            assert_eq!(device.authenticate(LONG), Some(RowIndex(row)));
        }
    }
}

#[test]
fn requests_are_refused_in_time_and_gateways_continue_without_the_database() {
    let Some(mut server) = server() else { return };
    let controller = controller(&server);
    let otto = controller.caller("otto", Role::Operator);
    let mut site = SiteWithDatabase::new(&controller, 5);
    let revoked = |gateway: &Gateway, id: &str, count: u64| {
        otto.post(
            &format!("/api/v1/devices/{id}/revoke"),
            &json!({"reason": "stolen"}),
        )
        .ok();
        assert!(
            gateway.wait_until(LONG, |status| status.revoked == count),
            "{:?}",
            gateway.status()
        );
    };

    // The database is slow: each table access waits for a lock.
    let locks = TableLocks::new(&server);
    site.expect_forwarding();
    expect_refused(&otto);
    drop(locks);
    expect_healthy(&otto);
    revoked(&site.gateway, "1", 1);

    // The database hangs: connections exist, but nothing is received.
    let paused = server.pause().unwrap();
    site.expect_forwarding();
    expect_refused(&otto);
    drop(paused);
    expect_healthy(&otto);
    revoked(&site.gateway, "2", 2);

    // The database is unavailable.
    server.stop();
    site.expect_forwarding();
    expect_refused(&otto);
    server.restart().unwrap();
    expect_healthy(&otto);
    drop(site);
    let problems = controller.runtime.block_on(controller.registry.check()).unwrap();
    assert!(problems.is_empty(), "{problems:?}");
}

/// No timeout of the server ends requests that were sent before it hung.
#[test]
fn a_database_that_hangs_during_a_request_times_out() {
    let Some(server) = server() else { return };
    let controller = controller(&server);
    let otto = controller.caller("otto", Role::Operator);
    let locks = TableLocks::new(&server);
    let request = otto.request(Method::GET, "/api/v1/devices");
    let request = controller.runtime.spawn(async { request.send().await });
    let probe = reqwest::get(format!("http://{}/readyz", controller.metrics));
    let probe = controller.runtime.spawn(probe);
    // This is the first statement of both requests.
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'SELECT moved_to%FROM registry%'";
    until("both requests wait", || {
        server.psql(waiting).unwrap().trim() == "2"
    });
    let paused = server.pause().unwrap();
    let responses = async { (request.await.unwrap().unwrap(), probe.await.unwrap().unwrap()) };
    let (request, probe) = controller.runtime.block_on(responses);
    assert_eq!((request.status().as_u16(), probe.status().as_u16()), (503, 503));
    drop(paused);
    drop(locks);
    expect_healthy(&otto);
}
